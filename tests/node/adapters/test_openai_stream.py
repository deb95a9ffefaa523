"""Streams of completions: what a run is told, however the engine's bytes were cut."""

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.support import captures

from iop_node.adapters.openai_errors import EngineAt
from iop_node.adapters.openai_stream import CompletionStream, EngineJsonStream, TypedStream
from iop_node.adapters.sse import SseParser
from iop_shared.errors import Layer, RunFailed
from iop_shared.runtime_events import Body, EngineJson, Logprobs, Reasoning, Text, ToolCall, Usage

ENGINE = EngineAt("vllm", "http://127.0.0.1:8000", "vLLM 0.32.0")
STREAMS = [name for name in captures.names("*/*.sse") if "messages" not in name]
CANVAS = " a canvas of endless possibilities,"
COMPLETE = [name for name in STREAMS if "sig" not in name and "killed" not in name]


def relay(stream: CompletionStream, pieces: Iterable[bytes]) -> tuple[list[Body], RunFailed | None]:
    """Returns everything the run is told, and how it failed."""
    parser = SseParser()
    bodies: list[Body] = []
    for piece in pieces:
        bodies += stream.take(parser.feed(piece))
        if stream.failure is not None:
            return bodies + stream.untold_usage(), stream.failure
    parser.finish()
    try:
        bodies += stream.end(done=parser.done, cut=parser.rest_bytes > 0)
    except RunFailed as failure:
        return bodies + stream.untold_usage(), failure
    return bodies + stream.untold_usage(), None


def take(stream: CompletionStream, *events: Any) -> list[Body]:
    """Gives `events` to the stream as those of one read."""
    return stream.take([event if isinstance(event, bytes) else json.dumps(event).encode() for event in events])


def end_failure(stream: CompletionStream, *, done: bool = False, cut: bool = False) -> RunFailed:
    """Returns how the stream fails at its end."""
    with pytest.raises(RunFailed) as caught:
        stream.end(done=done, cut=cut)
    return caught.value


def joined(bodies: list[Body]) -> list[Body]:
    """Returns `bodies` with all neighbours joined that a coarser read would have joined, the last usage last."""
    usages = [body for body in bodies if isinstance(body, Usage)]
    result: list[Body] = []
    for body in bodies:
        if isinstance(body, Usage):
            continue
        last = result[-1] if result else None
        if isinstance(body, Text | Reasoning) and type(last) is type(body) and last.index == body.index:
            result[-1] = type(body)(last.text + body.text, body.index)
        elif isinstance(body, EngineJson) and isinstance(last, EngineJson):
            result[-1] = EngineJson(last.chunks + body.chunks)
        elif (
            isinstance(body, ToolCall) and isinstance(last, ToolCall) and not body.id and body.index == last.index
        ):
            result[-1] = ToolCall(last.index, last.id, last.name, last.arguments + body.arguments, last.choice)
        else:
            result.append(body)
    return result + usages[-1:]


def delta(content: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    """Returns a chat chunk."""
    choices = [{"index": index, "delta": content, "finish_reason": finish}]
    return {"id": "c", "object": "chat.completion.chunk", "model": "tiny", "choices": choices, **more}


# --- captured streams, split everywhere ------------------------------------------------------------------


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    "make", [lambda: EngineJsonStream(ENGINE, "asked", wants_usage=True), lambda: TypedStream(ENGINE)]
)
def test_captured_streams_give_the_same_however_split(name: str, make: Callable[[], CompletionStream]) -> None:
    body = captures.load(name).body
    bodies, failure = relay(make(), [body])
    expected = joined(bodies), str(failure)

    assert bodies
    chance = random.Random(name)
    several = [sorted(chance.sample(range(len(body)), chance.randrange(2, 40))) for _ in range(50)]
    for cuts in [*([at] for at in range(1, len(body))), *several, list(range(1, len(body)))]:
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        bodies, failure = relay(make(), pieces)
        assert (joined(bodies), str(failure)) == expected


