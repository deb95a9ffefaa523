"""Streams over a real socket: each token at once, every ending, silence, and a client that leaves or stalls."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from tests.edge.surfaces.conftest import QUICK_PACING, Edge
from tests.support.inbox import wait_for
from tests.support.scripted_service import ScriptedRun

from iop_edge.surfaces.sse import Pacing
from iop_shared.errors import Layer
from iop_shared.ids import AdapterName, NodeId, TargetName
from iop_shared.runtime_events import (
    Cancelled,
    Closing,
    EngineJson,
    Failed,
    Gap,
    Interrupted,
    Started,
    Succeeded,
    Text,
    Usage,
)

pytestmark = pytest.mark.both_loops

CHAT = {"model": "small", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
STARTED = Started(AdapterName("mock"), TargetName("echo"), NodeId("gpu-1"))
DONE = Succeeded(Closing(usage=Usage(1, 2), finish_reason="stop"))


def engine(*chunks: bytes) -> EngineJson:
    return EngineJson(chunks)


async def post_whole(edge: Edge, **fields: Any) -> httpx.Response:
    return await edge.client.post("/v1/chat/completions", json={**CHAT, **fields})


def data_of(text: str) -> list[str]:
    return [part.removeprefix("data: ") for part in text.split("\n\n") if part.startswith("data: ")]


async def test_engine_json_is_written_unparsed_and_in_order(edge: Edge) -> None:
    edge.service.script = (STARTED, engine(b'{"a": 1.0}', b"not even json"), engine(b'{"b":2}'), DONE)

    response = await post_whole(edge)

    assert response.content == b'data: {"a": 1.0}\n\ndata: not even json\n\ndata: {"b":2}\n\ndata: [DONE]\n\n'
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-iop-run-id"] == edge.service.last_run.run_id
    assert response.headers["x-iop-node"] == "gpu-1"
    assert edge.service.last_run.order.stream is True


@pytest.mark.parametrize("chunk", [b'{\n "a": 1\n}', b'{\r "a": 1\r}', b'{\r\n "a": 1\r\n}'])
async def test_line_breaks_in_an_engines_json_stay_one_event(edge: Edge, chunk: bytes) -> None:
    edge.service.script = (STARTED, engine(chunk), DONE)

    response = await post_whole(edge)

    assert response.content == b'data: {\ndata:  "a": 1\ndata: }\n\ndata: [DONE]\n\n'


async def test_typed_bodies_are_rendered(edge: Edge) -> None:
    edge.service.script = (STARTED, Text("a"), Text("b"), DONE)

    response = await post_whole(edge, stream_options={"include_usage": True})

    events = data_of(response.text)
    chunks = [orjson.loads(event) for event in events[:-1]]
    assert events[-1] == "[DONE]"
    assert [choice["delta"] for chunk in chunks for choice in chunk["choices"]] == [
        {"role": "assistant", "content": "a"},
        {"content": "b"},
        {},
    ]
    assert chunks[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert {chunk["id"] for chunk in chunks} == {f"chatcmpl-{edge.service.last_run.run_id}"}


async def test_completion_is_streamed_too(edge: Edge) -> None:
    edge.service.script = (STARTED, Text("a"), DONE)

    response = await edge.client.post("/v1/completions", json={"model": "small", "prompt": "x", "stream": True})

    assert [orjson.loads(event)["choices"][0]["text"] for event in data_of(response.text)[:-1]] == ["a", ""]


async def open_stream(edge: Edge) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, ScriptedRun]:
    """Sends a streaming request over a plain socket, so that nothing between us and the edge can collect."""
    reader, writer = await asyncio.open_connection(edge.address.host, edge.address.port)
    body = orjson.dumps(CHAT)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    writer.write(body)
    return reader, writer, await edge.service.wait_submitted()


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    """Returns one chunk of HTTP's chunked coding: what the edge wrote in one send."""
    async with asyncio.timeout(5):
        size = int(await reader.readline(), 16)
        chunk = await reader.readexactly(size)
        await reader.readexactly(2)
    return chunk


async def read_past_comments(reader: asyncio.StreamReader) -> bytes:
    while (chunk := await read_chunk(reader)) == b": waiting\n\n":
        pass
    return chunk


