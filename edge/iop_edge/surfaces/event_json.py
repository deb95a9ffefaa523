"""The one JSON form of a RuntimeEvent and its bodies: for SSE, for a run's record, and for the client. Pure.

An event is one flat object: `run_id`, `attempt`, `seq`, `at_ms` (where known), `type`, and the body's fields.
Bytes that hold JSON stand as JSON; other bytes are text with `"encoding": "utf-8"`, or base64 with
`"encoding": "base64"` where they are not UTF-8 (a piece of a command's output may end inside a character).
"""

import base64
from typing import Any, Final, assert_never

import orjson

from iop_edge.domain.views import RunEventView
from iop_shared.ids import RunId
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
    ToolCall,
    Usage,
)

TYPE_NAMES: Final[dict[type, str]] = {
    Started: "started",
    Text: "text",
    Reasoning: "reasoning",
    ToolCall: "tool_call",
    Logprobs: "logprobs",
    Output: "output",
    Step: "step",
    Artifact: "artifact",
    Embeddings: "embeddings",
    Usage: "usage",
    Notice: "notice",
    Gap: "gap",
    EngineJson: "engine_json",
    Succeeded: "succeeded",
    Failed: "failed",
    Cancelled: "cancelled",
    Interrupted: "interrupted",
}
"""The `type` of each body."""


def event_json(event: RuntimeEvent) -> dict[str, Any]:
    """Returns a live event as JSON values."""
    return {
        "run_id": event.run_id,
        "attempt": event.attempt,
        "seq": event.seq,
        "type": TYPE_NAMES[type(event.body)],
        **body_json(event.body),
    }


def kept_event_json(run_id: RunId, event: RunEventView) -> dict[str, Any]:
    """Returns a kept event as JSON values; `at_ms`: when it reached the edge."""
    return {
        "run_id": run_id,
        "attempt": event.attempt,
        "seq": event.seq,
        "at_ms": event.at_ms,
        "type": TYPE_NAMES[type(event.body)],
        **body_json(event.body),
    }


def body_json(body: Body) -> dict[str, Any]:
    """Returns the fields of a body as JSON values (without its type)."""
    match body:
        case Started():
            return {
                "adapter": body.adapter,
                "target": body.target,
                "node_id": body.node_id,
                "engine": body.engine,
            }
        case Text() | Reasoning():
            return {"text": body.text, "index": body.index}
        case ToolCall():
            return {
                "index": body.index,
                "id": body.id,
                "name": body.name,
                "arguments": body.arguments,
                "choice": body.choice,
            }
        case Logprobs():
            return {"json": parsed_json(body.json), "index": body.index}
        case Output():
            return {"stream": body.stream, **bytes_json("data", body.data)}
        case Step():
            return {"kind": body.kind, "json": parsed_json(body.json)}
        case Artifact():
            return {"name": body.name, "media_type": body.media_type, **bytes_json("data", body.data)}
        case Embeddings():
            return {"json": parsed_json(body.json)}
        case Usage():
            return usage_json(body)
        case Notice():
            return {"code": body.code, "message": body.message}
        case Gap():
            return {"events": body.events, "bytes": body.bytes, "reason": body.reason}
        case EngineJson():
            return {"chunks": [parsed_json(chunk) for chunk in body.chunks], "whole": body.whole}
        case Succeeded():
            return {"closing": closing_json(body.closing)}
        case Failed():
            return {
                "code": body.code,
                "layer": body.layer.value,
                "message": body.message,
                "retryable": body.retryable,
                "engine_status": body.engine_status,
                **bytes_json("engine_body", body.engine_body, encoding_key="engine_body_encoding"),
                "closing": closing_json(body.closing),
            }
        case Cancelled():
            return {
                "reason": body.reason,
                "confirmed": body.confirmed,
                "took_ms": body.took_ms,
                "closing": closing_json(body.closing),
            }
        case Interrupted():
            return {"code": body.code, "message": body.message, "closing": closing_json(body.closing)}
        case _:
            assert_never(body)


def closing_json(closing: Closing) -> dict[str, Any]:
    """Returns what every terminal body says. The checksum is hex, "" where there is none."""
    return {
        "events": closing.events,
        "output_bytes": closing.output_bytes,
        "output_sha256": closing.output_sha256.hex(),
        "timings": {
            "accepted_to_start_s": closing.timings.accepted_to_start_s,
            "first_token_s": closing.timings.first_token_s,
            "total_s": closing.timings.total_s,
        },
        "usage": None if closing.usage is None else usage_json(closing.usage),
        "finish_reason": closing.finish_reason,
    }


def usage_json(usage: Usage) -> dict[str, Any]:
    """Returns the token counts; null where the engine did not say."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def parsed_json(data: bytes) -> Any:
    """Returns the JSON value that `data` holds; if it holds none, an object with its bytes and their encoding."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # An adapter passed something else on; show it rather than fail the whole view.
        return bytes_json("data", data)


def bytes_json(key: str, data: bytes, *, encoding_key: str = "encoding") -> dict[str, str]:
    """Returns `data` under `key` as text or base64, with its encoding beside it."""
    try:
        return {key: data.decode(), encoding_key: "utf-8"}
    except UnicodeDecodeError:
        return {key: base64.b64encode(data).decode(), encoding_key: "base64"}
