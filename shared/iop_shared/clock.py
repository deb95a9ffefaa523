"""Time as a collaborator: monotonic seconds for every decision, wall time only for display."""

import time
from typing import Protocol


class Clock(Protocol):
    """What domain code may know of time."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps; the only one used for liveness, order and limits."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 (UTC), for records and display. It may jump."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds from `time.monotonic`, the clock asyncio's loops use too."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since 1970 from the system clock."""
        return time.time_ns() // 1_000_000
