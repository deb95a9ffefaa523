import asyncio
import signal
import socket
from collections.abc import AsyncIterator

import pytest
from tests.support.inbox import wait_for

from iop_shared.aio.http_server import CHUNK_WRITER, ASGIApp, HttpServer, Receive, Scope, Send
from iop_shared.errors import Unavailable
from iop_shared.http_listen import ListenAddress

pytestmark = pytest.mark.both_loops

LOCAL = ListenAddress("127.0.0.1", 0)
GET = b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n"


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


class Endless:
    """Answers with a first piece and then nothing; `left` is set when the request is cancelled."""

    def __init__(self) -> None:
        self.entered, self.left, self.end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        self.entered.set()
        try:
            await self.end.wait()
            await send({"type": "http.response.body", "body": b"last"})
        finally:
            self.left.set()


@pytest.fixture
async def servers() -> AsyncIterator[list[HttpServer]]:
    made: list[HttpServer] = []
    yield made
    for server in made:
        await server.stop(0)


async def _serve(servers: list[HttpServer], app: ASGIApp, **options: int) -> tuple[HttpServer, ListenAddress]:
    server = HttpServer(app, LOCAL, name="http", **options)
    servers.append(server)
    return server, await server.start()


async def _dial(bound: ListenAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(bound.host, bound.port)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:  # the server has aborted it
        pass


async def test_requests_are_answered_on_one_kept_connection(servers: list[HttpServer]) -> None:
    server, bound = await _serve(servers, hello)
    reader, writer = await _dial(bound)

    for _ in range(3):
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", "no server and no date header"
        assert await reader.readexactly(2) == b"hi"

    assert server.connections == 1
    await _close(writer)


async def test_a_port_in_use_is_said(servers: list[HttpServer]) -> None:
    _, bound = await _serve(servers, hello)

    with pytest.raises(Unavailable) as caught:
        await HttpServer(hello, bound, name="http").start()

    assert caught.value.code == "port_in_use"
    assert str(caught.value) == (
        f"http: {bound} is already in use; stop the program that listens there, or choose another address"
    )


async def test_signals_stay_with_the_daemon(servers: list[HttpServer]) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    await _serve(servers, hello)

    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_stop_closes_idle_connections_at_once_and_the_port(servers: list[HttpServer]) -> None:
    server, bound = await _serve(servers, hello)
    reader, writer = await _dial(bound)
    writer.write(GET)
    await reader.readuntil(b"hi")

    await asyncio.wait_for(server.stop(60), 5)

    assert await reader.read() == b""
    await _close(writer)
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await _dial(bound)
    await server.stop(60)  # a second call does nothing


async def test_stop_lets_a_request_end_within_the_grace(servers: list[HttpServer]) -> None:
    app = Endless()
    server, bound = await _serve(servers, app)
    reader, writer = await _dial(bound)
    writer.write(GET)
    await asyncio.wait_for(app.entered.wait(), 5)

    stopping = asyncio.ensure_future(server.stop(60))  # noqa: TID251 -- the test's own
    await asyncio.sleep(0.05)
    assert not stopping.done()
    assert server.requests_in_flight == 1
    app.end.set()

    await asyncio.wait_for(stopping, 5)
    assert (await reader.read()).endswith(b"last\r\n0\r\n\r\n")
    await _close(writer)


async def test_stop_cancels_and_aborts_what_outlasts_the_grace(servers: list[HttpServer]) -> None:
    app = Endless()
    server, bound = await _serve(servers, app)
    reader, writer = await _dial(bound)
    writer.write(GET)
    await asyncio.wait_for(app.entered.wait(), 5)

    await asyncio.wait_for(server.stop(0.05), 5)

    assert app.left.is_set()
    assert (server.connections, server.requests_in_flight) == (0, 0)
    try:
        rest = await reader.read()
        assert not rest.endswith(b"0\r\n\r\n"), "a cut answer must not look complete"
    except ConnectionError:
        pass
    await _close(writer)


async def test_stop_that_is_cancelled_aborts_at_once(servers: list[HttpServer]) -> None:
    app = Endless()
    server, bound = await _serve(servers, app)
    _, writer = await _dial(bound)
    writer.write(GET)
    await asyncio.wait_for(app.entered.wait(), 5)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.stop(60), 0.05)

    await asyncio.wait_for(app.left.wait(), 5)
    await _close(writer)


