"""HTTP for a daemon: uvicorn's protocol on our own loop, sockets and stop order; no signal handlers, no ticks.

uvicorn's own `Server.serve` would take over signals and wake ten times a second; what we need of it is its
HTTP/1.1 protocol (on httptools) and its bookkeeping of connections and requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from iop_shared.http_listen import BACKLOG, ListenAddress, bind_listen_socket

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

CHUNK_WRITER: Final = "iop.chunk_writer"
_CANCEL_WAIT_S: Final = 1.0  # chosen: what a cancelled request gets to clean up
_POLL_S: Final = 0.01


class ChunkWriter:
    """Writes pieces of one answer that has begun, without a task that waits.

    It stands in the scope's `state` under `CHUNK_WRITER`, beside ASGI's send.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, data: bytes) -> bool:
        """Writes `data` as one chunk. Returns False, and writes nothing, where only send will do: before the
        headers are out, with a length announced, while the client reads too slowly, or without any data."""
        cycle = self._cycle
        if not data or not cycle.chunked_encoding or cycle.flow.write_paused or cycle.disconnected:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


class _Protocol(HttpToolsProtocol):
    """uvicorn's, with a `ChunkWriter` for each request."""

    def on_headers_complete(self) -> None:
        """The parser: a request can begin. Its task has been made, and runs in a later turn of the loop."""
        super().on_headers_complete()
        self.scope["state"][CHUNK_WRITER] = ChunkWriter(self.cycle)


class HttpServer:
    """Serves one ASGI application on one address.

    More than `max_connections` at once are answered 503 and closed. A connection without a request is closed
    after `keep_alive_s`.
    """

    def __init__(
        self,
        app: ASGIApp,
        listen: ListenAddress,
        *,
        name: str,
        max_connections: int = 16_384,
        keep_alive_s: int = 75,
    ) -> None:
        self._listen, self._name = listen, name
        self._config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=max_connections,
            timeout_keep_alive=keep_alive_s,
        )
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._state.connections)

    @property
    def requests_in_flight(self) -> int:
        """Requests being answered now."""
        return len(self._state.tasks)

    async def start(self) -> ListenAddress:
        """Listens and returns the bound address, with the real port where 0 was asked for.

        Raises:
            Unavailable: code `port_in_use` or `cannot_listen`.
        """
        assert self._server is None, "started twice"
        loop = asyncio.get_running_loop()
        if not self._config.loaded:
            self._config.load()
        sock, bound = await loop.run_in_executor(None, bind_listen_socket, self._listen, self._name)
        try:
            self._server = await loop.create_server(self._make_protocol, sock=sock, backlog=BACKLOG)
        except BaseException:
            sock.close()
            raise
        return bound

    async def stop(self, grace_s: float) -> None:
        """Stops accepting at once, lets requests end for `grace_s`, then cancels them and aborts connections.

        Returns at most about a second after the grace. Safe to call twice; cancelling it aborts at once.
        """
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in list(self._state.connections):
            connection.shutdown()  # idle ones close, busy ones close after their response
        try:
            await self._wait_idle(grace_s)
        finally:
            for task in list(self._state.tasks):
                task.cancel()
            for connection in list(self._state.connections):
                connection.transport.abort()
        await self._wait_idle(_CANCEL_WAIT_S)

    def _make_protocol(self) -> asyncio.Protocol:
        return _Protocol(config=self._config, server_state=self._state, app_state={})

    async def _wait_idle(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._state.connections or self._state.tasks:
            if loop.time() >= deadline:
                return
            await asyncio.sleep(_POLL_S)