async def read_head(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(5):
        return await reader.readuntil(b"\r\n\r\n")


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def test_each_token_arrives_before_the_next_is_made(edge: Edge) -> None:
    reader, writer, run = await open_stream(edge)
    run.start()
    run.emit(engine(b"0"))
    head = await read_head(reader)

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert await read_chunk(reader) == b"data: 0\n\n"
    for number in range(1, 20):
        run.emit(engine(b"%d" % number))
        assert await read_chunk(reader) == b"data: %d\n\n" % number
    run.emit(DONE)
    assert await read_chunk(reader) == b"data: [DONE]\n\n"
    assert await read_chunk(reader) == b""
    await close(writer)


async def test_what_one_loop_turn_brings_is_one_write(edge: Edge) -> None:
    reader, writer, run = await open_stream(edge)
    run.emit(STARTED, engine(b"1", b"2"), engine(b"3"))
    await read_head(reader)

    assert await read_chunk(reader) == b"data: 1\n\ndata: 2\n\ndata: 3\n\n"
    run.emit(engine(b"4"), DONE)
    assert await read_chunk(reader) == b"data: 4\n\ndata: [DONE]\n\n"
    await close(writer)


async def test_connection_is_used_again_after_a_stream(edge: Edge) -> None:
    edge.service.script = (STARTED, engine(b"1"), DONE)

    for _ in range(3):
        assert (await post_whole(edge)).content == b"data: 1\n\ndata: [DONE]\n\n"

    assert edge.server.connections == 1


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        (Failed("engine_stream_truncated", Layer.SERVING, "cut off"), "engine_stream_truncated", "cut off"),
        (Cancelled("operator", True, 1), "cancelled", "the run was cancelled: operator"),
        (
            Interrupted("node_lost", "its link did not come back"),
            "node_lost",
            "the run was interrupted before it was complete: its link did not come back; it can be tried again",
        ),
        (
            Gap(2, 8, "bound"),
            "output_gap",
            "2 events (8 bytes) of the answer were lost on their way (bound); "
            "what follows would not be the answer, so it ends here",
        ),
    ],
)
async def test_failure_after_output_is_an_error_event_and_no_done(
    edge: Edge, ending: Any, code: str, message: str
) -> None:
    edge.service.script = (STARTED, engine(b"1"), ending)

    response = await post_whole(edge)

    first, last = data_of(response.text)
    assert response.status_code == 200
    assert first == "1"
    assert orjson.loads(last) == {
        "error": {"message": message, "type": "server_error", "param": None, "code": code}
    }


async def test_gap_without_output_changes_nothing(edge: Edge) -> None:
    edge.service.script = (STARTED, engine(b"1"), Gap(1, 0, "usage dropped"), engine(b"2"), DONE)

    assert data_of((await post_whole(edge)).text) == ["1", "2", "[DONE]"]


async def test_second_attempt_names_its_own_node(edge: Edge) -> None:
    edge.service.script = (
        STARTED,
        Started(AdapterName("mock"), TargetName("echo"), NodeId("gpu-2")),
        engine(b"1"),
        DONE,
    )

    response = await post_whole(edge)

    assert response.headers.get_list("x-iop-node") == ["gpu-2"]


@pytest.mark.parametrize("after_output", [False, True])
async def test_client_that_leaves_cancels_its_run(edge: Edge, after_output: bool) -> None:
    reader, writer, run = await open_stream(edge)
    run.start()
    if after_output:
        run.emit(engine(b"1"))
        await read_head(reader)
    await close(writer)

    async with asyncio.timeout(5):
        await run.cancelled.wait()
        await wait_for(lambda: edge.server.requests_in_flight == 0, "the request ends")
    assert run.cancel_reasons == ["client_disconnected"]
    assert len(edge.tasks) == 0
    assert 'status="499"' in edge.metrics.render()[0].decode()


async def test_client_that_leaves_a_whole_answer_cancels_its_run(edge: Edge) -> None:
    _, writer = await asyncio.open_connection(edge.address.host, edge.address.port)
    body = orjson.dumps({**CHAT, "stream": False})
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x.localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    writer.write(body)
    run = await edge.service.wait_submitted()
    run.emit(STARTED, Text("a"))
    await close(writer)

    async with asyncio.timeout(5):
        await run.cancelled.wait()
    assert run.cancel_reasons == ["client_disconnected"]


