from iop_shared.wire.v1 import link_pb2 as _link_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_KEEP: _ClassVar[Verdict]
    VERDICT_CANCEL: _ClassVar[Verdict]
    VERDICT_FORGET: _ClassVar[Verdict]
VERDICT_UNSPECIFIED: Verdict
VERDICT_KEEP: Verdict
VERDICT_CANCEL: Verdict
VERDICT_FORGET: Verdict

class RunRequest(_message.Message):
    __slots__ = ("run_id", "attempt", "adapter", "target", "operation", "input", "input_bytes", "content_type", "limits", "session", "traceparent", "source", "profile", "engine_json", "stream", "requested_model", "options_json")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_JSON_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_MODEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    adapter: str
    target: str
    operation: str
    input: bytes
    input_bytes: int
    content_type: str
    limits: RunLimits
    session: str
    traceparent: str
    source: str
    profile: str
    engine_json: bool
    stream: bool
    requested_model: str
    options_json: bytes
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., adapter: _Optional[str] = ..., target: _Optional[str] = ..., operation: _Optional[str] = ..., input: _Optional[bytes] = ..., input_bytes: _Optional[int] = ..., content_type: _Optional[str] = ..., limits: _Optional[_Union[RunLimits, _Mapping]] = ..., session: _Optional[str] = ..., traceparent: _Optional[str] = ..., source: _Optional[str] = ..., profile: _Optional[str] = ..., engine_json: _Optional[bool] = ..., stream: _Optional[bool] = ..., requested_model: _Optional[str] = ..., options_json: _Optional[bytes] = ...) -> None: ...

class RunLimits(_message.Message):
    __slots__ = ("first_byte_timeout_ms", "idle_timeout_ms", "total_timeout_ms", "max_output_bytes")
    FIRST_BYTE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    first_byte_timeout_ms: int
    idle_timeout_ms: int
    total_timeout_ms: int
    max_output_bytes: int
    def __init__(self, first_byte_timeout_ms: _Optional[int] = ..., idle_timeout_ms: _Optional[int] = ..., total_timeout_ms: _Optional[int] = ..., max_output_bytes: _Optional[int] = ...) -> None: ...

class RunInputPart(_message.Message):
    __slots__ = ("run_id", "attempt", "offset", "data")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    offset: int
    data: bytes
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class RunAccepted(_message.Message):
    __slots__ = ("run_id", "attempt")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class RunRefused(_message.Message):
    __slots__ = ("run_id", "attempt", "code", "message", "gate")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    code: str
    message: str
    gate: _link_pb2.Gate
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., gate: _Optional[_Union[_link_pb2.Gate, _Mapping]] = ...) -> None: ...

class CancelRun(_message.Message):
    __slots__ = ("run_id", "reason")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    reason: str
    def __init__(self, run_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class EventAck(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunAck]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunAck, _Mapping]]] = ...) -> None: ...

class RunAck(_message.Message):
    __slots__ = ("run_id", "attempt", "seq")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    seq: int
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., seq: _Optional[int] = ...) -> None: ...

class OpenRuns(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[OpenRun]
    def __init__(self, runs: _Optional[_Iterable[_Union[OpenRun, _Mapping]]] = ...) -> None: ...

class OpenRun(_message.Message):
    __slots__ = ("run_id", "attempt", "last_seq", "state")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    last_seq: int
    state: str
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., last_seq: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class RunVerdicts(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunVerdict]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunVerdict, _Mapping]]] = ...) -> None: ...

class RunVerdict(_message.Message):
    __slots__ = ("run_id", "attempt", "acked_seq", "verdict")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ACKED_SEQ_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    acked_seq: int
    verdict: Verdict
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., acked_seq: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, str]] = ...) -> None: ...

