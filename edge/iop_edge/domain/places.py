"""Places: which live runs are with which node. Sets of run ids, so that no count can leak. Pure."""

from collections.abc import Mapping
from typing import Final

from iop_shared.ids import AdapterName, NodeId, RunId

_NONE: Final[Mapping[AdapterName, set[RunId]]] = {}


class Places:
    """Runs by node and adapter. Adding or removing twice changes nothing."""

    def __init__(self) -> None:
        self._runs: dict[NodeId, dict[AdapterName, set[RunId]]] = {}

    def add(self, node_id: NodeId, adapter: AdapterName, run_id: RunId) -> None:
        """Puts a run with a node."""
        self._runs.setdefault(node_id, {}).setdefault(adapter, set()).add(run_id)

    def remove(self, node_id: NodeId, adapter: AdapterName, run_id: RunId) -> None:
        """Takes a run away from a node."""
        adapters = self._runs.get(node_id)
        if adapters is None or adapter not in adapters:
            return
        adapters[adapter].discard(run_id)
        if not adapters[adapter]:
            del adapters[adapter]
        if not adapters:
            del self._runs[node_id]

    def in_flight(self, node_id: NodeId, adapter: AdapterName) -> int:
        """How many runs of `adapter` are with the node."""
        return len(self._runs.get(node_id, _NONE).get(adapter, ()))

    def in_flight_of(self, node_id: NodeId) -> Mapping[AdapterName, int]:
        """Runs with the node, by adapter; adapters without any are left out."""
        return {adapter: len(runs) for adapter, runs in self._runs.get(node_id, _NONE).items()}

    def runs_of(self, node_id: NodeId) -> list[RunId]:
        """The runs with the node, in no order."""
        return [run_id for runs in self._runs.get(node_id, _NONE).values() for run_id in runs]
