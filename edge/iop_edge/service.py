"""EdgeService: what every surface calls, and what node links report to. One object per edge, on one loop.

It is the sum of two parts: `dispatch.Dispatcher` (runs) and `node_links.NodeLinks` (nodes).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from iop_edge.bus_stream import BusStream
from iop_edge.dispatch import Dispatcher, DispatchLimits
from iop_edge.domain.bus import EventBus
from iop_edge.domain.catalog import Catalog
from iop_edge.domain.kept_events import KeptEvents
from iop_edge.domain.ledger import Ledger, LedgerLimits
from iop_edge.domain.node_configs import NodeConfigs
from iop_edge.domain.ports import HistorySink, RunFilter, RunHistory
from iop_edge.domain.queue import RunQueue
from iop_edge.domain.registry import NodeRegistry
from iop_edge.domain.views import (
    ModelView,
    NodeView,
    ResolvedModel,
    RunEventView,
    RunOrder,
    RunPage,
    RunView,
)
from iop_edge.node_links import NodeLinks
from iop_edge.relay import RunStream
from iop_shared.clock import Clock
from iop_shared.errors import BadRequest, Unavailable
from iop_shared.ids import NodeId, RunId
from iop_shared.runs import RunState

MAX_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Bounds and times of the service; seconds and bytes."""

    dispatch: DispatchLimits = DispatchLimits()
    ledger: LedgerLimits = LedgerLimits()
    max_queued: int = 256
    queue_timeout_s: float = 30.0
    heartbeat_interval_s: float = 15.0