class RuntimeEvent(_message.Message):
    __slots__ = ("run_id", "attempt", "seq", "started", "text", "reasoning", "tool_call", "logprobs", "output", "step", "artifact", "usage", "notice", "gap", "engine_json", "embeddings", "succeeded", "failed", "cancelled", "interrupted")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    ENGINE_JSON_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    seq: int
    started: Started
    text: Text
    reasoning: Reasoning
    tool_call: ToolCall
    logprobs: Logprobs
    output: Output
    step: Step
    artifact: Artifact
    usage: Usage
    notice: Notice
    gap: Gap
    engine_json: EngineJson
    embeddings: Embeddings
    succeeded: Succeeded
    failed: Failed
    cancelled: Cancelled
    interrupted: Interrupted
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., seq: _Optional[int] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., text: _Optional[_Union[Text, _Mapping]] = ..., reasoning: _Optional[_Union[Reasoning, _Mapping]] = ..., tool_call: _Optional[_Union[ToolCall, _Mapping]] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., output: _Optional[_Union[Output, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., artifact: _Optional[_Union[Artifact, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ..., engine_json: _Optional[_Union[EngineJson, _Mapping]] = ..., embeddings: _Optional[_Union[Embeddings, _Mapping]] = ..., succeeded: _Optional[_Union[Succeeded, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., cancelled: _Optional[_Union[Cancelled, _Mapping]] = ..., interrupted: _Optional[_Union[Interrupted, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("adapter", "target", "engine", "node_id")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    target: str
    engine: str
    node_id: str
    def __init__(self, adapter: _Optional[str] = ..., target: _Optional[str] = ..., engine: _Optional[str] = ..., node_id: _Optional[str] = ...) -> None: ...

class Text(_message.Message):
    __slots__ = ("text", "index")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    text: str
    index: int
    def __init__(self, text: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class Reasoning(_message.Message):
    __slots__ = ("text", "index")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    text: str
    index: int
    def __init__(self, text: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("choice", "index", "id", "name", "arguments")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    choice: int
    index: int
    id: str
    name: str
    arguments: str
    def __init__(self, choice: _Optional[int] = ..., index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("json", "index")
    JSON_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    index: int
    def __init__(self, json: _Optional[bytes] = ..., index: _Optional[int] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("stream", "data")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    stream: str
    data: bytes
    def __init__(self, stream: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("kind", "json")
    KIND_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    json: bytes
    def __init__(self, kind: _Optional[str] = ..., json: _Optional[bytes] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("name", "media_type", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    media_type: str
    data: bytes
    def __init__(self, name: _Optional[str] = ..., media_type: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Embeddings(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    def __init__(self, json: _Optional[bytes] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("events", "bytes", "reason")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    events: int
    bytes: int
    reason: str
    def __init__(self, events: _Optional[int] = ..., bytes: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class EngineJson(_message.Message):
    __slots__ = ("chunks", "whole")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedScalarFieldContainer[bytes]
    whole: bool
    def __init__(self, chunks: _Optional[_Iterable[bytes]] = ..., whole: _Optional[bool] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("accepted_to_start_us", "first_token_us", "total_us")
    ACCEPTED_TO_START_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    accepted_to_start_us: int
    first_token_us: int
    total_us: int
    def __init__(self, accepted_to_start_us: _Optional[int] = ..., first_token_us: _Optional[int] = ..., total_us: _Optional[int] = ...) -> None: ...

class Closing(_message.Message):
    __slots__ = ("events", "output_bytes", "output_sha256", "timings", "usage", "finish_reason")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SHA256_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    events: int
    output_bytes: int
    output_sha256: bytes
    timings: Timings
    usage: Usage
    finish_reason: str
    def __init__(self, events: _Optional[int] = ..., output_bytes: _Optional[int] = ..., output_sha256: _Optional[bytes] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., finish_reason: _Optional[str] = ...) -> None: ...

class Succeeded(_message.Message):
    __slots__ = ("closing",)
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    closing: Closing
    def __init__(self, closing: _Optional[_Union[Closing, _Mapping]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("closing", "code", "layer", "message", "retryable", "engine_error_json", "engine_status")
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    ENGINE_STATUS_FIELD_NUMBER: _ClassVar[int]
    closing: Closing
    code: str
    layer: str
    message: str
    retryable: bool
    engine_error_json: bytes
    engine_status: int
    def __init__(self, closing: _Optional[_Union[Closing, _Mapping]] = ..., code: _Optional[str] = ..., layer: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., engine_error_json: _Optional[bytes] = ..., engine_status: _Optional[int] = ...) -> None: ...

class Cancelled(_message.Message):
    __slots__ = ("closing", "reason", "confirmed", "took_ms")
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    closing: Closing
    reason: str
    confirmed: bool
    took_ms: int
    def __init__(self, closing: _Optional[_Union[Closing, _Mapping]] = ..., reason: _Optional[str] = ..., confirmed: _Optional[bool] = ..., took_ms: _Optional[int] = ...) -> None: ...

class Interrupted(_message.Message):
    __slots__ = ("closing", "code", "message")
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    closing: Closing
    code: str
    message: str
    def __init__(self, closing: _Optional[_Union[Closing, _Mapping]] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
