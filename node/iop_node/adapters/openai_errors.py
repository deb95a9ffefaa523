"""What an OpenAI-compatible engine's errors mean: answers, transport trouble, broken streams -> RunFailed. Pure.

Engines speak three shapes, sometimes all in one server: `{"error": {"message": ...}}`, `{"error": "text"}` and
`{"detail": ...}`; plain text, HTML of a proxy and nothing at all come too. A sentence made here names the
engine, its address, the status and the engine's own words (bounded, without what they quote of the input).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from iop_shared.errors import Layer, RunFailed

UNKNOWN_FLAVOUR: Final = "engine"
MAX_QUOTED_CHARS: Final = 300
"""Of the engine's own message in ours. Chosen; change freely."""
MAX_ENGINE_BODY_BYTES: Final = 64 * 1024
"""Of an engine's answer kept in a failure. The longest measured has under 1 KiB."""

# Validation errors quote what they complain about, and parsers what they read last: possibly the prompt.
_QUOTES_INPUT: Final = re.compile(
    r""",?\s*['"]?input['"]?\s*[:=]\s*(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\[{<(].*)"""
    r"""|;?\s*last read: '.*?'(?:;|$)|, value=(?!-?[\d.]+\))[^)]*""",
    re.DOTALL,
)
_STATUS: Final = re.compile(r"[1-5][0-9]{2}")
_TAG: Final = re.compile(r"<(script|style)\b.*?</\1>|<[^<>]{1,200}>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EngineAt:
    """Who was asked, for sentences. `base_url` has no credentials in it; `flavour` may have a version."""

    adapter: str
    base_url: str
    flavour: str = UNKNOWN_FLAVOUR

    def __str__(self) -> str:
        return f"{self.flavour} at {self.base_url}"


class EngineSays(NamedTuple):
    """An engine's error, whatever its shape. `code`: as text; "" where the engine gave none."""

    message: str
    type: str = ""
    param: str = ""
    code: str = ""


class _Meaning(NamedTuple):
    code: str
    layer: Layer
    retryable: bool
    advice: str


_CONTEXT: Final = _Meaning(
    "context_exceeded", Layer.TARGET, False, "shorten the input, or serve the model with a larger context"
)
_LOADING: Final = _Meaning("engine_loading", Layer.SERVING, True, "try again when the model is loaded")
_OVERLOADED: Final = _Meaning("engine_overloaded", Layer.SERVING, True, "try again later")
_AUTH: Final = _Meaning(
    "engine_auth_failed", Layer.SERVING, False, "set api_key or api_key_file of the adapter to the engine's key"
)
_NO_TARGET: Final = _Meaning(
    "target_not_found", Layer.TARGET, False, "use one of the models that the engine lists"
)
_NO_OPERATION: Final = _Meaning(
    "operation_unsupported", Layer.TARGET, False, "use an engine that is started for this operation"
)
_REJECTED: Final = _Meaning("engine_rejected", Layer.TARGET, False, "correct the request")
_ENGINE_ERROR: Final = _Meaning("engine_error", Layer.SERVING, True, "look into the engine's log")
_MID_STREAM: Final = _Meaning("engine_error_mid_stream", Layer.SERVING, True, "look into the engine's log")
_MOVED: Final = _Meaning(
    "engine_bad_response", Layer.SERVING, False, "set base_url of the adapter to the engine's final address"
)
_NOT_OPENAI: Final = _Meaning(
    "engine_bad_response",
    Layer.SERVING,
    False,
    "check that base_url of the adapter leads to an OpenAI-compatible engine",
)


def _is_context(says: EngineSays) -> bool:
    if says.type == "exceed_context_size_error" or says.code == "context_length_exceeded":
        return True
    message = says.message.lower()
    return says.param == "input_tokens" or "maximum context length" in message or "context size" in message


def _is_missing_model(says: EngineSays) -> bool:
    return (
        says.param == "model"
        or says.code == "model_not_found"
        or ("model" in says.message.lower() and says.type != "not_found_error")
    )


def _is_loading(says: EngineSays) -> bool:
    return "loading" in says.message.lower()


def _always(_: EngineSays) -> bool:
    return True


# The first row whose statuses and test hold decides.
_BY_STATUS: Final[Sequence[tuple[range, Callable[[EngineSays], bool], _Meaning]]] = (
    (range(400, 401), _is_context, _CONTEXT),
    (range(413, 414), _is_context, _CONTEXT),
    (range(422, 423), _is_context, _CONTEXT),
    (range(500, 501), _is_context, _CONTEXT),  # some builds of llama.cpp answer a full context so
    (range(401, 402), _always, _AUTH),
    (range(403, 404), _always, _AUTH),
    (range(404, 405), _is_missing_model, _NO_TARGET),
    (range(404, 406), _always, _NO_OPERATION),  # 404 and 405: there is no such route
    (range(408, 409), _always, _ENGINE_ERROR),
    (range(429, 430), _always, _OVERLOADED),
    (range(400, 500), _always, _REJECTED),
    (range(501, 502), _always, _NO_OPERATION),
    (range(503, 504), _is_loading, _LOADING),
    (range(503, 504), _always, _OVERLOADED),
    (range(500, 600), _always, _ENGINE_ERROR),
    (range(300, 400), _always, _MOVED),
)


def engine_answered(engine: EngineAt, status: int, body: bytes) -> RunFailed:
    """Returns the failure for an answer of `status` that is no success. `body`: as it came; a long one is cut."""
    says = read_error(body)
    meaning = _meaning_of(status, says)
    quoted = f": {says.message}" if says.message else " without a message"
    return RunFailed(
        f"{engine} answered {status}{quoted}; {meaning.advice}",
        code=meaning.code,
        layer=meaning.layer,
        retryable=meaning.retryable,
        engine_status=status,
        engine_body=body[:MAX_ENGINE_BODY_BYTES],
    )


def error_event(
    engine: EngineAt, payload: bytes, event: dict[str, Any], *, events_before: int, has_output: bool
) -> RunFailed:
    """Returns the failure for an error that came as an event of a stream (status 200).

    As the first event, a status of 4xx or 503 in it means what it means as an answer. `has_output`: the run
    was given something, so that trying again would repeat it.
    """
    says = _says_of(event)
    status = int(says.code) if _STATUS.fullmatch(says.code) else 500
    if events_before == 0 and (400 <= status < 500 or status == 503):
        meaning, when = _meaning_of(status, says), "at the start of its stream"
    else:
        meaning, when = _MID_STREAM, f"after {events_before} events of its stream"
    return RunFailed(
        f"{engine} reported an error {when}: {says.message or 'without a message'}; {meaning.advice}",
        code=meaning.code,
        layer=meaning.layer,
        retryable=meaning.retryable and not has_output,
        engine_status=status,
        engine_body=payload[:MAX_ENGINE_BODY_BYTES],
    )


def unreachable(engine: EngineAt, reason: str) -> RunFailed:
    """Returns the failure of a connection that did not come about. `reason`: the system's words."""
    return RunFailed(
        f"cannot reach {engine}: {reason}; start the engine, or correct base_url of adapter {engine.adapter!r}",
        code="engine_unreachable",
        layer=Layer.SERVING,
        retryable=True,
    )


def stream_truncated(engine: EngineAt, what: str, *, has_output: bool) -> RunFailed:
    """Returns the failure of an answer that was cut off. `what`: how it ended, as a verb phrase."""
    return RunFailed(
        f"{engine} {what}; the answer is incomplete, look into the engine's log",
        code="engine_stream_truncated",
        layer=Layer.SERVING,
        retryable=not has_output,
    )


def bad_response(engine: EngineAt, what: str, *, status: int = 0, body: bytes = b"") -> RunFailed:
    """Returns the failure of an answer that is not what the protocol asks for. `what`: a verb phrase."""
    return RunFailed(
        f"{engine} {what}; {_NOT_OPENAI.advice}",
        code=_NOT_OPENAI.code,
        layer=_NOT_OPENAI.layer,
        engine_status=status,
        engine_body=body[:MAX_ENGINE_BODY_BYTES],
    )


def timed_out(engine: EngineAt, *, first_byte: bool, limit_s: float, has_output: bool) -> RunFailed:
    """Returns the failure of an engine that was silent for too long."""
    if first_byte:
        return RunFailed(
            f"{engine} produced nothing within first_byte_timeout_s={limit_s:g}: it may be overloaded or still "
            "reading a long prompt; try again later or raise the limit",
            code="engine_timeout_first_byte",
            layer=Layer.SERVING,
            retryable=True,
        )
    return RunFailed(
        f"{engine} fell silent for idle_timeout_s={limit_s:g} in the middle of its answer; "
        "look into the engine's log or raise the limit",
        code="engine_timeout_idle",
        layer=Layer.SERVING,
        retryable=not has_output,
    )


def read_error(body: bytes) -> EngineSays:
    """Returns what an error answer says, whatever its shape; the message is bounded and safe to show."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return EngineSays(_quotable(_TAG.sub(" ", body[:MAX_ENGINE_BODY_BYTES].decode(errors="replace"))))
    if isinstance(value, dict):
        return _says_of(value)
    return EngineSays(_quotable(value) if isinstance(value, str) else "")


def _says_of(value: dict[str, Any]) -> EngineSays:
    error = value.get("error")
    if isinstance(error, dict):
        return EngineSays(
            _quotable(error.get("message")),
            _text(error.get("type")),
            _text(error.get("param")),
            _text(error.get("code")),
        )
    if isinstance(error, str):
        return EngineSays(_quotable(error))
    detail = value.get("detail")
    if isinstance(detail, list):  # FastAPI's validation errors: {"loc": [...], "msg": "..."}
        parts = [_fastapi_sentence(item) for item in detail[:3] if isinstance(item, dict)]
        return EngineSays(_quotable("; ".join(part for part in parts if part)))
    return EngineSays(
        _quotable(detail if isinstance(detail, str) else value.get("message")),
        _text(value.get("type")),
        _text(value.get("param")),
        _text(value.get("code")),
    )


def _fastapi_sentence(item: dict[str, Any]) -> str:
    loc, msg = item.get("loc"), item.get("msg")
    where = ".".join(str(step) for step in loc) if isinstance(loc, list) else ""
    return f"{where}: {msg}" if where and msg else _text(msg)


def _text(value: object) -> str:
    return str(value)[:MAX_QUOTED_CHARS] if isinstance(value, str | int) else ""


def _quotable(value: object) -> str:
    """Returns an engine's words on one line, without quoted input, at most `MAX_QUOTED_CHARS` long."""
    if not isinstance(value, str):
        return ""
    text = " ".join(_QUOTES_INPUT.sub("", value[:MAX_ENGINE_BODY_BYTES]).split()).rstrip(" .;")
    return text if len(text) <= MAX_QUOTED_CHARS else text[: MAX_QUOTED_CHARS - 3] + "..."


def _meaning_of(status: int, says: EngineSays) -> _Meaning:
    for statuses, holds, meaning in _BY_STATUS:
        if status in statuses and holds(says):
            return meaning
    return _NOT_OPENAI
