"""The one answer of a plain request, joined from a stream, beside what the engines answer themselves."""

import json
from typing import Any

import pytest
from tests.support import captures

from iop_node.adapters.openai_errors import EngineAt
from iop_node.adapters.openai_stream import CompletionStream
from iop_node.adapters.openai_whole import WholeStream
from iop_node.adapters.sse import SseParser
from iop_shared.errors import Layer, RunFailed
from iop_shared.runtime_events import EngineJson

ENGINE = EngineAt("vllm", "http://127.0.0.1:8000", "vLLM 0.32.0")


def join(*events: Any, model: str = "asked") -> dict[str, Any]:
    """Returns the answer that these events make."""
    stream = WholeStream(ENGINE, model)
    return end(stream, [json.dumps(event).encode() for event in events])


def end(stream: CompletionStream, payloads: list[bytes]) -> dict[str, Any]:
    """Gives the events to the stream and returns its answer."""
    for payload in payloads:
        assert [body for body in stream.take([payload]) if isinstance(body, EngineJson)] == []
        assert stream.failure is None
    (body,) = stream.end(done=True, cut=False)
    assert isinstance(body, EngineJson)
    assert body.whole
    (chunk,) = body.chunks
    answer: dict[str, Any] = json.loads(chunk)
    return answer


def of_capture(name: str) -> dict[str, Any]:
    """Returns the answer that a captured stream makes."""
    return end(WholeStream(ENGINE, "smollm2-135m"), SseParser().feed(captures.load(name).body))


def shape(value: Any) -> Any:
    """Returns the types in `value`, with the keys of objects and the first element of arrays."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if type(value) in (int, float) else type(value).__name__


def without_nulls(value: Any) -> Any:
    """Returns `value` without the members that are null: a plain answer has some that no stream has."""
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("streamed", "plain"),
    [
        ("llama-server/chat_stream_usage.sse", "llama-server/chat_nonstream.http"),
        ("llama-server/completion_stream_usage.sse", "llama-server/completion_nonstream.http"),
        ("vllm/chat_stream_usage.sse", "vllm/chat_nonstream.http"),
        ("vllm/chat_tools_stream.sse", "vllm/chat_tools.http"),
        ("vllm/completion_stream_usage.sse", "vllm/completion_nonstream.http"),
    ],
)
def test_a_joined_stream_has_the_shape_of_the_engine_s_own_plain_answer(streamed: str, plain: str) -> None:
    ours = of_capture(streamed)
    theirs = json.loads(captures.load(plain).body)
    if "tools" in streamed:
        del theirs["usage"]  # captured without asking the stream for it
    for answer in (ours, theirs):  # vLLM's stream and plain answer differ in it themselves
        answer.get("usage", {}).get("prompt_tokens_details", {}).pop("created_cache_tokens", None)

    assert shape(without_nulls(ours)) == shape(without_nulls(theirs))


def test_the_values_of_a_joined_chat() -> None:
    answer = of_capture("llama-server/chat_stream_usage.sse")

    timings = answer.pop("timings")
    assert timings["predicted_n"] == 8
    assert answer == {
        "created": 1796138284,
        "id": "chatcmpl-OedHLeHmisI1wy330hnuQzspxENPuJqQ",
        "model": "smollm2-135m",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello! I'sure I'm not"},
                "finish_reason": "length",
            }
        ],
        "system_fingerprint": "b0-unknown",
        "usage": {
            "completion_tokens": 8,
            "prompt_tokens": 33,
            "total_tokens": 41,
            "prompt_tokens_details": {"cached_tokens": 32},
        },
    }


def test_the_tool_call_of_vllm_is_whole() -> None:
    (choice,) = of_capture("vllm/chat_tools_stream.sse")["choices"]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "chatcmpl-tool-9d12825223cdee05",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '"gabenwelter"'},
            }
        ],
    }


def chunk(index: int, delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Returns a chat chunk; `more` goes into the choice."""
    choice = {"index": index, "delta": delta, "finish_reason": finish, **more}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [choice]}


