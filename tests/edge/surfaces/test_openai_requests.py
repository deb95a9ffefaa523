"""Each sentence that an invalid OpenAI request meets, in full."""

import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.surfaces.openai_requests import (
    OpenAiRequest,
    parse_chat,
    parse_completion,
    parse_embeddings,
)
from iop_shared.errors import BadRequest
from iop_shared.runs import Operation

HI = [{"role": "user", "content": "hi"}]
TEXTS = "a string, or an array of strings, of token ids or of arrays of token ids"

BAD_CHATS: list[tuple[bytes, str, str | None, str]] = [
    (b"", "the request has no body; send a JSON object", None, "invalid_json"),
    (b"[1]", "the request's body must be a JSON object, but it is an array", None, "invalid_type"),
    (
        orjson.dumps({"messages": HI}),
        "missing required parameter 'model': the name of a profile, or adapter/target",
        "model",
        "missing_required_parameter",
    ),
    (
        orjson.dumps({"model": 3, "messages": HI}),
        "parameter 'model' must be a string, the name of a profile, or adapter/target, but it is a number",
        "model",
        "invalid_type",
    ),
    (
        orjson.dumps({"model": "", "messages": HI}),
        "parameter 'model' must not be empty: give the name of a profile, or adapter/target",
        "model",
        "empty_string",
    ),
    (
        orjson.dumps({"model": "m"}),
        "missing required parameter 'messages': a non-empty array of messages",
        "messages",
        "missing_required_parameter",
    ),
    (
        orjson.dumps({"model": "m", "messages": "hi"}),
        "parameter 'messages' must be a non-empty array of messages, but it is a string",
        "messages",
        "invalid_type",
    ),
    (
        orjson.dumps({"model": "m", "messages": []}),
        "parameter 'messages' must not be an empty array: give at least one",
        "messages",
        "empty_array",
    ),
    (
        orjson.dumps({"model": "m", "messages": [*HI, "hi"]}),
        "parameter 'messages[1]' must be an object with a 'role', but it is a string",
        "messages[1]",
        "invalid_type",
    ),
    (
        orjson.dumps({"model": "m", "messages": [{"content": "hi"}]}),
        "missing required parameter 'messages[0].role': a string such as 'user'",
        "messages[0].role",
        "missing_required_parameter",
    ),
    (
        orjson.dumps({"model": "m", "messages": [{"role": None}]}),
        "parameter 'messages[0].role' must be a string such as 'user', but it is null",
        "messages[0].role",
        "invalid_type",
    ),
    (
        orjson.dumps({"model": "m", "messages": HI, "stream": "yes"}),
        "parameter 'stream' must be true or false, but it is a string",
        "stream",
        "invalid_type",
    ),
    (
        orjson.dumps({"model": "m", "messages": HI, "stream": True, "stream_options": True}),
        "parameter 'stream_options' must be an object, but it is a boolean",
        "stream_options",
        "invalid_type",
    ),
    (
        orjson.dumps({"model": "m", "messages": HI, "stream_options": {"include_usage": True}}),
        "parameter 'stream_options' is only allowed together with 'stream': true",
        "stream_options",
        "invalid_value",
    ),
    (
        orjson.dumps({"model": "m", "messages": HI, "stream": True, "stream_options": {"include_usage": 1}}),
        "parameter 'stream_options.include_usage' must be true or false, but it is a number",
        "stream_options.include_usage",
        "invalid_type",
    ),
]


@pytest.mark.parametrize(("body", "message", "param", "code"), BAD_CHATS)
def test_invalid_chat_says_what_and_where(body: bytes, message: str, param: str | None, code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat(body)

    assert (str(caught.value), caught.value.param, caught.value.code) == (message, param, code)


def test_broken_json_is_refused_with_its_place() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat(b'{"model": "m",\n "messages": oops}')

    assert caught.value.code == "invalid_json"
    assert re.fullmatch(
        r"the request's body is not valid JSON: [^{}]+ at line 2, column 14",  # the reason is the parser's
        str(caught.value),
    )


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b'"\xff"', b"NaN", b'{"a":1}}', b"\xef\xbb\xbf{}"]
)
def test_hostile_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat(body)

    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, f"missing required parameter 'prompt': {TEXTS}"),
        (3, f"parameter 'prompt' must be {TEXTS}, but it is a number"),
        ([], "parameter 'prompt' must not be an empty array: give at least one"),
        (["a", 1], f"parameter 'prompt[1]' must be part of {TEXTS} (all of one kind), but it is a number"),
        ([[1], []], f"parameter 'prompt[1]' must be part of {TEXTS} (all of one kind), but it is an empty array"),
        ([True], f"parameter 'prompt[0]' must be part of {TEXTS} (all of one kind), but it is a boolean"),
        ([{"a": 1}], f"parameter 'prompt[0]' must be part of {TEXTS} (all of one kind), but it is an object"),
    ],
)
def test_invalid_prompt_says_what_and_where(prompt: Any, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_completion(orjson.dumps({"model": "m", "prompt": prompt}))

    assert str(caught.value) == message


@pytest.mark.parametrize("prompt", ["", "one", ["one", "two"], [1, 2], [[1], [2, 3]]])
def test_valid_prompts_pass(prompt: Any) -> None:
    asked = parse_completion(orjson.dumps({"model": "m", "prompt": prompt, "stream": True}))

    assert asked == OpenAiRequest(Operation.COMPLETION, "m", stream=True)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("hex", "parameter 'encoding_format' must be 'float' or 'base64', but it is 'hex'"),
        (1, "parameter 'encoding_format' must be 'float' or 'base64', but it is a number"),
    ],
)
def test_unknown_encoding_is_refused(encoding: Any, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_embeddings(orjson.dumps({"model": "m", "input": "x", "encoding_format": encoding}))

    assert (str(caught.value), caught.value.param) == (message, "encoding_format")


def test_what_matters_is_read() -> None:
    chat = {"model": "m", "messages": HI, "stream": True, "stream_options": {"include_usage": True}, "top_k": 3}

    assert parse_chat(orjson.dumps(chat)) == OpenAiRequest(Operation.CHAT, "m", True, True)
    assert parse_chat(orjson.dumps({**chat, "stream": None, "stream_options": None})).stream is False
    assert parse_embeddings(orjson.dumps({"model": "m", "input": ["x"], "encoding_format": "base64"})).as_base64


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["model", "messages", "role", "stream", "stream_options", "x"]), inner
            )
        ),
    )
)
def test_any_json_is_taken_or_refused_cleanly(value: Any) -> None:
    for parse in (parse_chat, parse_completion, parse_embeddings):
        try:
            parse(orjson.dumps(value))
        except BadRequest:
            pass  # anything else fails the test
