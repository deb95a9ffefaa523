"""A TCP relay between two ends of a link: it can freeze (a half-open connection) and cut (a reset)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

from tests.support.inbox import wait_for

from iop_shared.aio.tasks import TaskOwner
from iop_shared.http_listen import ListenAddress


class TcpRelay:
    """Listens on a port of its own and passes everything on to `target`."""

    def __init__(self, target: ListenAddress) -> None:
        self.target = target
        self.is_frozen = False
        self.failures: list[BaseException] = []
        self._halves: set[_Half] = set()
        self._tasks = TaskOwner("relay", lambda _, error: self.failures.append(error))
        self._server: asyncio.Server | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, target: ListenAddress) -> AsyncIterator["TcpRelay"]:
        """A relay that runs, and has closed everything afterwards."""
        relay = cls(target)
        relay._server = await asyncio.get_running_loop().create_server(lambda: _Half(relay, None), "127.0.0.1", 0)
        try:
            yield relay
        finally:
            relay._server.close()
            await relay._tasks.cancel_all()
            relay.cut()
            await wait_for(lambda: not relay._halves, "every connection of the relay is closed")

    @property
    def address(self) -> ListenAddress:
        """Where to dial instead of the target."""
        assert self._server is not None, "start it first"
        return ListenAddress(*self._server.sockets[0].getsockname()[:2])

    def freeze(self) -> None:
        """From now on what either end sends is swallowed; both connections stay up."""
        self.is_frozen = True

    def thaw(self) -> None:
        """New bytes pass again; what was swallowed is lost."""
        self.is_frozen = False

    def cut(self) -> None:
        """Resets every connection."""
        for half in tuple(self._halves):
            half.transport.abort()


class _Half(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, relay: TcpRelay, other: "_Half | None") -> None:
        self._relay, self._other = relay, other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._relay._halves.add(self)
        if self._other is None:
            self.transport.pause_reading()
            self._relay._tasks.spawn(self._connect(), name="connect")

    async def _connect(self) -> None:
        target = self._relay.target
        try:
            _, self._other = await asyncio.get_running_loop().create_connection(
                lambda: _Half(self._relay, self), target.host, target.port
            )
        except OSError:
            self.transport.abort()  # as a refused connection looks from here
            return
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if not self._relay.is_frozen and self._other is not None:
            self._other.transport.write(data)

    def eof_received(self) -> bool:
        if not self._relay.is_frozen and self._other is not None and not self._other.transport.is_closing():
            self._other.transport.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay._halves.discard(self)
        if not self._relay.is_frozen and self._other is not None:
            self._other.transport.close()
