"""Dispatcher: takes runs, finds nodes for them, and carries out what the ledger decides.

It joins the pure parts (ledger, queue, routing, kept events) with the streams of readers, the links of
nodes, the history and the bus. Everything here happens at once, on the loop; nothing waits.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from iop_edge.domain.bus import EventBus
from iop_edge.domain.catalog import Catalog
from iop_edge.domain.effects import (
    AckUpTo,
    Effect,
    LinkKey,
    RouteAgain,
    RunEnded,
    RunMoved,
    SendCancel,
    SendRun,
    TryElsewhere,
)
from iop_edge.domain.event_kinds import STEP_KINDS
from iop_edge.domain.event_size import output_size_of, payload_size_of
from iop_edge.domain.kept_events import KeptEvents
from iop_edge.domain.ledger import Ledger
from iop_edge.domain.live_run import LiveRun
from iop_edge.domain.ports import HistorySink, NodeLinkPort
from iop_edge.domain.queue import RunQueue
from iop_edge.domain.registry import NodeRegistry
from iop_edge.domain.routing import Decision, Need, choose_node, explain
from iop_edge.domain.views import Refusal, RunEventView, RunOrder
from iop_edge.relay import MAX_BUFFERED_BYTES, RunStream
from iop_shared.clock import Clock
from iop_shared.errors import Busy, Layer, NoRoute, TooLarge, Unavailable, UnknownName
from iop_shared.ids import NodeId, RunId, SessionId, new_run_id
from iop_shared.link.messages import CancelRun
from iop_shared.runs import RunState, RunStep
from iop_shared.runtime_events import RuntimeEvent

MAX_SESSIONS: Final = 10_000
"""Sessions whose node is remembered. Chosen; change freely: about 2 MiB."""
MAX_REFUSALS_KEPT: Final = 32
"""Reasons stored on one run. Chosen; with more nodes than that nobody reads them all."""


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Bounds of what is taken."""

    max_live_runs: int = 10_000
    max_input_bytes: int = 32 * 1024 * 1024
    stream_buffer_bytes: int = MAX_BUFFERED_BYTES


