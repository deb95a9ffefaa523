"""Messages that came over a link, to wait for and to look through."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from iop_shared.link.messages import Message

M = TypeVar("M")

DEFAULT_TIMEOUT_S = 5.0


class Inbox:
    """Keeps every message in order; `wait` finds the first that fits, whether it came before or comes later."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._waiters: list[asyncio.Future[None]] = []

    def add(self, message: Message) -> None:
        """Takes a message and lets everyone who waits look again."""
        self.messages.append(message)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def of(self, kind: type[M]) -> list[M]:
        """Returns all messages of one type that came so far."""
        return [m for m in self.messages if isinstance(m, kind)]

    async def wait(
        self, kind: type[M], matches: Callable[[M], bool] = lambda _: True, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> M:
        """Returns the first message of `kind` that `matches`.

        Raises:
            AssertionError: none came in time; lists what came instead.
        """
        await self.wait_until(
            lambda: any(matches(m) for m in self.of(kind)), f"a {kind.__name__} that fits", timeout_s=timeout_s
        )
        return next(m for m in self.of(kind) if matches(m))

    async def wait_until(
        self, condition: Callable[[], bool], what: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Waits until `condition` holds; it is looked at again with each message."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not condition():
            waiter = loop.create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                came = "\n  ".join(repr(m) for m in self.messages[-20:]) or "nothing"
                raise AssertionError(f"{what} did not come within {timeout_s:g} s; came:\n  {came}") from None


async def wait_for(condition: Callable[[], bool], what: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Waits until `condition` holds, looking every few milliseconds.

    Raises:
        AssertionError: it did not hold in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline, f"{what}: not within {timeout_s:g} s"
        await asyncio.sleep(0.005)
