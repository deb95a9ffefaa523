"""One run on one adapter, from its start to its one terminal body.

    run() --> [adapter task] --returns / raises--> terminal
                   |  ^
      stop(cause)  |  | emit, wait_ready, confirm_cancel (RunSink)
                   v  |
              cancel: soft (cancel_grace_s), hard (hard_cancel_s), then abandoned

Whoever stops a run first names the cause, and the cause decides the ending. An adapter that returned before
it could be stopped has completed, whatever was asked meanwhile.
"""

import asyncio
import traceback
from dataclasses import dataclass
from typing import Final, assert_never

from iop_node.core.outbox import RunOutbox
from iop_node.core.pieces import MAX_PIECE_BYTES, MAX_WHOLE_BYTES, ROUGH_BYTES, cut
from iop_node.core.ports import Adapter
from iop_node.core.spec import Completion, ExecutionSpec
from iop_shared.aio.tasks import TaskOwner
from iop_shared.clock import Clock
from iop_shared.errors import InternalError, Layer, RunFailed
from iop_shared.ids import NodeId
from iop_shared.logs import get_logger
from iop_shared.runtime_events import (
    Body,
    Cancelled,
    Closing,
    Failed,
    Interrupted,
    Started,
    Succeeded,
    Terminal,
    Timings,
    Usage,
)

log = get_logger("node")

MAX_MESSAGE_CHARS: Final = 2000
MAX_ENGINE_BODY_BYTES: Final = 64 * 1024
"""Of the engine's own error; with it the terminal event stays far below a frame."""


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """Bounds of any run on this node. A request's own limits may be lower, never higher in output."""

    cancel_grace_s: float = 5.0
    hard_cancel_s: float = 1.0
    max_output_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """A client or the edge wants the run to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A bound of the run was passed."""

    code: str
    layer: Layer
    message: str


@dataclass(frozen=True, slots=True)
class NodeGivesUp:
    """The node stops, or has had no link for longer than the grace."""

    code: str
    message: str


StopCause = CancelAsked | LimitHit | NodeGivesUp


@dataclass(frozen=True, slots=True)
class _Broke:
    """The adapter failed in a way that it must not: our bug."""

    error: str


class RunSink:
    """The EventSink of one run. Calls after the run's end are ignored."""

    __slots__ = ("_first_output", "_is_closed", "_max_output", "_outbox", "_room", "_run", "usage")

    def __init__(self, run: "Execution", outbox: RunOutbox, max_output_bytes: int) -> None:
        self._run, self._outbox, self._max_output = run, outbox, max_output_bytes
        self._room = asyncio.Event()
        self._is_closed = False
        self._first_output = True
        self.usage: Usage | None = None

    def emit(self, body: Body) -> None:
        """See EventSink. The hot path: a few microseconds per token."""
        if self._is_closed:
            return
        if self._first_output:
            self._run.start_nowait()
        if type(body) is Usage:
            self.usage = body
        outbox = self._outbox
        measure = ROUGH_BYTES.get(type(body))
        if measure is None:
            raise InternalError(f"an adapter must not emit {type(body).__name__}: the core does that")
        if measure(body) > MAX_PIECE_BYTES:
            self._emit_large(body)
        else:
            output = outbox.put(body)
            if output and self._first_output:
                self._first_output = False
                self._run.note_first_output()
        if outbox.output_bytes > self._max_output:
            self._stop(
                "output_limit",
                f"the run produced more than {self._max_output} bytes of output (max_output_bytes); "
                "ask for less, or raise the limit",
            )

    def set_engine(self, engine: str) -> None:
        """See EventSink."""
        self._run.set_engine(engine)

    async def wait_ready(self) -> None:
        """See EventSink. A run that is being stopped is always ready: its adapter must not hang here."""
        while not (self._outbox.is_ready or self._is_closed or self._run.is_stopping):
            self._room.clear()
            await self._room.wait()

    def confirm_cancel(self) -> None:
        """See EventSink."""
        if self._run.is_stopping and not self._is_closed:
            self._run.confirmed = True

    def note_room(self) -> None:
        """Wakes an adapter in `wait_ready`."""
        self._room.set()

    def close(self) -> None:
        """Nothing is taken from the adapter any more."""
        self._is_closed = True
        self._room.set()

    def _emit_large(self, body: Body) -> None:
        pieces = cut(body)
        if pieces is None:
            self._stop(
                "output_limit",
                f"the engine sent one {type(body).__name__} of more than {MAX_WHOLE_BYTES} bytes, "
                "which does not fit a frame of the link",
            )
            return
        for piece in pieces:
            self._outbox.put(piece)
        if self._first_output:
            self._first_output = False
            self._run.note_first_output()

    def _stop(self, code: str, message: str) -> None:
        self._is_closed = True
        self._run.stop(LimitHit(code, Layer.NODE, message))


