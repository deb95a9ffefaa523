from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RejectClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECT_CLASS_UNSPECIFIED: _ClassVar[RejectClass]
    REJECT_CLASS_RETRY: _ClassVar[RejectClass]
    REJECT_CLASS_RETRY_SLOW: _ClassVar[RejectClass]
    REJECT_CLASS_FATAL: _ClassVar[RejectClass]

class GateState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GATE_STATE_UNSPECIFIED: _ClassVar[GateState]
    GATE_STATE_OPEN: _ClassVar[GateState]
    GATE_STATE_CLOSED: _ClassVar[GateState]
    GATE_STATE_UNKNOWN: _ClassVar[GateState]
    GATE_STATE_NOT_APPLICABLE: _ClassVar[GateState]
REJECT_CLASS_UNSPECIFIED: RejectClass
REJECT_CLASS_RETRY: RejectClass
REJECT_CLASS_RETRY_SLOW: RejectClass
REJECT_CLASS_FATAL: RejectClass
GATE_STATE_UNSPECIFIED: GateState
GATE_STATE_OPEN: GateState
GATE_STATE_CLOSED: GateState
GATE_STATE_UNKNOWN: GateState
GATE_STATE_NOT_APPLICABLE: GateState

class Challenge(_message.Message):
    __slots__ = ("nonce", "protocol_min", "protocol_max", "edge_id", "software_version")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    EDGE_ID_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    protocol_min: int
    protocol_max: int
    edge_id: str
    software_version: str
    def __init__(self, nonce: _Optional[bytes] = ..., protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., edge_id: _Optional[str] = ..., software_version: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "software_version", "node_id", "boot_id", "token_id", "node_nonce", "proof", "labels", "config_revision", "config_hash")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_REVISION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_HASH_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    software_version: str
    node_id: str
    boot_id: str
    token_id: str
    node_nonce: bytes
    proof: bytes
    labels: _containers.ScalarMap[str, str]
    config_revision: int
    config_hash: str
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., software_version: _Optional[str] = ..., node_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., token_id: _Optional[str] = ..., node_nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., labels: _Optional[_Mapping[str, str]] = ..., config_revision: _Optional[int] = ..., config_hash: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_frame_bytes", "heartbeat_interval_ms", "dead_after_ms", "disconnect_grace_ms")
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    max_frame_bytes: int
    heartbeat_interval_ms: int
    dead_after_ms: int
    disconnect_grace_ms: int
    def __init__(self, max_frame_bytes: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., dead_after_ms: _Optional[int] = ..., disconnect_grace_ms: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "epoch", "limits", "server_time_ms", "config")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    epoch: int
    limits: Limits
    server_time_ms: int
    config: NodeConfigPayload
    def __init__(self, protocol: _Optional[int] = ..., epoch: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., server_time_ms: _Optional[int] = ..., config: _Optional[_Union[NodeConfigPayload, _Mapping]] = ...) -> None: ...

class Reject(_message.Message):
    __slots__ = ("code", "reject_class", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REJECT_CLASS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    reject_class: RejectClass
    message: str
    def __init__(self, code: _Optional[str] = ..., reject_class: _Optional[_Union[RejectClass, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sent_ms", "echo_ms", "cancelling")
    SENT_MS_FIELD_NUMBER: _ClassVar[int]
    ECHO_MS_FIELD_NUMBER: _ClassVar[int]
    CANCELLING_FIELD_NUMBER: _ClassVar[int]
    sent_ms: int
    echo_ms: int
    cancelling: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sent_ms: _Optional[int] = ..., echo_ms: _Optional[int] = ..., cancelling: _Optional[_Iterable[str]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("reason", "reconnect_in_ms", "deadline_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_IN_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    reconnect_in_ms: int
    deadline_ms: int
    def __init__(self, reason: _Optional[str] = ..., reconnect_in_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class NodeConfigPayload(_message.Message):
    __slots__ = ("revision", "hash", "adapters")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    hash: str
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterConfig]
    def __init__(self, revision: _Optional[int] = ..., hash: _Optional[str] = ..., adapters: _Optional[_Iterable[_Union[AdapterConfig, _Mapping]]] = ...) -> None: ...

class AdapterConfig(_message.Message):
    __slots__ = ("name", "type", "max_concurrent", "settings_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    max_concurrent: int
    settings_json: bytes
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., max_concurrent: _Optional[int] = ..., settings_json: _Optional[bytes] = ...) -> None: ...

class ConfigResult(_message.Message):
    __slots__ = ("revision", "hash", "applied", "reasons")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    hash: str
    applied: bool
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, revision: _Optional[int] = ..., hash: _Optional[str] = ..., applied: _Optional[bool] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeCommandRequest(_message.Message):
    __slots__ = ("command_id", "command", "arguments_json")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    command: str
    arguments_json: bytes
    def __init__(self, command_id: _Optional[str] = ..., command: _Optional[str] = ..., arguments_json: _Optional[bytes] = ...) -> None: ...

class NodeCommandResponse(_message.Message):
    __slots__ = ("command_id", "result_json", "error_code", "error_message")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    result_json: bytes
    error_code: str
    error_message: str
    def __init__(self, command_id: _Optional[str] = ..., result_json: _Optional[bytes] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class Gate(_message.Message):
    __slots__ = ("state", "check", "reason")
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: GateState
    check: str
    reason: str
    def __init__(self, state: _Optional[_Union[GateState, str]] = ..., check: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class AdapterStatus(_message.Message):
    __slots__ = ("name", "type", "gate", "max_concurrent", "operations", "targets", "any_target")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    ANY_TARGET_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    gate: Gate
    max_concurrent: int
    operations: _containers.RepeatedScalarFieldContainer[str]
    targets: _containers.RepeatedScalarFieldContainer[str]
    any_target: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., gate: _Optional[_Union[Gate, _Mapping]] = ..., max_concurrent: _Optional[int] = ..., operations: _Optional[_Iterable[str]] = ..., targets: _Optional[_Iterable[str]] = ..., any_target: _Optional[bool] = ...) -> None: ...

class EdgeNodeEvent(_message.Message):
    __slots__ = ("at_ms", "capabilities_changed", "gate_changed", "draining_changed", "notice")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    GATE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_CHANGED_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    capabilities_changed: CapabilitiesChanged
    gate_changed: GateChanged
    draining_changed: DrainingChanged
    notice: NodeNotice
    def __init__(self, at_ms: _Optional[int] = ..., capabilities_changed: _Optional[_Union[CapabilitiesChanged, _Mapping]] = ..., gate_changed: _Optional[_Union[GateChanged, _Mapping]] = ..., draining_changed: _Optional[_Union[DrainingChanged, _Mapping]] = ..., notice: _Optional[_Union[NodeNotice, _Mapping]] = ...) -> None: ...

class CapabilitiesChanged(_message.Message):
    __slots__ = ("adapters",)
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterStatus]
    def __init__(self, adapters: _Optional[_Iterable[_Union[AdapterStatus, _Mapping]]] = ...) -> None: ...

class GateChanged(_message.Message):
    __slots__ = ("adapter", "gate")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    gate: Gate
    def __init__(self, adapter: _Optional[str] = ..., gate: _Optional[_Union[Gate, _Mapping]] = ...) -> None: ...

class DrainingChanged(_message.Message):
    __slots__ = ("draining", "reason")
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    draining: bool
    reason: str
    def __init__(self, draining: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeNotice(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
