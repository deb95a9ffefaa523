"""The handshake, liveness, configuration, commands and node events to and from their messages."""

from collections.abc import Callable
from typing import Any, Final

import orjson

from iop_shared.codec.values import OPERATIONS, from_any_json, from_json, to_json, to_ms
from iop_shared.ids import (
    AdapterName,
    BootId,
    CommandId,
    Epoch,
    NodeId,
    RunId,
    TargetName,
    TokenId,
)
from iop_shared.link.messages import (
    AdapterConfig,
    AdapterStatus,
    CapabilitiesChanged,
    Challenge,
    ConfigPush,
    ConfigResult,
    DrainingChanged,
    EdgeNodeEvent,
    Gate,
    GateChanged,
    GateState,
    GoAway,
    Goodbye,
    Heartbeat,
    Hello,
    LinkLimits,
    NodeCommandRequest,
    NodeCommandResponse,
    NodeConfigPayload,
    NodeNotice,
    Received,
    Reject,
    RejectClass,
    UnknownMessage,
    Welcome,
)
from iop_shared.wire.v1 import link_pb2
from iop_shared.wire.v1.envelope_pb2 import Frame


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
    wire.limits.heartbeat_interval_ms = to_ms(m.limits.heartbeat_interval_s)
    wire.limits.dead_after_ms = to_ms(m.limits.dead_after_s)
    wire.limits.disconnect_grace_ms = to_ms(m.limits.disconnect_grace_s)
    _fill_config(wire.config, m.config)


def _fill_reject(frame: Frame, m: Reject) -> None:
    frame.reject.code = m.code
    frame.reject.reject_class = _REJECT_CLASS_TO_WIRE[m.reject_class]
    frame.reject.message = m.message


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
    frame.go_away.reconnect_in_ms = to_ms(m.reconnect_in_s)
    frame.go_away.deadline_ms = to_ms(m.deadline_s)


