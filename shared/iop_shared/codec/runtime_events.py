"""RuntimeEvent to and from protobuf: the hot half of the codec, used by this package alone.

Tables instead of reflection: one dictionary look-up finds what a body needs. `bench/` has the figures.
"""

from collections.abc import Callable
from typing import Any, Final

from iop_shared.errors import Layer
from iop_shared.ids import AdapterName, NodeId, RunId, TargetName
from iop_shared.runtime_events import (
    Artifact,
    Body,
    Cancelled,
    Closing,
    Embeddings,
    EngineJson,
    Failed,
    Gap,
    Interrupted,
    Logprobs,
    Notice,
    Output,
    Reasoning,
    RuntimeEvent,
    Started,
    Step,
    Succeeded,
    Text,
    Timings,
    ToolCall,
    Usage,
)
from iop_shared.wire.v1 import run_pb2 as pb

_MICROSECONDS: Final = 1_000_000


def fill_runtime_event(wire: pb.RuntimeEvent, event: RuntimeEvent) -> None:
    """Writes `event` into the empty message `wire`."""
    wire.run_id = event.run_id
    wire.attempt = event.attempt
    wire.seq = event.seq
    body = event.body
    _FILL[type(body)](wire, body)


def read_runtime_event(wire: pb.RuntimeEvent) -> RuntimeEvent:
    """Returns the event in `wire`.

    A body that only a newer version knows becomes a Notice (code `unknown_event`), so that the numbering
    keeps no hole.
    """
    name = wire.WhichOneof("body")
    # Spelt out: nearly every event is one of these two.
    if name == "engine_json":
        engine_json = wire.engine_json
        chunks = engine_json.chunks
        # Indexing and slicing are native; iterating over a repeated field costs twice as much.
        data = (chunks[0],) if len(chunks) == 1 else tuple(chunks[:])
        return RuntimeEvent(RunId(wire.run_id), wire.attempt, wire.seq, EngineJson(data, engine_json.whole))
    if name == "text":
        text = wire.text
        return RuntimeEvent(RunId(wire.run_id), wire.attempt, wire.seq, Text(text.text, text.index))
    body: Body = _UNKNOWN_BODY if name is None else _READ[name](getattr(wire, name))
    return RuntimeEvent(RunId(wire.run_id), wire.attempt, wire.seq, body)


_UNKNOWN_BODY: Final = Notice("unknown_event", "an event that this version does not know; update this end")


# --- values to messages ---------------------------------------------------------------------------------


def _fill_engine_json(wire: pb.RuntimeEvent, body: EngineJson) -> None:
    engine_json = wire.engine_json
    chunks = body.chunks
    if len(chunks) == 1:
        engine_json.chunks.append(chunks[0])
    else:
        engine_json.SetInParent()  # no chunk at all leaves no other trace
        engine_json.chunks.extend(chunks)
    if body.whole:
        engine_json.whole = True


def _fill_text(wire: pb.RuntimeEvent, body: Text) -> None:
    text = wire.text
    text.text = body.text
    if body.index:
        text.index = body.index


def _fill_reasoning(wire: pb.RuntimeEvent, body: Reasoning) -> None:
    wire.reasoning.text = body.text
    wire.reasoning.index = body.index


def _fill_started(wire: pb.RuntimeEvent, body: Started) -> None:
    started = wire.started
    started.adapter = body.adapter
    started.target = body.target
    started.engine = body.engine
    started.node_id = body.node_id


def _fill_tool_call(wire: pb.RuntimeEvent, body: ToolCall) -> None:
    call = wire.tool_call
    call.choice = body.choice
    call.index = body.index
    call.id = body.id
    call.name = body.name
    call.arguments = body.arguments


def _fill_logprobs(wire: pb.RuntimeEvent, body: Logprobs) -> None:
    wire.logprobs.json = body.json
    wire.logprobs.index = body.index


def _fill_output(wire: pb.RuntimeEvent, body: Output) -> None:
    wire.output.stream = body.stream
    wire.output.data = body.data


def _fill_step(wire: pb.RuntimeEvent, body: Step) -> None:
    wire.step.kind = body.kind
    wire.step.json = body.json


def _fill_artifact(wire: pb.RuntimeEvent, body: Artifact) -> None:
    artifact = wire.artifact
    artifact.name = body.name
    artifact.media_type = body.media_type
    artifact.data = body.data


def _fill_embeddings(wire: pb.RuntimeEvent, body: Embeddings) -> None:
    wire.embeddings.json = body.json


def _fill_usage_body(wire: pb.RuntimeEvent, body: Usage) -> None:
    _fill_usage(wire.usage, body)


def _fill_usage(wire: pb.Usage, usage: Usage) -> None:
    wire.SetInParent()
    if usage.prompt_tokens is not None:
        wire.prompt_tokens = usage.prompt_tokens
    if usage.completion_tokens is not None:
        wire.completion_tokens = usage.completion_tokens
    if usage.cached_tokens is not None:
        wire.cached_tokens = usage.cached_tokens
    if usage.reasoning_tokens is not None:
        wire.reasoning_tokens = usage.reasoning_tokens


def _fill_notice(wire: pb.RuntimeEvent, body: Notice) -> None:
    wire.notice.code = body.code
    wire.notice.message = body.message


def _fill_gap(wire: pb.RuntimeEvent, body: Gap) -> None:
    gap = wire.gap
    gap.events = body.events
    gap.bytes = body.bytes
    gap.reason = body.reason