async def test_client_that_leaves_while_it_sends_orders_nothing(edge: Edge) -> None:
    _, writer = await asyncio.open_connection(edge.address.host, edge.address.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{")
    await writer.drain()
    await close(writer)

    async with asyncio.timeout(5):
        await wait_for(lambda: edge.server.connections == 0, "the connection ends")
    assert not edge.service.scripted


async def test_finished_run_is_not_cancelled(edge: Edge) -> None:
    edge.service.script = (STARTED, engine(b"1"), DONE)
    await post_whole(edge)
    await post_whole(edge, stream=False)

    assert all(run.cancel_reasons == [] for run in edge.service.scripted.values())
    assert len(edge.tasks) == 0


async def test_many_streams_at_once_do_not_mix(edge: Edge) -> None:
    edge.service.on_submit = lambda run: run.emit(
        STARTED, *(engine(orjson.dumps([run.run_id, n])) for n in range(30)), DONE
    )

    responses = await asyncio.gather(*(post_whole(edge) for _ in range(30)))

    for response in responses:
        run_id = response.headers["x-iop-run-id"]
        assert data_of(response.text) == [f'["{run_id}",{n}]' for n in range(30)] + ["[DONE]"]


class TestStalledClient:
    """A client that does not read loses its own stream, and nobody else's."""

    async def test_loses_its_stream_with_a_reason(self, edge: Edge) -> None:
        edge.service._max_buffered_bytes = 1024 * 1024
        reader, writer, run = await open_stream(edge)
        run.start()
        chunk = b"x" * 65536
        for _ in range(400):  # 25 MiB: more than any socket buffers here
            run.emit(engine(chunk))
            await asyncio.sleep(0)

        edge.service.script = (STARTED, engine(b"1"), DONE)
        other = await post_whole(edge)
        assert data_of(other.text) == ["1", "[DONE]"]

        last = b""
        await read_head(reader)
        async with asyncio.timeout(10):
            while piece := await read_chunk(reader):
                last = piece
        error = orjson.loads(last.removeprefix(b"data: "))["error"]
        assert error["code"] == "slow_consumer"
        assert run.cancel_reasons == ["slow_consumer"]
        await close(writer)


class TestSilence:
    """What a stream does while nothing comes, with a quick pacing."""

    @pytest.fixture
    def pacing(self) -> Pacing:
        return QUICK_PACING

    async def test_comments_come_only_after_the_stream_committed_itself(self, edge: Edge) -> None:
        reader, writer, run = await open_stream(edge)
        loop = asyncio.get_running_loop()
        began = loop.time()
        head = await read_head(reader)

        assert loop.time() - began >= QUICK_PACING.tick_s * QUICK_PACING.start_after_ticks * 0.9
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert await read_chunk(reader) == b": waiting\n\n"
        assert await read_chunk(reader) == b": waiting\n\n"
        run.emit(STARTED, engine(b"1"), Failed("engine_error", Layer.SERVING, "boom"))
        rest = await read_past_comments(reader)
        assert rest.startswith(b'data: 1\n\ndata: {"error":{"message":"boom"')
        await close(writer)

    async def test_typed_run_that_says_nothing_still_ends_properly(self, edge: Edge) -> None:
        reader, writer, run = await open_stream(edge)
        await read_head(reader)
        await read_chunk(reader)
        run.emit(STARTED, DONE)

        rest = await read_past_comments(reader)
        assert b'"finish_reason":"stop"' in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        await close(writer)


class TestStop:
    """The edge's HTTP server stops while a stream is open."""

    async def test_run_is_cancelled_and_nothing_is_logged(
        self, edge: Edge, caplog: pytest.LogCaptureFixture
    ) -> None:
        reader, writer, run = await open_stream(edge)
        run.start()
        run.emit(engine(b"1"))
        await read_head(reader)
        await edge.server.stop(0.05)

        assert run.cancel_reasons == ["edge_draining"]
        assert edge.server.requests_in_flight == 0
        assert caplog.records == []  # the HTTP server would log an exception with its traceback
        await close(writer)
