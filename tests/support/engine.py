"""A scriptable OpenAI-compatible engine on a real loopback socket.

    async with Engine() as engine:
        engine.script(stream(chat_events("Hel", "lo")))
        ...  # the next POST gets that answer; without a script it gets `engine.default`

An answer is a list of steps: bytes to send, `Pause`, `Hang`, `Cut` (end the connection in the middle), `Reset`
(the same with RST). The engine notes every request, and when a client left before its answer was over.
"""

import asyncio
import json
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, cast

from iop_shared.aio.tasks import TaskOwner

MODEL = "tiny-model"
MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 2048}]}
NOT_FOUND = {"detail": "Not Found"}
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Pause:
    """Waits."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hang:
    """Sends nothing more until the client leaves."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Closes the connection without ending the body."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Resets the connection (RST)."""


Step = bytes | Pause | Hang | Cut | Reset


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer. `steps` of a chunked body are a chunk each; `raw`: steps are the socket's bytes."""

    status: int = 200
    steps: Sequence[Step] = ()
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    chunked: bool = True
    head_delay_s: float = 0.0
    raw: bool = False
    close: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


def event(value: Any) -> bytes:
    """Returns one server-sent event with `value` as its JSON."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chunk(delta: Mapping[str, Any] | None, *, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    """Returns one chat chunk; a `delta` of None leaves `choices` empty."""
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}]
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": MODEL,
            "choices": choices,
            **more,
        }
    )


def usage_of(prompt: int, completion: int) -> dict[str, Any]:
    """Returns a `usage` object."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def chat_events(*texts: str, finish: str | None = "stop", usage: bool = True, done: bool = True) -> list[bytes]:
    """Returns a chat stream: role, one event a text, finish, usage, [DONE]."""
    events = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": text}) for text in texts)]
    if finish is not None:
        events.append(chunk({}, finish=finish))
    if usage:
        events.append(chunk(None, usage=usage_of(7, len(texts))))
    return [*events, DONE] if done else events


def stream(steps: Iterable[Step], **more: Any) -> Answer:
    """Returns a streamed answer of these steps."""
    return Answer(steps=tuple(steps), **more)


def paced(events: Sequence[bytes], interval_s: float) -> Answer:
    """Returns a streamed answer with a pause after each event."""
    return stream([step for one in events for step in (one, Pause(interval_s))])


