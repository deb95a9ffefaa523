"""EdgeService: what every surface calls, and what node links report to. One object per edge, on one loop."""

from collections.abc import Mapping, Sequence
from typing import Any

from iop_edge.bus_stream import BusStream
from iop_edge.domain.views import (
    ModelView,
    NodeView,
    ResolvedModel,
    RunEventView,
    RunOrder,
    RunPage,
    RunView,
)
from iop_edge.relay import RunStream
from iop_shared.ids import NodeId, RunId
from iop_shared.runs import RunState


class EdgeService:
    """The edge's one set of verbs. Nothing here blocks unless it is `async`."""

    def resolve_model(self, model: str) -> ResolvedModel:
        """Returns what `model` stands for: a profile's name, or `adapter/target` split at the first slash.

        Raises:
            UnknownName: with the nearest known names and param "model".
        """
        raise NotImplementedError

    def list_models(self) -> Sequence[ModelView]:
        """Returns every profile, then every adapter/target that a connected node offers, sorted by name."""
        raise NotImplementedError

    def submit(self, order: RunOrder) -> RunStream:
        """Takes a run and returns its stream; the run is dispatched at once or waits in the queue.

        Raises:
            UnknownName: the adapter or target is known to no connected node and to no configuration.
            NoRoute: no connected node could take it (code and sentence tell why each lost).
            Busy: the queue is full.
        """
        raise NotImplementedError

    def attach(self, run_id: RunId, after_seq: int = 0) -> RunStream:
        """Returns a stream of a live (or just ended) run from `after_seq` + 1 on; missing events show as a Gap.

        Raises:
            UnknownName: no such live run.
        """
        raise NotImplementedError

    def cancel(self, run_id: RunId, reason: str) -> bool:
        """Asks a run to stop. Idempotent. Returns False when it has already ended.

        Raises:
            UnknownName: this edge has never had such a live run (ended ones are found through `get_run`).
        """
        raise NotImplementedError

    async def get_run(self, run_id: RunId) -> RunView:
        """Returns the run, live or from history.

        Raises:
            UnknownName: no such run.
        """
        raise NotImplementedError

    async def run_events(self, run_id: RunId, after_seq: int = 0, limit: int = 1000) -> Sequence[RunEventView]:
        """Returns the kept events of a run in order."""
        raise NotImplementedError

    async def list_runs(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        state: RunState | None = None,
        node_id: NodeId | None = None,
        adapter: str | None = None,
    ) -> RunPage:
        """Returns a page of runs, newest first.

        Raises:
            BadRequest: the cursor is not one of ours, or limit is not 1 to 500.
        """
        raise NotImplementedError

    def list_nodes(self) -> Sequence[NodeView]:
        """Returns all nodes seen by this process or named in the configuration, sorted by id."""
        raise NotImplementedError

    def get_node(self, node_id: NodeId) -> NodeView:
        """Returns one node.

        Raises:
            UnknownName: with the nearest known ids.
        """
        raise NotImplementedError

    def subscribe(self, after_event_id: int | None = None) -> BusStream:
        """Returns a stream of EdgeEvents: the kept ones after `after_event_id` first (None: only new ones).

        A consumer that lags loses the oldest events and is told how many (`EventBatch.dropped`).
        """
        raise NotImplementedError

    async def node_command(
        self, node_id: NodeId, command: str, arguments: Mapping[str, Any], timeout_s: float = 10.0
    ) -> Any:
        """Runs a command on a node and returns its result (JSON values).

        Raises:
            UnknownName: no such node. Unavailable: not connected, or no answer in time.
            BadRequest: the node refused the command.
        """
        raise NotImplementedError

    def is_ready(self) -> tuple[bool, str]:
        """Whether this edge can take runs, with a sentence if not (history not writable, stopping)."""
        raise NotImplementedError
