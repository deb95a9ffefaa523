"""The registry: every node this edge knows, reached by (node_id, epoch). Pure.

             admit                     lost / goodbye
    (known) -------> connected <----> draining -----> lost -------> connected (a higher epoch)

What a link says under an epoch that is not the node's current one changes nothing and is counted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from iop_edge.domain.effects import LinkKey
from iop_edge.domain.routing import Candidate
from iop_edge.domain.views import NodeView
from iop_shared.errors import UnknownName
from iop_shared.ids import AdapterName, BootId, Epoch, NodeId
from iop_shared.link.messages import (
    AdapterStatus,
    CapabilitiesChanged,
    ConfigResult,
    DrainingChanged,
    GateChanged,
    NodeConfigPayload,
)

NO_CONFIG: Final = NodeConfigPayload(0, "", ())


class ConfigState(StrEnum):
    """What a node has said of the configuration that it should run."""

    PENDING = "pending"
    APPLIED = "applied"
    REJECTED = "rejected"


class Newcomer(StrEnum):
    """What becomes of a link that asks for a node's name."""

    WELCOME = "welcome"
    REPLACES = "replaces"  # the old link of that name is to be closed
    DUPLICATE = "duplicate"  # refused: another process of that name is alive


@dataclass(slots=True)
class NodeEntry:
    """One node. Read it; only the registry changes it."""

    node_id: NodeId
    own_labels: Mapping[str, str] = field(default_factory=dict)
    config_labels: Mapping[str, str] = field(default_factory=dict)
    epoch: Epoch = Epoch(0)
    boot_id: BootId = BootId("")
    is_connected: bool = False
    is_draining: bool = False
    software_version: str = ""
    address: str = ""
    connected_at_ms: int = 0
    wanted: NodeConfigPayload = NO_CONFIG
    config_state: ConfigState = ConfigState.PENDING
    config_reasons: tuple[str, ...] = ()
    adapters: Mapping[AdapterName, AdapterStatus] = field(default_factory=dict)

    @property
    def key(self) -> LinkKey:
        """The node with its current epoch."""
        return LinkKey(self.node_id, self.epoch)

    @property
    def labels(self) -> Mapping[str, str]:
        """The node's own labels under those of the edge's configuration."""
        return {**self.own_labels, **self.config_labels}

    @property
    def state(self) -> str:
        """connected, draining, lost or rejected_config."""
        if not self.is_connected:
            return "lost"
        if self.config_state is ConfigState.REJECTED:
            return "rejected_config"
        return "draining" if self.is_draining else "connected"


