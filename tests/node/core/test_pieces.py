"""Cutting bodies that are too large for a frame."""

import pytest

from iop_node.core.pieces import MAX_PIECE_BYTES, MAX_WHOLE_BYTES, OUTPUT_BYTES, cut, other_bytes
from iop_shared.runtime_events import (
    OUTPUT_TYPES,
    Artifact,
    Body,
    Embeddings,
    EngineJson,
    Logprobs,
    Output,
    Reasoning,
    Step,
    Text,
    ToolCall,
    output_bytes_of,
)

SAMPLES: list[Body] = [
    Text("zwölf €"),
    Reasoning("思考"),
    ToolCall(0, "id", "name", '{"a":1}', 2),
    Logprobs(b"{}", 1),
    Output("stdout", b"\x00\xff"),
    Embeddings(b"[[0.5]]"),
    EngineJson((b"a", b"b")),
    EngineJson((b"a",), whole=True),
]


@pytest.mark.parametrize("body", SAMPLES, ids=lambda body: type(body).__name__)
def test_output_bytes_are_those_of_the_shared_definition(body: Body) -> None:
    assert OUTPUT_BYTES[type(body)](body) == output_bytes_of(body)


def test_the_table_has_every_output_type_and_no_other() -> None:
    assert set(OUTPUT_BYTES) == set(OUTPUT_TYPES)


@pytest.mark.parametrize(
    "body",
    [
        Text("€" * MAX_PIECE_BYTES, index=3),
        Reasoning("x" * (MAX_PIECE_BYTES + 1)),
        ToolCall(1, "id", "name", "y" * (2 * MAX_PIECE_BYTES), 2),
        Output("stderr", b"z" * (3 * MAX_PIECE_BYTES)),
        Embeddings(b"[" + b"1," * MAX_PIECE_BYTES + b"1]"),
        EngineJson((b"{" * (5 * MAX_PIECE_BYTES),), whole=True),
        EngineJson(tuple(b"{}" * 50_000 for _ in range(9))),
    ],
    ids=lambda body: type(body).__name__,
)
def test_pieces_fit_a_frame_and_joined_are_the_body(body: Body) -> None:
    pieces = list(cut(body) or ())

    assert len(pieces) > 1
    assert {type(piece) for piece in pieces} == {type(body)}
    assert max(len(output_bytes_of(piece)) for piece in pieces) <= MAX_PIECE_BYTES
    assert b"".join(map(output_bytes_of, pieces)) == output_bytes_of(body)


def test_a_streamed_chunk_is_never_cut() -> None:
    chunks = (b"a" * 200_000, b"b" * 200_000)

    assert list(cut(EngineJson(chunks)) or ()) == [EngineJson((chunks[0],)), EngineJson((chunks[1],))]


@pytest.mark.parametrize(
    "body",
    [
        EngineJson((b"a" * (MAX_WHOLE_BYTES + 1),)),
        Step("tool_use", b"a" * (MAX_WHOLE_BYTES + 1)),
        Artifact("a.bin", "application/octet-stream", b"a" * (MAX_WHOLE_BYTES + 1)),
        Logprobs(b"a" * (MAX_WHOLE_BYTES + 1)),
    ],
    ids=lambda body: type(body).__name__,
)
def test_what_cannot_be_cut_small_enough_gives_none(body: Body) -> None:
    assert cut(body) is None


def test_other_bodies_are_measured_by_their_payload() -> None:
    assert other_bytes(Artifact("name", "text/plain", b"12345")) == 9
