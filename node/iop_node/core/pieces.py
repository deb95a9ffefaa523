"""Output bytes and sizes of bodies, and how one that is too large for a frame is cut. Pure.

On the hot path: a table by type instead of `match`, because every token passes here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from iop_shared.runtime_events import (
    Artifact,
    Body,
    Embeddings,
    EngineJson,
    Logprobs,
    Notice,
    Output,
    Reasoning,
    Step,
    Text,
    ToolCall,
    Usage,
)

MAX_PIECE_BYTES: Final = 256 * 1024
"""A body with more than this is cut. A quarter of the frame limit: a frame has room for the rest, and a
heartbeat never waits behind more than one piece on a slow wire."""
MAX_WHOLE_BYTES: Final = 960 * 1024
"""What cannot be cut (one chunk of a stream, a step, an artifact) must fit a frame of 1 MiB as it is."""
EVENT_OVERHEAD_BYTES: Final = 96
"""What one held event costs beside its payload; measured roughly, so that many tiny events count too."""


def _engine_json(body: EngineJson) -> bytes:
    return body.chunks[0] if len(body.chunks) == 1 else b"".join(body.chunks)


# The same bytes that `iop_shared.runtime_events.output_bytes_of` gives; a test holds them together.
OUTPUT_BYTES: Final[Mapping[type, Callable[[Any], bytes]]] = {
    EngineJson: _engine_json,
    Text: lambda body: body.text.encode(),
    Reasoning: lambda body: body.text.encode(),
    ToolCall: lambda body: (body.id + body.name + body.arguments).encode(),
    Logprobs: lambda body: body.json,
    Output: lambda body: body.data,
    Embeddings: lambda body: body.json,
}

_OTHER_BYTES: Final[Mapping[type, Callable[[Any], int]]] = {
    Step: lambda body: len(body.json) + len(body.kind),
    Artifact: lambda body: len(body.data) + len(body.name),
    Notice: lambda body: len(body.message),
}


# At least the bytes of a body, found without encoding it (a character is at most four bytes in UTF-8).
# Every body that an adapter may emit is in here.
ROUGH_BYTES: Final[Mapping[type, Callable[[Any], int]]] = {
    EngineJson: lambda body: len(body.chunks[0]) if len(body.chunks) == 1 else sum(map(len, body.chunks)),
    Text: lambda body: 4 * len(body.text),
    Reasoning: lambda body: 4 * len(body.text),
    ToolCall: lambda body: 4 * (len(body.id) + len(body.name) + len(body.arguments)),
    Logprobs: lambda body: len(body.json),
    Output: lambda body: len(body.data),
    Embeddings: lambda body: len(body.json),
    Usage: lambda body: 0,
    **_OTHER_BYTES,
}


def other_bytes(body: Body) -> int:
    """Returns the payload bytes of a body that is no output."""
    measure = _OTHER_BYTES.get(type(body))
    return 0 if measure is None else measure(body)


def cut(body: Body) -> Iterator[Body] | None:
    """Returns pieces of `body` that fit a frame each, or None if this body cannot be cut small enough.

    Text-like bodies become several of their kind. An answer that comes whole (EngineJson with `whole`,
    Embeddings) becomes several events of its kind whose bytes, joined, are the answer. A streamed EngineJson
    is cut between its chunks only: each chunk must reach the client as one.
    """
    match body:
        case Text() | Reasoning():
            return (replace(body, text=part) for part in _cut_text(body.text))
        case ToolCall():
            return _cut_tool_call(body)
        case Output():
            return (replace(body, data=part) for part in _cut_bytes(body.data))
        case Embeddings():
            return (Embeddings(part) for part in _cut_bytes(body.json))
        case EngineJson(whole=True):
            return (EngineJson((part,), whole=True) for part in _cut_bytes(_engine_json(body)))
        case EngineJson():
            if max(map(len, body.chunks)) > MAX_WHOLE_BYTES:
                return None
            return _group_chunks(body.chunks)
        case _:
            size = len(OUTPUT_BYTES[type(body)](body)) if type(body) in OUTPUT_BYTES else other_bytes(body)
            return iter((body,)) if size <= MAX_WHOLE_BYTES else None


def _cut_text(text: str) -> Iterator[str]:
    # A character is at most four bytes in UTF-8.
    step = MAX_PIECE_BYTES // 4
    return (text[at : at + step] for at in range(0, len(text), step))


def _cut_bytes(data: bytes) -> Iterator[bytes]:
    return (data[at : at + MAX_PIECE_BYTES] for at in range(0, len(data), MAX_PIECE_BYTES))


def _cut_tool_call(body: ToolCall) -> Iterator[ToolCall]:
    yield replace(body, arguments="")
    for part in _cut_text(body.arguments):
        yield ToolCall(body.index, arguments=part, choice=body.choice)


def _group_chunks(chunks: tuple[bytes, ...]) -> Iterator[EngineJson]:
    group: list[bytes] = []
    size = 0
    for chunk in chunks:
        if group and size + len(chunk) > MAX_PIECE_BYTES:
            yield EngineJson(tuple(group))
            group, size = [], 0
        group.append(chunk)
        size += len(chunk)
    yield EngineJson(tuple(group))
