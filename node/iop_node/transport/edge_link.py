"""Keeps one link to one edge: dials, waits for its end, dials again, until stopped or refused for good.

    dial --> handshake --> open --> ended --+
     ^                                      |  back-off by the class of the end
     +--------------------------------------+      fatal refusal: `run` returns it

A link that neither stands nor gets anywhere is cut by a watchdog: being "not connected and not trying" must not
last, whatever bug causes it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from iop_node.core.ports import NodeHandler
from iop_node.transport.session import Session
from iop_shared.aio.connection import LinkConnection, LinkStatistics
from iop_shared.aio.link_io import dial_link
from iop_shared.aio.tasks import TaskOwner
from iop_shared.backoff import Backoff
from iop_shared.clock import Clock
from iop_shared.errors import Unavailable
from iop_shared.http_listen import ListenAddress
from iop_shared.link.effects import LinkEnd
from iop_shared.link.machine import DEFAULT_TIMES, LinkTimes
from iop_shared.link.messages import RejectClass
from iop_shared.link.node_side import NodeIdentity
from iop_shared.logs import get_logger

log = get_logger("node")

WATCHDOG_S: Final = 30.0
"""Connecting and the handshake have 5 s each and closing has 2: nothing that works takes this long."""


class EdgeLink:
    """One edge. `identity` is asked at each dial: what configuration is held changes."""

    def __init__(
        self,
        address: ListenAddress,
        node: NodeHandler,
        identity: Callable[[], NodeIdentity],
        *,
        tasks: TaskOwner,
        clock: Clock,
        max_input_bytes: int,
        backoff: Backoff | None = None,
        times: LinkTimes = DEFAULT_TIMES,
        watchdog_s: float = WATCHDOG_S,
    ) -> None:
        self.address = address
        self._node, self._identity, self._tasks, self._clock = node, identity, tasks, clock
        self._max_input_bytes = max_input_bytes
        self._backoff = backoff or Backoff()
        self._times, self._watchdog_s = times, watchdog_s
        self._session: Session | None = None
        self._connection: LinkConnection | None = None
        self._settled = asyncio.Event()
        self._stopping = asyncio.Event()
        self.dials = self.opened = 0
        self.last_end: LinkEnd | None = None

    @property
    def is_open(self) -> bool:
        """Whether the link stands: the node is ready when it does."""
        return self._session is not None and self._session.is_open

    @property
    def epoch(self) -> int:
        """The epoch of the link that stands; 0 if none does."""
        return self._session.epoch if self._session is not None and self._session.is_open else 0

    def statistics(self) -> LinkStatistics | None:
        """Returns the counts of the connection that stands."""
        return self._connection.statistics() if self._connection is not None and self.is_open else None

    async def run(self) -> LinkEnd | None:
        """Keeps the link up until `stop` (returns None) or a refusal that no retry can mend (returns it)."""
        while not self._stopping.is_set():
            delay_s, fatal = await self._dial_once()
            if fatal is not None:
                return fatal
            await self._wait(delay_s)
        return None

    def announce_drain(self, reason: str, deadline_s: float) -> None:
        """Tells the edge, if the link stands, that this node wants no new runs."""
        if self._session is not None and self._session.is_open:
            self._session.go_away(reason, deadline_s)

    async def stop(self, code: str, message: str) -> None:
        """Says goodbye and dials no more. Safe to call twice; returns once the connection is closed."""
        self._stopping.set()
        connection = self._connection
        if connection is not None:
            connection.close(code, message)
            await connection.wait_closed()

    async def _dial_once(self) -> tuple[float, LinkEnd | None]:
        """One link from the dial to its end; returns how long to wait, or the refusal that ends it all."""
        self.dials += 1
        try:
            end = await self._hold_link()
        except Unavailable as error:
            delay_s = self._backoff.after_failure()
            # The first in a row is worth a warning; an edge that is away for a night is not worth a thousand.
            write = log.warning if self._backoff.failures == 1 else log.info
            write("edge_unreachable", error_code=error.code, error=str(error), next_retry_s=round(delay_s, 1))
            return delay_s, None
        except asyncio.CancelledError:
            raise
        except Exception as error:
            delay_s = self._backoff.after_failure()
            log.error(
                "link_failed", error_type=type(error).__name__, next_retry_s=round(delay_s, 1), exc_info=error
            )
            return delay_s, None
        self.last_end = end
        if end.reject_class is RejectClass.FATAL:
            log.error("edge_refused", error_code=end.code, error=end.message)
            return 0.0, end
        if self._stopping.is_set():
            return 0.0, None
        delay_s = self._delay_after(end)
        log.warning(
            "link_lost" if end.was_open else "link_not_opened",
            error_code=end.code,
            error=end.message,
            stood_s=round(end.stood_s, 1),
            next_retry_s=round(delay_s, 1),
        )
        return delay_s, None

    async def _hold_link(self) -> LinkEnd:
        self._settled.clear()
        connection = await dial_link(self.address, self._make_session, self._identity(), times=self._times)
        self._connection = connection
        try:
            if self._stopping.is_set():
                connection.close("node_stopping")
            async with asyncio.timeout(self._watchdog_s):
                await self._settled.wait()
            session = self._session
            if session is not None and session.is_open:
                self.opened += 1
                log.info(
                    "link_opened",
                    edge=str(self.address),
                    epoch=session.epoch,
                    dials=self.dials,
                    opened=self.opened,
                )
            return await connection.wait_closed()
        except TimeoutError:
            log.error("link_watchdog_fired", edge=str(self.address), after_s=self._watchdog_s)
            connection.abort("watchdog", f"no link within {self._watchdog_s:g} s")
            return await connection.wait_closed()
        except asyncio.CancelledError:
            connection.abort("node_stopping", "the node is stopped at once")
            with contextlib.suppress(asyncio.CancelledError):
                await connection.wait_closed()
            raise
        finally:
            self._connection = None

    def _make_session(self, connection: LinkConnection) -> Session:
        self._session = Session(
            connection,
            self._node,
            self._tasks,
            self._clock,
            max_input_bytes=self._max_input_bytes,
            on_settled=self._note_settled,
        )
        return self._session

    def _note_settled(self, session: Session) -> None:
        """The link is open, or over."""
        if session is self._session:
            self._settled.set()

    def _delay_after(self, end: LinkEnd) -> float:
        if end.was_open:
            return self._backoff.after_loss(end.stood_s, hint_s=end.reconnect_in_s)
        slow = end.reject_class is RejectClass.RETRY_SLOW or end.code == "frame_limit_too_small"
        return self._backoff.after_failure(slow=slow, hint_s=end.reconnect_in_s)

    async def _wait(self, delay_s: float) -> None:
        """Waits for `delay_s`, or until stopped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
