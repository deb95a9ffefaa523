"""Settings of the node: the model of node.toml and the checks that span several keys.

The node's own file says who the node is, whom it dials and what may run here. What should run comes from the edge.
Units are in the names. Every number says where it came from; "chosen" means: change freely.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import Field

from iop_node.adapters.registry import MODULES
from iop_node.core.allow import AllowList, check_pattern, is_file_pattern
from iop_node.core.execution import ExecutionLimits
from iop_node.core.node import NodeLimits
from iop_node.store.sqlite import Retention
from iop_shared.config_file import Listen, Section, load_settings
from iop_shared.errors import BadRequest, InvalidConfig, InvalidName, nearest
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import NodeId, check_name
from iop_shared.link.auth import Token, parse_token
from iop_shared.private_files import read_secret

CONFIG_FILE: Final = "node.toml"
TOKEN_FILE: Final = "token"
DATABASE_FILE: Final = "node.db"
LOCK_FILE: Final = "node.lock"
RUN_FILE: Final = "run.json"
_MIB: Final = 1024 * 1024
MAX_LABELS: Final = 32
MAX_LABEL_BYTES: Final = 128
"""Labels travel in the Hello, whose frame has at most 16 KiB."""


class AllowSection(Section):
    """What may run here, whatever an edge pushes."""

    adapters: list[str] = Field(default_factory=lambda: ["mock", "vllm"])
    base_urls: list[str] = Field(default_factory=lambda: ["http://127.0.0.1:*", "http://localhost:*"])
    files: list[str] = Field(default_factory=list)


class HttpSection(Section):
    """Where /healthz and /metrics are served. Beyond this machine they tell names of adapters, nothing secret."""

    listen: Listen = ListenAddress("127.0.0.1", 7481)
    enabled: bool = True


class LimitsSection(Section):
    """Bounds of this node. Times in seconds."""

    max_runs: int = Field(default=256, ge=1, le=65536)  # chosen; each adapter has its own bound too
    cancel_grace_s: float = Field(default=5.0, gt=0, le=600)
    drain_timeout_s: float = Field(default=30.0, ge=0, le=86_400)
    max_input_bytes: int = Field(default=32 * _MIB, ge=1, le=1024 * _MIB)
    max_output_bytes: int = Field(default=64 * _MIB, ge=1)
    probe_interval_s: float = Field(default=10.0, ge=0.1, le=3600)
    probe_timeout_s: float = Field(default=5.0, gt=0, le=600)


class HistorySection(Section):
    """How long the journal keeps ended runs: the stricter of both rules holds."""

    retain_days: float = Field(default=30.0, gt=0)
    retain_runs: int = Field(default=100_000, ge=1)


class NodeSettings(Section):
    """The whole of node.toml."""

    node_id: str
    edges: list[Listen]
    labels: dict[str, str] = Field(default_factory=dict)
    allow_plaintext: bool = False
    allow: AllowSection = AllowSection()
    http: HttpSection = HttpSection()
    limits: LimitsSection = LimitsSection()
    history: HistorySection = HistorySection()

    @property
    def name(self) -> NodeId:
        """The node's id."""
        return NodeId(self.node_id)

    @property
    def edge(self) -> ListenAddress:
        """The edge to dial."""
        return self.edges[0]

    def allow_list(self) -> AllowList:
        """Returns what the core checks pushed configurations against."""
        return AllowList(tuple(self.allow.adapters), tuple(self.allow.base_urls), tuple(self.allow.files))

    def node_limits(self) -> NodeLimits:
        """Returns the bounds of the core."""
        limits = self.limits
        return NodeLimits(
            max_runs=limits.max_runs,
            execution=ExecutionLimits(
                cancel_grace_s=limits.cancel_grace_s, max_output_bytes=limits.max_output_bytes
            ),
            probe_interval_s=limits.probe_interval_s,
            probe_timeout_s=limits.probe_timeout_s,
        )

    def retention(self) -> Retention:
        """Returns what the journal keeps."""
        return Retention(days=self.history.retain_days, runs=self.history.retain_runs)


