"""Messages to and from the protobuf bytes of a frame.

Only this module and `runtime_event_codec` know the wire's classes.

What a newer peer may say and this version does not know never ends a link: enums are read as the comments in
the .proto files say, an unknown frame becomes an UnknownMessage, a run whose operation is unknown an
UnreadableRun. What no version says (bytes that are no Frame, JSON that is none) is a ProtocolError.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from google.protobuf.message import DecodeError

from iop_shared.errors import InternalError, ProtocolError
from iop_shared.ids import (
    AdapterName,
    BootId,
    CommandId,
    Epoch,
    NodeId,
    ProfileName,
    RunId,
    SessionId,
    TargetName,
    TokenId,
)
from iop_shared.link.messages import (
    AdapterConfig,
    AdapterStatus,
    CancelRun,
    CapabilitiesChanged,
    Challenge,
    ConfigPush,
    ConfigResult,
    DrainingChanged,
    EdgeNodeEvent,
    EventAck,
    Gate,
    GateChanged,
    GateState,
    GoAway,
    Goodbye,
    Heartbeat,
    Hello,
    LinkLimits,
    Message,
    NodeCommandRequest,
    NodeCommandResponse,
    NodeConfigPayload,
    NodeNotice,
    OpenRun,
    OpenRuns,
    Received,
    Reject,
    RejectClass,
    RunAccepted,
    RunAck,
    RunInputPart,
    RunRefused,
    RunSubmission,
    RunVerdict,
    RunVerdicts,
    UnknownMessage,
    UnreadableRun,
    Verdict,
    Welcome,
)
from iop_shared.runs import Operation, RunLimits, RunRequest
from iop_shared.runtime_event_codec import fill_runtime_event, read_runtime_event
from iop_shared.runtime_events import RuntimeEvent
from iop_shared.wire.v1 import link_pb2, run_pb2
from iop_shared.wire.v1.envelope_pb2 import Frame

_MAX_UINT32: Final = 2**32 - 1


def encode_message(message: Message) -> bytes:
    """Returns the payload of the frame that carries `message` (without the length before it).

    Raises:
        InternalError: a value that the wire cannot carry: a negative count, text with half a surrogate pair,
            settings that are no JSON. The sentence names the type and nothing of the content.
    """
    frame = Frame()
    try:
        if type(message) is RuntimeEvent:
            fill_runtime_event(frame.runtime_event, message)
        else:
            _FILL[type(message)](frame, message)
    except (ValueError, TypeError, KeyError) as error:
        name = type(message).__name__
        raise InternalError(f"{name} holds a value that the wire cannot carry ({type(error).__name__})") from error
    return frame.SerializeToString()


def decode_message(payload: bytes) -> Received:
    """Returns the message in a frame's payload.

    Raises:
        ProtocolError: the bytes are no Frame, or a field of it cannot be what it says.
    """
    try:
        frame = Frame.FromString(payload)
    except DecodeError:
        raise ProtocolError(f"a frame of {len(payload)} bytes is not a protobuf Frame of package iop.v1") from None
    name = frame.WhichOneof("body")
    if name == "runtime_event":
        return read_runtime_event(frame.runtime_event)
    if name is None:
        if not payload:
            raise ProtocolError("a frame of 0 bytes came; every frame carries a message")
        return UnknownMessage(len(payload))
    return _READ[name](getattr(frame, name))


# --- values to messages ---------------------------------------------------------------------------------


def _to_ms(seconds: float) -> int:
    """0 stays 0 (it means "the default" in places), more is never rounded down to it."""
    return 0 if seconds <= 0 else min(max(1, round(seconds * 1000)), _MAX_UINT32)


def _to_json(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(value)) if value else b""


def _fill_challenge(frame: Frame, m: Challenge) -> None:
    wire = frame.challenge
    wire.nonce = m.nonce
    wire.protocol_min = m.protocol_min
    wire.protocol_max = m.protocol_max
    wire.edge_id = m.edge_id
    wire.software_version = m.software_version


def _fill_hello(frame: Frame, m: Hello) -> None:
    wire = frame.hello
    wire.protocol_min = m.protocol_min
    wire.protocol_max = m.protocol_max
    wire.software_version = m.software_version
    wire.node_id = m.node_id
    wire.boot_id = m.boot_id
    wire.token_id = m.token_id
    wire.node_nonce = m.node_nonce
    wire.proof = m.proof
    wire.labels.update(m.labels)
    wire.config_revision = m.config_revision
    wire.config_hash = m.config_hash


def _fill_welcome(frame: Frame, m: Welcome) -> None:
    wire = frame.welcome
    wire.protocol = m.protocol
    wire.epoch = m.epoch
    wire.server_time_ms = m.server_time_ms
    wire.limits.max_frame_bytes = m.limits.max_frame_bytes
    wire.limits.heartbeat_interval_ms = _to_ms(m.limits.heartbeat_interval_s)
    wire.limits.dead_after_ms = _to_ms(m.limits.dead_after_s)
    wire.limits.disconnect_grace_ms = _to_ms(m.limits.disconnect_grace_s)
    _fill_config(wire.config, m.config)


def _fill_reject(frame: Frame, m: Reject) -> None:
    frame.reject.code = m.code
    frame.reject.reject_class = _REJECT_CLASS_TO_WIRE[m.reject_class]
    frame.reject.message = m.message


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


def _fill_heartbeat(frame: Frame, m: Heartbeat) -> None:
    wire = frame.heartbeat
    wire.sent_ms = m.sent_ms
    wire.echo_ms = m.echo_ms
    if m.cancelling:
        wire.cancelling.extend(m.cancelling)


def _fill_goodbye(frame: Frame, m: Goodbye) -> None:
    frame.goodbye.reason = m.reason
    frame.goodbye.message = m.message


def _fill_go_away(frame: Frame, m: GoAway) -> None:
    frame.go_away.reason = m.reason
    frame.go_away.reconnect_in_ms = _to_ms(m.reconnect_in_s)
    frame.go_away.deadline_ms = _to_ms(m.deadline_s)


def _fill_cancel_run(frame: Frame, m: CancelRun) -> None:
    frame.cancel_run.run_id = m.run_id
    frame.cancel_run.reason = m.reason


def _fill_event_ack(frame: Frame, m: EventAck) -> None:
    frame.event_ack.SetInParent()
    add = frame.event_ack.runs.add
    for ack in m.runs:
        add(run_id=ack.run_id, attempt=ack.attempt, seq=ack.seq)


def _fill_config(wire: link_pb2.NodeConfigPayload, config: NodeConfigPayload) -> None:
    wire.revision = config.revision
    wire.hash = config.hash
    for adapter in config.adapters:
        wire.adapters.add(
            name=adapter.name,
            type=adapter.type,
            max_concurrent=adapter.max_concurrent,
            settings_json=_to_json(adapter.settings),
        )


def _fill_config_push(frame: Frame, m: ConfigPush) -> None:
    _fill_config(frame.config_push, m.config)


def _fill_config_result(frame: Frame, m: ConfigResult) -> None:
    wire = frame.config_result
    wire.revision = m.revision
    wire.hash = m.hash
    wire.applied = m.applied
    wire.reasons.extend(m.reasons)


def _fill_command_request(frame: Frame, m: NodeCommandRequest) -> None:
    wire = frame.node_command_request
    wire.command_id = m.command_id
    wire.command = m.command
    wire.arguments_json = _to_json(m.arguments)


def _fill_command_response(frame: Frame, m: NodeCommandResponse) -> None:
    wire = frame.node_command_response
    wire.command_id = m.command_id
    wire.error_code = m.error_code
    wire.error_message = m.error_message
    if m.result is not None:
        wire.result_json = orjson.dumps(m.result)


def _fill_gate(wire: link_pb2.Gate, gate: Gate) -> None:
    wire.state = _GATE_STATE_TO_WIRE[gate.state]
    wire.check = gate.check
    wire.reason = gate.reason


def _fill_edge_node_event(frame: Frame, m: EdgeNodeEvent) -> None:
    wire = frame.edge_node_event
    wire.at_ms = m.at_ms
    match m.body:
        case CapabilitiesChanged(adapters=adapters):
            wire.capabilities_changed.SetInParent()
            for adapter in adapters:
                _fill_adapter_status(wire.capabilities_changed.adapters.add(), adapter)
        case GateChanged(adapter=name, gate=gate):
            wire.gate_changed.adapter = name
            _fill_gate(wire.gate_changed.gate, gate)
        case DrainingChanged(draining=draining, reason=reason):
            wire.draining_changed.draining = draining
            wire.draining_changed.reason = reason
        case NodeNotice(code=code, message=message):
            wire.notice.code = code
            wire.notice.message = message


def _fill_adapter_status(wire: link_pb2.AdapterStatus, status: AdapterStatus) -> None:
    wire.name = status.name
    wire.type = status.type
    wire.max_concurrent = status.max_concurrent
    wire.operations.extend(status.operations)
    wire.targets.extend(status.targets)
    wire.any_target = status.any_target
    _fill_gate(wire.gate, status.gate)


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
    wire_limits.first_byte_timeout_ms = _to_ms(limits.first_byte_timeout_s)
    wire_limits.idle_timeout_ms = _to_ms(limits.idle_timeout_s)
    wire_limits.total_timeout_ms = _to_ms(limits.total_timeout_s)
    wire_limits.max_output_bytes = limits.max_output_bytes
    wire.session = request.session or ""
    wire.traceparent = request.traceparent
    wire.source = request.source
    wire.profile = request.profile or ""
    wire.engine_json = request.engine_json
    wire.stream = request.stream
    wire.requested_model = request.requested_model
    wire.options_json = _to_json(request.options)


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
        _fill_gate(wire.gate, m.gate)


_FILL: Final[dict[type, Callable[[Frame, Any], None]]] = {
    Challenge: _fill_challenge,
    Hello: _fill_hello,
    Welcome: _fill_welcome,
    Reject: _fill_reject,
    OpenRuns: _fill_open_runs,
    RunVerdicts: _fill_run_verdicts,
    Heartbeat: _fill_heartbeat,
    Goodbye: _fill_goodbye,
    GoAway: _fill_go_away,
    CancelRun: _fill_cancel_run,
    EventAck: _fill_event_ack,
    ConfigPush: _fill_config_push,
    ConfigResult: _fill_config_result,
    NodeCommandRequest: _fill_command_request,
    NodeCommandResponse: _fill_command_response,
    EdgeNodeEvent: _fill_edge_node_event,
    RunSubmission: _fill_run_submission,
    RunInputPart: _fill_run_input_part,
    RunAccepted: _fill_run_accepted,
    RunRefused: _fill_run_refused,
}
_REJECT_CLASS_TO_WIRE: Final[dict[RejectClass, link_pb2.RejectClass]] = {
    RejectClass.RETRY: link_pb2.REJECT_CLASS_RETRY,
    RejectClass.RETRY_SLOW: link_pb2.REJECT_CLASS_RETRY_SLOW,
    RejectClass.FATAL: link_pb2.REJECT_CLASS_FATAL,
}
_VERDICT_TO_WIRE: Final[dict[Verdict, run_pb2.Verdict]] = {
    Verdict.KEEP: run_pb2.VERDICT_KEEP,
    Verdict.CANCEL: run_pb2.VERDICT_CANCEL,
    Verdict.FORGET: run_pb2.VERDICT_FORGET,
}
_GATE_STATE_TO_WIRE: Final[dict[GateState, link_pb2.GateState]] = {
    GateState.OPEN: link_pb2.GATE_STATE_OPEN,
    GateState.CLOSED: link_pb2.GATE_STATE_CLOSED,
    GateState.UNKNOWN: link_pb2.GATE_STATE_UNKNOWN,
    GateState.NOT_APPLICABLE: link_pb2.GATE_STATE_NOT_APPLICABLE,
}


# --- messages to values ---------------------------------------------------------------------------------

_REJECT_CLASS_FROM_WIRE: Final = {int(w): v for v, w in _REJECT_CLASS_TO_WIRE.items()}
_VERDICT_FROM_WIRE: Final = {int(w): v for v, w in _VERDICT_TO_WIRE.items()}
_GATE_STATE_FROM_WIRE: Final = {int(w): v for v, w in _GATE_STATE_TO_WIRE.items()}
_OPERATIONS: Final = {operation.value: operation for operation in Operation}


def _from_json(data: bytes, where: str) -> dict[str, Any]:
    if not data:
        return {}
    value = _from_any_json(data, where)
    if not isinstance(value, dict):
        raise ProtocolError(f"{where} holds a JSON {type(value).__name__}, expected an object")
    return value


def _from_any_json(data: bytes, where: str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ProtocolError(f"{where} ({len(data)} bytes) is not JSON") from None


def _read_challenge(w: link_pb2.Challenge) -> Challenge:
    return Challenge(w.nonce, w.edge_id, w.software_version, w.protocol_min, w.protocol_max)


def _read_hello(w: link_pb2.Hello) -> Hello:
    return Hello(
        node_id=NodeId(w.node_id),
        boot_id=BootId(w.boot_id),
        token_id=TokenId(w.token_id),
        node_nonce=w.node_nonce,
        proof=w.proof,
        software_version=w.software_version,
        labels=dict(w.labels),
        config_revision=w.config_revision,
        config_hash=w.config_hash,
        protocol_min=w.protocol_min,
        protocol_max=w.protocol_max,
    )


def _read_welcome(w: link_pb2.Welcome) -> Welcome:
    limits = LinkLimits(
        max_frame_bytes=w.limits.max_frame_bytes,
        heartbeat_interval_s=w.limits.heartbeat_interval_ms / 1000,
        dead_after_s=w.limits.dead_after_ms / 1000,
        disconnect_grace_s=w.limits.disconnect_grace_ms / 1000,
    )
    return Welcome(Epoch(w.epoch), limits, w.server_time_ms, _read_config(w.config), w.protocol)


def _read_reject(w: link_pb2.Reject) -> Reject:
    return Reject(w.code, _REJECT_CLASS_FROM_WIRE.get(w.reject_class, RejectClass.RETRY), w.message)


def _read_open_runs(w: run_pb2.OpenRuns) -> OpenRuns:
    return OpenRuns(tuple(OpenRun(RunId(r.run_id), r.attempt, r.last_seq, r.state) for r in w.runs))


def _read_run_verdicts(w: run_pb2.RunVerdicts) -> RunVerdicts:
    return RunVerdicts(
        tuple(
            RunVerdict(RunId(r.run_id), r.attempt, r.acked_seq, _VERDICT_FROM_WIRE.get(r.verdict, Verdict.CANCEL))
            for r in w.runs
        )
    )


def _read_heartbeat(w: link_pb2.Heartbeat) -> Heartbeat:
    return Heartbeat(w.sent_ms, w.echo_ms, tuple(RunId(run_id) for run_id in w.cancelling))


def _read_go_away(w: link_pb2.GoAway) -> GoAway:
    return GoAway(w.reason, w.reconnect_in_ms / 1000, w.deadline_ms / 1000)


def _read_event_ack(w: run_pb2.EventAck) -> EventAck:
    return EventAck(tuple(RunAck(RunId(r.run_id), r.attempt, r.seq) for r in w.runs))


def _read_config(w: link_pb2.NodeConfigPayload) -> NodeConfigPayload:
    return NodeConfigPayload(
        w.revision,
        w.hash,
        tuple(
            AdapterConfig(
                AdapterName(a.name),
                a.type,
                a.max_concurrent,
                _from_json(a.settings_json, f"settings_json of adapter {a.name[:63]!r}"),
            )
            for a in w.adapters
        ),
    )


def _read_config_result(w: link_pb2.ConfigResult) -> ConfigResult:
    return ConfigResult(w.revision, w.hash, w.applied, tuple(w.reasons))


def _read_command_request(w: link_pb2.NodeCommandRequest) -> NodeCommandRequest:
    arguments = _from_json(w.arguments_json, "NodeCommandRequest.arguments_json")
    return NodeCommandRequest(CommandId(w.command_id), w.command, arguments)


def _read_command_response(w: link_pb2.NodeCommandResponse) -> NodeCommandResponse:
    result = _from_any_json(w.result_json, "NodeCommandResponse.result_json") if w.result_json else None
    return NodeCommandResponse(CommandId(w.command_id), result, w.error_code, w.error_message)


def _read_gate(w: link_pb2.Gate) -> Gate:
    return Gate(_GATE_STATE_FROM_WIRE.get(w.state, GateState.UNKNOWN), w.check, w.reason)


def _read_adapter_status(w: link_pb2.AdapterStatus) -> AdapterStatus:
    return AdapterStatus(
        name=AdapterName(w.name),
        type=w.type,
        gate=_read_gate(w.gate),
        max_concurrent=w.max_concurrent,
        # An operation that this version does not know cannot be asked for by it either.
        operations=tuple(_OPERATIONS[o] for o in w.operations if o in _OPERATIONS),
        targets=tuple(TargetName(t) for t in w.targets),
        any_target=w.any_target,
    )


def _read_edge_node_event(w: link_pb2.EdgeNodeEvent) -> EdgeNodeEvent | UnknownMessage:
    match w.WhichOneof("body"):
        case "capabilities_changed":
            adapters = tuple(_read_adapter_status(a) for a in w.capabilities_changed.adapters)
            return EdgeNodeEvent(w.at_ms, CapabilitiesChanged(adapters))
        case "gate_changed":
            changed = GateChanged(AdapterName(w.gate_changed.adapter), _read_gate(w.gate_changed.gate))
            return EdgeNodeEvent(w.at_ms, changed)
        case "draining_changed":
            draining = DrainingChanged(w.draining_changed.draining, w.draining_changed.reason)
            return EdgeNodeEvent(w.at_ms, draining)
        case "notice":
            return EdgeNodeEvent(w.at_ms, NodeNotice(w.notice.code, w.notice.message))
        case _:
            return UnknownMessage(w.ByteSize())


def _read_run_request(w: run_pb2.RunRequest) -> RunSubmission | UnreadableRun:
    operation = _OPERATIONS.get(w.operation)
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
        options=_from_json(w.options_json, "RunRequest.options_json"),
    )
    if w.input_bytes < len(w.input):
        raise ProtocolError(
            f"RunRequest says input_bytes={w.input_bytes}, but its first part alone has {len(w.input)} bytes"
        )
    return RunSubmission(request, w.input_bytes)


def _read_run_refused(w: run_pb2.RunRefused) -> RunRefused:
    gate = _read_gate(w.gate) if w.HasField("gate") else None
    return RunRefused(RunId(w.run_id), w.attempt, w.code, w.message, gate)


_READ: Final[dict[str, Callable[[Any], Received]]] = {
    "challenge": _read_challenge,
    "hello": _read_hello,
    "welcome": _read_welcome,
    "reject": _read_reject,
    "open_runs": _read_open_runs,
    "run_verdicts": _read_run_verdicts,
    "heartbeat": _read_heartbeat,
    "goodbye": lambda w: Goodbye(w.reason, w.message),
    "cancel_run": lambda w: CancelRun(RunId(w.run_id), w.reason),
    "event_ack": _read_event_ack,
    "go_away": _read_go_away,
    "config_push": lambda w: ConfigPush(_read_config(w)),
    "config_result": _read_config_result,
    "node_command_request": _read_command_request,
    "node_command_response": _read_command_response,
    "edge_node_event": _read_edge_node_event,
    "run_request": _read_run_request,
    "run_input_part": lambda w: RunInputPart(RunId(w.run_id), w.attempt, w.offset, w.data),
    "run_accepted": lambda w: RunAccepted(RunId(w.run_id), w.attempt),
    "run_refused": _read_run_refused,
}