@pytest.mark.parametrize("name", COMPLETE)
def test_passed_on_events_are_the_engine_s_own_but_for_the_model(name: str) -> None:
    body = captures.load(name).body
    given = SseParser().feed(body)

    bodies, failure = relay(EngineJsonStream(ENGINE, 'asked "for"', wants_usage=True), [body])

    assert failure is None
    chunks = [chunk for part in bodies if isinstance(part, EngineJson) for chunk in part.chunks]
    assert chunks == [event.replace(b'"model":"smollm2-135m"', rb'"model":"asked \"for\""') for event in given]
    assert chunks != given


@pytest.mark.parametrize("name", ["llama-server/chat_stream_usage.sse", "vllm/chat_stream_usage.sse"])
def test_the_usage_event_is_kept_from_a_client_that_did_not_ask(name: str) -> None:
    bodies, failure = relay(EngineJsonStream(ENGINE, "asked", wants_usage=False), [captures.load(name).body])

    assert failure is None
    engine_json, usage = bodies
    assert isinstance(engine_json, EngineJson)
    assert len(engine_json.chunks) == 10 - ("vllm" in name)
    assert all(json.loads(chunk)["choices"] for chunk in engine_json.chunks)
    assert usage == Usage(33, 8, cached_tokens=32 if "llama" in name else 0)


@pytest.mark.parametrize(
    ("name", "text", "finish", "usage"),
    [
        ("llama-server/chat_stream.sse", "Hello! I'sure I'm not", "length", None),
        ("llama-server/chat_stream_unicode.sse", "Héllo 日本語 🙂🙂", "stop", None),
        (
            "llama-server/completion_stream_usage.sse",
            " a canvas of endless possibilities,",
            "length",
            Usage(3, 6, 2),
        ),
        ("vllm/chat_stream_unicode.sse", "Héllo 日本語 🙂🙂", "stop", None),
        ("vllm/chat_stream_continuous_usage.sse", "Hello! I", "length", Usage(33, 3, 0)),
        ("vllm/completion_stream_usage.sse", CANVAS, "length", Usage(3, 6, 0)),
    ],
)
def test_text_finish_reason_and_usage_of_captures(name: str, text: str, finish: str, usage: Usage | None) -> None:
    stream = TypedStream(ENGINE)

    bodies, failure = relay(stream, [captures.load(name).body])

    assert failure is None
    assert bodies == [Text(text), *([usage] if usage else [])]
    assert stream.finish_reason == finish


def test_tool_calls_of_vllm_come_by_piece() -> None:
    stream = TypedStream(ENGINE)

    bodies, failure = relay(stream, [captures.load("vllm/chat_tools_stream.sse").body])

    assert failure is None
    assert bodies == [ToolCall(0, "chatcmpl-tool-9d12825223cdee05", "get_weather", '"gabenwelter"')]
    assert stream.finish_reason == "tool_calls"


@pytest.mark.parametrize("name", ["vllm/stream_engine_killed.sse", "vllm/stream_sigterm.sse"])
def test_an_error_before_done_is_a_failure_though_done_came(name: str) -> None:
    bodies, failure = relay(TypedStream(ENGINE), [captures.load(name).body])

    assert isinstance(bodies[0], Text)
    assert failure is not None
    assert (failure.code, failure.layer, failure.may_retry) == ("engine_error_mid_stream", Layer.SERVING, False)
    assert failure.engine_status == 500
    assert json.loads(failure.engine_body)["error"]["type"] == "InternalServerError"
    assert str(failure) == (
        "vLLM 0.32.0 at http://127.0.0.1:8000 reported an error after 11 events of its stream: "
        "EngineCore encountered an issue. See stack trace (above) for the root cause; look into the engine's log"
    )


