"""A run between its admission and the end of its adapter, and how its record is drawn up. Values and glue."""

from dataclasses import dataclass, replace
from typing import assert_never

from iop_node.core.execution import Execution
from iop_node.core.outbox import RunKey, RunOutbox
from iop_node.core.ports import RunRecord
from iop_node.core.roster import Slot
from iop_shared.errors import Layer
from iop_shared.link.messages import OpenRun
from iop_shared.runs import RunRequest, RunState
from iop_shared.runtime_events import (
    TERMINAL_STATE,
    Cancelled,
    Closing,
    Failed,
    Interrupted,
    Succeeded,
    Terminal,
    Timings,
)


@dataclass(slots=True, eq=False)
class LiveRun:
    """One attempt that holds a place. `is_accepted`: its journal row stands and the edge has been told."""

    key: RunKey
    slot: Slot
    outbox: RunOutbox
    execution: Execution
    record: RunRecord
    accepted_at: float
    is_accepted: bool = False

    @property
    def state(self) -> str:
        """The word that OpenRun uses."""
        if self.outbox.has_ended:
            return "ended"
        if self.execution.is_stopping:
            return "cancelling"
        return "running" if self.execution.has_started else "accepted"


def open_run_of(outbox: RunOutbox, live: LiveRun | None) -> OpenRun:
    """What the edge is told of an attempt that is still held."""
    return OpenRun(outbox.run_id, outbox.attempt, outbox.held_seq, "ended" if live is None else live.state)


def terminal_of(record: RunRecord) -> Terminal:
    """Returns the terminal body of a completed row: without what a row does not hold (checksum, engine's body)."""
    closing = Closing(
        events=record.events,
        output_bytes=record.output_bytes,
        timings=Timings(record.queued_s, record.first_token_s, record.total_s),
        usage=record.usage,
        finish_reason=record.finish_reason,
    )
    match record.state:
        case RunState.SUCCEEDED:
            return Succeeded(closing)
        case RunState.CANCELLED:
            return Cancelled(record.message, record.code == "cancelled", 0, closing)
        case RunState.FAILED:
            return Failed(record.code, Layer(record.layer), record.message, closing)
        case _:
            return Interrupted(record.code, record.message, closing)


def begin_record(request: RunRequest, accepted_at_ms: int) -> RunRecord:
    """The row that is written before execution. No prompt, sizes only."""
    return RunRecord(
        run_id=request.run_id,
        attempt=request.attempt,
        adapter=request.adapter,
        target=request.target,
        operation=request.operation,
        accepted_at_ms=accepted_at_ms,
        session=request.session,
        source=request.source,
        profile=request.profile or "",
        input_bytes=len(request.input),
    )


def finish_record(record: RunRecord, terminal: Terminal, ended_at_ms: int) -> RunRecord:
    """The row with its outcome."""
    closing = terminal.closing
    timings = closing.timings
    code = layer = message = ""
    match terminal:
        case Succeeded():
            pass
        case Failed():
            code, layer, message = terminal.code, terminal.layer.value, terminal.message
        case Cancelled(reason=reason, confirmed=confirmed):
            code, message = ("cancelled" if confirmed else "cancelled_unconfirmed"), reason
        case Interrupted():
            code, layer, message = terminal.code, Layer.NODE.value, terminal.message
        case _ as never:
            assert_never(never)
    return replace(
        record,
        state=TERMINAL_STATE[type(terminal)],
        ended_at_ms=ended_at_ms,
        code=code,
        layer=layer,
        message=message,
        finish_reason=closing.finish_reason,
        usage=closing.usage,
        queued_s=timings.accepted_to_start_s,
        first_token_s=timings.first_token_s,
        total_s=timings.total_s,
        output_bytes=closing.output_bytes,
        events=closing.events,
    )
