"""The pacing of a silent stream, and the framing of events, without a network."""

import asyncio
from collections.abc import MutableMapping
from typing import Any, cast

import pytest

from iop_edge.surfaces.sse import ClientWatch, Pacing, SseAnswer, sse_data, sse_event
from iop_shared.aio.http_server import ChunkWriter

COMMENT = b": waiting\n\n"


class Sent:
    """Takes what an answer sends. `bodies`: the bodies so far."""

    def __init__(self) -> None:
        self.starts = 0
        self.bodies: list[bytes] = []

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.starts += 1
        else:
            self.bodies.append(message["body"])


class Writer:
    """A chunk writer of the server. `is_ready`: whether it can write."""

    def __init__(self) -> None:
        self.is_ready = False
        self.chunks: list[bytes] = []

    def write(self, data: bytes) -> bool:
        if self.is_ready:
            self.chunks.append(data)
        return self.is_ready


async def test_what_is_written_at_once_counts_as_spoken() -> None:
    sent, writer = Sent(), Writer()
    answer = SseAnswer(sent, Pacing(), [], cast("ChunkWriter", writer))
    await answer.write(b"0")
    assert not answer.write_now(b"1"), "the server could not"
    writer.is_ready = True
    await answer.tick()

    assert answer.write_now(b"1")
    await answer.tick()

    assert (sent.bodies, writer.chunks) == ([b"0"], [b"1"])


async def test_without_a_writer_nothing_is_written_at_once() -> None:
    sent = Sent()
    answer = SseAnswer(sent, Pacing(), [])
    await answer.write(b"0")

    assert not answer.write_now(b"1")

    assert sent.bodies == [b"0"]


async def test_silent_stream_begins_at_the_third_tick_and_then_speaks_at_each() -> None:
    sent = Sent()
    answer = SseAnswer(sent, Pacing(), [])

    counts = []
    for _ in range(5):
        await answer.tick()
        counts.append(len(sent.bodies))

    assert counts == [0, 0, 1, 2, 3]
    assert sent.bodies == [COMMENT] * 3
    assert sent.starts == 1


async def test_stream_that_speaks_between_ticks_has_no_comments() -> None:
    sent = Sent()
    answer = SseAnswer(sent, Pacing(), [])

    for number in range(5):
        await answer.write(b"%d" % number)
        await answer.tick()

    assert sent.bodies == [b"0", b"1", b"2", b"3", b"4"]


async def test_silence_after_output_is_filled_from_its_first_whole_tick_on() -> None:
    sent = Sent()
    answer = SseAnswer(sent, Pacing(), [])

    await answer.write(b"0")
    await answer.tick()  # sees that something was written
    await answer.tick()
    await answer.end(b"1")

    assert sent.bodies == [b"0", COMMENT, b"1"]


async def test_headers_that_came_before_the_start_are_sent() -> None:
    started: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        started.append(message)

    headers = [(b"x-iop-run-id", b"r")]
    answer = SseAnswer(send, Pacing(), headers)
    headers.append((b"x-iop-node", b"gpu-1"))
    await answer.end()

    assert (b"content-type", b"text/event-stream; charset=utf-8") in started[0]["headers"]
    assert started[0]["headers"][-2:] == headers


async def test_watch_ticks_while_it_waits_and_tells_once_that_the_client_left() -> None:
    gone = asyncio.Event()
    left: list[str] = []
    ticks = 0

    async def receive() -> MutableMapping[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def tick() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 3:
            gone.set()

    watch = ClientWatch(receive, lambda: left.append("gone"), on_tick=tick, tick_s=0.005)
    async with asyncio.timeout(5):
        await watch.run()

    assert (ticks, left, watch.gone) == (3, ["gone"], True)


@pytest.mark.parametrize(
    ("json", "event"),
    [
        (b'{"a":1}', b'data: {"a":1}\n\n'),
        (b'{\n"a":1}\n', b'data: {\ndata: "a":1}\n\n'),
        (b'{\r"a":1}', b'data: {\ndata: "a":1}\n\n'),
    ],
)
def test_data_stays_one_event(json: bytes, event: bytes) -> None:
    assert sse_data(json) == event


def test_named_event() -> None:
    assert sse_event("text", {"a": "x\ny"}, "1.2") == b'id: 1.2\nevent: text\ndata: {"a":"x\\ny"}\n\n'
    assert sse_event("gap", {"dropped": 2}) == b'event: gap\ndata: {"dropped":2}\n\n'