@pytest.mark.parametrize("name", ["llama-server/stream_sigkill.sse", "llama-server/stream_sigterm.sse"])
def test_a_stream_that_just_stops_is_truncated(name: str) -> None:
    bodies, failure = relay(TypedStream(ENGINE), [captures.load(name).body])

    assert isinstance(bodies[0], Text)
    assert failure is not None
    assert (failure.code, failure.layer, failure.may_retry) == ("engine_stream_truncated", Layer.SERVING, False)
    assert str(failure) == (
        "vLLM 0.32.0 at http://127.0.0.1:8000 ended its stream after 13 events without [DONE] and a finish_reason"
        "; the answer is incomplete, look into the engine's log"
    )


# --- the model's name -----------------------------------------------------------------------------------


def test_model_is_replaced_whatever_the_text_says() -> None:
    stream = EngineJsonStream(ENGINE, "asked", wants_usage=False)
    events = [
        delta({"content": 'say "model":"tiny" and \\"model\\": \\"tiny\\"'}),
        delta({"content": '"model":"tiny"'}),
    ]

    (body,) = take(stream, *events)

    assert isinstance(body, EngineJson)
    assert [json.loads(chunk) for chunk in body.chunks] == [{**event, "model": "asked"} for event in events]


def test_a_model_that_is_named_twice_is_replaced_at_the_top_only() -> None:
    stream = EngineJsonStream(ENGINE, "asked", wants_usage=False)
    nested = delta({"content": "x", "big": 2**70}, draft={"model": "tiny"})

    first = take(stream, nested)
    then = take(stream, delta({"content": "y"}), nested)

    chunks = [chunk for body in (*first, *then) if isinstance(body, EngineJson) for chunk in body.chunks]
    assert [json.loads(chunk)["model"] for chunk in chunks] == ["asked"] * 3
    assert json.loads(chunks[2]) == {**nested, "model": "asked"}


def test_a_model_name_that_changes_in_mid_stream_is_replaced_too() -> None:
    stream = EngineJsonStream(ENGINE, "asked", wants_usage=False)

    (body,) = take(stream, delta({}), {**delta({}), "model": "other/é"}, delta({}), {"choices": [], "ping": 1})

    assert isinstance(body, EngineJson)
    assert [json.loads(chunk).get("model") for chunk in body.chunks] == ["asked", "asked", "asked", None]


def test_without_a_requested_model_events_stay_as_they_are() -> None:
    event = b'{"model" : "tiny", "choices": [], "x": 1.00}'

    assert take(EngineJsonStream(ENGINE, "", wants_usage=False), event) == [EngineJson((event,))]
    assert take(EngineJsonStream(ENGINE, "tiny", wants_usage=False), event) == [EngineJson((event,))]


def test_json_over_several_lines_is_put_on_one() -> None:
    event = b'{\n"model": "tiny",\n"choices": []\n}'

    (body,) = take(EngineJsonStream(ENGINE, "asked", wants_usage=False), event)

    assert body == EngineJson((b'{ "model":"asked", "choices": [] }',))


# --- typed bodies ---------------------------------------------------------------------------------------


def test_both_spellings_of_reasoning_come_as_reasoning_once() -> None:
    stream = TypedStream(ENGINE)

    bodies = take(
        stream,
        delta({"reasoning": "a"}),
        delta({"reasoning_content": "b"}),
        delta({"reasoning": "c", "reasoning_content": "c"}),
        delta({"content": "d"}),
        delta({"content": "e"}),
    )

    assert bodies == [Reasoning("abc"), Text("de")]


def test_choices_are_kept_apart_and_each_must_finish() -> None:
    stream = TypedStream(ENGINE)

    bodies = take(stream, delta({"content": "a"}), delta({"content": "b"}, index=1), delta({}, "stop", index=1))

    assert bodies == [Text("a"), Text("b", 1)]
    assert str(end_failure(stream, done=True)) == (
        "vLLM 0.32.0 at http://127.0.0.1:8000 sent [DONE] after 3 events, but no finish_reason for choice 0; "
        "the answer is incomplete, look into the engine's log"
    )
    take(stream, delta({}, "length"))
    assert stream.end(done=True, cut=False) == []
    assert stream.finish_reason == "length"


