"""The ledger: every live run, and all that may happen to it. Pure: events in, effects out.

Every change of state goes through `iop_shared.runs.apply_step`; what a peer can cause is checked first.
Runs in flight are found through `Places`: sets of run ids for each node and adapter, so there is no
counter that could leak. Each state that waits for a peer has a
deadline (`_deadlines`), so no run lives for ever:

    dispatched   accept_timeout_s        the node neither accepts nor refuses
    detached     disconnect_grace_s      its link is lost
    cancelling   cancel_settle_s         it was asked to stop

A run that has produced nothing may go to another node (`MAX_REROUTES`); one that has never does.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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
from iop_edge.domain.live_run import INTERRUPT_SENTENCES, LiveRun, Shun
from iop_edge.domain.places import Places
from iop_edge.domain.refusal_rules import BUSY_RETRY_S, REFUSAL_RULES, UNKNOWN_RULE, RefusalRule
from iop_edge.domain.views import Refusal, RunOrder, RunView
from iop_shared.clock import Clock
from iop_shared.errors import Layer
from iop_shared.ids import AdapterName, NodeId, RunId
from iop_shared.link.messages import OpenRun, RunRefused, RunVerdict, Verdict
from iop_shared.runs import RunState, RunStep, allows_step, apply_step
from iop_shared.runtime_events import (
    TERMINAL_STEP,
    TERMINAL_TYPES,
    Cancelled,
    Failed,
    Gap,
    Interrupted,
    RuntimeEvent,
    Terminal,
)

MAX_REROUTES: Final = 3
"""After a refusal or a loss; a node that was merely busy does not count. Chosen; change freely."""
ENDED_KEPT: Final = 4096
"""Records of ended runs kept for late acks, verdicts and readers. Chosen; change freely: about 4 MiB."""
NOTHING: Final[tuple[Effect, ...]] = ()


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """Seconds after which a state that waits for a peer gives up."""

    accept_timeout_s: float = 60.0
    disconnect_grace_s: float = 60.0
    cancel_settle_s: float = 60.0


@dataclass(slots=True)
class LedgerCounts:
    """Events that were dropped, by why; they only grow."""

    duplicate_events: int = 0
    stale_events: int = 0
    holes: int = 0


class Ledger:
    """All live runs of this edge, and the latest that ended."""

    def __init__(self, clock: Clock, limits: LedgerLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or LedgerLimits()
        self._live: dict[RunId, LiveRun] = {}
        self._ended: OrderedDict[RunId, RunView] = OrderedDict()
        self._places = Places()
        self._deadlines: dict[RunId, float] = {}
        self._cancelling: dict[NodeId, dict[RunId, None]] = {}
        self.counts = LedgerCounts()

    # --- looking ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveRun]:
        return iter(tuple(self._live.values()))

    def get(self, run_id: RunId) -> LiveRun | None:
        """Returns the live run, to be read only."""
        return self._live.get(run_id)

    def ended_view(self, run_id: RunId) -> RunView | None:
        """Returns the record of a run that ended a short while ago."""
        return self._ended.get(run_id)

    def in_flight(self, node_id: NodeId, adapter: AdapterName) -> int:
        """How many live runs of `adapter` are with the node (those of a lost link too)."""
        return self._places.in_flight(node_id, adapter)

    def in_flight_of(self, node_id: NodeId) -> Mapping[AdapterName, int]:
        """Live runs with the node, by adapter; adapters without any are left out."""
        return self._places.in_flight_of(node_id)

    def cancelling_on(self, node_id: NodeId) -> tuple[RunId, ...]:
        """The runs with this node that were asked to stop and have not ended, oldest first. Cheap."""
        return tuple(self._cancelling.get(node_id, ()))

    def next_deadline_s(self) -> float | None:
        """When `tick` has something to do next (monotonic), or None."""
        return min(self._deadlines.values(), default=None)

    # --- what clients want --------------------------------------------------------------------------

    def submit(self, run_id: RunId, order: RunOrder) -> Sequence[Effect]:
        """Takes a new run; it is queued."""
        now_s = self._clock.monotonic()
        run = LiveRun(run_id, order, self._clock.wall_ms(), now_s, len(order.input), waiting_since_s=now_s)
        self._live[run_id] = run
        return NOTHING

    def dispatch(self, run_id: RunId, link: LinkKey, refusals: tuple[Refusal, ...]) -> Sequence[Effect]:
        """Gives a queued run to the node behind `link`. `refusals`: why the other nodes did not get it."""
        run = self._live[run_id]
        run.refusals = refusals
        run.begin_attempt(link)
        self._places.add(link.node_id, run.order.adapter, run_id)
        moved = self._move(run, RunStep.DISPATCH)
        self._deadlines[run_id] = self._clock.monotonic() + self._limits.accept_timeout_s
        return SendRun(link, run.request()), moved

    def note_refusals(self, run_id: RunId, refusals: tuple[Refusal, ...]) -> None:
        """Keeps why nobody takes a run that waits."""
        self._live[run_id].refusals = refusals

    def cancel(self, run_id: RunId, reason: str) -> Sequence[Effect]:
        """Asks a live run to stop. A queued one ends at once: no adapter has started."""
        run = self._live[run_id]
        if run.state is RunState.QUEUED:
            return self._end(run, Cancelled(reason, confirmed=True, took_ms=0))
        effects: list[Effect] = []
        if run.state is not RunState.CANCELLING:
            run.cancel_reason, run.cancel_asked_s = reason, self._clock.monotonic()
            effects.append(self._move(run, RunStep.CANCEL))
            assert run.node_id is not None, "only a queued run has no node"
            self._cancelling.setdefault(run.node_id, {})[run_id] = None
            self._deadlines[run_id] = run.cancel_asked_s + self._limits.cancel_settle_s
        if run.link is not None:
            effects.append(SendCancel(run.link, run_id, reason))
        return effects

    def fail(self, run_id: RunId, code: str, layer: Layer, message: str, *, retryable: bool) -> Sequence[Effect]:
        """Ends a live run as failed, by the edge's own decision."""
        return self._end_failed(self._live[run_id], code, layer, message, retryable=retryable)

    def reroute(self, run_id: RunId) -> Sequence[Effect]:
        """Queues a detached run again, after another node was found that can take it (see `TryElsewhere`)."""
        return self._reroute(self._live[run_id])

    # --- what nodes say -----------------------------------------------------------------------------

    def take_event(self, link: LinkKey, event: RuntimeEvent, output_size: int | None) -> Sequence[Effect]:
        """Takes one event from a node. `output_size`: its output bytes, None if its body is no output.

        This runs once per token; the usual way through it makes no object but the tuple.
        """
        run = self._live.get(event.run_id)
        if run is None or run.link != link or run.attempt != event.attempt:
            return self._drop_stale(link, run, event)
        body = event.body
        expected = run.last_seq + 1
        gap: RuntimeEvent | None = None
        if event.seq != expected:
            if event.seq < expected:
                self.counts.duplicate_events += 1
                return (AckUpTo(link, run.run_id, run.attempt, run.last_seq),)
            run.has_gap = True
            if type(body) is not Gap:
                self.counts.holes += 1
                missing = Gap(event.seq - expected, 0, "missing on the link")
                gap = RuntimeEvent(run.run_id, run.attempt, event.seq - 1, missing)
        run.last_seq = event.seq
        if not run.is_accepted or run.state is RunState.DISPATCHED:
            return (*self._start(run), *self._take(run, link, event, output_size, gap))
        return self._take(run, link, event, output_size, gap)

    def _take(
        self, run: LiveRun, link: LinkKey, event: RuntimeEvent, output_size: int | None, gap: RuntimeEvent | None
    ) -> tuple[Effect, ...]:
        body = event.body
        if output_size is not None:
            run.count_output(output_size, self._clock)
        elif isinstance(body, TERMINAL_TYPES):
            ended = self._finish(run, body, AckUpTo(link, run.run_id, run.attempt, event.seq))
            return (event, ended) if gap is None else (gap, event, ended)
        else:
            run.note(body, self._clock)
        return (event,) if gap is None else (gap, event)

    def accepted(self, link: LinkKey, run_id: RunId, attempt: int) -> Sequence[Effect]:
        """The node has taken the run."""
        run = self._live.get(run_id)
        if run is None or run.link != link or run.attempt != attempt or run.is_accepted:
            return NOTHING
        return self._start(run)

    def refused(self, link: LinkKey, refused: RunRefused) -> Sequence[Effect]:
        """The node has not taken the run: it goes to another one, waits, or fails."""
        run = self._live.get(refused.run_id)
        if run is None or run.link != link or run.attempt != refused.attempt or run.is_accepted:
            return NOTHING
        if run.state is RunState.CANCELLING:
            return self._end(run, run.cancelled(self._clock.monotonic(), confirmed=True))
        rule = REFUSAL_RULES.get(refused.code, UNKNOWN_RULE)
        refusal = Refusal(link.node_id, refused.code, refused.message)
        run.refusals = (*(r for r in run.refusals if r.node_id != link.node_id), refusal)
        until_s = self._clock.monotonic() + BUSY_RETRY_S if rule is RefusalRule.BUSY else None
        run.shunned[link.node_id] = Shun(refusal, until_s)
        if rule is RefusalRule.FINAL or (rule is RefusalRule.ELSEWHERE and run.reroutes >= MAX_REROUTES):
            message = f"node {link.node_id} refused the run: {refused.message}"
            layer = Layer.TARGET if rule is RefusalRule.FINAL else Layer.NODE
            return self._end_failed(run, refused.code, layer, message, retryable=rule is not RefusalRule.FINAL)
        if rule is RefusalRule.BUSY:
            return self._reroute(run, waiting_since_s=run.waiting_since_s)
        run.reroutes += 1
        return self._reroute(run)

    # --- links come and go --------------------------------------------------------------------------

    def link_lost(self, link: LinkKey) -> Sequence[Effect]:
        """A link is gone: its runs go on over there, detached, for the grace."""
        effects: list[Effect] = []
        for run in self._runs_of(link.node_id):
            if run.link != link:
                continue
            run.link = None
            grace_ends_s = self._clock.monotonic() + self._limits.disconnect_grace_s
            if run.state is RunState.CANCELLING:
                continue  # keeps the earlier deadline of its cancel
            effects.append(self._move(run, RunStep.DETACH))
            self._deadlines[run.run_id] = grace_ends_s
            if run.may_restart and run.reroutes < MAX_REROUTES:
                effects.append(TryElsewhere(run.run_id))
        return effects

    def link_opened(
        self, link: LinkKey, open_runs: Sequence[OpenRun], *, same_boot: bool
    ) -> tuple[tuple[RunVerdict, ...], Sequence[Effect]]:
        """Judges what a node still holds, and picks up the runs it should hold. Older links are gone by now."""
        verdicts: list[RunVerdict] = []
        effects: list[Effect] = []
        kept: set[RunId] = set()
        for open_run in open_runs:
            run = self._live.get(open_run.run_id)
            if run is not None and self._may_go_on(run, link, open_run, same_boot=same_boot):
                verdicts.append(RunVerdict(run.run_id, run.attempt, run.last_seq, Verdict.KEEP))
                effects.extend(self._reattach(run, link))
                kept.add(run.run_id)
            else:
                verdict = Verdict.FORGET if open_run.state == "ended" else Verdict.CANCEL
                verdicts.append(RunVerdict(open_run.run_id, open_run.attempt, open_run.last_seq, verdict))
        for run in self._runs_of(link.node_id):
            if run.run_id not in kept:
                effects.extend(self._give_up(run, "node_lost" if same_boot else "node_restarted"))
        return tuple(verdicts), effects

    def tick(self) -> Sequence[Effect]:
        """Carries out what is due. Cheap when nothing is."""
        now_s = self._clock.monotonic()
        due = [run_id for run_id, deadline_s in self._deadlines.items() if now_s >= deadline_s]
        effects: list[Effect] = []
        for run_id in due:
            effects.extend(self._expire(self._live[run_id]))
        return effects

    def interrupt_all(self, code: str) -> Sequence[Effect]:
        """Ends every live run: the edge stops. `code`: one of `INTERRUPT_SENTENCES`."""
        effects: list[Effect] = []
        for run in tuple(self._live.values()):
            effects.extend(self._end(run, self._interrupted(run, code)))
        return effects

    # --- steps --------------------------------------------------------------------------------------

    def _may_go_on(self, run: LiveRun, link: LinkKey, open_run: OpenRun, *, same_boot: bool) -> bool:
        if run.node_id != link.node_id or run.attempt != open_run.attempt or run.state is RunState.QUEUED:
            return False
        if not same_boot and run.may_restart and run.state is not RunState.CANCELLING:
            return False  # its process is gone and nothing was seen: better started again than interrupted
        # Fewer events than we have: its numbers began anew with a new process; it cannot go on from ours.
        # An ended run must have at least its terminal event left to say.
        return open_run.last_seq >= run.last_seq + (open_run.state == "ended")

    def _reattach(self, run: LiveRun, link: LinkKey) -> list[Effect]:
        run.link = link
        run.is_accepted = True
        moved = self._move(run, RunStep.REATTACH)
        if run.state is RunState.CANCELLING:
            return [SendCancel(link, run.run_id, run.cancel_reason)]
        self._deadlines.pop(run.run_id, None)
        return [moved]

    def _give_up(self, run: LiveRun, code: str) -> Sequence[Effect]:
        """The node does not have the run any more, or has been away for too long."""
        if run.state is RunState.CANCELLING:
            return self._end(run, run.cancelled(self._clock.monotonic(), confirmed=False))
        if run.may_restart and run.reroutes < MAX_REROUTES:
            run.reroutes += 1
            return self._reroute(run)
        return self._end(run, self._interrupted(run, code))

    def _interrupted(self, run: LiveRun, code: str) -> Interrupted:
        return Interrupted(code, INTERRUPT_SENTENCES[code], run.closing(self._clock.monotonic()))

    def _expire(self, run: LiveRun) -> Sequence[Effect]:
        if run.state is not RunState.DISPATCHED:
            return self._give_up(run, "node_lost")
        assert run.link is not None, "a dispatched run has a link"
        link = run.link
        waited = f"did not answer within {self._limits.accept_timeout_s:g} s"
        run.shunned[link.node_id] = Shun(Refusal(link.node_id, "node_silent", waited))
        cancel = SendCancel(link, run.run_id, "node_silent")
        if run.reroutes >= MAX_REROUTES:
            message = f"node {link.node_id} {waited}"
            return (cancel, *self._end_failed(run, "node_silent", Layer.NODE, message, retryable=True))
        run.reroutes += 1
        return (cancel, *self._reroute(run))

    def _start(self, run: LiveRun) -> Sequence[Effect]:
        run.is_accepted = True
        if run.state is RunState.CANCELLING or not allows_step(run.state, RunStep.START):
            return NOTHING
        self._deadlines.pop(run.run_id, None)
        return (self._move(run, RunStep.START),)

    def _reroute(self, run: LiveRun, *, waiting_since_s: float | None = None) -> Sequence[Effect]:
        if run.state is RunState.RUNNING:  # the table knows only detached runs that go elsewhere
            self._move(run, RunStep.DETACH)
        self._unplace(run)
        run.link = run.node_id = None
        run.attempt += 1
        run.waiting_since_s = self._clock.monotonic() if waiting_since_s is None else waiting_since_s
        self._deadlines.pop(run.run_id, None)
        return self._move(run, RunStep.REROUTE), RouteAgain(run.run_id)

    def _move(self, run: LiveRun, step: RunStep) -> RunMoved:
        run.state = apply_step(run.state, step)
        return RunMoved(run.run_id, step, run.state)

    def _end_failed(
        self, run: LiveRun, code: str, layer: Layer, message: str, *, retryable: bool
    ) -> Sequence[Effect]:
        closing = run.closing(self._clock.monotonic())
        return self._end(run, Failed(code, layer, message, closing, retryable=retryable))

    def _end(self, run: LiveRun, body: Terminal) -> Sequence[Effect]:
        """Ends a run by the edge's own word."""
        run.last_seq += 1
        event = RuntimeEvent(run.run_id, run.attempt, run.last_seq, body)
        return event, self._finish(run, body, None)

    def _finish(self, run: LiveRun, body: Terminal, ack: AckUpTo | None) -> RunEnded:
        run.state = apply_step(run.state, TERMINAL_STEP[type(body)])
        self._unplace(run)
        self._deadlines.pop(run.run_id, None)
        del self._live[run.run_id]
        view = run.final_view(body, self._clock.monotonic(), self._clock.wall_ms())
        self._ended[run.run_id] = view
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
        return RunEnded(view, ack, run.mismatch(body) if ack is not None else "")

    def _drop_stale(self, link: LinkKey, run: LiveRun | None, event: RuntimeEvent) -> Sequence[Effect]:
        self.counts.stale_events += 1
        if run is not None and run.link == link and event.attempt > run.attempt:
            return NOTHING  # an attempt that was never asked for: never acknowledged
        # Acknowledged, or the node would keep it for ever; nobody waits for it here.
        return (AckUpTo(link, event.run_id, event.attempt, event.seq),)

    def _runs_of(self, node_id: NodeId) -> list[LiveRun]:
        return [self._live[run_id] for run_id in self._places.runs_of(node_id)]

    def _unplace(self, run: LiveRun) -> None:
        if run.node_id is None:
            return
        self._places.remove(run.node_id, run.order.adapter, run.run_id)
        cancelling = self._cancelling.get(run.node_id)
        if cancelling is not None:
            cancelling.pop(run.run_id, None)
            if not cancelling:
                del self._cancelling[run.node_id]
