"""Runs, their acks and their reconciliation to and from their messages."""

from collections.abc import Callable
from typing import Any, Final

from iop_shared.codec.link_messages import fill_gate, read_gate
from iop_shared.codec.values import OPERATIONS, from_json, to_json, to_ms
from iop_shared.ids import (
    AdapterName,
    ProfileName,
    RunId,
    SessionId,
    TargetName,
)
from iop_shared.link.messages import (
    CancelRun,
    EventAck,
    OpenRun,
    OpenRuns,
    Received,
    RunAccepted,
    RunAck,
    RunInputPart,
    RunRefused,
    RunSubmission,
    RunVerdict,
    RunVerdicts,
    UnreadableRun,
    Verdict,
)
from iop_shared.runs import RunLimits, RunRequest
from iop_shared.wire.v1 import run_pb2
from iop_shared.wire.v1.envelope_pb2 import Frame


def _fill_open_runs(frame: Frame, m: OpenRuns) -> None:
    frame.open_runs.SetInParent()
    add = frame.open_runs.runs.add
    for run in m.runs:
        add(run_id=run.run_id, attempt=run.attempt, last_seq=run.last_seq, state=run.state)


def _fill_run_verdicts(frame: Frame, m: RunVerdicts) -> None:
    frame.run_verdicts.SetInParent()
    add = frame.run_verdicts.runs.add
    for run in m.runs:
        add(
            run_id=run.run_id,
            attempt=run.attempt,
            acked_seq=run.acked_seq,
            verdict=_VERDICT_TO_WIRE[run.verdict],
        )


def _fill_cancel_run(frame: Frame, m: CancelRun) -> None:
    frame.cancel_run.run_id = m.run_id
    frame.cancel_run.reason = m.reason


def _fill_event_ack(frame: Frame, m: EventAck) -> None:
    frame.event_ack.SetInParent()
    add = frame.event_ack.runs.add
    for ack in m.runs:
        add(run_id=ack.run_id, attempt=ack.attempt, seq=ack.seq)


def _fill_run_submission(frame: Frame, m: RunSubmission) -> None:
    wire, request = frame.run_request, m.request
    wire.run_id = request.run_id
    wire.attempt = request.attempt
    wire.adapter = request.adapter
    wire.target = request.target
    wire.operation = request.operation
    wire.input = request.input
    wire.input_bytes = m.input_bytes
    wire.content_type = request.content_type
    limits, wire_limits = request.limits, wire.limits
    wire_limits.first_byte_timeout_ms = to_ms(limits.first_byte_timeout_s)
    wire_limits.idle_timeout_ms = to_ms(limits.idle_timeout_s)
    wire_limits.total_timeout_ms = to_ms(limits.total_timeout_s)
    wire_limits.max_output_bytes = limits.max_output_bytes
    wire.session = request.session or ""
    wire.traceparent = request.traceparent
    wire.source = request.source
    wire.profile = request.profile or ""
    wire.engine_json = request.engine_json
    wire.stream = request.stream
    wire.requested_model = request.requested_model
    wire.options_json = to_json(request.options)


def _fill_run_input_part(frame: Frame, m: RunInputPart) -> None:
    wire = frame.run_input_part
    wire.run_id = m.run_id
    wire.attempt = m.attempt
    wire.offset = m.offset
    wire.data = m.data


def _fill_run_accepted(frame: Frame, m: RunAccepted) -> None:
    frame.run_accepted.run_id = m.run_id
    frame.run_accepted.attempt = m.attempt


def _fill_run_refused(frame: Frame, m: RunRefused) -> None:
    wire = frame.run_refused
    wire.run_id = m.run_id
    wire.attempt = m.attempt
    wire.code = m.code
    wire.message = m.message
    if m.gate is not None:
        fill_gate(wire.gate, m.gate)


_VERDICT_TO_WIRE: Final[dict[Verdict, run_pb2.Verdict]] = {
    Verdict.KEEP: run_pb2.VERDICT_KEEP,
    Verdict.CANCEL: run_pb2.VERDICT_CANCEL,
    Verdict.FORGET: run_pb2.VERDICT_FORGET,
}


# --- messages to values ---------------------------------------------------------------------------------

_VERDICT_FROM_WIRE: Final = {int(w): v for v, w in _VERDICT_TO_WIRE.items()}


def _read_open_runs(w: run_pb2.OpenRuns) -> OpenRuns:
    return OpenRuns(tuple(OpenRun(RunId(r.run_id), r.attempt, r.last_seq, r.state) for r in w.runs))


def _read_run_verdicts(w: run_pb2.RunVerdicts) -> RunVerdicts:
    return RunVerdicts(
        tuple(
            RunVerdict(RunId(r.run_id), r.attempt, r.acked_seq, _VERDICT_FROM_WIRE.get(r.verdict, Verdict.CANCEL))
            for r in w.runs
        )
    )


def _read_event_ack(w: run_pb2.EventAck) -> EventAck:
    return EventAck(tuple(RunAck(RunId(r.run_id), r.attempt, r.seq) for r in w.runs))


def _read_run_request(w: run_pb2.RunRequest) -> RunSubmission | UnreadableRun:
    operation = OPERATIONS.get(w.operation)
    if operation is None:
        return UnreadableRun(RunId(w.run_id), w.attempt, w.operation)
    limits = w.limits
    request = RunRequest(
        run_id=RunId(w.run_id),
        adapter=AdapterName(w.adapter),
        target=TargetName(w.target),
        operation=operation,
        input=w.input,
        attempt=w.attempt,
        content_type=w.content_type,
        limits=RunLimits(
            first_byte_timeout_s=limits.first_byte_timeout_ms / 1000,
            idle_timeout_s=limits.idle_timeout_ms / 1000,
            total_timeout_s=limits.total_timeout_ms / 1000,
            max_output_bytes=limits.max_output_bytes,
        ),
        session=SessionId(w.session) if w.session else None,
        traceparent=w.traceparent,
        source=w.source,
        profile=ProfileName(w.profile) if w.profile else None,
        engine_json=w.engine_json,
        stream=w.stream,
        requested_model=w.requested_model,
        options=from_json(w.options_json, "RunRequest.options_json"),
    )
    return RunSubmission(request, w.input_bytes)


def _read_run_refused(w: run_pb2.RunRefused) -> RunRefused:
    gate = read_gate(w.gate) if w.HasField("gate") else None
    return RunRefused(RunId(w.run_id), w.attempt, w.code, w.message, gate)


RUN_WRITERS: Final[dict[type, Callable[[Frame, Any], None]]] = {
    OpenRuns: _fill_open_runs,
    RunVerdicts: _fill_run_verdicts,
    CancelRun: _fill_cancel_run,
    EventAck: _fill_event_ack,
    RunSubmission: _fill_run_submission,
    RunInputPart: _fill_run_input_part,
    RunAccepted: _fill_run_accepted,
    RunRefused: _fill_run_refused,
}
RUN_READERS: Final[dict[str, Callable[[Any], Received]]] = {
    "open_runs": _read_open_runs,
    "run_verdicts": _read_run_verdicts,
    "cancel_run": lambda w: CancelRun(RunId(w.run_id), w.reason),
    "event_ack": _read_event_ack,
    "run_request": _read_run_request,
    "run_input_part": lambda w: RunInputPart(RunId(w.run_id), w.attempt, w.offset, w.data),
    "run_accepted": lambda w: RunAccepted(RunId(w.run_id), w.attempt),
    "run_refused": _read_run_refused,
}
