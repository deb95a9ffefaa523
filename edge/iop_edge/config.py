"""Settings of the edge: the model of edge.toml, the checks that span several keys, and what follows from it.

Units are in the names. Every number says where it came from; "chosen" means: change freely.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, Field

from iop_edge.domain.catalog import Profile
from iop_shared.config_file import Listen, Section, load_settings
from iop_shared.errors import InvalidConfig, InvalidName, nearest
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import AdapterName, NodeId, ProfileName, check_name, check_target
from iop_shared.link.messages import AdapterConfig
from iop_shared.runs import RunLimits

CONFIG_FILE: Final = "edge.toml"
DATABASE_FILE: Final = "edge.db"
RUN_FILE: Final = "run.json"
LOCK_FILE: Final = "edge.lock"
_MIB: Final = 1024 * 1024


class LinkSection(Section):
    """Where nodes dial in."""

    listen: Listen = ListenAddress("127.0.0.1", 7443)
    allow_plaintext: bool = False
    max_handshakes: int = Field(default=256, ge=1, le=65536)  # chosen; sockets that are not authenticated yet


class HttpSection(Section):
    """Where clients speak HTTP."""

    listen: Listen = ListenAddress("127.0.0.1", 7480)
    allow_remote: bool = False


class LimitsSection(Section):
    """Bounds. Times in seconds."""

    max_live_runs: int = Field(default=10_000, ge=1)  # chosen; twice the 5,000 streams that are to be held at once
    max_queued: int = Field(default=256, ge=0)
    queue_timeout_s: float = Field(default=30.0, gt=0)
    max_input_bytes: int = Field(default=32 * _MIB, ge=1)
    heartbeat_interval_s: float = Field(default=15.0, gt=0)
    dead_after_s: float = Field(default=40.0, gt=0)  # both sides know within 45 s
    disconnect_grace_s: float = Field(default=60.0, ge=0)
    accept_timeout_s: float = Field(default=60.0, gt=0)
    cancel_settle_s: float = Field(default=60.0, gt=0)
    stream_buffer_bytes: int = Field(default=8 * _MIB, ge=1)
    kept_run_bytes: int = Field(default=1 * _MIB, ge=0)
    kept_total_bytes: int = Field(default=64 * _MIB, ge=0)
    kept_after_end_s: float = Field(default=300.0, ge=0)


class HistorySection(Section):
    """How long records of runs are kept: the stricter of both rules holds."""

    retain_days: float = Field(default=30.0, gt=0)
    retain_runs: int = Field(default=100_000, ge=1)


class AdapterSection(Section):
    """One adapter. Every key but these two is a setting that its type understands."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    type: str
    max_concurrent: int = Field(default=4, ge=1, le=65536)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The keys beside `type` and `max_concurrent`."""
        return self.model_extra or {}


class NodeSection(Section):
    """One node. Without `adapters` it gets all of them."""

    labels: dict[str, str] = Field(default_factory=dict)
    adapters: list[str] | None = None


class RunLimitsSection(Section):
    """Limits of one run; 0: the adapter's default."""

    first_byte_timeout_s: float = Field(default=0.0, ge=0)
    idle_timeout_s: float = Field(default=0.0, ge=0)
    total_timeout_s: float = Field(default=0.0, ge=0)
    max_output_bytes: int = Field(default=0, ge=0)


class ProfileSection(Section):
    """What an API client calls `model`."""

    version: int = Field(default=1, ge=1)
    adapter: str
    target: str
    options: dict[str, Any] = Field(default_factory=dict)
    limits: RunLimitsSection = RunLimitsSection()
    nodes: dict[str, str] = Field(default_factory=dict)


