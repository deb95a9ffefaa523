"""Node: admits, runs, cancels, records and reports. The NodeHandler behind the link to the edge.

    link --on_run_request--> admission --> journal.begin --> RunAccepted --> Execution
                                 |                                              |
                            RunRefused                  journal.finish <-- terminal body --> outbox --> link

A run holds its place (in the node and in its adapter) until its adapter is over, even if the run itself has
ended before because the adapter would not stop.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from iop_node.core.admission import Admission
from iop_node.core.allow import AllowList
from iop_node.core.execution import CancelAsked, Execution, ExecutionLimits, NodeGivesUp, StopCause
from iop_node.core.journal import Journal
from iop_node.core.live_run import LiveRun, begin_record, finish_record, open_run_of, terminal_of
from iop_node.core.offering import Offering
from iop_node.core.outbox import Outbox, OutboxLimits, RunKey
from iop_node.core.ports import AdapterFactory, EdgePort, RunRecord, RunStore
from iop_node.core.router import Refusal
from iop_node.core.spec import ExecutionSpec
from iop_node.core.status import NodeStatistics, capabilities_result, status_result
from iop_shared import __version__
from iop_shared.aio.tasks import TaskOwner
from iop_shared.clock import Clock
from iop_shared.errors import BadRequest, IopError, nearest
from iop_shared.ids import AdapterName, BootId, NodeId, RunId
from iop_shared.link.messages import (
    AdapterStatus,
    ConfigResult,
    DrainingChanged,
    EdgeNodeEventBody,
    NodeCommandRequest,
    NodeCommandResponse,
    NodeConfigPayload,
    OpenRun,
    RunRefused,
    RunVerdict,
    Verdict,
)
from iop_shared.logs import get_logger
from iop_shared.runs import RunRequest
from iop_shared.runtime_events import Failed, Terminal

log = get_logger("node")

RESTORE_WITHIN_MS: Final = 3600 * 1000
"""An edge interrupts runs of a node that is away for `disconnect_grace_s`; an hour is far beyond that."""
MAX_RESTORED: Final = 1000
_PROBE_AFTER: Final = frozenset(
    {"engine_unreachable", "engine_loading", "engine_stream_truncated", "engine_auth_failed"}
)
"""Failures that a probe of the engine would see too."""


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """Bounds of a node; the comments of its configuration file say what each means."""

    max_runs: int = 64
    execution: ExecutionLimits = ExecutionLimits()
    outbox: OutboxLimits = OutboxLimits()
    probe_interval_s: float = 10.0
    probe_timeout_s: float = 5.0


class NodeObserver(Protocol):
    """Who counts (metrics). Called on the loop; must not raise."""

    def run_ended(self, record: RunRecord) -> None:
        """A run is complete."""

    def run_refused(self, code: str) -> None:
        """A request was not taken."""


class Node:
    """One node on one loop. Create it on the running loop; call `start` first and `stop` last."""

    def __init__(
        self,
        node_id: NodeId,
        boot_id: BootId,
        *,
        factories: Mapping[str, AdapterFactory],
        allow: AllowList,
        store: RunStore,
        clock: Clock,
        observer: NodeObserver | None = None,
        limits: NodeLimits = NodeLimits(),
        rng: random.Random | None = None,
    ) -> None:
        self.node_id, self.boot_id = node_id, boot_id
        self._store, self._clock, self._observer, self._limits = store, clock, observer, limits
        self._tasks = TaskOwner("node", self._task_failed)
        self._journal = Journal(store, self._tasks)
        self._offering = Offering(
            factories,
            allow,
            self._tasks,
            self._tell,
            probe_interval_s=limits.probe_interval_s,
            probe_timeout_s=limits.probe_timeout_s,
            max_runs=limits.max_runs,
            rng=rng,
        )
        self._roster = self._offering.roster
        self._admission = Admission(clock, max_runs=limits.max_runs)
        self._outbox = Outbox(limits.outbox)
        self._live: dict[RunKey, LiveRun] = {}
        self._edge: EdgePort | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._started_at = clock.monotonic()
        self._is_stopped = False

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> Sequence[RunRecord]:
        """Marks what an earlier process left open as interrupted, and starts probing; returns those rows.

        Raises:
            Unavailable: the store cannot be used.
        """
        self._restore(await self._store.list_unsettled(self._clock.wall_ms() - RESTORE_WITHIN_MS, MAX_RESTORED))
        left = await self._store.interrupt_open("the node was restarted", self._clock.wall_ms())
        if left:
            log.warning("runs_interrupted", runs=len(left), reason="the node was restarted")
        self._offering.start()
        return left

    async def drain(self, reason: str, timeout_s: float) -> bool:
        """Takes no new runs and waits for the live ones; returns whether all ended within `timeout_s`.

        May be called again, to wait longer. Cancelling it changes nothing: the node goes on draining.
        """
        if self._admission.draining_reason is None:
            self._admission.draining_reason = reason
            log.info("node_draining", reason=reason, live_runs=len(self._live), timeout_s=timeout_s)
            self._tell(DrainingChanged(True, reason))
        return await self._wait_for(lambda: not self._live, timeout_s)

    async def stop(self, reason: str = "the node stops", flush_s: float = 2.0) -> None:
        """Ends what runs, gives the edge `flush_s` to acknowledge it, and lets go of everything. Safe to repeat.

        At most about `cancel_grace_s` + `hard_cancel_s` + `flush_s` + the adapters' closing. The store is
        closed last.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._admission.draining_reason is None:
            self._admission.draining_reason = reason
            self._tell(DrainingChanged(True, reason))
        for live in self._live.values():
            live.execution.stop(NodeGivesUp("node_stopping", f"{reason}; the run was not complete"))
        budget = self._limits.execution
        await self._wait_for(
            lambda: all(live.outbox.has_ended for live in self._live.values()),
            budget.cancel_grace_s + budget.hard_cancel_s + 1.0,
        )
        if self._edge is not None:
            await self._wait_for(lambda: all(run.is_settled or run.forgotten for run in self._outbox), flush_s)
        self._detach()
        if self._grace is not None:
            self._grace.cancel()
        if not await self._journal.flush():
            log.error("run_records_lost", records=self._journal.pending)
        self._offering.stop_nowait()
        await self._tasks.cancel_all()
        await self._offering.close_all()
        await self._store.aclose()

    def statistics(self) -> NodeStatistics:
        """Returns the counts of this moment."""
        return NodeStatistics(
            live_runs=len(self._live),
            abandoned_runs=sum(live.execution.is_abandoned for live in self._live.values()),
            held_runs=len(self._outbox),
            max_runs=self._limits.max_runs,
            draining=self._admission.draining_reason is not None,
            pending_records=self._journal.pending,
            outbox=self._outbox.statistics(),
            uptime_s=self._clock.monotonic() - self._started_at,
        )

    def in_flight(self) -> Mapping[AdapterName, int]:
        """Returns how many runs hold a place, by adapter."""
        names = dict.fromkeys(slot.config.name for slot in self._roster.all_slots())
        return {name: self._roster.in_flight(name) for name in names}

    def adapter_statuses(self) -> Sequence[AdapterStatus]:
        """Returns every adapter that is offered, as the edge is told of it."""
        return self._roster.statuses()

    @property
    def config_held(self) -> tuple[int, str]:
        """Revision and hash of the configuration in force."""
        return self._roster.revision, self._roster.hash

    # --- NodeHandler: runs ---------------------------------------------------------------------------

    def on_run_request(self, request: RunRequest) -> None:
        """See NodeHandler."""
        key = (request.run_id, request.attempt)
        live = self._live.get(key)
        if live is not None or self._admission.has_ended(key):
            # A repeat. Its events are in the outbox, or the edge has them all; never run it again.
            if self._edge is not None and (live is None or live.is_accepted):
                self._edge.run_accepted(*key)
            return
        decision = self._admission.decide(request, self._roster, len(self._live))
        if isinstance(decision, Refusal):
            self._refuse(key, decision)
            return
        live = self._take(request, decision)
        self._tasks.spawn(self._run(live), name=f"run {request.run_id}")

    def wants_input(self, request: RunRequest) -> bool:
        """See NodeHandler."""
        key = (request.run_id, request.attempt)
        if key in self._live or self._admission.has_ended(key):
            return False
        return not isinstance(self._admission.decide(request, self._roster, len(self._live)), Refusal)

    def on_cancel(self, run_id: RunId, reason: str) -> None:
        """See NodeHandler."""
        attempts = [live for live in self._live.values() if live.key[0] == run_id]
        for live in attempts:
            live.execution.stop(CancelAsked(reason))
        if not attempts and not self._admission.has_run(run_id):
            self._admission.note_cancelled(run_id, reason)

    def open_runs(self) -> tuple[OpenRun, ...]:
        """See NodeHandler."""
        return tuple(open_run_of(run, self._live.get((run.run_id, run.attempt))) for run in self._outbox)

    def on_ack(self, run_id: RunId, attempt: int, seq: int) -> None:
        """See NodeHandler."""
        run = self._outbox.ack(run_id, attempt, seq)
        if run is None:
            return
        live = self._live.get((run_id, attempt))
        if live is not None:
            live.execution.note_room()
        if run.is_settled:
            self._let_go((run_id, attempt))

    # --- NodeHandler: the link -----------------------------------------------------------------------

    def on_link_open(self, edge: EdgePort, verdicts: Sequence[RunVerdict]) -> None:
        """See NodeHandler."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._edge = edge
        by_key = {(verdict.run_id, verdict.attempt): verdict for verdict in verdicts}
        for run in self._outbox:
            key = (run.run_id, run.attempt)
            # An edge that says nothing of a run does not want it.
            verdict = by_key.get(key) or RunVerdict(*key, run.acked_seq, Verdict.CANCEL)
            self._obey(verdict, self._live.get(key))
        self._offering.tell_all()
        if self._admission.draining_reason is not None:
            edge.node_event(DrainingChanged(True, self._admission.draining_reason))
        self._outbox.link_opened(edge.runtime_event)
        for live in self._live.values():
            live.execution.note_room()

    def on_link_lost(self, disconnect_grace_s: float) -> None:
        """See NodeHandler. Safe to repeat: the first grace runs on."""
        self._detach()
        if self._grace is None and not self._is_stopped:
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(disconnect_grace_s, self._grace_over, disconnect_grace_s)

    def on_link_paused(self) -> None:
        """See NodeHandler."""
        self._outbox.pause()

    def on_link_resumed(self) -> None:
        """See NodeHandler."""
        self._outbox.resume()

    async def on_config(self, config: NodeConfigPayload) -> ConfigResult:
        """See NodeHandler."""
        return await self._offering.apply(config)

    async def on_command(self, request: NodeCommandRequest) -> NodeCommandResponse:
        """See NodeHandler."""
        match request.command:
            case "status":
                result: Any = status_result(
                    self.node_id,
                    self.boot_id,
                    __version__,
                    self._roster,
                    self._live.values(),
                    self.statistics(),
                    self._clock.monotonic(),
                )
                return NodeCommandResponse(request.command_id, result)
            case "capabilities":
                return NodeCommandResponse(request.command_id, capabilities_result(self._roster.statuses()))
            case unknown:
                near = nearest(unknown, ["status", "capabilities"])
                return NodeCommandResponse(
                    request.command_id,
                    error_code="unknown_command",
                    error_message=f"unknown command {unknown!r}: {near}",
                )

    # --- one run -------------------------------------------------------------------------------------

    def _take(self, request: RunRequest, spec: ExecutionSpec) -> LiveRun:
        """Gives a run its place, its outbox and its execution; nothing has started yet."""
        key = (request.run_id, request.attempt)
        slot = self._roster.get(request.adapter)
        assert slot is not None, "admission has just found it"
        now = self._clock.monotonic()
        outbox = self._outbox.open_run(*key)
        execution = Execution(
            spec,
            slot.adapter,
            outbox,
            node_id=self.node_id,
            engine=slot.probe.engine if slot.probe is not None else "",
            clock=self._clock,
            tasks=self._tasks,
            limits=self._limits.execution,
            accepted_at=now,
        )
        live = LiveRun(key, slot, outbox, execution, begin_record(request, self._clock.wall_ms()), now)
        self._live[key] = live
        slot.live.add(key)
        return live

    async def _run(self, live: LiveRun) -> None:
        try:
            try:
                await self._journal.begin(live.record)
            except IopError as error:
                self._outbox.forget(*live.key)
                code = "bad_input" if isinstance(error, BadRequest) else "journal_unavailable"
                self._refuse(live.key, Refusal(code, str(error)))
                return
            live.is_accepted = True
            if self._edge is not None:
                self._edge.run_accepted(*live.key)
            terminal = await live.execution.run()
            await self._finish(live, terminal)
            await live.execution.wait_adapter_over()
        finally:
            self._live.pop(live.key, None)
            self._offering.release(live.slot, live.key)
            self._changed.set()

    async def _finish(self, live: LiveRun, terminal: Terminal) -> None:
        """Completes the record, then tells the edge. In this order: a terminal event has its row on disk."""
        record = finish_record(live.record, terminal, self._clock.wall_ms())
        await self._journal.finish(record)
        # Remembered before the edge can have everything, so that a repeat finds it in one place or the other.
        self._admission.note_ended(live.key)
        live.outbox.put(terminal)
        if live.outbox.is_settled or live.outbox.forgotten:
            self._let_go(live.key)
        self._changed.set()
        log.info(
            "run_finished",
            run_id=record.run_id,
            attempt=record.attempt,
            adapter=record.adapter,
            target=record.target,
            state=record.state.value,
            error_code=record.code or None,
            duration_s=round(record.total_s, 3),
            output_bytes=record.output_bytes,
        )
        if self._observer is not None:
            self._observer.run_ended(record)
        if isinstance(terminal, Failed) and terminal.code in _PROBE_AFTER:
            self._offering.probe_soon(live.slot)

    def _refuse(self, key: RunKey, refusal: Refusal) -> None:
        log.info("run_refused", run_id=key[0], attempt=key[1], error_code=refusal.code, reason=refusal.message)
        if self._observer is not None:
            self._observer.run_refused(refusal.code)
        if self._edge is not None:
            self._edge.run_refused(RunRefused(*key, refusal.code, refusal.message, refusal.gate))

    def _obey(self, verdict: RunVerdict, live: LiveRun | None) -> None:
        run = self._outbox.get(verdict.run_id, verdict.attempt)
        assert run is not None, "only held runs are judged"
        cause: StopCause | None = None
        if verdict.verdict is Verdict.FORGET:
            self._let_go((verdict.run_id, verdict.attempt))
            cause = CancelAsked("the edge no longer knows this run")
        else:
            run.rewind(verdict.acked_seq)
            if verdict.verdict is Verdict.CANCEL:
                cause = CancelAsked("the edge asked for it on reconnecting")
            if run.is_settled:
                self._let_go((verdict.run_id, verdict.attempt))
        if cause is not None and live is not None:
            live.execution.stop(cause)

    def _let_go(self, key: RunKey) -> None:
        """The edge has everything of an attempt, or does not want it."""
        self._outbox.forget(*key)
        self._journal.settle_nowait(key)
        self._changed.set()

    def _restore(self, records: Sequence[RunRecord]) -> None:
        """Holds the ends of runs that an earlier process could not tell the edge any more."""
        for record in reversed(records):
            key = (record.run_id, record.attempt)
            self._outbox.restore_run(*key, record.events, terminal_of(record))
            self._admission.note_ended(key)

    def _detach(self) -> None:
        self._edge = None
        self._outbox.link_lost()

    def _grace_over(self, grace_s: float) -> None:
        self._grace = None
        if self._live:
            log.warning("runs_given_up", runs=len(self._live), disconnect_grace_s=grace_s)
        for live in self._live.values():
            live.execution.stop(
                NodeGivesUp("node_lost", f"no link to the edge for {grace_s:g} s (disconnect_grace_s)")
            )

    def _tell(self, body: EdgeNodeEventBody) -> None:
        if self._edge is not None:
            self._edge.node_event(body)

    # --- waiting -------------------------------------------------------------------------------------

    async def _wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until `holds()` after any change, at most `timeout_s`; returns whether it does."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return holds()

    def _task_failed(self, name: str, error: BaseException) -> None:
        log.error("task_failed", task=name, error_type=type(error).__name__, exc_info=error)