@pytest.mark.parametrize(("done", "is_complete"), [(True, True), (False, False)])
def test_a_choice_that_never_began_is_missed_unless_done_came(done: bool, is_complete: bool) -> None:
    stream = TypedStream(ENGINE, choices=2)
    take(stream, delta({"content": "a"}, "stop"))

    if is_complete:
        assert stream.end(done=done, cut=False) == []
    else:
        assert end_failure(stream, done=done).code == "engine_stream_truncated"


def test_logprobs_stand_behind_the_text_that_they_belong_to() -> None:
    event = delta({"content": "a"})
    event["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": -1.5}]}

    bodies = take(TypedStream(ENGINE), event, event)

    logprobs = Logprobs(b'{"content":[{"token":"a","logprob":-1.5}]}')
    assert bodies == [Text("a"), logprobs, Text("a"), logprobs]


def test_whole_tool_calls_without_index_and_with_objects_as_arguments() -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]

    bodies = take(
        TypedStream(ENGINE), delta({"tool_calls": calls}), delta({"tool_calls": [calls[1]]}, "tool_calls")
    )

    assert bodies == [ToolCall(0, "1", "f", '{"x":1}'), ToolCall(1, "2", "g", "{}"), ToolCall(1, "2", "g", "{}")]


def test_pieces_of_two_tool_calls_that_alternate() -> None:
    def piece(index: int, **function: str) -> dict[str, Any]:
        return {"index": index, "function": function, **({"id": f"id{index}"} if "name" in function else {})}

    bodies = take(
        TypedStream(ENGINE),
        delta({"tool_calls": [piece(0, name="f", arguments=""), piece(1, name="g", arguments="{")]}),
        delta({"tool_calls": [piece(0, arguments="[1"), piece(0, arguments="]")]}),
        delta({"tool_calls": [piece(1, arguments="}")]}),
    )

    assert bodies == [
        ToolCall(0, "id0", "f"),
        ToolCall(1, "id1", "g", "{"),
        ToolCall(0, arguments="[1]"),
        ToolCall(1, arguments="}"),
    ]


def test_half_a_surrogate_pair_does_not_break_the_run() -> None:
    event = b'{"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}'

    assert take(TypedStream(ENGINE), event) == [Text("a\ufffd")]
    assert take(EngineJsonStream(ENGINE, "", wants_usage=False), event) == [EngineJson((event,))]


# --- usage ----------------------------------------------------------------------------------------------


def test_usage_at_every_event_is_told_once_at_the_end() -> None:
    stream = TypedStream(ENGINE)
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 1}}

    assert take(stream, delta({"content": "a"}, usage=usage)) == [Text("a")]
    usage["completion_tokens"] = 2
    assert take(stream, delta({"content": "b"}, "stop", usage=usage)) == [Text("b"), Usage(3, 2, None, 1)]
    assert take(stream, delta({}, "stop", usage=usage)) == []
    assert stream.untold_usage() == []


def test_usage_of_a_run_that_ends_early_is_not_lost() -> None:
    stream = TypedStream(ENGINE)
    take(stream, delta({"content": "a"}, usage={"prompt_tokens": 3, "completion_tokens": True}))

    assert stream.untold_usage() == [Usage(3, None)]
    assert stream.untold_usage() == []


# --- what is no good stream -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        b"{garbage",
        b"",
        b"[]",
        b'"text"',
        b'{"choices":[1]}',
        b'{"choices":7}',
        b'{"choices":[{"index":"first"}]}',
        b'{"choices":[{"delta":{"content":7}}]}',
        b'{"choices":[{"delta":{"tool_calls":[3]}}]}',
        b'{"choices":[],"usage":[1]}',
        b"[" * 200_000,
    ],
)
def test_an_event_that_is_no_chunk_fails_the_run_and_what_came_before_is_kept(event: bytes) -> None:
    stream = TypedStream(ENGINE)

    bodies = take(stream, delta({"content": "secret answer"}), event, delta({"content": "late"}))

    assert bodies == [Text("secret answer")]
    assert stream.failure is not None
    assert (stream.failure.code, stream.failure.layer) == ("engine_bad_response", Layer.SERVING)
    assert str(stream.failure) == (
        "vLLM 0.32.0 at http://127.0.0.1:8000 sent an event that is no completion chunk "
        f"(event 2, {len(event)} bytes); check that base_url of the adapter leads to an OpenAI-compatible engine"
    )


