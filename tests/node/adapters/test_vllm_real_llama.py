"""The vllm adapter against a real llama.cpp server with real weights."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from deploy.llama_server import LlamaServer
from tests.support.llama_server import llama_server
from tests.support.recording_sink import RecordingSink

from iop_node.adapters import vllm
from iop_node.core.spec import Completion, ExecutionSpec
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import Layer, RunFailed
from iop_shared.ids import AdapterName, TargetName, new_run_id
from iop_shared.link.messages import Gate, GateState
from iop_shared.runs import Operation
from iop_shared.runtime_events import Embeddings, EngineJson, Logprobs, Text, Usage

pytestmark = pytest.mark.real_llama
MODEL = "smollm2-135m"
HELLO = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0}
LONG = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def llama() -> Iterator[LlamaServer]:
    with llama_server(ctx=2048, slots=2) as server:
        yield server


@pytest.fixture
async def adapter(llama: LlamaServer) -> AsyncIterator[vllm.VllmAdapter]:
    built = build(llama)
    yield built
    await built.aclose()


def build(server: LlamaServer, **settings: Any) -> vllm.VllmAdapter:
    """Builds the adapter for `server`."""
    return vllm.build(AdapterName("local"), 4, {"base_url": server.url + "/v1", **settings})


def spec(input_: Any, operation: Operation = Operation.CHAT, **more: Any) -> ExecutionSpec:
    """Returns a run."""
    data = input_ if isinstance(input_, bytes) else json.dumps(input_).encode()
    return ExecutionSpec(new_run_id(), AdapterName("local"), TargetName(MODEL), operation, data, **more)


async def run(adapter: vllm.VllmAdapter, *arguments: Any, **more: Any) -> tuple[RecordingSink, Completion]:
    """Runs one to its end."""
    sink = RecordingSink()
    return sink, await adapter.execute(spec(*arguments, **more), sink)


async def fail(adapter: vllm.VllmAdapter, *arguments: Any, **more: Any) -> RunFailed:
    """Runs one that fails."""
    with pytest.raises(RunFailed) as caught:
        await run(adapter, *arguments, **more)
    return caught.value


async def wait_idle(llama: LlamaServer, within_s: float) -> None:
    """Waits until no slot works any more."""
    began_at = time.monotonic()
    while await asyncio.to_thread(llama.busy_slots):
        assert time.monotonic() - began_at < within_s, "a slot still works"
        await asyncio.sleep(0.05)


async def test_a_probe_finds_the_model(adapter: vllm.VllmAdapter) -> None:
    result = await adapter.probe()

    assert result.gate == Gate(GateState.OPEN, "engine_models", "targets: 1")
    assert result.targets == (MODEL,)
    assert result.engine.startswith("llama.cpp")


async def test_a_chat_streams_token_by_token(adapter: vllm.VllmAdapter) -> None:
    sink, completion = await run(adapter, HELLO)

    pieces = [body for body in sink.bodies if isinstance(body, Text)]
    assert len(pieces) > 6
    assert sink.text.startswith("Hello")
    assert completion.finish_reason == "length"
    usage = sink.bodies[-1]
    assert isinstance(usage, Usage)
    assert usage.completion_tokens == 12
    assert usage.prompt_tokens == 33
    assert usage.cached_tokens is not None
    assert sink.engine.startswith("llama.cpp")


async def test_streamed_and_plain_say_the_same_under_the_requested_name(adapter: vllm.VllmAdapter) -> None:
    streamed, _ = await run(adapter, HELLO, engine_json=True, requested_model="small")
    plain, _ = await run(adapter, HELLO, engine_json=True, requested_model="small", stream=False)

    events = [json.loads(chunk) for chunk in streamed.chunks]
    (chunk,) = plain.chunks
    answer = json.loads(chunk)
    assert {event["model"] for event in events} == {answer["model"]} == {"small"}
    assert all(event["choices"] for event in events)
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["timings"]["predicted_n"] == 12


@pytest.mark.parametrize("stream", [True, False])
async def test_text_completions(adapter: vllm.VllmAdapter, stream: bool) -> None:
    input_ = {"prompt": "The sky is", "max_tokens": 6, "temperature": 0}

    typed, _ = await run(adapter, input_, Operation.COMPLETION)
    passed, completion = await run(adapter, input_, Operation.COMPLETION, engine_json=True, stream=stream)

    choices = [json.loads(chunk)["choices"][0] for chunk in passed.chunks]
    assert "".join(choice["text"] for choice in choices) == typed.text
    assert typed.text.startswith(" a")
    assert completion.finish_reason == "length"


async def test_plain_text_input(adapter: vllm.VllmAdapter) -> None:
    options = {"max_tokens": 4, "temperature": 0}

    for operation in (Operation.CHAT, Operation.COMPLETION, Operation.GENERATE):
        sink, _ = await run(adapter, b"Say hello.", operation, content_type="text/plain", options=options)
        assert sink.text


async def test_logprobs_come_with_each_piece(adapter: vllm.VllmAdapter) -> None:
    sink, _ = await run(adapter, {**HELLO, "max_tokens": 2, "logprobs": True, "top_logprobs": 2})

    logprobs = [json.loads(body.json)["content"] for body in sink.bodies if isinstance(body, Logprobs)]
    assert "".join(entry["token"] for entries in logprobs for entry in entries) == sink.text


async def test_tools_that_the_template_does_not_know_are_ignored(adapter: vllm.VllmAdapter) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]

    sink, completion = await run(adapter, {**HELLO, "tools": tools, "tool_choice": "required"})

    assert sink.text
    assert completion.finish_reason in ("length", "stop")


@pytest.mark.parametrize(
    ("input_", "code", "status"),
    [
        ({**HELLO, "temperature": "hot"}, "engine_rejected", 400),
        ({**HELLO, "max_tokens": -5}, "engine_rejected", 400),
        ({"max_tokens": 1}, "engine_rejected", 400),
        ({"messages": [{"role": "user", "content": "word " * 1500}]}, "context_exceeded", 400),
    ],
)
async def test_requests_that_it_refuses(adapter: vllm.VllmAdapter, input_: Any, code: str, status: int) -> None:
    failure = await fail(adapter, input_)

    assert (failure.code, failure.layer, failure.engine_status) == (code, Layer.TARGET, status)
    assert "error" in json.loads(failure.engine_body)
    assert "word word" not in str(failure)


async def test_embeddings_where_they_are_off(adapter: vllm.VllmAdapter) -> None:
    failure = await fail(adapter, {"input": "a"}, Operation.EMBED)

    assert (failure.code, failure.engine_status) == ("operation_unsupported", 501)


async def test_runs_one_after_the_other_and_beside_each_other(adapter: vllm.VllmAdapter) -> None:
    for _ in range(3):
        await run(adapter, HELLO)
    results = await asyncio.gather(*(run(adapter, HELLO) for _ in range(4)))

    assert len({sink.text for sink, _ in results}) <= 2  # batching may change a last bit, not the sense
    assert all(completion.finish_reason == "length" for _, completion in results)


@pytest.mark.parametrize("stream", [True, False])
async def test_cancelling_frees_the_slot(adapter: vllm.VllmAdapter, llama: LlamaServer, stream: bool) -> None:
    sink = RecordingSink()
    tasks = TaskOwner("test", lambda name, error: None)
    running = spec(LONG, engine_json=True, stream=stream)
    task = tasks.spawn(adapter.execute(running, sink), name="run")
    await sink.wait(lambda: sink.waits >= 3, within_s=10)
    assert await asyncio.to_thread(llama.busy_slots) == 1

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    # A quiet machine needs 50 ms. The rest of the 900 tokens would take it 7 s, and a busy one much more.
    await wait_idle(llama, within_s=4.0)
    assert not sink.is_cancel_confirmed
    await tasks.cancel_all()


async def test_a_server_killed_in_mid_stream_is_a_truncated_stream() -> None:
    with llama_server(ctx=2048, slots=1) as server:
        adapter = build(server)
        sink = RecordingSink()
        tasks = TaskOwner("test", lambda name, error: None)
        task = tasks.spawn(adapter.execute(spec(LONG), sink), name="run")
        await sink.wait(lambda: len(sink.bodies) >= 3, within_s=10)

        server.kill()
        with pytest.raises(RunFailed) as caught:
            await task
        after = await adapter.probe()
        await adapter.aclose()
        await tasks.cancel_all()

    assert (caught.value.code, caught.value.layer) == ("engine_stream_truncated", Layer.SERVING)
    assert not caught.value.may_retry
    assert "broke the connection after " in str(caught.value)
    assert (after.gate.state, after.gate.check) == (GateState.CLOSED, "engine_reachable")


async def test_embeddings_and_keys() -> None:
    with llama_server(embeddings=True, api_key="sk-right") as server:
        right, wrong, none = build(server, api_key="sk-right"), build(server, api_key="sk-wrong"), build(server)
        typed, _ = await run(right, {"input": ["a", "b"]}, Operation.EMBED)
        whole, _ = await run(right, {"input": "a"}, Operation.EMBED, engine_json=True, requested_model="small")
        base64, _ = await run(right, {"input": "a", "encoding_format": "base64"}, Operation.EMBED)
        failures = [await fail(adapter, {"input": "a"}, Operation.EMBED) for adapter in (wrong, none)]
        gates = [(await adapter.probe()).gate for adapter in (right, wrong, none)]
        for adapter in (right, wrong, none):
            await adapter.aclose()

    embeddings, usage = typed.bodies
    assert isinstance(embeddings, Embeddings)
    vectors = json.loads(embeddings.json)
    assert [len(vector) for vector in vectors] == [576, 576]
    assert vectors[0] != vectors[1]
    assert isinstance(usage, Usage)
    assert usage.prompt_tokens
    (engine_json, _) = whole.bodies
    assert isinstance(engine_json, EngineJson)
    answer = json.loads(engine_json.chunks[0])
    assert (answer["object"], answer["model"], len(answer["data"])) == ("list", "small", 1)
    assert isinstance(base64.bodies[0], Embeddings)
    assert isinstance(json.loads(base64.bodies[0].json)[0], str)
    for failure in failures:
        assert (failure.code, failure.engine_status) == ("engine_auth_failed", 401)
        assert "sk-" not in str(failure)
    assert [gate.state for gate in gates] == [GateState.OPEN, GateState.CLOSED, GateState.CLOSED]
    assert gates[1].check == "engine_key"