def load_node_settings(path: Path, environ: Mapping[str, str] | None = None) -> NodeSettings:
    """Returns the settings in `path`, those of `IOP_NODE__...` variables over them.

    Raises:
        InvalidConfig: with one sentence per problem, all of them.
    """
    settings = load_settings(NodeSettings, path, env_prefix="IOP_NODE", environ=environ)
    problems = find_problems(settings)
    if problems:
        raise InvalidConfig(str(path), problems)
    return settings


def load_node_token(path: Path) -> Token:
    """Returns the token in the file that `iop-node join` wrote.

    Raises:
        InvalidConfig: there is none, others may read it, or it is no token. Never shows what is in it.
    """
    if not path.exists():
        raise InvalidConfig(str(path), ["there is no such file; make it with: iop-node join EDGE --token TOKEN"])
    secret = read_secret(path)
    try:
        return parse_token(secret)
    except BadRequest as error:
        raise InvalidConfig(str(path), [str(error)]) from None


def find_problems(settings: NodeSettings) -> list[str]:
    """Returns a sentence for everything that is wrong between keys; empty if nothing is."""
    return [
        *_name_problems(settings),
        *edge_problems(settings.edges, allow_plaintext=settings.allow_plaintext),
        *_label_problems(settings.labels),
        *_adapter_type_problems(settings.allow.adapters),
        *_pattern_problems(settings.allow.base_urls),
        *_file_problems(settings.allow.files),
    ]


def edge_problems(edges: list[ListenAddress], *, allow_plaintext: bool) -> list[str]:
    """Returns what stands against dialling `edges`."""
    if not edges:
        return ['edges is empty: name the edge to dial, for example edges = ["127.0.0.1:7443"]']
    problems = []
    if len(edges) > 1:
        shown = ", ".join(f'"{edge}"' for edge in edges)
        problems.append(
            f"edges = [{shown}] names {len(edges)} edges, and a node holds a link to one only in this version: "
            "keep one, or run a node (with a folder and a token of its own) for each"
        )
    for edge in edges:
        if edge.port == 0:
            problems.append(
                f'edges has "{edge}": port 0 cannot be dialled; use the port of [link] listen in edge.toml'
            )
        if not edge.is_loopback and not allow_plaintext:
            problems.append(
                f'edges has "{edge}", which is on another machine, and links are not encrypted yet: set '
                "allow_plaintext = true if the network in between is trusted (a VPN, for example)"
            )
    return problems


def _name_problems(settings: NodeSettings) -> list[str]:
    try:
        check_name("node", settings.node_id)
    except InvalidName as error:
        return [f"node_id: {error}"]
    return []


def _label_problems(labels: Mapping[str, str]) -> list[str]:
    problems = []
    if len(labels) > MAX_LABELS:
        problems.append(f"labels has {len(labels)} entries; use at most {MAX_LABELS}")
    for key, value in labels.items():
        for text in (key, value):
            size = len(text.encode())
            if size > MAX_LABEL_BYTES or not text.isprintable():
                problems.append(
                    f"labels has {text[:40]!r} ({size} bytes): use at most {MAX_LABEL_BYTES} bytes, all printable"
                )
    return problems


def _adapter_type_problems(types: list[str]) -> list[str]:
    return [
        f"[allow] adapters: {one!r} is no type of adapter that this node knows: {nearest(one, list(MODULES))}"
        for one in types
        if one not in MODULES
    ]


def _pattern_problems(patterns: list[str]) -> list[str]:
    problems = []
    for pattern in patterns:
        try:
            check_pattern(pattern)
        except ValueError as error:
            problems.append(f"[allow] base_urls: {error}")
    return problems


def _file_problems(patterns: list[str]) -> list[str]:
    return [
        f"[allow] files: {pattern!r} is not a file that can be allowed: use an absolute path, "
        'or a folder\'s with /* behind it, for example "/etc/iop/keys/*"'
        for pattern in patterns
        if not is_file_pattern(pattern)
    ]