class EdgeSettings(Section):
    """The whole of edge.toml."""

    edge_id: str = "edge"
    link: LinkSection = LinkSection()
    http: HttpSection = HttpSection()
    limits: LimitsSection = LimitsSection()
    history: HistorySection = HistorySection()
    adapters: dict[str, AdapterSection] = Field(default_factory=dict)
    nodes: dict[str, NodeSection] = Field(default_factory=dict)
    profiles: dict[str, ProfileSection] = Field(default_factory=dict)

    def adapters_of(self, node_id: NodeId) -> tuple[AdapterConfig, ...]:
        """Returns what a node should run. A node that is not listed, or lists no adapters, gets all."""
        node = self.nodes.get(node_id)
        wanted = sorted(self.adapters) if node is None or node.adapters is None else sorted(set(node.adapters))
        return tuple(
            AdapterConfig(
                AdapterName(name),
                self.adapters[name].type,
                self.adapters[name].max_concurrent,
                self.adapters[name].settings,
            )
            for name in wanted
        )

    def profile_values(self) -> tuple[Profile, ...]:
        """Returns the profiles as the catalog takes them."""
        return tuple(
            Profile(
                name=ProfileName(name),
                adapter=AdapterName(section.adapter),
                target=check_target(section.target),
                version=section.version,
                options=section.options,
                limits=RunLimits(**section.limits.model_dump()),
                node_labels=section.nodes,
            )
            for name, section in self.profiles.items()
        )


def load_edge_settings(path: Path, environ: Mapping[str, str] | None = None) -> EdgeSettings:
    """Returns the settings in `path`, those of `IOP_EDGE__...` variables over them.

    Raises:
        InvalidConfig: with one sentence per problem, all of them.
    """
    settings = load_settings(EdgeSettings, path, env_prefix="IOP_EDGE", environ=environ)
    problems = find_problems(settings)
    if problems:
        raise InvalidConfig(str(path), problems)
    return settings


def find_problems(settings: EdgeSettings) -> list[str]:
    """Returns a sentence for everything that is wrong between keys; empty if nothing is."""
    return [
        *_listen_problems(settings),
        *_limit_problems(settings.limits),
        *_name_problems(settings),
        *_reference_problems(settings),
    ]


def _listen_problems(settings: EdgeSettings) -> list[str]:
    problems = []
    if not settings.link.listen.is_loopback and not settings.link.allow_plaintext:
        problems.append(
            f'[link] listen = "{settings.link.listen}" can be reached from other machines, and links are not '
            "encrypted yet: set [link] allow_plaintext = true if the network in between is trusted "
            '(a VPN, for example), or listen on "127.0.0.1:7443" only'
        )
    if not settings.http.listen.is_loopback and not settings.http.allow_remote:
        problems.append(
            f'[http] listen = "{settings.http.listen}" can be reached from other machines, and there are no '
            "API keys yet: set [http] allow_remote = true if everybody who can reach it may use it, "
            'or listen on "127.0.0.1:7480" only'
        )
    return problems


def _limit_problems(limits: LimitsSection) -> list[str]:
    # Two heartbeats must fit, or one that is late ends a link that is well.
    if limits.dead_after_s < 2 * limits.heartbeat_interval_s:
        return [
            f"[limits] dead_after_s = {limits.dead_after_s:g} is less than twice heartbeat_interval_s = "
            f"{limits.heartbeat_interval_s:g}: use at least {2 * limits.heartbeat_interval_s:g}"
        ]
    return []


def _name_problems(settings: EdgeSettings) -> list[str]:
    problems = []
    named = [("edge_id", settings.edge_id)]
    named += [("adapter", name) for name in settings.adapters]
    named += [("node", name) for name in settings.nodes]
    named += [("profile", name) for name in settings.profiles]
    for kind, name in named:
        try:
            check_name(kind, name)
        except InvalidName as error:
            problems.append(str(error))
    for name, profile in settings.profiles.items():
        try:
            check_target(profile.target)
        except InvalidName as error:
            problems.append(f"[profiles.{name}] {error}")
    return problems


def _reference_problems(settings: EdgeSettings) -> list[str]:
    known = sorted(settings.adapters)
    problems = [
        f"[profiles.{name}] adapter = {profile.adapter!r} is no adapter of this file: "
        f"{_nearest_adapter(profile.adapter, known)}"
        for name, profile in settings.profiles.items()
        if profile.adapter not in settings.adapters
    ]
    for name, node in settings.nodes.items():
        problems += [
            f"[nodes.{name}] adapters has {adapter!r}, which is no adapter of this file: "
            f"{_nearest_adapter(adapter, known)}"
            for adapter in node.adapters or ()
            if adapter not in settings.adapters
        ]
    return problems


def _nearest_adapter(name: str, known: Sequence[str]) -> str:
    return nearest(name, list(known)) if known else f"add a table [adapters.{name}]"