class Dispatcher:
    """All runs of this edge, from a client's order to the terminal event. `links` is read, never changed."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: Random,
        ledger: Ledger,
        queue: RunQueue,
        registry: NodeRegistry,
        catalog: Catalog,
        kept: KeptEvents,
        sink: HistorySink,
        bus: EventBus,
        links: Mapping[NodeId, NodeLinkPort],
        limits: DispatchLimits,
    ) -> None:
        self.ledger, self.queue, self.kept = ledger, queue, kept
        self._clock, self._rng = clock, rng
        self._registry, self._catalog = registry, catalog
        self._sink, self._bus, self._links, self._limits = sink, bus, links, limits
        self._streams: dict[RunId, list[RunStream]] = {}
        self._sessions: OrderedDict[SessionId, NodeId] = OrderedDict()
        self._draining_queue = False
        self.mismatches = 0
        self.slow_consumers = 0
        self._carry_out: Mapping[type, Callable[[Any], Sequence[Effect]]] = {
            RuntimeEvent: self._on_event,
            SendRun: self._on_send_run,
            SendCancel: self._on_send_cancel,
            AckUpTo: self._on_ack_up_to,
            RouteAgain: lambda effect: self._route_again(effect.run_id),
            TryElsewhere: self._on_try_elsewhere,
            RunMoved: self._on_moved,
            RunEnded: self._on_ended,
        }

    # --- verbs --------------------------------------------------------------------------------------

    def submit(self, order: RunOrder) -> RunStream:
        """Takes a run; see `EdgeService.submit`."""
        self._check_room(order)
        candidates = self._registry.candidates()
        if order.node is not None:
            self._registry.get(order.node)
        need = self._need_of(order)
        decision = choose_node(candidates, need, self.ledger.in_flight, self._rng)
        if decision.node_id is None:
            if not decision.may_wait:
                self._catalog.check_known(order, candidates)
                raise NoRoute(explain(need, decision.refusals))
            self.queue.check_room()
        run_id = new_run_id(self._clock.wall_ms())
        self.kept.begin(run_id)
        stream = self._open_stream(run_id)
        effects = self.ledger.submit(run_id, order)
        self._bus.publish(
            "run_queued",
            run_id=run_id,
            detail={"adapter": order.adapter, "target": order.target, "operation": order.operation.value},
        )
        self.apply(effects)
        self._place(run_id, decision)
        return stream

    def attach(self, run_id: RunId, after_seq: int) -> RunStream:
        """Returns a further stream of a run; see `EdgeService.attach`."""
        is_live = self.ledger.get(run_id) is not None
        if not is_live and run_id not in self.kept:
            raise self.unknown_run(run_id)
        stream = self._open_stream(run_id) if is_live else RunStream(run_id)
        stream.prefill(self.kept.after(run_id, after_seq))
        if not is_live:
            stream.complete()
        return stream

    def cancel(self, run_id: RunId, reason: str) -> bool:
        """Asks a run to stop; see `EdgeService.cancel`."""
        if self.ledger.get(run_id) is None:
            if self.ledger.ended_view(run_id) is None:
                raise self.unknown_run(run_id)
            return False
        self.apply(self.ledger.cancel(run_id, reason))
        return True

    def unknown_run(self, run_id: RunId) -> UnknownName:
        """Returns the error for a run that nobody knows."""
        return UnknownName("run", run_id, [run.run_id for run in list(self.ledger)[-20:]], param="run_id")

    def take_event(self, link: NodeLinkPort, event: RuntimeEvent) -> None:
        """Takes one event of a run from a node. The hot path: once per token."""
        output_size = output_size_of(event.body)
        for effect in self.ledger.take_event(link.key, event, output_size):
            if effect is event:
                payload = output_size if output_size is not None else payload_size_of(event.body)
                self._relay(event, payload)
                if output_size is not None:
                    link.ack(event.run_id, event.attempt, event.seq, payload)
                else:
                    self._note_lifecycle(link, event)
            else:
                self.apply((effect,))

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carries out effects, and what follows from them, in order."""
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            todo.extendleft(reversed(self._carry_out[type(effect)](effect)))

    def fail_unsendable(self, run_id: RunId, error: TooLarge) -> None:
        """Ends a run whose request, without its input, fits into no frame."""
        if self.ledger.get(run_id) is not None:
            self.apply(self.ledger.fail(run_id, "too_large", Layer.EDGE, str(error), retryable=False))

    def drain_queue(self) -> None:
        """Gives waiting runs to nodes, first come first served. Called when a node may be able to take more."""
        if self._draining_queue:
            return  # a run ended while we were at it: its place is given by the loop below, or by the next tick
        self._draining_queue = True
        try:
            hopeless: set[object] = set()
            for run_id in self.queue:
                run = self.ledger.get(run_id)
                if run is None:
                    self.queue.remove(run_id)
                    continue
                need = self._need_of(run.order, run)
                key = (need.adapter, need.target, need.operation, need.node, tuple(sorted(need.labels.items())))
                if not need.shunned and key in hopeless:
                    continue  # the same need has just been turned down
                decision = choose_node(self._registry.candidates(), need, self.ledger.in_flight, self._rng)
                if decision.node_id is not None:
                    self._place(run_id, decision)
                elif not need.shunned:
                    hopeless.add(key)
        finally:
            self._draining_queue = False

    def tick(self) -> None:
        """Carries out what is due: grace, timeouts of the queue, places that became free again."""
        self.apply(self.ledger.tick())
        now_s = self._clock.monotonic()
        for waiting in self.queue.pop_expired(now_s):
            run = self.ledger.get(waiting.run_id)
            if run is None:
                continue
            need = self._need_of(run.order, run)
            decision = choose_node(self._registry.candidates(), need, self.ledger.in_flight, self._rng)
            if decision.node_id is not None:  # the node that was busy may be asked again, just now
                self._place(run.run_id, decision)
                continue
            message = f"no place became free within {self.queue.timeout_s:g} s: {explain(need, decision.refusals)}"
            self.ledger.note_refusals(run.run_id, decision.refusals[:MAX_REFUSALS_KEPT])
            self.apply(self.ledger.fail(run.run_id, "queue_timeout", Layer.EDGE, message, retryable=True))
        if len(self.queue):
            self.drain_queue()
        self.kept.expire(now_s)

    # --- routing ------------------------------------------------------------------------------------

    def _check_room(self, order: RunOrder) -> None:
        trouble = self._sink.trouble()
        if trouble:
            raise Unavailable(f"no new runs while they cannot be recorded: {trouble}", code="history_unavailable")
        if len(order.input) > self._limits.max_input_bytes:
            raise TooLarge(
                f"the input has {len(order.input)} bytes and max_input_bytes is {self._limits.max_input_bytes}; "
                "send less, or raise [limits] max_input_bytes in edge.toml",
                param="input",
            )
        if len(self.ledger) >= self._limits.max_live_runs:
            raise Busy(
                f"{len(self.ledger)} runs are live and max_live_runs is {self._limits.max_live_runs}; "
                "try again later"
            )

    def _need_of(self, order: RunOrder, run: LiveRun | None = None) -> Need:
        shunned: dict[NodeId, Refusal] = {}
        if run is not None and run.shunned:
            now_s = self._clock.monotonic()
            for node_id, shun in run.shunned.items():
                if shun.until_s is None or now_s < shun.until_s:
                    shunned[node_id] = shun.refusal
        favourite = None if order.session is None else self._sessions.get(order.session)
        return Need(
            adapter=order.adapter,
            target=order.target,
            operation=order.operation,
            node=order.node,
            labels=order.node_labels,
            shunned=shunned,
            favourite=favourite,
        )

    def _place(self, run_id: RunId, decision: Decision) -> None:
        """Sends a queued run to the node that was chosen, or lets it wait."""
        refusals = decision.refusals[:MAX_REFUSALS_KEPT]
        if decision.node_id is None:
            self.ledger.note_refusals(run_id, refusals)
            run = self.ledger.get(run_id)
            assert run is not None, "a run that waits is live"
            self.queue.put(run_id, self._clock.monotonic(), since_s=run.waiting_since_s)
            self._sink.record(run_id, run.view)
            return
        self.queue.remove(run_id)
        self.apply(self.ledger.dispatch(run_id, self._registry.get(decision.node_id).key, refusals))

    def _route_again(self, run_id: RunId) -> Sequence[Effect]:
        run = self.ledger.get(run_id)
        if run is None or run.state is not RunState.QUEUED:
            return ()
        need = self._need_of(run.order, run)
        decision = choose_node(self._registry.candidates(), need, self.ledger.in_flight, self._rng)
        if decision.node_id is None and not decision.may_wait:
            self.ledger.note_refusals(run_id, decision.refusals[:MAX_REFUSALS_KEPT])
            message = explain(need, decision.refusals)
            return self.ledger.fail(run_id, "no_route", Layer.EDGE, message, retryable=True)
        self._place(run_id, decision)
        return ()

    def _on_try_elsewhere(self, effect: TryElsewhere) -> Sequence[Effect]:
        run = self.ledger.get(effect.run_id)
        if run is None or run.state is not RunState.DETACHED:
            return ()
        need = self._need_of(run.order, run)
        decision = choose_node(self._registry.candidates(), need, self.ledger.in_flight, self._rng)
        # Nobody else now: it stays detached, and its node may come back within the grace.
        return () if decision.node_id is None else self.ledger.reroute(run.run_id)

    # --- effects ------------------------------------------------------------------------------------

    def _on_event(self, event: RuntimeEvent) -> Sequence[Effect]:
        """An event that the edge wrote itself: a gap, or a terminal one."""
        self._relay(event, payload_size_of(event.body))
        self._sink.record_event(event.run_id, self._event_view(event))
        return ()

    def _on_send_run(self, effect: SendRun) -> Sequence[Effect]:
        link = self._link(effect.link)
        if link is None:
            return ()  # it has just ended; `link_lost` follows and detaches the run
        link.send_run(effect.request)
        return ()

    def _on_send_cancel(self, effect: SendCancel) -> Sequence[Effect]:
        link = self._link(effect.link)
        if link is not None:
            link.send(CancelRun(effect.run_id, effect.reason))
        return ()

    def _on_ack_up_to(self, effect: AckUpTo) -> Sequence[Effect]:
        link = self._link(effect.link)
        if link is not None:
            link.ack(effect.run_id, effect.attempt, effect.seq, 0)
        return ()

    def _on_moved(self, effect: RunMoved) -> Sequence[Effect]:
        run = self.ledger.get(effect.run_id)
        if run is None:
            return ()
        self._sink.record(run.run_id, run.view)
        if effect.step is RunStep.REROUTE:
            self.kept.begin(run.run_id)  # numbers begin anew; who comes late sees this attempt alone
        detail: dict[str, Any] = {"attempt": run.attempt, "adapter": run.order.adapter, "target": run.order.target}
        if effect.state is RunState.CANCELLING:
            detail["reason"] = run.cancel_reason
        self._bus.publish(STEP_KINDS[effect.step], node_id=run.node_id, run_id=run.run_id, detail=detail)
        if effect.state is RunState.DISPATCHED and run.order.session is not None and run.node_id is not None:
            self._remember_session(run.order.session, run.node_id)
        return ()

    def _on_ended(self, effect: RunEnded) -> Sequence[Effect]:
        view, ack = effect.view, effect.ack
        run_id = view.run_id
        self.queue.remove(run_id)
        self.kept.end(run_id, self._clock.monotonic())
        for stream in self._streams.pop(run_id, ()):
            stream.complete()
        # Acknowledged only when the record is safe: until then the node keeps the terminal event.
        on_saved = None if ack is None else lambda: self.apply((ack,))
        self._sink.record(run_id, lambda: view, on_saved)
        self.mismatches += bool(effect.mismatch)
        self._bus.publish(
            "run_finished",
            node_id=view.node_id,
            run_id=run_id,
            detail={
                "outcome": view.state.value,
                "code": view.code,
                "layer": view.layer,
                "adapter": view.adapter,
                "target": view.target,
                "attempt": view.attempt,
                "total_s": view.total_s,
                "queued_s": view.queued_s,
                "first_token_s": view.first_token_s,
                "events": view.events,
                "input_bytes": view.input_bytes,
                "output_bytes": view.output_bytes,
                "mismatch": effect.mismatch,
            },
        )
        if len(self.queue):
            self.drain_queue()
        return ()

    # --- streams ------------------------------------------------------------------------------------

    def _relay(self, event: RuntimeEvent, payload_bytes: int) -> None:
        self.kept.push(event, payload_bytes, self._clock.wall_ms())
        for stream in self._streams.get(event.run_id, ()):
            stream.push(event, payload_bytes)

    def _note_lifecycle(self, link: NodeLinkPort, event: RuntimeEvent) -> None:
        self._sink.record_event(event.run_id, self._event_view(event))
        if not event.is_terminal:
            link.ack(event.run_id, event.attempt, event.seq, payload_size_of(event.body))

    def _event_view(self, event: RuntimeEvent) -> RunEventView:
        return RunEventView(event.seq, event.attempt, self._clock.wall_ms(), event.body)

    def _open_stream(self, run_id: RunId) -> RunStream:
        stream = RunStream(
            run_id, on_close=self._forget_stream, max_buffered_bytes=self._limits.stream_buffer_bytes
        )
        self._streams.setdefault(run_id, []).append(stream)
        return stream

    def _forget_stream(self, stream: RunStream) -> None:
        self.slow_consumers += stream.is_lost
        streams = self._streams.get(stream.run_id)
        if streams is not None and stream in streams:
            streams.remove(stream)

    def _link(self, key: LinkKey) -> NodeLinkPort | None:
        link = self._links.get(key.node_id)
        return link if link is not None and link.key == key else None

    def _remember_session(self, session: SessionId, node_id: NodeId) -> None:
        self._sessions[session] = node_id
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
