"""The unmodified `openai` client against a whole edge on real sockets, with a node that a test plays."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from tests.support.fake_node import FakeNode
from tests.support.inbox import wait_for

from iop_edge.app import EdgeApp
from iop_edge.config import DATABASE_FILE, AdapterSection, EdgeSettings, HttpSection, LinkSection, ProfileSection
from iop_edge.domain.ports import NodeToken
from iop_edge.stores.schema import MIGRATIONS
from iop_edge.stores.tokens import SqliteTokenStore
from iop_shared.aio.sqlite import Database
from iop_shared.errors import Layer
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import NodeId
from iop_shared.link.auth import Token, new_token, stored_key
from iop_shared.link.messages import CancelRun
from iop_shared.runs import RunRequest, RunState
from iop_shared.runtime_events import (
    Closing,
    Embeddings,
    EngineJson,
    Failed,
    Reasoning,
    Succeeded,
    Text,
    ToolCall,
    Usage,
)

pytestmark = pytest.mark.both_loops

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
ADD_TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object"}},
}
ANYWHERE = ListenAddress("127.0.0.1", 0)


@dataclass
class Pair:
    """An edge with one node, and a client of its /v1."""

    app: EdgeApp
    node: FakeNode
    client: AsyncOpenAI

    def answer_with(self, play: Callable[[FakeNode, RunRequest], None]) -> None:
        """Has the node play this for every run."""
        self.node.on_run = play


async def keep_token(folder: Path) -> Token:
    token = new_token()
    database = await Database.open(folder / DATABASE_FILE, MIGRATIONS, name="edge")
    await SqliteTokenStore(database).add(
        NodeToken(token.token_id, NodeId("gpu-1"), stored_key(token.secret), 1_700_000_000_000, "test")
    )
    await database.aclose()
    return token


@pytest.fixture
async def pair(watched_tasks: None, tmp_path: Path) -> AsyncIterator[Pair]:
    token = await keep_token(tmp_path)
    settings = EdgeSettings(
        link=LinkSection(listen=ANYWHERE),
        http=HttpSection(listen=ANYWHERE),
        adapters={"mock": AdapterSection(type="mock")},
        profiles={"small": ProfileSection(adapter="mock", target="echo")},
    )
    app = EdgeApp(settings, tmp_path)
    addresses = await app.start()
    node = FakeNode(addresses.link, token)
    await node.connect()
    await wait_for(lambda: any(model.nodes for model in app.service.list_models()), "the node's targets are known")
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
    client = AsyncOpenAI(
        base_url=f"http://{addresses.http}/v1", api_key="any", max_retries=0, timeout=5, http_client=http_client
    )
    yield Pair(app, node, client)
    await client.close()
    await node.aclose()
    await app.stop("the test is over", grace_s=1.0)


def chunk(**choice: Any) -> bytes:
    return orjson.dumps(
        {
            "id": "chatcmpl-9",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "small",
            "choices": [{"index": 0, "finish_reason": None, **choice}],
        }
    )


async def test_models_list(pair: Pair) -> None:
    models = [model.id async for model in pair.client.models.list()]
    one = await pair.client.models.retrieve("mock/echo")

    assert models == ["small", "mock/echo", "mock/slow"]
    assert (one.id, one.owned_by) == ("mock/echo", "mock")


async def test_chat_from_typed_bodies(pair: Pair) -> None:
    def play(node: FakeNode, run: RunRequest) -> None:
        node.start(run.run_id)
        node.emit(run.run_id, Reasoning("hm"), Text("hel"), Text("lo"), Usage(4, 2))
        node.emit(run.run_id, Succeeded(Closing(usage=Usage(4, 2), finish_reason="stop")))

    pair.answer_with(play)
    answer = await pair.client.chat.completions.create(model="small", messages=HI)

    request = next(iter(pair.node.runs.values()))
    assert answer.choices[0].message.content == "hello"
    assert getattr(answer.choices[0].message, "reasoning_content", None) == "hm"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 6
    assert answer.model == "small"
    assert answer._request_id == request.run_id
    assert (request.engine_json, request.stream, request.requested_model) == (True, False, "small")
    assert orjson.loads(request.input) == {"model": "small", "messages": HI}


async def test_chat_streamed_from_engine_json(pair: Pair) -> None:
    def play(node: FakeNode, run: RunRequest) -> None:
        node.start(run.run_id)
        node.emit(run.run_id, EngineJson((chunk(delta={"role": "assistant", "content": ""}),)))
        for word in ("one ", "two ", "three"):
            node.emit(run.run_id, EngineJson((chunk(delta={"content": word}),)))
        node.emit(run.run_id, EngineJson((chunk(delta={}, finish_reason="stop"),)))
        node.succeed(run.run_id)

    pair.answer_with(play)
    stream = await pair.client.chat.completions.create(model="mock/echo", messages=HI, stream=True)
    pieces = [piece.choices[0].delta.content or "" async for piece in stream]

    assert "".join(pieces) == "one two three"
    assert len(pieces) == 5


async def test_stream_with_usage_from_typed_bodies(pair: Pair) -> None:
    def play(node: FakeNode, run: RunRequest) -> None:
        node.start(run.run_id)
        node.emit(run.run_id, Text("a"))
        node.emit(run.run_id, Succeeded(Closing(usage=Usage(4, 1))))

    pair.answer_with(play)
    stream = await pair.client.chat.completions.create(
        model="small", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [piece async for piece in stream]

    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 5


async def test_tokens_come_one_by_one(pair: Pair) -> None:
    stream = await start_stream(pair)
    run_id = next(iter(pair.node.runs))

    for number in range(1, 10):
        pair.node.emit(run_id, EngineJson((chunk(delta={"content": str(number)}),)))
        async with asyncio.timeout(5):
            piece = await anext(stream)
        assert piece.choices[0].delta.content == str(number)
    pair.node.succeed(run_id)
    assert [piece async for piece in stream] == []


async def start_stream(pair: Pair) -> Any:
    """Returns a stream whose first token has arrived."""

    def play(node: FakeNode, run: RunRequest) -> None:
        node.start(run.run_id)
        node.emit(run.run_id, EngineJson((chunk(delta={"content": "0"}),)))

    pair.answer_with(play)
    stream = await pair.client.chat.completions.create(model="small", messages=HI, stream=True)
    assert (await anext(stream)).choices[0].delta.content == "0"
    return stream


async def test_tools(pair: Pair) -> None:
    def play(node: FakeNode, run: RunRequest) -> None:
        node.start(run.run_id)
        node.emit(
            run.run_id, ToolCall(0, "call_1", "add"), ToolCall(0, arguments='{"a":'), ToolCall(0, arguments="1}")
        )
        node.emit(run.run_id, Succeeded(Closing(finish_reason="tool_calls")))

    pair.answer_with(play)
    whole = await pair.client.chat.completions.create(model="small", messages=HI, tools=[ADD_TOOL])
    stream = await pair.client.chat.completions.create(model="small", messages=HI, tools=[ADD_TOOL], stream=True)
    pieces = [piece.choices[0] async for piece in stream]

    call = (whole.choices[0].message.tool_calls or [])[0]
    assert call.type == "function"
    assert (call.id, call.function.name, call.function.arguments) == ("call_1", "add", '{"a":1}')
    assert whole.choices[0].finish_reason == "tool_calls"
    calls = [call for piece in pieces for call in piece.delta.tool_calls or []]
    assert [call.id for call in calls] == ["call_1", None, None]
    assert "".join((call.function.arguments or "") for call in calls if call.function) == '{"a":1}'
    assert pieces[-1].finish_reason == "tool_calls"


async def test_completions(pair: Pair) -> None:
    def play(node: FakeNode, run: RunRequest) -> None:
        node.start(run.run_id)
        node.emit(run.run_id, Text("a"), Text("b"))
        node.succeed(run.run_id, "length")

    pair.answer_with(play)
    whole = await pair.client.completions.create(model="small", prompt="x")
    stream = await pair.client.completions.create(model="small", prompt=["x"], stream=True)
    pieces = [piece.choices[0].text async for piece in stream]

    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("ab", "length")
    assert pieces == ["a", "b", ""]


@pytest.mark.parametrize("encoding", ["float", "base64", None])
async def test_embeddings(pair: Pair, encoding: Any) -> None:
    def play(node: FakeNode, run: RunRequest) -> None:
        node.start(run.run_id)
        node.emit(run.run_id, Embeddings(b"[[0.5,-2],[1,3.25]]"), Usage(5))
        node.emit(run.run_id, Succeeded(Closing(usage=Usage(5))))

    pair.answer_with(play)
    options = {} if encoding is None else {"encoding_format": encoding}
    answer = await pair.client.embeddings.create(model="small", input=["a", "b"], **options)

    vectors: list[Any] = [item.embedding for item in answer.data]
    if encoding == "base64":  # asked for by name, the client leaves it encoded
        assert vectors == ["AAAAPwAAAMA=", "AACAPwAAUEA="]
    else:
        assert vectors == [[0.5, -2.0], [1.0, 3.25]]
    assert answer.usage.total_tokens == 5


async def test_unknown_model(pair: Pair) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await pair.client.chat.completions.create(model="smal", messages=HI)

    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert caught.value.body == {
        "message": "unknown model 'smal': did you mean 'small'?",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


async def test_unknown_target_is_an_unknown_model(pair: Pair) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await pair.client.chat.completions.create(model="mock/ecko", messages=HI)

    assert caught.value.body == {
        "message": "unknown target 'ecko': did you mean 'echo'?",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_engines_refusal_keeps_its_status_and_sentence(pair: Pair, stream: bool) -> None:
    def play(node: FakeNode, run: RunRequest) -> None:
        node.start(run.run_id)
        body = b'{"error":{"message":"top_p must be in (0, 1]","type":"Bad Request","param":"top_p","code":400}}'
        node.emit(
            run.run_id, Failed("engine_rejected", Layer.TARGET, "refused", engine_status=400, engine_body=body)
        )

    pair.answer_with(play)
    with pytest.raises(openai.BadRequestError) as caught:
        await pair.client.chat.completions.create(model="small", messages=HI, stream=stream, top_p=7)

    assert (caught.value.code, caught.value.param) == ("engine_rejected", "top_p")
    assert "top_p must be in (0, 1]" in str(caught.value)


async def test_failure_in_the_middle_is_raised(pair: Pair) -> None:
    stream = await start_stream(pair)
    pair.node.emit(
        next(iter(pair.node.runs)), Failed("engine_stream_truncated", Layer.SERVING, "the engine hung up")
    )

    with pytest.raises(openai.APIError) as caught:
        await anext(stream)

    assert caught.value.code == "engine_stream_truncated"
    assert str(caught.value) == "the engine hung up"


async def test_cancel_by_an_operator_is_raised(pair: Pair) -> None:
    stream = await start_stream(pair)
    run_id = next(iter(pair.node.runs))
    pair.app.service.cancel(run_id, "operator")

    with pytest.raises(openai.APIError) as caught:
        await anext(stream)

    assert caught.value.code == "cancelled"


async def test_client_that_leaves_cancels_on_the_node(pair: Pair) -> None:
    stream = await start_stream(pair)
    run_id = next(iter(pair.node.runs))
    await stream.close()

    cancel = await pair.node.inbox.wait(CancelRun)
    assert (cancel.run_id, cancel.reason) == (run_id, "client_disconnected")
    events = pair.app.service.attach(run_id)
    async with asyncio.timeout(5):
        while await events.next_batch():
            pass
    view = await pair.app.service.get_run(run_id)
    assert (view.state, view.cancel_reason) == (RunState.CANCELLED, "client_disconnected")


async def test_no_node_is_a_503_that_clients_may_retry(pair: Pair) -> None:
    await pair.node.aclose()
    await wait_for(
        lambda: all(node.state != "connected" for node in pair.app.service.list_nodes()), "the node is gone"
    )

    with pytest.raises(openai.InternalServerError) as caught:
        await pair.client.chat.completions.create(model="small", messages=HI)

    assert caught.value.status_code == 503
    assert caught.value.code == "no_route"
    assert caught.value.response.headers["retry-after"] == "5"


async def test_big_answers_and_inputs_pass(pair: Pair) -> None:
    """More than one frame each way: the input goes in parts, the output in events."""
    text = "x" * 3_000_000

    def play(node: FakeNode, run: RunRequest) -> None:
        node.start(run.run_id)

    pair.answer_with(play)
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(
            pair.client.chat.completions.create(model="small", messages=[{"role": "user", "content": text}])
        )
        run = await pair.node.wait_run()
        for at in range(0, len(text), 500_000):
            pair.node.emit(run.run_id, Text(text[at : at + 500_000]))
        pair.node.succeed(run.run_id)

    assert orjson.loads(run.input)["messages"][0]["content"] == text
    assert answer.result().choices[0].message.content == text