@pytest.mark.parametrize(
    ("error", "code", "layer", "retryable"),
    [
        (
            {"message": "too long", "code": 400, "type": "exceed_context_size_error"},
            "context_exceeded",
            "target",
            False,
        ),
        ({"message": "bad temperature", "code": 400}, "engine_rejected", "target", False),
        ({"message": "Loading model", "code": 503}, "engine_loading", "serving", True),
        ({"message": "boom", "code": 500}, "engine_error_mid_stream", "serving", True),
        ("boom", "engine_error_mid_stream", "serving", True),
    ],
)
def test_an_error_as_first_event_means_what_it_means_as_an_answer(
    error: Any, code: str, layer: str, retryable: bool
) -> None:
    stream = EngineJsonStream(ENGINE, "asked", wants_usage=False)

    assert take(stream, {"error": error}, b"unread") == []
    assert stream.failure is not None
    assert (stream.failure.code, stream.failure.layer, stream.failure.may_retry) == (code, layer, retryable)


def test_an_error_behind_good_events_of_the_same_read_is_no_retry() -> None:
    stream = EngineJsonStream(ENGINE, "asked", wants_usage=False)

    bodies = take(stream, delta({"content": "a"}), {"error": {"message": "boom", "code": 400}})

    assert len(bodies) == 1
    assert stream.failure is not None
    assert (stream.failure.code, stream.failure.may_retry) == ("engine_error_mid_stream", False)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_choice_that_the_engine_gave_up_is_a_failure(reason: str) -> None:
    stream = TypedStream(ENGINE)
    take(stream, delta({"content": "a"}), delta({}, reason))

    failure = end_failure(stream, done=True)

    assert failure.code == "engine_error_mid_stream"
    assert str(failure) == (
        "vLLM 0.32.0 at http://127.0.0.1:8000 reported an error after 2 events of its stream: "
        f"choice 0 ended with finish_reason '{reason}'; look into the engine's log"
    )


@pytest.mark.parametrize(
    ("events", "done", "cut", "code", "what"),
    [
        (0, True, False, "engine_bad_response", "sent [DONE] and nothing else"),
        (0, False, False, "engine_stream_truncated", "ended its answer before the first event"),
        (0, False, True, "engine_stream_truncated", "broke the connection before the first event"),
        (
            2,
            False,
            True,
            "engine_stream_truncated",
            "broke the connection after 2 events, in the middle of its answer",
        ),
        (
            2,
            False,
            False,
            "engine_stream_truncated",
            "ended its stream after 2 events without [DONE] and a finish_reason",
        ),
        (
            2,
            True,
            False,
            "engine_stream_truncated",
            "sent [DONE] after 2 events, but no finish_reason for choice 0",
        ),
    ],
)
def test_every_way_to_end_too_early(events: int, done: bool, cut: bool, code: str, what: str) -> None:
    stream = TypedStream(ENGINE)
    take(stream, *[delta({"content": "a"})] * events)

    failure = end_failure(stream, done=done, cut=cut)

    code = "engine_stream_truncated" if events or not done else "engine_bad_response"
    assert failure.code == code
    assert str(failure).startswith(f"vLLM 0.32.0 at http://127.0.0.1:8000 {what}; ")
    assert failure.may_retry is (events == 0 and code == "engine_stream_truncated")


@pytest.mark.parametrize(("done", "cut"), [(True, False), (False, False), (False, True)])
def test_a_finish_reason_for_every_choice_is_a_success_however_the_body_ends(done: bool, cut: bool) -> None:
    stream = TypedStream(ENGINE)
    take(stream, delta({"content": "a"}, "stop"))

    assert stream.end(done=done, cut=cut) == []