class Execution:
    """Runs one spec once. `run` returns the terminal body; the caller records it and puts it into the outbox.

    Times count from `accepted_at` (monotonic seconds): first token and total too.
    """

    def __init__(
        self,
        spec: ExecutionSpec,
        adapter: Adapter,
        outbox: RunOutbox,
        *,
        node_id: NodeId,
        engine: str,
        clock: Clock,
        tasks: TaskOwner,
        limits: ExecutionLimits,
        accepted_at: float,
    ) -> None:
        self._spec, self._adapter, self._outbox = spec, adapter, outbox
        self._node_id, self._engine = node_id, engine
        self._clock, self._tasks, self._limits = clock, tasks, limits
        self._accepted_at = accepted_at
        asked = spec.limits.max_output_bytes
        ceiling = limits.max_output_bytes
        self._sink = RunSink(self, outbox, min(asked, ceiling) if asked else ceiling)
        self._task: asyncio.Task[Completion | RunFailed | _Broke] | None = None
        self._cause: StopCause | None = None
        self._asked_at = accepted_at
        self._stopped = asyncio.Event()
        self._started_at: float | None = None
        self._first_output_at: float | None = None
        self._is_announced = False
        self.confirmed = False

    @property
    def is_stopping(self) -> bool:
        """Whether somebody has asked the run to stop."""
        return self._cause is not None

    @property
    def has_started(self) -> bool:
        """Whether the adapter has been called."""
        return self._started_at is not None

    @property
    def is_abandoned(self) -> bool:
        """Whether the adapter is still at work after the run ended."""
        return self._stopped.is_set() and self._task is not None and not self._task.done()

    def stop(self, cause: StopCause) -> None:
        """Stops the run. The first cause stays; later calls change nothing."""
        if self._cause is None:
            self._cause = cause
            self._asked_at = self._clock.monotonic()
            self._stopped.set()
            self._sink.note_room()

    def note_room(self) -> None:
        """The edge has acknowledged something."""
        if self._outbox.is_ready:
            self._sink.note_room()

    def set_engine(self, engine: str) -> None:
        """Names the engine in the Started body, if that has not been sent."""
        self._engine = engine

    def start_nowait(self) -> None:
        """Puts Started into the outbox, once, before anything else."""
        if not self._is_announced:
            self._is_announced = True
            self._outbox.put(Started(self._spec.adapter, self._spec.target, self._node_id, self._engine))

    def note_first_output(self) -> None:
        """The first output has just been put."""
        self._first_output_at = self._clock.monotonic()

    async def run(self) -> Terminal:
        """Executes to the end, the adapter's or the budgets', and returns the terminal body (not yet put).

        Cancelling it leaves the adapter to the TaskOwner.
        """
        if self._cause is None:
            self._started_at = self._clock.monotonic()
            self._task = self._tasks.spawn(self._execute(), name=f"adapter {self._spec.run_id}")
            # The adapter's first step may name its engine; Started comes right after it.
            await asyncio.sleep(0)
            self.start_nowait()
            await self._wait(self._task)
        terminal = self._terminal()
        self._sink.close()
        self._stopped.set()
        return terminal

    async def wait_adapter_over(self) -> None:
        """Waits until an abandoned adapter has ended; its outcome is of no interest any more."""
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task})

    async def _execute(self) -> Completion | RunFailed | _Broke:
        """The adapter's outcome as a value, so that the TaskOwner reports only what nobody handles."""
        try:
            return await self._adapter.execute(self._spec, self._sink)
        except RunFailed as error:
            return error
        except asyncio.CancelledError:
            if self._cause is None and not _cancel_was_asked():
                return _Broke("CancelledError")  # the adapter's own; ours comes with a cause
            raise
        except Exception as error:
            # The frames only: the error's own text may quote what the client sent or the engine said.
            log.error(
                "adapter_failed",
                run_id=self._spec.run_id,
                adapter=self._spec.adapter,
                error_type=type(error).__name__,
                where="".join(traceback.format_tb(error.__traceback__)),
            )
            return _Broke(type(error).__name__)

    async def _wait(self, task: "asyncio.Task[Completion | RunFailed | _Broke]") -> None:
        total_s = self._spec.limits.total_timeout_s
        timer: asyncio.TimerHandle | None = None
        if total_s:
            left_s = max(0.0, total_s - (self._clock.monotonic() - self._accepted_at))
            timer = asyncio.get_running_loop().call_later(left_s, self._time_out, total_s)
        task.add_done_callback(self._wake)
        try:
            await self._stopped.wait()
        finally:
            if timer is not None:
                timer.cancel()
        # Soft: the adapter stops its engine. Hard: whatever it waits for in its clean-up is cut short.
        for budget_s in (self._limits.cancel_grace_s, self._limits.hard_cancel_s):
            if task.done():
                return
            task.cancel()
            await asyncio.wait({task}, timeout=budget_s)
        if not task.done():
            log.warning("adapter_abandoned", run_id=self._spec.run_id, adapter=self._spec.adapter)

    def _wake(self, _task: object) -> None:
        self._stopped.set()

    def _time_out(self, total_s: float) -> None:
        message = f"the run did not end within its total timeout of {total_s:g} s (total_timeout_s)"
        self.stop(LimitHit("run_timeout_total", Layer.SERVING, message))

    def _terminal(self) -> Terminal:
        now = self._clock.monotonic()
        outcome: Completion | RunFailed | _Broke | None = None
        if self._task is not None and self._task.done() and not self._task.cancelled():
            outcome = self._task.result()
        if isinstance(outcome, Completion) and not isinstance(self._cause, LimitHit):
            return Succeeded(self._closing(now, outcome.finish_reason))
        closing = self._closing(now)
        match self._cause:
            case CancelAsked(reason):
                # A run whose adapter was never called is as stopped as can be.
                confirmed = self.confirmed or self._task is None
                return Cancelled(reason, confirmed, max(0, round((now - self._asked_at) * 1000)), closing)
            case LimitHit(code, layer, message):
                return Failed(code, layer, message, closing)
            case NodeGivesUp(code, message):
                return Interrupted(code, message, closing)
            case None:
                pass
            case _ as never:
                assert_never(never)
        if isinstance(outcome, RunFailed):
            return Failed(
                outcome.code,
                outcome.layer,
                str(outcome)[:MAX_MESSAGE_CHARS],
                closing,
                retryable=outcome.may_retry,
                engine_status=outcome.engine_status,
                engine_body=outcome.engine_body[:MAX_ENGINE_BODY_BYTES],
            )
        what = outcome.error if isinstance(outcome, _Broke) else "CancelledError"
        message = (
            f"adapter {self._spec.adapter!r} ({self._adapter.type}) failed with {what}; "
            "this is a bug, the node's log has the details"
        )
        return Failed("adapter_error", Layer.NODE, message, closing)

    def _closing(self, now: float, finish_reason: str = "") -> Closing:
        started_at = self._started_at if self._started_at is not None else now
        first_at = self._first_output_at
        return Closing(
            events=self._outbox.emitted,
            output_bytes=self._outbox.output_bytes,
            output_sha256=self._outbox.output_sha256,
            timings=Timings(
                accepted_to_start_s=started_at - self._accepted_at,
                first_token_s=None if first_at is None else first_at - self._accepted_at,
                total_s=now - self._accepted_at,
            ),
            usage=self._sink.usage,
            finish_reason=finish_reason,
        )


def _cancel_was_asked() -> bool:
    """Whether this task was cancelled from outside (the process stops), not by the adapter itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
