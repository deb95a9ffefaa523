"""Typed bodies as OpenAI's objects: chunks of a stream, and one whole answer."""

import base64
import struct
from typing import Any

import orjson
import pytest

from iop_edge.surfaces.openai_render import AnswerHead, ChatStream, CompletionStream
from iop_edge.surfaces.openai_whole import ChatWhole, CompletionWhole, EmbeddingsWhole
from iop_shared.errors import RunFailed
from iop_shared.ids import RunId
from iop_shared.runtime_events import (
    Body,
    Closing,
    Embeddings,
    Logprobs,
    Notice,
    Output,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)

RUN = RunId("01890a5d-ac96-774b-bcce-b302099a8057")
HEAD = AnswerHead(RUN, 'small "x"', 1_700_000_000)
WITH_USAGE = AnswerHead(RUN, "small", 1_700_000_000, include_usage=True)
CALL = (ToolCall(0, "c1", "add", ""), ToolCall(0, arguments='{"a":'), ToolCall(0, arguments="1}"))


def chunks_of(stream: ChatStream | CompletionStream, *bodies: Body, closing: Closing | None = None) -> list[Any]:
    pieces = [stream.render(body) for body in bodies]
    return [orjson.loads(piece) for piece in [*pieces, *stream.render_end(closing or Closing())] if piece]


def deltas_of(chunks: list[Any]) -> list[Any]:
    return [(c["index"], c["delta"], c["finish_reason"]) for chunk in chunks for c in chunk["choices"]]


def test_chat_stream_has_role_first_and_finish_last() -> None:
    chunks = chunks_of(ChatStream(HEAD), Text("a\u2028"), Notice("x", "y"), Text('"b"'))

    assert chunks[0] == {
        "id": f"chatcmpl-{RUN}",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": 'small "x"',
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "a\u2028"},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }
    assert deltas_of(chunks)[1:] == [(0, {"content": '"b"'}, None), (0, {}, "stop")]


def test_chat_stream_of_nothing_is_one_empty_choice() -> None:
    assert deltas_of(chunks_of(ChatStream(HEAD))) == [(0, {"role": "assistant"}, "stop")]


def test_chat_stream_carries_reasoning_tools_and_choices() -> None:
    chunks = chunks_of(ChatStream(HEAD), Reasoning("hm"), *CALL, Text("b", index=1))

    assert deltas_of(chunks) == [
        (0, {"role": "assistant", "reasoning_content": "hm"}, None),
        (
            0,
            {
                "tool_calls": [
                    {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": ""}}
                ]
            },
            None,
        ),
        (0, {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}, None),
        (0, {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}, None),
        (1, {"role": "assistant", "content": "b"}, None),
        (0, {}, "tool_calls"),
        (1, {}, "stop"),
    ]


def test_chat_stream_tells_usage_when_asked() -> None:
    closing = Closing(usage=Usage(3, 2, cached_tokens=1, reasoning_tokens=0), finish_reason="length")
    chunks = chunks_of(ChatStream(WITH_USAGE), Text("a"), closing=closing)

    assert [chunk["usage"] for chunk in chunks] == [
        None,
        None,
        {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    ]
    assert chunks[1]["choices"][0]["finish_reason"] == "length"
    assert chunks[2]["choices"] == []


def test_stream_without_known_usage_tells_none() -> None:
    assert len(chunks_of(ChatStream(WITH_USAGE), Text("a"))) == 2
    assert len(chunks_of(CompletionStream(WITH_USAGE), Text("a"))) == 2


def test_chat_stream_carries_logprobs() -> None:
    chunks = chunks_of(ChatStream(HEAD), Text("a"), Logprobs(b'{"content": [{"token": "a", "logprob": -1}]}'))

    assert chunks[1]["choices"][0]["logprobs"] == {"content": [{"token": "a", "logprob": -1}]}


def test_command_output_is_text_even_if_a_character_is_split() -> None:
    bodies = (Output("stdout", b"\xc3"), Output("stderr", b"noise"), Output("stdout", b"\xbc!"))

    assert deltas_of(chunks_of(ChatStream(HEAD), *bodies)) == [
        (0, {"role": "assistant", "content": "ü!"}, None),
        (0, {}, "stop"),
    ]


def test_completion_stream() -> None:
    closing = Closing(usage=Usage(1, 2))
    chunks = chunks_of(CompletionStream(WITH_USAGE), Text("a"), Text("b", index=1), closing=closing)

    assert [(c["index"], c["text"], c["finish_reason"]) for chunk in chunks for c in chunk["choices"]] == [
        (0, "a", None),
        (1, "b", None),
        (0, "", "stop"),
        (1, "", "stop"),
    ]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert chunks[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def test_whole_chat() -> None:
    whole = ChatWhole(HEAD)
    for body in (Reasoning("hm"), Text("a"), Text("b"), Usage(1, None), Text("c", index=1)):
        whole.add(body)

    answer = orjson.loads(whole.render(Closing()))

    assert answer == {
        "id": f"chatcmpl-{RUN}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": 'small "x"',
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab", "reasoning_content": "hm"},
                "logprobs": None,
                "finish_reason": "stop",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "c"},
                "logprobs": None,
                "finish_reason": "stop",
            },
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": None, "total_tokens": None},
    }


def test_whole_chat_joins_tool_calls_and_logprobs() -> None:
    whole = ChatWhole(HEAD)
    for body in (*CALL, Logprobs(b'{"content":[1]}'), Logprobs(b'{"content":[2],"refusal":null}')):
        whole.add(body)

    choice = orjson.loads(whole.render(Closing()))["choices"][0]

    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}],
    }
    assert choice["logprobs"] == {"content": [1, 2], "refusal": None}
    assert choice["finish_reason"] == "tool_calls"


def test_whole_completion() -> None:
    whole = CompletionWhole(HEAD)
    for body in (Text("a"), Output("stdout", b"b"), Usage(1, 1)):
        whole.add(body)

    answer = orjson.loads(whole.render(Closing(finish_reason="length")))

    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"]["total_tokens"] == 2


def test_whole_embeddings_from_pieces() -> None:
    whole = EmbeddingsWhole(HEAD)
    for body in (Embeddings(b"[[1,2.5],"), Embeddings(b"[3,4]]"), Usage(7)):
        whole.add(body)

    assert orjson.loads(whole.render(Closing())) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [1, 2.5]},
            {"object": "embedding", "index": 1, "embedding": [3, 4]},
        ],
        "model": 'small "x"',
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def test_embeddings_as_base64_are_little_endian_floats() -> None:
    whole = EmbeddingsWhole(AnswerHead(RUN, "m", 0, as_base64=True))
    whole.add(Embeddings(b"[[1,2.5]]"))

    encoded = orjson.loads(whole.render(Closing()))["data"][0]["embedding"]

    assert struct.unpack("<2f", base64.b64decode(encoded)) == (1.0, 2.5)


@pytest.mark.parametrize("json", [b"", b"[[1", b"{}", b"[1]", b'[["a"]]', b"[[1e300]]"])
def test_embeddings_that_are_none_fail(json: bytes) -> None:
    whole = EmbeddingsWhole(AnswerHead(RUN, "m", 0, as_base64=True))
    whole.add(Embeddings(json))

    with pytest.raises(RunFailed) as caught:
        whole.render(Closing())

    assert caught.value.code == "engine_bad_response"
    assert str(caught.value) == "the adapter did not give a JSON list of vectors of numbers as its embeddings"
