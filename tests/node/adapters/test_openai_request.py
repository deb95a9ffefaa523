"""The request that an engine is sent: the client's own, and what we change in it."""

import json
from typing import Any

import pytest

from iop_node.adapters.openai_request import OPERATIONS, EngineRequest, Route, build_request
from iop_node.core.spec import ExecutionSpec
from iop_shared.errors import Layer, RunFailed
from iop_shared.ids import AdapterName, TargetName, new_run_id
from iop_shared.runs import Operation

CHAT = {"model": "small", "messages": [{"role": "user", "content": "Grüße 🙂"}]}


def spec(input_: Any, operation: Operation = Operation.CHAT, **more: Any) -> ExecutionSpec:
    """Returns what the core would hand over."""
    data = input_ if isinstance(input_, bytes) else json.dumps(input_).encode()
    return ExecutionSpec(new_run_id(), AdapterName("local"), TargetName("tiny"), operation, data, **more)


def build(*arguments: Any, **more: Any) -> tuple[EngineRequest, dict[str, Any]]:
    """Returns the request and its body, parsed."""
    request = build_request(spec(*arguments, **more), "org/tiny")
    body: dict[str, Any] = json.loads(request.body)
    return request, body


def failure(*arguments: Any, **more: Any) -> RunFailed:
    """Returns how building fails."""
    with pytest.raises(RunFailed) as caught:
        build_request(spec(*arguments, **more), "org/tiny")
    return caught.value


def test_a_chat_goes_on_as_it_is_but_for_model_and_streaming() -> None:
    request, body = build({**CHAT, "temperature": 0.1, "x_unknown": {"a": [1, None, 1e-7]}})

    assert request.route is Route.CHAT
    assert body == {
        "model": "org/tiny",
        "messages": CHAT["messages"],
        "temperature": 0.1,
        "x_unknown": {"a": [1, None, 1e-7]},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_options_of_the_profile_stand_under_the_client_s_own_and_cannot_switch_streaming_off() -> None:
    options = {"temperature": 0.5, "top_k": 40, "model": "x", "stream": False, "stream_options": 7}

    _, body = build({**CHAT, "temperature": 0}, options=options)

    assert (body["temperature"], body["top_k"], body["model"]) == (0, 40, "org/tiny")
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize(
    ("stream_options", "stream", "wants_usage"),
    [
        (None, True, False),
        ({}, True, False),
        ({"include_usage": False}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"include_usage": True}, False, False),
    ],
)
def test_usage_is_always_asked_for_and_the_client_s_wish_remembered(
    stream_options: Any, stream: bool, wants_usage: bool
) -> None:
    request, body = build({**CHAT, "stream_options": stream_options}, stream=stream)

    assert request.wants_usage is wants_usage
    assert body["stream_options"] == {**(stream_options or {}), "include_usage": True}


@pytest.mark.parametrize(
    ("operation", "content_type", "input_", "route", "expected"),
    [
        (
            Operation.CHAT,
            "text/plain",
            "Hi é".encode(),
            Route.CHAT,
            {"messages": [{"role": "user", "content": "Hi é"}]},
        ),
        (Operation.COMPLETION, "text/plain; charset=utf-8", b"Hi", Route.COMPLETION, {"prompt": "Hi"}),
        (Operation.GENERATE, "text/plain", b"Hi", Route.CHAT, {"messages": [{"role": "user", "content": "Hi"}]}),
        (Operation.GENERATE, "application/json", b'{"prompt":"Hi"}', Route.COMPLETION, {"prompt": "Hi"}),
        (Operation.GENERATE, "application/json", b'{"messages":[]}', Route.CHAT, {"messages": []}),
        (
            Operation.COMPLETION,
            "Application/JSON",
            b'{"prompt":["a","b"]}',
            Route.COMPLETION,
            {"prompt": ["a", "b"]},
        ),
    ],
)
def test_text_and_json_of_each_operation(
    operation: Operation, content_type: str, input_: bytes, route: Route, expected: dict[str, Any]
) -> None:
    request, body = build(input_, operation, content_type=content_type)

    assert request.route is route
    assert body == {**expected, "model": "org/tiny", "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("content_type", "input_"),
    [("application/json", b'{"input":["a"],"encoding_format":"base64"}'), ("text/plain", b"a")],
)
def test_embeddings_are_not_streamed(content_type: str, input_: bytes) -> None:
    request, body = build(input_, Operation.EMBED, content_type=content_type)

    expected = json.loads(input_) if input_ != b"a" else {"input": "a"}
    assert request.route is Route.EMBEDDINGS
    assert body == {**expected, "model": "org/tiny"}