def test_choices_are_joined_by_index_and_come_in_order() -> None:
    answer = join(
        chunk(1, {"role": "assistant", "content": ""}),
        chunk(1, {"content": "b"}),
        chunk(0, {"role": "assistant", "content": "a"}),
        chunk(1, {"content": "b"}, "length"),
        chunk(0, {}, "stop"),
    )

    assert answer["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "content": "bb"}, "finish_reason": "length"},
    ]


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_keeps_the_engine_s_spelling(key: str) -> None:
    answer = join(chunk(0, {key: "th"}), chunk(0, {key: "ink"}), chunk(0, {"content": "x", key: None}, "stop"))

    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "x", key: "think"}


def test_logprobs_and_token_ids_are_chained() -> None:
    def logprobs(token: str) -> dict[str, Any]:
        return {"content": [{"token": token, "logprob": -1.0}], "refusal": None}

    answer = join(
        chunk(0, {"content": "a"}, logprobs=logprobs("a"), token_ids=[1]),
        chunk(0, {"content": ""}, logprobs=None, token_ids=None),
        chunk(0, {"content": "b"}, "stop", logprobs=logprobs("b"), token_ids=[2, 3], stop_reason="###"),
    )

    (choice,) = answer["choices"]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["a", "b"]
    assert (choice["token_ids"], choice["stop_reason"]) == ([1, 2, 3], "###")


def test_logprobs_of_text_completions_are_chained_list_by_list() -> None:
    def piece(text: str, offset: int, finish: str | None = None) -> dict[str, Any]:
        logprobs = {"tokens": [text], "token_logprobs": [-0.5], "text_offset": [offset]}
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return {"id": "c", "object": "text_completion", "choices": [choice]}

    answer = join(piece("a", 0), piece("b", 1, "stop"))

    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "ab",
            "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.5], "text_offset": [0, 1]},
            "finish_reason": "stop",
        }
    ]


def test_tool_calls_without_text_have_null_content() -> None:
    call = {"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    (choice,) = join(
        chunk(0, {"role": "assistant", "content": None}), chunk(0, {"tool_calls": [call]}, "tool_calls")
    )["choices"]

    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


def test_unknown_fields_are_kept_and_the_last_value_stays() -> None:
    first = {**chunk(0, {"content": "a"}), "x_early": [1], "x_late": None, "model": "tiny"}
    last = {**chunk(0, {}, "stop"), "x_early": None, "x_late": {"n": 2}}

    answer = join(first, last)

    assert (answer["x_early"], answer["x_late"], answer["model"]) == ([1], {"n": 2}, "asked")


def test_the_engine_s_model_stays_if_no_other_was_asked_for() -> None:
    assert join(chunk(0, {"content": "a"}, "stop"), model="")["model"] == "tiny"


def test_an_answer_over_the_limit_fails_the_run() -> None:
    stream = WholeStream(ENGINE, "asked", max_bytes=400)

    for _ in range(10):
        stream.take([json.dumps(chunk(0, {"content": "a"})).encode()])

    assert stream.failure is not None
    assert (stream.failure.code, stream.failure.layer) == ("output_limit", Layer.NODE)
    assert str(stream.failure) == (
        "the answer of vLLM 0.32.0 at http://127.0.0.1:8000 exceeds max_output_bytes=400; "
        "stream it, or raise the limit"
    )


def test_a_stream_that_broke_gives_no_answer_and_may_be_tried_again() -> None:
    stream = WholeStream(ENGINE, "asked")
    stream.take([json.dumps(chunk(0, {"content": "a"})).encode()])

    with pytest.raises(RunFailed) as caught:
        stream.end(done=False, cut=True)

    assert (caught.value.code, caught.value.may_retry) == ("engine_stream_truncated", True)