def _fill_closing(wire: pb.Closing, closing: Closing) -> None:
    wire.events = closing.events
    wire.output_bytes = closing.output_bytes
    wire.output_sha256 = closing.output_sha256
    wire.finish_reason = closing.finish_reason
    timings = wire.timings
    timings.accepted_to_start_us = round(closing.timings.accepted_to_start_s * _MICROSECONDS)
    timings.total_us = round(closing.timings.total_s * _MICROSECONDS)
    if closing.timings.first_token_s is not None:
        # 0 says that none came; a first token sooner than a microsecond is one of 1 us.
        timings.first_token_us = max(1, round(closing.timings.first_token_s * _MICROSECONDS))
    if closing.usage is not None:
        _fill_usage(wire.usage, closing.usage)


def _fill_succeeded(wire: pb.RuntimeEvent, body: Succeeded) -> None:
    _fill_closing(wire.succeeded.closing, body.closing)


def _fill_failed(wire: pb.RuntimeEvent, body: Failed) -> None:
    failed = wire.failed
    _fill_closing(failed.closing, body.closing)
    failed.code = body.code
    failed.layer = body.layer
    failed.message = body.message
    failed.retryable = body.retryable
    failed.engine_error_json = body.engine_body
    failed.engine_status = body.engine_status


def _fill_cancelled(wire: pb.RuntimeEvent, body: Cancelled) -> None:
    cancelled = wire.cancelled
    _fill_closing(cancelled.closing, body.closing)
    cancelled.reason = body.reason
    cancelled.confirmed = body.confirmed
    cancelled.took_ms = body.took_ms


def _fill_interrupted(wire: pb.RuntimeEvent, body: Interrupted) -> None:
    _fill_closing(wire.interrupted.closing, body.closing)
    wire.interrupted.code = body.code
    wire.interrupted.message = body.message


_FILL: Final[dict[type, Callable[[pb.RuntimeEvent, Any], None]]] = {
    Started: _fill_started,
    Text: _fill_text,
    Reasoning: _fill_reasoning,
    ToolCall: _fill_tool_call,
    Logprobs: _fill_logprobs,
    Output: _fill_output,
    Step: _fill_step,
    Artifact: _fill_artifact,
    Embeddings: _fill_embeddings,
    Usage: _fill_usage_body,
    Notice: _fill_notice,
    Gap: _fill_gap,
    EngineJson: _fill_engine_json,
    Succeeded: _fill_succeeded,
    Failed: _fill_failed,
    Cancelled: _fill_cancelled,
    Interrupted: _fill_interrupted,
}


# --- messages to values ---------------------------------------------------------------------------------


def _read_usage(wire: pb.Usage) -> Usage:
    has = wire.HasField
    return Usage(
        prompt_tokens=wire.prompt_tokens if has("prompt_tokens") else None,
        completion_tokens=wire.completion_tokens if has("completion_tokens") else None,
        cached_tokens=wire.cached_tokens if has("cached_tokens") else None,
        reasoning_tokens=wire.reasoning_tokens if has("reasoning_tokens") else None,
    )


def _read_closing(wire: pb.Closing) -> Closing:
    timings = wire.timings
    return Closing(
        events=wire.events,
        output_bytes=wire.output_bytes,
        output_sha256=wire.output_sha256,
        timings=Timings(
            accepted_to_start_s=timings.accepted_to_start_us / _MICROSECONDS,
            first_token_s=timings.first_token_us / _MICROSECONDS if timings.first_token_us else None,
            total_s=timings.total_us / _MICROSECONDS,
        ),
        usage=_read_usage(wire.usage) if wire.HasField("usage") else None,
        finish_reason=wire.finish_reason,
    )


def _read_layer(text: str) -> Layer:
    # A layer of a newer version: the node that said it is the nearest that this one knows.
    return _LAYERS.get(text, Layer.NODE)


def _read_failed(wire: pb.Failed) -> Failed:
    return Failed(
        code=wire.code,
        layer=_read_layer(wire.layer),
        message=wire.message,
        closing=_read_closing(wire.closing),
        retryable=wire.retryable,
        engine_status=wire.engine_status,
        engine_body=wire.engine_error_json,
    )


_LAYERS: Final = {layer.value: layer for layer in Layer}
_READ: Final[dict[str, Callable[[Any], Body]]] = {
    "started": lambda w: Started(AdapterName(w.adapter), TargetName(w.target), NodeId(w.node_id), w.engine),
    "reasoning": lambda w: Reasoning(w.text, w.index),
    "tool_call": lambda w: ToolCall(w.index, w.id, w.name, w.arguments, w.choice),
    "logprobs": lambda w: Logprobs(w.json, w.index),
    "output": lambda w: Output(w.stream, w.data),
    "step": lambda w: Step(w.kind, w.json),
    "artifact": lambda w: Artifact(w.name, w.media_type, w.data),
    "usage": _read_usage,
    "notice": lambda w: Notice(w.code, w.message),
    "gap": lambda w: Gap(w.events, w.bytes, w.reason),
    "embeddings": lambda w: Embeddings(w.json),
    "succeeded": lambda w: Succeeded(_read_closing(w.closing)),
    "failed": _read_failed,
    "cancelled": lambda w: Cancelled(w.reason, w.confirmed, w.took_ms, _read_closing(w.closing)),
    "interrupted": lambda w: Interrupted(w.code, w.message, _read_closing(w.closing)),
}
