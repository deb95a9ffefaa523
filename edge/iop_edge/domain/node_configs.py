"""What each node should run, as payloads whose revision grows when the content changes. Pure."""

from collections.abc import Callable, Mapping, Sequence

from iop_shared.ids import NodeId
from iop_shared.link.messages import AdapterConfig, NodeConfigPayload
from iop_shared.node_config import config_hash

Revision = tuple[int, str]
"""A revision and the hash of its content."""


class NodeConfigs:
    """Makes payloads. `known`: the last revision of each node, over restarts; `on_change` keeps a new one."""

    def __init__(
        self,
        adapters_of: Callable[[NodeId], Sequence[AdapterConfig]],
        known: Mapping[NodeId, Revision],
        on_change: Callable[[NodeId, Revision], None],
    ) -> None:
        self._adapters_of = adapters_of
        self._revisions = dict(known)
        self._on_change = on_change
        self._payloads: dict[NodeId, NodeConfigPayload] = {}

    def payload_for(self, node_id: NodeId, held: Revision = (0, "")) -> NodeConfigPayload:
        """Returns what the node should run. `held`: what it says it has; a new revision is larger than that too,
        so that a node outlives the loss of this edge's database."""
        payload = self._payloads.get(node_id)
        if payload is not None and (held[0] <= payload.revision or held[1] == payload.hash):
            return payload
        adapters = tuple(self._adapters_of(node_id))
        content = config_hash(adapters)
        revision, known_hash = self._revisions.get(node_id, (0, ""))
        if known_hash != content or (held[0] > revision and held[1] != content):
            revision = max(revision, held[0]) + 1
            self._revisions[node_id] = (revision, content)
            self._on_change(node_id, (revision, content))
        payload = NodeConfigPayload(revision, content, adapters)
        self._payloads[node_id] = payload
        return payload
