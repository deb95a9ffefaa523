"""The vllm adapter against a scripted engine on a real socket."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.engine import (
    DONE,
    MODEL,
    Answer,
    Cut,
    Engine,
    Hang,
    Pause,
    Reset,
    chat_events,
    chunk,
    event,
    plain,
    stream,
)
from tests.support.recording_sink import RecordingSink

from iop_node.adapters import vllm
from iop_node.adapters.sse import MAX_EVENT_BYTES
from iop_node.core.ports import Adapter, AdapterFactory, ListsTargets
from iop_node.core.spec import Completion, ExecutionSpec
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import Layer, RunFailed
from iop_shared.ids import AdapterName, TargetName, new_run_id
from iop_shared.runs import Operation, RunLimits
from iop_shared.runtime_events import Embeddings, EngineJson, Text, ToolCall, Usage

pytestmark = pytest.mark.both_loops
CHAT = {"messages": [{"role": "user", "content": "PROMPT"}]}


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine() as running:
        yield running


@pytest.fixture
async def adapter(engine: Engine) -> AsyncIterator[vllm.VllmAdapter]:
    built = build(engine)
    yield built
    await built.aclose()


def build(engine: Engine, **settings: Any) -> vllm.VllmAdapter:
    """Builds the adapter as the registry does."""
    factory: AdapterFactory = vllm.build
    adapter: Adapter = factory(AdapterName("local"), 4, {"base_url": engine.base_url, **settings})
    assert isinstance(adapter, vllm.VllmAdapter)
    assert isinstance(adapter, ListsTargets)
    return adapter


def spec(input_: Any = None, operation: Operation = Operation.CHAT, **more: Any) -> ExecutionSpec:
    """Returns a run."""
    data = json.dumps(CHAT if input_ is None else input_).encode()
    more.setdefault("target", TargetName(MODEL))
    return ExecutionSpec(new_run_id(), AdapterName("local"), operation=operation, input=data, **more)


async def run(adapter: vllm.VllmAdapter, **more: Any) -> tuple[RecordingSink, Completion]:
    """Runs one to its end."""
    sink = RecordingSink()
    return sink, await adapter.execute(spec(**more), sink)


async def fail(adapter: vllm.VllmAdapter, **more: Any) -> tuple[RecordingSink, RunFailed]:
    """Runs one that fails."""
    sink = RecordingSink()
    with pytest.raises(RunFailed) as caught:
        await adapter.execute(spec(**more), sink)
    assert "PROMPT" not in str(caught.value)
    return sink, caught.value


# --- runs that succeed ------------------------------------------------------------------------------------


async def test_a_chat_in_typed_pieces(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    sink, completion = await run(adapter)

    assert sink.text == "Hello world"
    assert sink.bodies[-1] == Usage(7, 3)
    assert completion == Completion("stop")
    (request,) = engine.posts
    assert request.path == "/v1/chat/completions"
    assert request.json == {**CHAT, "model": MODEL, "stream": True, "stream_options": {"include_usage": True}}
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"
    assert "authorization" not in request.headers
    assert not sink.is_cancel_confirmed


async def test_a_chat_in_the_engine_s_own_json(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    sink, _ = await run(adapter, engine_json=True, requested_model="small")

    events = [json.loads(chunk_) for chunk_ in sink.chunks]
    assert [event_["model"] for event_ in events] == ["small"] * 5
    assert not any("usage" in event_ for event_ in events)
    assert sink.bodies[-1] == Usage(7, 3)


async def test_a_client_that_asks_for_usage_gets_the_event(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    input_ = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}

    sink, _ = await run(adapter, engine_json=True, requested_model="small", input_=input_)

    assert json.loads(sink.chunks[-1])["usage"]["total_tokens"] == 10


async def test_a_plain_answer_is_joined_from_a_stream(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    sink, completion = await run(adapter, engine_json=True, stream=False, requested_model="small")

    (answer,) = [body for body in sink.bodies if isinstance(body, EngineJson)]
    assert answer.whole
    parsed = json.loads(answer.chunks[0])
    assert (parsed["object"], parsed["model"]) == ("chat.completion", "small")
    assert parsed["choices"][0]["message"] == {"role": "assistant", "content": "Hello world"}
    assert parsed["usage"]["completion_tokens"] == 3
    assert completion == Completion("stop")
    assert engine.posts[0].json["stream"] is True


async def test_reasoning_and_tool_calls_come_through(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    call = {"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    engine.script(
        stream([chunk({"reasoning": "hm"}), chunk({"tool_calls": [call]}), chunk({}, finish="tool_calls"), DONE])
    )

    sink, completion = await run(adapter)

    assert sink.reasoning == "hm"
    assert ToolCall(0, "1", "f", "{}") in sink.bodies
    assert completion.finish_reason == "tool_calls"


async def test_embeddings_typed_and_as_the_engine_has_them(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    items = [
        {"object": "embedding", "index": 1, "embedding": [0.25]},
        {"object": "embedding", "index": 0, "embedding": [1]},
    ]
    answer = {"object": "list", "model": MODEL, "data": items, "usage": {"prompt_tokens": 4, "total_tokens": 4}}
    engine.script(plain(answer), plain(answer))

    typed, _ = await run(adapter, operation=Operation.EMBED, input_={"input": ["a", "b"]})
    passed, _ = await run(
        adapter, operation=Operation.EMBED, input_={"input": ["a", "b"]}, engine_json=True, requested_model="small"
    )

    assert typed.bodies == [Embeddings(b"[[1],[0.25]]"), Usage(4)]
    (engine_json, usage) = passed.bodies
    assert isinstance(engine_json, EngineJson)
    assert engine_json.whole
    assert json.loads(engine_json.chunks[0]) == {**answer, "model": "small"}
    assert usage == Usage(4)
    assert engine.posts[0].path == "/v1/embeddings"
    assert engine.posts[0].json == {"input": ["a", "b"], "model": MODEL}


async def test_base64_embeddings_stay_base64(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    engine.script(plain({"data": [{"index": 0, "embedding": "AACAPw=="}], "model": MODEL}))

    sink, _ = await run(adapter, operation=Operation.EMBED, input_={"input": "a", "encoding_format": "base64"})

    assert sink.bodies == [Embeddings(b'["AACAPw=="]'), Usage()]
    assert engine.posts[0].json["encoding_format"] == "base64"


async def test_events_split_anywhere_between_packets(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    data = b"".join(chat_events("Grüße", " 🙂"))
    engine.script(stream([piece for at in range(0, len(data), 7) for piece in (data[at : at + 7], Pause(0))]))

    sink, completion = await run(adapter)

    assert (sink.text, completion.finish_reason) == ("Grüße 🙂", "stop")


async def test_a_stream_without_chunked_framing_that_ends_with_the_connection(
    engine: Engine, adapter: vllm.VllmAdapter
) -> None:
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    engine.script(Answer(raw=True, steps=[head, *chat_events("a")]))

    sink, _ = await run(adapter)

    assert sink.text == "a"


async def test_a_large_input_goes_out_whole_and_without_warnings(
    engine: Engine, adapter: vllm.VllmAdapter
) -> None:
    content = "x" * 3_000_000

    await run(adapter, input_={"messages": [{"role": "user", "content": content}]})

    assert engine.posts[0].json["messages"][0]["content"] == content


async def test_an_alias_and_base_url_with_v1(engine: Engine) -> None:
    adapter = build(engine, base_url=engine.base_url + "/v1/", aliases={"small": MODEL}, targets=[])
    try:
        await run(adapter, target=TargetName("small"))
        _, failure = await fail(adapter, target=TargetName("smal"))
    finally:
        await adapter.aclose()

    assert engine.posts[0].json["model"] == MODEL
    assert (failure.code, failure.layer) == ("target_not_found", Layer.TARGET)
    assert str(failure) == "adapter 'local' does not offer target 'smal': did you mean 'small'?"


async def test_the_key_goes_to_the_engine_and_into_no_message(engine: Engine) -> None:
    engine.api_key = "sk-right"
    right, wrong = build(engine, api_key="sk-right"), build(engine, api_key="sk-wrong")
    try:
        sink, _ = await run(right)
        _, failure = await fail(wrong)
    finally:
        await right.aclose()
        await wrong.aclose()

    assert sink.text == "Hello world"
    assert (failure.code, failure.layer) == ("engine_auth_failed", Layer.SERVING)
    assert "sk-" not in str(failure) + repr(vars(wrong))


# --- connections ------------------------------------------------------------------------------------------


async def test_a_finished_stream_leaves_its_connection_to_the_next_run(
    engine: Engine, adapter: vllm.VllmAdapter
) -> None:
    for _ in range(3):
        await run(adapter)

    assert {request.connection for request in engine.posts} == {1}


async def test_a_stale_connection_is_replaced_once(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    await run(adapter)
    engine.script(Answer(raw=True), stream(chat_events("second")))

    sink, _ = await run(adapter)

    assert sink.text == "second"
    assert [request.connection for request in engine.posts] == [1, 1, 2]


async def test_a_fresh_connection_that_is_closed_without_an_answer_is_a_failure(
    engine: Engine, adapter: vllm.VllmAdapter
) -> None:
    engine.script(Answer(raw=True), Answer(raw=True, steps=[Reset()]))

    _, closed = await fail(adapter)
    _, reset = await fail(adapter)

    for failure in (closed, reset):
        assert (failure.code, failure.layer, failure.may_retry) == ("engine_stream_truncated", Layer.SERVING, True)
        assert str(failure) == (
            f"engine at {engine.base_url} closed the connection before it answered; "
            "the answer is incomplete, look into the engine's log"
        )
    assert len(engine.posts) == 2


async def test_an_answer_that_has_begun_is_not_asked_for_again(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    await run(adapter)
    engine.script(stream([chunk({"content": "a"}), Reset()]))

    _, failure = await fail(adapter)

    assert failure.code == "engine_stream_truncated"
    assert len(engine.posts) == 2


async def test_closing_twice_and_without_any_run(engine: Engine) -> None:
    adapter = build(engine)

    await adapter.aclose()
    await adapter.aclose()

    assert engine.connections == 0


# --- cancelling -------------------------------------------------------------------------------------------


@pytest.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    owner = TaskOwner("test", lambda name, error: None)
    yield owner
    await owner.cancel_all()


@pytest.mark.parametrize("engine_json", [True, False])
async def test_cancel_in_mid_stream_closes_the_connection_at_once(
    engine: Engine, adapter: vllm.VllmAdapter, tasks: TaskOwner, engine_json: bool
) -> None:
    engine.script(stream([*chat_events("a", finish=None, usage=False, done=False), Hang()]))
    sink = RecordingSink()
    task = tasks.spawn(adapter.execute(spec(engine_json=engine_json), sink), name="run")
    await sink.wait_output()

    cancelled_at = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await engine.wait_left_early() - cancelled_at < 1.0  # about 1 ms on a quiet machine
    assert not sink.is_cancel_confirmed
    assert engine.open_connections == 0


async def test_cancel_of_a_plain_request_stops_the_engine_too(
    engine: Engine, adapter: vllm.VllmAdapter, tasks: TaskOwner
) -> None:
    engine.script(stream([*chat_events("a", finish=None, usage=False, done=False), Hang()]))
    sink = RecordingSink()
    task = tasks.spawn(adapter.execute(spec(engine_json=True, stream=False), sink), name="run")
    await sink.wait(lambda: sink.waits > 0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await engine.wait_left_early()
    assert sink.bodies == []


async def test_cancel_before_the_headers_closes_the_connection(
    engine: Engine, adapter: vllm.VllmAdapter, tasks: TaskOwner
) -> None:
    engine.script(Answer(head_delay_s=60))
    task = tasks.spawn(adapter.execute(spec(), RecordingSink()), name="run")
    await engine.wait(lambda: len(engine.posts) == 1)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await engine.wait_left_early()


async def test_usage_so_far_is_told_when_a_run_is_cancelled(
    engine: Engine, adapter: vllm.VllmAdapter, tasks: TaskOwner
) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1}
    engine.script(stream([chunk({"content": "a"}, usage=usage), Hang()]))
    sink = RecordingSink()
    task = tasks.spawn(adapter.execute(spec(), sink), name="run")
    await sink.wait_output()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert sink.bodies == [Text("a"), Usage(7, 1)]
    await engine.wait_left_early()


async def test_a_slow_reader_holds_the_engine_back_and_is_no_silence(
    engine: Engine, adapter: vllm.VllmAdapter, tasks: TaskOwner
) -> None:
    engine.script(stream([chunk({"content": "x" * 1000}) for _ in range(2000)] + chat_events("end")))
    sink = RecordingSink()
    sink.ready.clear()
    limits = RunLimits(idle_timeout_s=0.15)
    task = tasks.spawn(adapter.execute(spec(limits=limits), sink), name="run")
    await sink.wait_output()

    await asyncio.sleep(0.2)
    held_back = len(sink.text)
    assert held_back < 100_000
    assert not task.done()
    sink.ready.set()
    completion = await task

    assert completion.finish_reason == "stop"
    assert len(sink.text) == 2_000_003


# --- engines that fail ------------------------------------------------------------------------------------


async def test_nothing_listens(engine: Engine) -> None:
    adapter, base_url = build(engine), engine.base_url
    await engine.aclose()

    _, failure = await fail(adapter)
    await adapter.aclose()

    assert (failure.code, failure.layer, failure.may_retry) == ("engine_unreachable", Layer.SERVING, True)
    assert str(failure) == (
        f"cannot reach engine at {base_url}: connection refused; "
        "start the engine, or correct base_url of adapter 'local'"
    )


async def test_a_host_that_does_not_exist(engine: Engine) -> None:
    adapter = build(engine, base_url="http://no-such-host.invalid:8000/v1")

    _, failure = await fail(adapter)
    await adapter.aclose()

    assert failure.code == "engine_unreachable"
    assert str(failure).startswith("cannot reach engine at http://no-such-host.invalid:8000: ")


async def test_tls_against_a_plain_engine(engine: Engine) -> None:
    adapter = build(engine, base_url=engine.base_url.replace("http:", "https:"))

    _, failure = await fail(adapter)
    await adapter.aclose()

    assert failure.code == "engine_unreachable"


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/9.x nonsense\r\n\r\n", b"\x00\x01\r\n\r\n"])
async def test_something_that_speaks_no_http(engine: Engine, adapter: vllm.VllmAdapter, raw: bytes) -> None:
    engine.script(Answer(raw=True, steps=[raw]))

    _, failure = await fail(adapter)

    assert (failure.code, failure.layer) == ("engine_bad_response", Layer.SERVING)
    assert str(failure) == (
        f"engine at {engine.base_url} gave an answer that is no HTTP; "
        "check that base_url of the adapter leads to an OpenAI-compatible engine"
    )


async def test_errors_before_the_stream_are_mapped_with_the_engine_s_body(
    engine: Engine, adapter: vllm.VllmAdapter
) -> None:
    error = {"error": {"message": "The model `x` does not exist.", "param": "model", "code": 404}}
    engine.script(plain(error, 404, headers={"server": "llama.cpp"}))

    sink, failure = await fail(adapter)

    assert (failure.code, failure.engine_status) == ("target_not_found", 404)
    assert json.loads(failure.engine_body) == error
    assert str(failure).startswith(f"llama.cpp at {engine.base_url} answered 404: The model `x` does not exist; ")
    assert sink.bodies == []


async def test_a_redirect_is_not_followed(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    engine.script(plain(b"", 307, headers={"location": engine.base_url + "/elsewhere"}))

    _, failure = await fail(adapter)

    assert failure.code == "engine_bad_response"
    assert len(engine.requests) == 1


async def test_a_connection_cut_in_mid_stream(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    for step in (Cut(), Reset()):
        engine.script(stream([chunk({"content": "a"}), Pause(0.01), step]))

        sink, failure = await fail(adapter)

        assert sink.text == "a"
        assert (failure.code, failure.layer, failure.may_retry) == (
            "engine_stream_truncated",
            Layer.SERVING,
            False,
        )
        assert str(failure) == (
            f"engine at {engine.base_url} broke the connection after 1 events, in the middle of its answer; "
            "the answer is incomplete, look into the engine's log"
        )


async def test_a_cut_behind_the_finish_reason_loses_nothing(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    engine.script(stream([*chat_events("a", done=False), Cut()]))

    sink, completion = await run(adapter)

    assert (sink.text, completion.finish_reason) == ("a", "stop")


async def test_a_body_that_ends_without_a_finish_is_truncated(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    engine.script(stream(chat_events("a", finish=None, usage=False, done=False)))

    _, failure = await fail(adapter)

    assert failure.code == "engine_stream_truncated"


async def test_an_error_event_and_then_done_is_a_failure(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    error = {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}
    engine.script(stream([chunk({"content": "a"}), event(error), DONE, Hang()]))

    sink, failure = await fail(adapter, engine_json=True)

    assert len(sink.chunks) == 1
    assert (failure.code, failure.engine_status) == ("engine_error_mid_stream", 500)
    assert json.loads(failure.engine_body) == error
    await engine.wait_left_early()


async def test_garbage_in_an_event(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    engine.script(stream([chunk({"content": "a"}), b"data: {nonsense}\n\n", Hang()]))

    sink, failure = await fail(adapter)

    assert (sink.text, failure.code) == ("a", "engine_bad_response")
    await engine.wait_left_early()


async def test_an_event_without_end(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    engine.script(stream([b"data: " + b"x" * MAX_EVENT_BYTES, b"x" * 100_000, Hang()]))

    _, failure = await fail(adapter)

    assert failure.code == "engine_bad_response"
    assert f"exceeds max_event_bytes={MAX_EVENT_BYTES}; check that base_url" in str(failure)
    await engine.wait_left_early()


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (
            plain({"id": "x", "choices": []}),
            "engine_bad_response",
            "answered a request for a stream with content type 'application/json'; "
            "check that base_url of the adapter leads to an OpenAI-compatible engine",
        ),
        (
            plain(b"<html>welcome</html>", content_type="text/html; charset=utf-8"),
            "engine_bad_response",
            "answered a request for a stream with content type 'text/html'; "
            "check that base_url of the adapter leads to an OpenAI-compatible engine",
        ),
        (
            plain({"error": {"message": "overloaded", "code": 503}}),
            "engine_overloaded",
            "reported an error at the start of its stream: overloaded; try again later",
        ),
        (
            stream(chat_events("a"), headers={"content-encoding": "gzip"}),
            "engine_bad_response",
            "sent content encoding 'gzip', which was not asked for; "
            "check that base_url of the adapter leads to an OpenAI-compatible engine",
        ),
    ],
)
async def test_answers_of_status_200_that_are_no_stream(
    engine: Engine, adapter: vllm.VllmAdapter, answer: Answer, code: str, message: str
) -> None:
    engine.script(answer)

    _, failure = await fail(adapter)

    assert failure.code == code
    assert str(failure) == f"engine at {engine.base_url} {message}"


@pytest.mark.parametrize("body", [b"[1", b"[]", b'{"data":[1]}', b'{"data":[{}]}', b'{"data":7}', b"null"])
async def test_embeddings_that_are_none(engine: Engine, adapter: vllm.VllmAdapter, body: bytes) -> None:
    engine.script(plain(body))

    _, failure = await fail(adapter, operation=Operation.EMBED, input_={"input": "a"})

    assert failure.code == "engine_bad_response"
    assert str(failure) == (
        f"engine at {engine.base_url} answered embed with something that is no list of embeddings "
        f"({len(body)} bytes); check that base_url of the adapter leads to an OpenAI-compatible engine"
    )


async def test_embeddings_over_the_limit_and_cut_off(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    headers = {"content-length": "1000"}
    engine.script(
        plain({"data": [{"embedding": [0] * 100}]}), Answer(200, (b"{", Cut()), "", headers, chunked=False)
    )
    more: dict[str, Any] = {"operation": Operation.EMBED, "input_": {"input": "a"}}

    _, too_large = await fail(adapter, limits=RunLimits(max_output_bytes=100), **more)
    _, cut = await fail(adapter, **more)

    assert (too_large.code, too_large.layer) == ("output_limit", Layer.NODE)
    assert str(too_large) == (
        f"the answer of engine at {engine.base_url} exceeds max_output_bytes=100; "
        "send fewer inputs, or raise the limit"
    )
    assert (cut.code, cut.may_retry) == ("engine_stream_truncated", True)


# --- silence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        Answer(head_delay_s=60),
        stream([Hang()]),
        stream([step for _ in range(60) for step in (b": still here\n\n", Pause(0.01))]),
        plain(b"", 500, headers={"content-length": "10"}),
    ],
)
async def test_an_engine_that_never_begins(engine: Engine, adapter: vllm.VllmAdapter, answer: Answer) -> None:
    engine.script(answer)
    began_at = time.monotonic()

    sink, failure = await fail(adapter, limits=RunLimits(first_byte_timeout_s=0.1))

    assert 0.09 <= time.monotonic() - began_at < 2.0  # uvloop counts in milliseconds
    assert sink.bodies == []
    assert (failure.code, failure.layer, failure.may_retry) == ("engine_timeout_first_byte", Layer.SERVING, True)
    assert f"engine at {engine.base_url} produced nothing within first_byte_timeout_s=0.1: " in str(failure)
    await engine.wait(lambda: engine.open_connections == 0)


@pytest.mark.parametrize(("whole", "may_retry"), [(False, False), (True, True)])
async def test_an_engine_that_falls_silent(
    engine: Engine, adapter: vllm.VllmAdapter, whole: bool, may_retry: bool
) -> None:
    engine.script(stream([chunk({"content": "a"}), Pause(0.02), chunk({"content": "b"}), Hang()]))
    more: dict[str, Any] = {"engine_json": whole, "stream": not whole}

    sink, failure = await fail(adapter, limits=RunLimits(idle_timeout_s=0.2), **more)

    assert sink.text == ("" if whole else "ab")
    assert (failure.code, failure.may_retry) == ("engine_timeout_idle", may_retry)
    assert "fell silent for idle_timeout_s=0.2 in the middle of its answer; " in str(failure)
    await engine.wait_left_early()


async def test_comments_keep_a_stream_alive_once_it_has_begun(engine: Engine, adapter: vllm.VllmAdapter) -> None:
    pings = [step for _ in range(15) for step in (b": ping\n\n", Pause(0.02))]
    engine.script(stream([chunk({"content": "a"}), *pings, *chat_events("b")]))

    sink, _ = await run(adapter, limits=RunLimits(idle_timeout_s=0.2))

    assert sink.text == "ab"


# --- many at once -----------------------------------------------------------------------------------------


async def test_many_runs_at_once_keep_their_answers_apart(
    engine: Engine, adapter: vllm.VllmAdapter, tasks: TaskOwner
) -> None:
    def answer(request: Any) -> Answer:
        word = request.json["messages"][0]["content"]
        return stream([step for part in chat_events(*[word] * 20) for step in (part, Pause(0.001))])

    engine.default = answer
    runs = [
        tasks.spawn(run(adapter, input_={"messages": [{"role": "user", "content": f"w{n}"}]}), name=f"run {n}")
        for n in range(50)
    ]

    results = await asyncio.gather(*runs)

    assert [sink.text for sink, _ in results] == [f"w{n}" * 20 for n in range(50)]
