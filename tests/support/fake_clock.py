"""A clock that moves only when a test says so, and coroutines that wait on it."""

import asyncio
import heapq
import itertools


class FakeClock:
    """A `Clock` (monotonic seconds, wall milliseconds) under the test's hand."""

    def __init__(self, monotonic_s: float = 1000.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_s = monotonic_s
        self._wall_ms = wall_ms
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        """Seconds; moves by `advance` alone."""
        return self._monotonic_s

    def wall_ms(self) -> int:
        """Milliseconds since 1970; moves by `advance` and `jump_wall`."""
        return self._wall_ms

    def advance(self, seconds: float) -> None:
        """Moves both clocks on and wakes every `sleep` that has become due."""
        assert seconds >= 0, "a monotonic clock never goes back"
        self._monotonic_s += seconds
        self._wall_ms += round(seconds * 1000)
        while self._sleepers and self._sleepers[0][0] <= self._monotonic_s:
            _, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)

    def jump_wall(self, seconds: float) -> None:
        """Sets the wall clock forward or back; the monotonic one stays."""
        self._wall_ms += round(seconds * 1000)

    async def sleep(self, seconds: float) -> None:
        """Waits until the clock has been advanced by `seconds`; stands in for `asyncio.sleep`."""
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic_s + seconds, next(self._order), waiter))
        await waiter

    @property
    def sleepers(self) -> int:
        """How many coroutines wait in `sleep`."""
        return sum(not waiter.done() for _, _, waiter in self._sleepers)