class EdgeService:
    """The edge's one set of verbs. Nothing here blocks unless it is `async`."""

    def __init__(
        self,
        *,
        clock: Clock,
        catalog: Catalog,
        configs: NodeConfigs,
        history: RunHistory,
        sink: HistorySink,
        limits: ServiceLimits | None = None,
        nodes: Mapping[NodeId, Mapping[str, str]] | None = None,
        kept: KeptEvents | None = None,
        rng: Random | None = None,
    ) -> None:
        """`nodes`: the labels of those in the configuration. `sink` writes to `history` and is started."""
        limits = limits or ServiceLimits()
        self._clock, self._catalog = clock, catalog
        self._history, self._sink = history, sink
        self._stopping = ""
        self.bus = EventBus(clock)
        self.registry = NodeRegistry()
        for node_id, labels in (nodes or {}).items():
            self.registry.declare(node_id, labels)
        self.links = NodeLinks(
            clock=clock,
            registry=self.registry,
            configs=configs,
            bus=self.bus,
            silent_after_s=2 * limits.heartbeat_interval_s,
        )
        self.runs = Dispatcher(
            clock=clock,
            rng=rng or Random(),
            ledger=Ledger(clock, limits.ledger),
            queue=RunQueue(max_queued=limits.max_queued, timeout_s=limits.queue_timeout_s),
            registry=self.registry,
            catalog=catalog,
            kept=kept or KeptEvents(),
            sink=sink,
            bus=self.bus,
            links=self.links.by_node,
            limits=limits.dispatch,
        )
        self.links.connect_dispatcher(self.runs)

    def resolve_model(self, model: str) -> ResolvedModel:
        """Returns what `model` stands for: a profile's name, or `adapter/target` split at the first slash.

        Raises:
            UnknownName: with the nearest known names and param "model".
        """
        return self._catalog.resolve(model, self.registry.candidates())

    def list_models(self) -> Sequence[ModelView]:
        """Returns every profile, then every adapter/target that a connected node offers, sorted by name."""
        return self._catalog.models(self.registry.candidates())

    def submit(self, order: RunOrder) -> RunStream:
        """Takes a run and returns its stream; the run is dispatched at once or waits in the queue.

        Raises:
            UnknownName: the adapter or target is known to no connected node and to no configuration.
            NoRoute: no connected node could take it (code and sentence tell why each lost).
            Busy: the queue is full.
        """
        if self._stopping:
            raise Unavailable(
                f"the edge is stopping ({self._stopping}) and takes no new runs", code="edge_draining"
            )
        return self.runs.submit(order)

    def attach(self, run_id: RunId, after_seq: int = 0) -> RunStream:
        """Returns a stream of a live (or just ended) run from `after_seq` + 1 on; missing events show as a Gap.

        Raises:
            UnknownName: no such live run.
        """
        return self.runs.attach(run_id, after_seq)

    def cancel(self, run_id: RunId, reason: str) -> bool:
        """Asks a run to stop. Idempotent. Returns False when it has already ended.

        Raises:
            UnknownName: this edge has never had such a live run (ended ones are found through `get_run`).
        """
        return self.runs.cancel(run_id, reason)

    async def get_run(self, run_id: RunId) -> RunView:
        """Returns the run, live or from history.

        Raises:
            UnknownName: no such run.
        """
        view = self._known_view(run_id) or await self._history.get(run_id)
        if view is None:
            raise self.runs.unknown_run(run_id)
        return view

    async def run_events(self, run_id: RunId, after_seq: int = 0, limit: int = 1000) -> Sequence[RunEventView]:
        """Returns the kept events of a run in order, with a seq over `after_seq`, at most `limit` (1 to 10,000).

        Raises:
            UnknownName: no such run.
        """
        _check_limit(limit, 10_000)
        if self._known_view(run_id) is None and await self._history.get(run_id) is None:
            raise self.runs.unknown_run(run_id)
        await self._sink.flush()
        kept = {
            (k.event.attempt, k.event.seq): RunEventView(k.event.seq, k.event.attempt, k.at_ms, k.event.body)
            for k in self.runs.kept.listed(run_id)
            if k.event.seq > after_seq
        }
        # What is kept in memory is whole (an engine's error has its body); the record fills in what is gone.
        for view in await self._history.events(run_id, after_seq, limit):
            kept.setdefault((view.attempt, view.seq), view)
        return [kept[key] for key in sorted(kept)][:limit]

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
        _check_limit(limit, MAX_PAGE)
        await self._sink.flush()
        page = await self._history.page(limit, cursor, RunFilter(state, node_id, adapter))
        # A record says how a live run stood when it was written; the ledger knows better.
        return RunPage(tuple(self._known_view(view.run_id) or view for view in page.runs), page.next_cursor)

    def list_nodes(self) -> Sequence[NodeView]:
        """Returns all nodes seen by this process or named in the configuration, sorted by id."""
        return [self.links.view(entry.node_id) for entry in self.registry]

    def get_node(self, node_id: NodeId) -> NodeView:
        """Returns one node.

        Raises:
            UnknownName: with the nearest known ids.
        """
        return self.links.view(node_id)

    def subscribe(self, after_event_id: int | None = None) -> BusStream:
        """Returns a stream of EdgeEvents: the kept ones after `after_event_id` first (None: only new ones).

        A consumer that lags loses the oldest events and is told how many (`EventBatch.dropped`).
        """
        return BusStream(self.bus, after_id=after_event_id)

    async def node_command(
        self, node_id: NodeId, command: str, arguments: Mapping[str, Any], timeout_s: float = 10.0
    ) -> Any:
        """Runs a command on a node and returns its result (JSON values).

        Raises:
            UnknownName: no such node. Unavailable: not connected, or no answer in time.
            BadRequest: the node refused the command.
        """
        return await self.links.command(node_id, command, arguments, timeout_s)

    def is_ready(self) -> tuple[bool, str]:
        """Whether this edge can take runs, with a sentence if not (history not writable, stopping)."""
        if self._stopping:
            return False, f"the edge is stopping ({self._stopping})"
        trouble = self._sink.trouble()
        return (False, f"runs cannot be recorded: {trouble}") if trouble else (True, "")

    # --- for app.py -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Carries out what is due. Call it a few times a second."""
        self.runs.tick()
        self.links.tick()

    def begin_stop(self, reason: str) -> None:
        """Takes no new runs and no new nodes from now on. Safe to call twice."""
        if not self._stopping:
            self._stopping = reason
            self.bus.publish("edge_stopping", detail={"reason": reason})

    @property
    def is_stopping(self) -> bool:
        """Whether `begin_stop` was called."""
        return bool(self._stopping)

    def cancel_all(self, reason: str) -> int:
        """Asks every live run to stop; returns how many there are."""
        live = list(self.runs.ledger)
        for run in live:
            if self.runs.ledger.get(run.run_id) is not None:
                self.runs.cancel(run.run_id, reason)
        return len(live)

    def interrupt_all(self, reason: str) -> None:
        """Ends what is still live: the process is about to end."""
        self.runs.apply(self.runs.ledger.interrupt_all(reason))

    def _known_view(self, run_id: RunId) -> RunView | None:
        run = self.runs.ledger.get(run_id)
        if run is not None:
            return run.view()
        return self.runs.ledger.ended_view(run_id) or self._sink.pending_view(run_id)


def _check_limit(limit: int, most: int) -> None:
    if not 1 <= limit <= most:
        raise BadRequest(f"limit {limit} is not 1 to {most}", param="limit", code="bad_limit")