class NodeRegistry:
    """All nodes by id. `stale_frames`: how many messages of an old epoch were dropped."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, NodeEntry] = {}
        self._candidates: dict[NodeId, Candidate] = {}
        self.stale_frames = 0

    def __iter__(self) -> Iterator[NodeEntry]:
        return iter(sorted(self._nodes.values(), key=lambda entry: entry.node_id))

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self._nodes

    def get(self, node_id: NodeId) -> NodeEntry:
        """Returns a node.

        Raises:
            UnknownName: with the nearest known ids.
        """
        entry = self._nodes.get(node_id)
        if entry is None:
            raise UnknownName("node", node_id, sorted(self._nodes), param="node")
        return entry

    def declare(self, node_id: NodeId, labels: Mapping[str, str]) -> None:
        """Makes a node of the configuration known before it has ever connected."""
        self._entry(node_id).config_labels = dict(labels)
        self._refresh(node_id)

    def judge(
        self, node_id: NodeId, boot_id: BootId, heard_ago_s: float | None, silent_after_s: float
    ) -> Newcomer:
        """Says whether a newcomer may have the name.

        `heard_ago_s`: how long ago the present link of that name heard something; None: no such link stands,
        or it is closing. The same process replaces its own old link at once; another process only one that
        has been silent for `silent_after_s`.
        """
        entry = self._nodes.get(node_id)
        if entry is None or not entry.is_connected or heard_ago_s is None:
            return Newcomer.WELCOME
        if entry.boot_id == boot_id or heard_ago_s > silent_after_s:
            return Newcomer.REPLACES
        return Newcomer.DUPLICATE

    def connect(
        self,
        key: LinkKey,
        *,
        boot_id: BootId,
        software_version: str,
        address: str,
        labels: Mapping[str, str],
        wanted: NodeConfigPayload,
        at_ms: int,
    ) -> bool:
        """Gives the name to a link. Returns whether the same process had it before."""
        entry = self._entry(key.node_id)
        assert key.epoch > entry.epoch, f"epoch {key.epoch} of {key.node_id} does not grow"
        same_boot = entry.boot_id == boot_id
        entry.epoch, entry.boot_id = key.epoch, boot_id
        entry.is_connected, entry.is_draining = True, False
        entry.software_version, entry.address = software_version, address
        entry.own_labels, entry.connected_at_ms = dict(labels), at_ms
        entry.wanted, entry.config_state, entry.config_reasons = wanted, ConfigState.PENDING, ()
        entry.adapters = {}  # told afresh by each link
        self._refresh(key.node_id)
        return same_boot

    def disconnect(self, key: LinkKey) -> bool:
        """Takes the name from a link. Returns False when it did not have it any more."""
        if not self.is_current(key):
            return False
        self._nodes[key.node_id].is_connected = False
        self._refresh(key.node_id)
        return True

    def is_current(self, key: LinkKey) -> bool:
        """Whether `key` is the node's present link; counts it as stale otherwise."""
        entry = self._nodes.get(key.node_id)
        if entry is not None and entry.is_connected and entry.epoch == key.epoch:
            return True
        self.stale_frames += 1
        return False

    def want(self, node_id: NodeId, wanted: NodeConfigPayload) -> None:
        """Changes what a node should run; it counts as pending until the node answers."""
        entry = self._entry(node_id)
        entry.wanted, entry.config_state, entry.config_reasons = wanted, ConfigState.PENDING, ()
        self._refresh(node_id)

    def take_config_result(self, key: LinkKey, result: ConfigResult) -> bool:
        """Takes a node's answer. Returns False when it is about another configuration than the wanted one."""
        entry = self._nodes[key.node_id]
        if (result.revision, result.hash) != (entry.wanted.revision, entry.wanted.hash):
            return False
        entry.config_state = ConfigState.APPLIED if result.applied else ConfigState.REJECTED
        entry.config_reasons = result.reasons
        self._refresh(key.node_id)
        return True

    def take_capabilities(self, key: LinkKey, body: CapabilitiesChanged) -> None:
        """Takes all adapters of a node as they are now."""
        self._nodes[key.node_id].adapters = {status.name: status for status in body.adapters}
        self._refresh(key.node_id)

    def take_gate(self, key: LinkKey, body: GateChanged) -> bool:
        """Moves one adapter's gate. Returns False for an adapter that the node has not told of."""
        entry = self._nodes[key.node_id]
        status = entry.adapters.get(body.adapter)
        if status is None:
            return False
        entry.adapters = {**entry.adapters, body.adapter: replace(status, gate=body.gate)}
        self._refresh(key.node_id)
        return True

    def take_draining(self, key: LinkKey, body: DrainingChanged) -> bool:
        """Takes that a node stopped or resumed taking runs; returns whether that is new (GoAway says it too)."""
        entry = self._nodes[key.node_id]
        if entry.is_draining is body.draining:
            return False
        entry.is_draining = body.draining
        self._refresh(key.node_id)
        return True

    def candidates(self) -> list[Candidate]:
        """Returns every node as routing sees it."""
        return list(self._candidates.values())

    def view(
        self,
        node_id: NodeId,
        *,
        in_flight: Mapping[AdapterName, int],
        last_heard_s: float | None,
        round_trip_s: float | None,
    ) -> NodeView:
        """Returns a node as surfaces show it.

        Raises:
            UnknownName: no such node.
        """
        entry = self.get(node_id)
        return NodeView(
            node_id=entry.node_id,
            state=entry.state,
            epoch=entry.epoch,
            boot_id=entry.boot_id,
            software_version=entry.software_version,
            address=entry.address,
            labels=entry.labels,
            connected_at_ms=entry.connected_at_ms,
            last_heard_s=last_heard_s,
            config_revision=entry.wanted.revision,
            config_state=entry.config_state.value,
            config_reasons=entry.config_reasons,
            adapters=tuple(entry.adapters.values()),
            in_flight=in_flight,
            round_trip_s=round_trip_s,
        )

    def _entry(self, node_id: NodeId) -> NodeEntry:
        return self._nodes.setdefault(node_id, NodeEntry(node_id))

    def _refresh(self, node_id: NodeId) -> None:
        # Made when something changes, not for each run that is routed.
        entry = self._nodes[node_id]
        self._candidates[node_id] = Candidate(
            node_id=node_id,
            is_connected=entry.is_connected,
            is_draining=entry.is_draining,
            config_state=entry.config_state.value,
            labels=entry.labels,
            adapters=entry.adapters,
        )
