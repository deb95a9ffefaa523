"""Server-sent events: one answer that starts late, is written as things come, and is kept alive in silence.

Beside the handler's own task, one more sleeps in ASGI's receive: `ClientWatch` notices that the client left and
ticks while it waits. So neither a disconnect nor a keep-alive costs anything per token.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from iop_edge.surfaces.asgi import Message, Receive, Send
from iop_shared.aio.http_server import ChunkWriter

SSE_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the pieces otherwise
)
COMMENT: Final = b": waiting\n\n"


@dataclass(frozen=True, slots=True)
class Pacing:
    """When a silent stream says something.

    Proxies commonly cut a connection that is silent for 60 s, so a stream that has not begun commits itself
    before that; but after `[limits] queue_timeout_s` (30 s), so that a run which found no place still gets
    its 503.
    """

    tick_s: float = 15.0
    start_after_ticks: int = 3


class SseAnswer:
    """One answer as server-sent events. `headers` are sent beside those of SSE; the list may grow until the start.

    Writing goes straight to ASGI's send: every write is flushed as one chunk. Send waits while the client
    reads too slowly. `writer`: for `write_now`, where the server has one.
    """

    __slots__ = ("_headers", "_pacing", "_seen", "_send", "_silent_ticks", "_writer", "_writes", "started")

    def __init__(
        self,
        send: Send,
        pacing: Pacing,
        headers: list[tuple[bytes, bytes]],
        writer: ChunkWriter | None = None,
    ) -> None:
        self._send, self._writer = send, writer
        self._pacing = pacing
        self._headers = headers
        self.started = False
        self._writes = self._seen = self._silent_ticks = 0

    async def write(self, data: bytes) -> None:
        """Sends `data` (whole events), after status and headers if these have not been sent."""
        if not self.started:
            await self._start()
        self._writes += 1
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def write_now(self, data: bytes) -> bool:
        """Sends `data` (whole events) without waiting, once a `write` has begun the answer.

        Returns False, with nothing sent, when that cannot be done now, as while the client reads too slowly.
        """
        if self._writer is None or not self._writer.write(data):
            return False
        self._writes += 1
        return True

    async def end(self, data: bytes = b"") -> None:
        """Sends the last events and ends the answer. Stop the `ClientWatch` first, as its tick may write."""
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": data})

    async def tick(self) -> None:
        """Sends a comment if nothing was sent since the last tick; before the start only from the third on."""
        if self._writes != self._seen:
            self._seen, self._silent_ticks = self._writes, 0
            return
        self._silent_ticks += 1
        if self.started or self._silent_ticks >= self._pacing.start_after_ticks:
            await self.write(COMMENT)
            self._seen = self._writes

    async def _start(self) -> None:
        # Set before the wait: the watch's tick and the handler may both want to start.
        self.started = True
        headers = [*SSE_HEADERS, *self._headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


class ClientWatch:
    """Waits for the client to leave, for one answer whose request has been read. `run` is a task's main.

    `on_tick` is called every `tick_s` meanwhile. Cancel the task before the last send of the answer: the
    server tells the end of an answer just like a client's leaving.
    """

    def __init__(
        self,
        receive: Receive,
        on_gone: Callable[[], None],
        *,
        on_tick: Callable[[], Awaitable[None]] | None = None,
        tick_s: float = 15.0,
    ) -> None:
        self._receive, self._on_gone = receive, on_gone
        self._on_tick, self._tick_s = on_tick, tick_s
        self.gone = False

    async def run(self) -> None:
        """Returns when the client has left."""
        while (await self._next_message())["type"] != "http.disconnect":
            pass
        self.gone = True
        self._on_gone()

    async def _next_message(self) -> Message:
        if self._on_tick is None:
            return await self._receive()
        while True:
            try:
                async with asyncio.timeout(self._tick_s):
                    return await self._receive()
            except TimeoutError:
                await self._on_tick()


def sse_data(json: bytes) -> bytes:
    """Returns one event with `json` as its data. A line break in it (an engine that prints prettily) is kept."""
    if b"\n" in json or b"\r" in json:
        json = b"\ndata: ".join(json.splitlines())
    return b"data: " + json + b"\n\n"


def sse_event(kind: str, value: Any, event_id: str = "") -> bytes:
    """Returns one event with a name, an id (none if "") and a JSON value."""
    head = f"id: {event_id}\nevent: {kind}\ndata: " if event_id else f"event: {kind}\ndata: "
    return head.encode() + orjson.dumps(value) + b"\n\n"