@pytest.mark.parametrize(
    ("input_", "message"),
    [
        (
            b'{"messages": [',
            "is not valid JSON: unexpected end of data (line 1 column 15, 14 bytes); "
            "send one JSON object, or text with content type text/plain",
        ),
        (
            b'{\n "a": nope}',
            "is not valid JSON: invalid literal, expected 'null' (line 2 column 7, 13 bytes); "
            "send one JSON object, or text with content type text/plain",
        ),
        (
            b"",
            "is not valid JSON: Input is a zero-length, empty document (the input is empty, 0 bytes); "
            "send one JSON object, or text with content type text/plain",
        ),
        (
            b'{"a": NaN}',
            "is not valid JSON: unexpected character, expected a JSON value (line 1 column 7, 10 bytes); "
            "send one JSON object, or text with content type text/plain",
        ),
        (
            b'[{"role": "user"}]',
            "is an array, not a JSON object: "
            'send for example {"messages": [{"role": "user", "content": "Hello"}]}',
        ),
        (
            b"null",
            'is null, not a JSON object: send for example {"messages": [{"role": "user", "content": "Hello"}]}',
        ),
    ],
)
def test_bad_json_is_said_with_its_place(input_: bytes, message: str) -> None:
    failed = failure(input_)

    assert (failed.code, failed.layer, failed.may_retry) == ("bad_input", Layer.TARGET, False)
    assert str(failed) == f"the input for adapter 'local' {message}"


def test_text_that_is_not_utf8_is_said_with_its_place() -> None:
    failed = failure(b"ab\xff", content_type="text/plain")

    assert failed.code == "bad_input"
    assert str(failed) == (
        "the input for adapter 'local' is not UTF-8 text: byte 2 of 3 (invalid start byte); "
        "send UTF-8, or JSON with content type application/json"
    )


@pytest.mark.parametrize(
    ("value", "kind"), [(True, "a boolean"), (1, "a number"), ("x", "a string"), ([], "an array")]
)
def test_stream_options_must_be_an_object(value: Any, kind: str) -> None:
    failed = failure({**CHAT, "stream_options": value})

    assert failed.code == "bad_input"
    assert str(failed) == f"'stream_options' in the input for adapter 'local' is {kind}, not a JSON object"


def test_an_operation_that_no_such_engine_has() -> None:
    failed = failure(b"{}", Operation.EXEC)

    assert (failed.code, failed.layer) == ("operation_unsupported", Layer.TARGET)
    assert str(failed) == (
        "adapter 'local' cannot do operation 'exec': use one of chat, completion, generate, embed"
    )
    assert Operation.EXEC not in OPERATIONS


def test_half_a_surrogate_pair_goes_on_as_it_came() -> None:
    request, body = build(b'{"messages":[{"role":"user","content":"\\ud83d"}]}')

    assert body["messages"][0]["content"] == "\ud83d"
    assert b"\\ud83d" in request.body


@pytest.mark.parametrize(
    ("operation", "input_", "choices"),
    [
        (Operation.CHAT, {**CHAT, "n": 3}, 3),
        (Operation.CHAT, {**CHAT, "n": "many"}, 1),
        (Operation.COMPLETION, {"prompt": ["a", "b"], "n": 2}, 4),
        (Operation.COMPLETION, {"prompt": [1, 2, 3]}, 1),
        (Operation.COMPLETION, {"prompt": [[1, 2], [3]]}, 2),
    ],
)
def test_how_many_choices_to_expect(operation: Operation, input_: Any, choices: int) -> None:
    assert build(input_, operation)[0].choices == choices


def test_the_prompt_is_in_no_repr() -> None:
    request, _ = build(CHAT)

    assert "Gr" not in repr(request)