def plain(value: Any, status: int = 200, **more: Any) -> Answer:
    """Returns a JSON answer (bytes go out as they are)."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    content_type = more.pop("content_type", "application/json")
    return Answer(status, (body,), content_type, chunked=False, **more)


class Engine:
    """The engine. `routes` answers GETs by path; POSTs take the next scripted answer, then `default`."""

    def __init__(self, *, api_key: str = "", keep_alive: bool = True) -> None:
        self.routes: dict[str, Answer] = {
            "/health": plain(b""),
            "/version": plain({"version": "0.32.0"}),
            "/v1/models": plain(MODELS),
        }
        self.default: Callable[[Request], Answer] = lambda _: stream(chat_events("Hello", " ", "world"))
        self.requests: list[Request] = []
        self.api_key = api_key
        self.keep_alive = keep_alive
        self.connections = 0
        self.left_early: list[float] = []
        """`time.monotonic()` of each client that left before its answer was over."""
        self.failures: list[BaseException] = []
        self._changed = asyncio.Event()
        self._answers: deque[Answer] = deque()
        self._open: set[_Connection] = set()
        self._tasks = TaskOwner("engine", lambda _, error: self.failures.append(error))
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Engine":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
        assert not self.failures, self.failures

    @property
    def base_url(self) -> str:
        """Where it listens, without /v1."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    @property
    def posts(self) -> list[Request]:
        """The POST requests so far."""
        return [request for request in self.requests if request.method == "POST"]

    async def start(self) -> None:
        """Listens on a free loopback port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)

    async def aclose(self) -> None:
        """Ends all connections and stops listening."""
        self.close_now()
        await self._tasks.cancel_all()
        await self.wait(lambda: not self._open)

    def close_now(self) -> None:
        """The same without waiting; `aclose` must still be called."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._open):
            connection.abort()

    def script(self, *answers: Answer) -> None:
        """Puts answers for the next POSTs in line."""
        self._answers.extend(answers)

    async def wait(self, holds: Callable[[], bool], within_s: float = 2.0) -> None:
        """Waits until `holds`, looked at after each request and each connection that ends."""
        async with asyncio.timeout(within_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def wait_left_early(self) -> float:
        """Waits until a client has left before its answer was over; returns when that was noticed."""
        await self.wait(lambda: bool(self.left_early))
        return self.left_early[0]

    def answer_for(self, request: Request) -> Answer:
        """Notes the request and picks its answer."""
        self.requests.append(request)
        self._changed.set()
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return plain({"error": "Unauthorized"}, 401)
        if request.method == "GET":
            return self.routes.get(request.path, plain(NOT_FOUND, 404))
        return self._answers.popleft() if self._answers else self.default(request)

    def opened(self, connection: "_Connection") -> int:
        """Notes a new connection and returns its number."""
        self._open.add(connection)
        self.connections += 1
        return self.connections

    def closed(self, connection: "_Connection", *, was_answering: bool) -> None:
        """Notes that a connection has ended."""
        self._open.discard(connection)
        if was_answering:
            self.left_early.append(time.monotonic())
        self._changed.set()

    def spawn(self, connection: "_Connection", request: Request) -> "asyncio.Task[None]":
        """Answers `request` in a task of its own."""
        return self._tasks.spawn(connection.answer(request), name=f"answer {request.path}")


class _Connection(asyncio.Protocol):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._data = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._ending = False  # by ourselves

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance
        self._number = self._engine.opened(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, separator, rest = bytes(self._data).partition(b"\r\n\r\n")
        if not separator:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        assert "transfer-encoding" not in headers, "the adapter always knows the length of what it sends"
        if len(rest) < length:
            return
        self._data[:] = rest[length:]
        method, path, _ = first.split(" ")
        request = Request(method, path, headers, rest[:length], self._number)
        self._task = self._engine.spawn(self, request)

    def connection_lost(self, exc: Exception | None) -> None:
        was_answering = self._task is not None and not self._task.done()
        if self._task is not None:
            self._task.cancel()
        self._engine.closed(self, was_answering=was_answering and not self._ending)

    def abort(self) -> None:
        """Ends the connection from the engine's side."""
        self._ending = True
        self._transport.abort()

    async def answer(self, request: Request) -> None:
        """Plays the answer that belongs to `request`."""
        answer = self._engine.answer_for(request)
        if answer.head_delay_s:
            await asyncio.sleep(answer.head_delay_s)
        if not answer.raw:
            self._transport.write(self._head(answer))
        for step in answer.steps:
            match step:
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Hang():
                    await asyncio.get_running_loop().create_future()
                case Cut():
                    self._end()
                    return
                case Reset():
                    linger = struct.pack("ii", 1, 0)
                    self._transport.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, linger
                    )
                    self.abort()
                    return
                case bytes():
                    is_chunk = answer.chunked and not answer.raw
                    self._transport.write(b"%x\r\n%b\r\n" % (len(step), step) if is_chunk else step)
        if answer.chunked and not answer.raw:
            self._transport.write(b"0\r\n\r\n")
        if answer.close or answer.raw or not self._engine.keep_alive:
            self._end()

    def _end(self) -> None:
        self._ending = True
        self._transport.close()

    def _head(self, answer: Answer) -> bytes:
        headers = {"server": "uvicorn", "content-type": answer.content_type, **answer.headers}
        if answer.chunked:
            headers["transfer-encoding"] = "chunked"
        elif "content-length" not in headers:
            headers["content-length"] = str(sum(len(step) for step in answer.steps if isinstance(step, bytes)))
        lines = [f"HTTP/1.1 {answer.status} Status", *(f"{name}: {value}" for name, value in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
