"""SilenceWatch: ends a wait for an engine that says nothing, at the cost of one timer per run."""

import asyncio
from types import TracebackType


class SilenceWatch:
    """Bounds how long one run waits for its engine: `first_byte_s` until the first event, then `idle_s`.

    An async context manager. When the limit is over, the work inside is cancelled and TimeoutError comes out,
    with `has_expired` set; a cancel from outside stays a CancelledError. A timer that is set anew per read
    would cost 2 us a token: this one only looks, when it fires, how long the silence has been.
    """

    __slots__ = ("_handle", "_idle_s", "_loop", "_scope", "_since", "has_expired", "is_first", "limit_s")

    def __init__(self, first_byte_s: float, idle_s: float) -> None:
        self.limit_s = first_byte_s
        self.is_first = True
        self.has_expired = False
        self._idle_s = idle_s
        self._since: float | None = None  # None: not the engine is waited for

    async def __aenter__(self) -> "SilenceWatch":
        self._loop = asyncio.get_running_loop()
        self._scope = asyncio.timeout(None)
        await self._scope.__aenter__()
        self._since = self._loop.time()
        self._handle = self._loop.call_later(self.limit_s, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.cancel()
        await self._scope.__aexit__(kind, error, trace)

    def heard(self, *, is_event: bool) -> None:
        """The engine said something; it is not waited for until `resume`. `is_event`: more than a comment.

        Comments keep a silent stream alive once it has begun, but are no beginning.
        """
        if self.is_first:
            if not is_event:
                return
            self.is_first = False
            self.limit_s = self._idle_s
            self._handle.cancel()
            self._handle = self._loop.call_later(self.limit_s, self._look)
        self._since = None

    def resume(self) -> None:
        """Waits for the engine from now on."""
        if not self.is_first:
            self._since = self._loop.time()

    def _look(self) -> None:
        now = self._loop.time()
        left = self.limit_s if self._since is None else self._since + self.limit_s - now
        if left > 0:
            self._handle = self._loop.call_later(left, self._look)
        else:
            self.has_expired = True
            self._scope.reschedule(now)
