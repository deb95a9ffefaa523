"""How large the bodies of events are: for the count of output bytes and the bounds of buffers. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from iop_shared.runtime_events import (
    Artifact,
    Body,
    Embeddings,
    EngineJson,
    Failed,
    Logprobs,
    Output,
    Reasoning,
    Step,
    Text,
    ToolCall,
)

EVENT_OVERHEAD_BYTES: Final = 256
"""What an event costs in memory beside its payload: object, body, ids. Measured roughly with tracemalloc."""


def _text_size(text: str) -> int:
    # isascii is a flag test on CPython; encoding is only paid for where it is needed.
    return len(text) if text.isascii() else len(text.encode())


def _engine_json_size(body: EngineJson) -> int:
    chunks = body.chunks
    return len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))


# By exact type: this runs once per token.
_OUTPUT_SIZE: Final[Mapping[type, Callable[[Any], int]]] = {
    EngineJson: _engine_json_size,
    Text: lambda b: _text_size(b.text),
    Reasoning: lambda b: _text_size(b.text),
    ToolCall: lambda b: _text_size(b.id) + _text_size(b.name) + _text_size(b.arguments),
    Logprobs: lambda b: len(b.json),
    Embeddings: lambda b: len(b.json),
    Output: lambda b: len(b.data),
}
_OTHER_SIZE: Final[Mapping[type, Callable[[Any], int]]] = {
    Step: lambda b: len(b.json),
    Artifact: lambda b: len(b.data),
    Failed: lambda b: len(b.engine_body),
}


def output_size_of(body: Body) -> int | None:
    """Returns `len(output_bytes_of(body))` without building the bytes; None for a body that is no output."""
    size = _OUTPUT_SIZE.get(type(body))
    return None if size is None else size(body)


def payload_size_of(body: Body) -> int:
    """Returns the payload bytes of a body that is no output (0 for most), for the bounds of buffers."""
    size = _OTHER_SIZE.get(type(body))
    return 0 if size is None else size(body)