async def test_more_connections_than_allowed_are_answered_503(servers: list[HttpServer]) -> None:
    app = Endless()
    _, bound = await _serve(servers, app, max_connections=2)
    _, first = await _dial(bound)
    first.write(GET)
    await asyncio.wait_for(app.entered.wait(), 5)

    reader, second = await _dial(bound)
    second.write(GET)

    assert (await reader.readline()) == b"HTTP/1.1 503 Service Unavailable\r\n"
    for writer in (first, second):
        await _close(writer)


async def test_what_is_not_http_is_answered_400(servers: list[HttpServer]) -> None:
    _, bound = await _serve(servers, hello)
    reader, writer = await _dial(bound)

    writer.write(b"\x16\x03\x01 this is TLS\r\n\r\n")

    assert (await reader.readline()) == b"HTTP/1.1 400 Bad Request\r\n"
    await _close(writer)


async def test_a_client_that_leaves_is_noticed(servers: list[HttpServer]) -> None:
    seen = asyncio.Event()

    async def watch(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        seen.set()

    _, bound = await _serve(servers, watch)
    _, writer = await _dial(bound)
    writer.write(GET)
    await writer.drain()
    await _close(writer)

    await asyncio.wait_for(seen.wait(), 5)


async def test_chunks_are_written_without_waiting_while_the_client_reads(servers: list[HttpServer]) -> None:
    wrote: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        writer = scope["state"][CHUNK_WRITER]
        wrote.append(writer.write(b"before the headers"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        wrote.append(writer.write(b"two"))
        wrote.append(writer.write(b""))
        await send({"type": "http.response.body", "body": b"three"})

    _, bound = await _serve(servers, app)
    reader, writer = await _dial(bound)
    for _ in range(2):
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"

    assert wrote == [False, True, False] * 2
    await _close(writer)


async def test_no_chunk_is_written_beside_an_announced_length(servers: list[HttpServer]) -> None:
    wrote: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        wrote.append(scope["state"][CHUNK_WRITER].write(b"no"))
        await send({"type": "http.response.body", "body": b"hi"})

    _, bound = await _serve(servers, app)
    reader, writer = await _dial(bound)
    writer.write(GET)
    assert (await reader.readuntil(b"hi")).endswith(b"\r\n\r\nhi")

    assert wrote == [False]
    await _close(writer)


async def test_chunks_stop_for_a_client_that_does_not_read_and_after_it_left(servers: list[HttpServer]) -> None:
    written: list[int] = []
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        chunks = scope["state"][CHUNK_WRITER]
        await receive()  # the request
        await send({"type": "http.response.start", "status": 200, "headers": []})
        count = 0
        while chunks.write(bytes(65536)):
            count += 1
        written.append(count)
        assert (await receive())["type"] == "http.disconnect"
        written.append(int(chunks.write(b"late")))
        gone.set()

    _, bound = await _serve(servers, app)
    reader, writer = await _dial(bound)
    writer.write(GET)
    await reader.readuntil(b"\r\n\r\n")
    await wait_for(lambda: bool(written), "the server cannot write any more")
    writer.transport.abort()

    async with asyncio.timeout(5):
        await gone.wait()
    assert written[0] < 1000, "64 MiB fit into no socket's buffer"
    assert written[1] == 0


async def test_ipv6_works_where_it_exists(servers: list[HttpServer]) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    server = HttpServer(hello, ListenAddress("::1", 0), name="http")
    servers.append(server)

    bound = await server.start()

    assert str(bound).startswith("[::1]:")
    reader, writer = await _dial(bound)
    writer.write(GET)
    assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
    await _close(writer)