def _fill_config(wire: link_pb2.NodeConfigPayload, config: NodeConfigPayload) -> None:
    wire.revision = config.revision
    wire.hash = config.hash
    for adapter in config.adapters:
        wire.adapters.add(
            name=adapter.name,
            type=adapter.type,
            max_concurrent=adapter.max_concurrent,
            settings_json=to_json(adapter.settings),
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
    wire.arguments_json = to_json(m.arguments)


def _fill_command_response(frame: Frame, m: NodeCommandResponse) -> None:
    wire = frame.node_command_response
    wire.command_id = m.command_id
    wire.error_code = m.error_code
    wire.error_message = m.error_message
    if m.result is not None:
        wire.result_json = orjson.dumps(m.result)


def fill_gate(wire: link_pb2.Gate, gate: Gate) -> None:
    """Writes `gate` into the empty message `wire`."""
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
            fill_gate(wire.gate_changed.gate, gate)
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
    fill_gate(wire.gate, status.gate)


_REJECT_CLASS_TO_WIRE: Final[dict[RejectClass, link_pb2.RejectClass]] = {
    RejectClass.RETRY: link_pb2.REJECT_CLASS_RETRY,
    RejectClass.RETRY_SLOW: link_pb2.REJECT_CLASS_RETRY_SLOW,
    RejectClass.FATAL: link_pb2.REJECT_CLASS_FATAL,
}
_GATE_STATE_TO_WIRE: Final[dict[GateState, link_pb2.GateState]] = {
    GateState.OPEN: link_pb2.GATE_STATE_OPEN,
    GateState.CLOSED: link_pb2.GATE_STATE_CLOSED,
    GateState.UNKNOWN: link_pb2.GATE_STATE_UNKNOWN,
    GateState.NOT_APPLICABLE: link_pb2.GATE_STATE_NOT_APPLICABLE,
}


# --- messages to values ---------------------------------------------------------------------------------

_REJECT_CLASS_FROM_WIRE: Final = {int(w): v for v, w in _REJECT_CLASS_TO_WIRE.items()}
_GATE_STATE_FROM_WIRE: Final = {int(w): v for v, w in _GATE_STATE_TO_WIRE.items()}


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


def _read_heartbeat(w: link_pb2.Heartbeat) -> Heartbeat:
    return Heartbeat(w.sent_ms, w.echo_ms, tuple(RunId(run_id) for run_id in w.cancelling))


def _read_go_away(w: link_pb2.GoAway) -> GoAway:
    return GoAway(w.reason, w.reconnect_in_ms / 1000, w.deadline_ms / 1000)


def _read_config(w: link_pb2.NodeConfigPayload) -> NodeConfigPayload:
    return NodeConfigPayload(
        w.revision,
        w.hash,
        tuple(
            AdapterConfig(
                AdapterName(a.name),
                a.type,
                a.max_concurrent,
                from_json(a.settings_json, f"settings_json of adapter {a.name[:63]!r}"),
            )
            for a in w.adapters
        ),
    )


def _read_config_result(w: link_pb2.ConfigResult) -> ConfigResult:
    return ConfigResult(w.revision, w.hash, w.applied, tuple(w.reasons))


def _read_command_request(w: link_pb2.NodeCommandRequest) -> NodeCommandRequest:
    arguments = from_json(w.arguments_json, "NodeCommandRequest.arguments_json")
    return NodeCommandRequest(CommandId(w.command_id), w.command, arguments)


def _read_command_response(w: link_pb2.NodeCommandResponse) -> NodeCommandResponse:
    result = from_any_json(w.result_json, "NodeCommandResponse.result_json") if w.result_json else None
    return NodeCommandResponse(CommandId(w.command_id), result, w.error_code, w.error_message)


def read_gate(w: link_pb2.Gate) -> Gate:
    """Returns the gate in `w`; a state that this version does not know is unknown."""
    return Gate(_GATE_STATE_FROM_WIRE.get(w.state, GateState.UNKNOWN), w.check, w.reason)


def _read_adapter_status(w: link_pb2.AdapterStatus) -> AdapterStatus:
    return AdapterStatus(
        name=AdapterName(w.name),
        type=w.type,
        gate=read_gate(w.gate),
        max_concurrent=w.max_concurrent,
        # An operation that this version does not know cannot be asked for by it either.
        operations=tuple(OPERATIONS[o] for o in w.operations if o in OPERATIONS),
        targets=tuple(TargetName(t) for t in w.targets),
        any_target=w.any_target,
    )


def _read_edge_node_event(w: link_pb2.EdgeNodeEvent) -> EdgeNodeEvent | UnknownMessage:
    match w.WhichOneof("body"):
        case "capabilities_changed":
            adapters = tuple(_read_adapter_status(a) for a in w.capabilities_changed.adapters)
            return EdgeNodeEvent(w.at_ms, CapabilitiesChanged(adapters))
        case "gate_changed":
            changed = GateChanged(AdapterName(w.gate_changed.adapter), read_gate(w.gate_changed.gate))
            return EdgeNodeEvent(w.at_ms, changed)
        case "draining_changed":
            draining = DrainingChanged(w.draining_changed.draining, w.draining_changed.reason)
            return EdgeNodeEvent(w.at_ms, draining)
        case "notice":
            return EdgeNodeEvent(w.at_ms, NodeNotice(w.notice.code, w.notice.message))
        case _:
            return UnknownMessage(w.ByteSize())


LINK_WRITERS: Final[dict[type, Callable[[Frame, Any], None]]] = {
    Challenge: _fill_challenge,
    Hello: _fill_hello,
    Welcome: _fill_welcome,
    Reject: _fill_reject,
    Heartbeat: _fill_heartbeat,
    Goodbye: _fill_goodbye,
    GoAway: _fill_go_away,
    ConfigPush: _fill_config_push,
    ConfigResult: _fill_config_result,
    NodeCommandRequest: _fill_command_request,
    NodeCommandResponse: _fill_command_response,
    EdgeNodeEvent: _fill_edge_node_event,
}
LINK_READERS: Final[dict[str, Callable[[Any], Received]]] = {
    "challenge": _read_challenge,
    "hello": _read_hello,
    "welcome": _read_welcome,
    "reject": _read_reject,
    "heartbeat": _read_heartbeat,
    "goodbye": lambda w: Goodbye(w.reason, w.message),
    "go_away": _read_go_away,
    "config_push": lambda w: ConfigPush(_read_config(w)),
    "config_result": _read_config_result,
    "node_command_request": _read_command_request,
    "node_command_response": _read_command_response,
    "edge_node_event": _read_edge_node_event,
}
