"""RunStream: one consumer's bounded view of one run, between a node's link and a surface."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from iop_edge.domain.event_size import EVENT_OVERHEAD_BYTES
from iop_shared.errors import Busy
from iop_shared.ids import RunId
from iop_shared.runtime_events import RuntimeEvent

Taker = Callable[[Sequence[RuntimeEvent]], bool]
"""Takes a batch at once and returns True, or leaves it alone and returns False."""

MAX_BUFFERED_BYTES: Final = 8 * 1024 * 1024
"""Per stream, payload and overhead. Chosen; change freely: some 30,000 tokens."""


class RunStream:
    """Events of one run for one consumer, in order, in batches.

    Bounded by `max_buffered_bytes` (default 8 MiB): a consumer that lets more pile up loses this stream:
    `next_batch` then raises Busy (code `slow_consumer`). The run itself and other consumers go on.

    While a task waits in `next_batch`, a taker may handle the usual batches without waking it (`offer_to`):
    waking a task for each token costs more than all else that is done here for one.
    """

    __slots__ = (
        "_batch",
        "_buffered_bytes",
        "_closed",
        "_complete",
        "_lost",
        "_max_buffered_bytes",
        "_offer_is_due",
        "_on_close",
        "_taker",
        "_waiter",
        "run_id",
    )

    def __init__(
        self,
        run_id: RunId,
        *,
        on_close: Callable[["RunStream"], None] | None = None,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        self.run_id = run_id
        self._batch: list[RuntimeEvent] = []
        self._buffered_bytes = 0
        self._max_buffered_bytes = max_buffered_bytes
        self._waiter: asyncio.Future[None] | None = None
        self._complete = False
        self._lost = False
        self._closed = False
        self._on_close = on_close
        self._taker: Taker | None = None
        self._offer_is_due = False

    async def next_batch(self) -> list[RuntimeEvent]:
        """Returns everything that arrived since the last call, at least one event; waits if there is none.

        After the batch that ends with the terminal event, and after `close`, returns an empty list.
        Sequence numbers may restart from 1 with a higher attempt, if nothing had been produced before.
        One task at a time may wait. Cancelling it loses nothing.

        Raises:
            Busy: code `slow_consumer`; this stream is lost, the run goes on.
        """
        while not self._batch:
            if self._lost:
                busy = Busy(
                    f"this reader of run {self.run_id} was too slow: more than "
                    f"{self._max_buffered_bytes} bytes waited for it; attach again to go on"
                )
                busy.code = "slow_consumer"
                raise busy
            if self._complete or self._closed:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        batch, self._batch = self._batch, []
        self._buffered_bytes = 0
        return batch

    def offer_to(self, taker: Taker) -> None:
        """Offers to `taker`, from now on, what comes while `next_batch` waits: once for everything of a loop turn.

        What it does not take, `next_batch` returns. So each event goes to one of the two, in order. If it raises,
        the loop's exception handler hears of it, and the batch counts as not taken.
        """
        self._taker = taker

    def push(self, event: RuntimeEvent, payload_bytes: int) -> None:
        """Adds an event; never waits. The consumer wakes once for everything that one loop turn brings."""
        if self._lost or self._closed:
            return
        self._buffered_bytes += payload_bytes + EVENT_OVERHEAD_BYTES
        # A single event over the bound is let through: it is already in memory, and a whole answer may be one.
        if self._buffered_bytes > self._max_buffered_bytes and self._batch:
            self._lost = True
            self._batch = []
        else:
            self._batch.append(event)
        if not self._is_awaited:
            return
        if self._taker is None:
            self._wake()
        elif not self._offer_is_due:
            self._offer_is_due = True
            asyncio.get_running_loop().call_soon(self._offer, self._taker)

    def prefill(self, events: Sequence[RuntimeEvent]) -> None:
        """Puts kept events in front, without counting them against the bound (they are kept anyway)."""
        self._batch[:0] = events

    def complete(self) -> None:
        """Says that the terminal event was pushed, and nothing follows."""
        self._complete = True

    def close(self) -> None:
        """Detaches from the run; does not cancel it. Safe to call twice. A waiting `next_batch` returns []."""
        if self._closed:
            return
        self._closed = True
        self._batch = []
        self._wake()
        if self._on_close is not None:
            self._on_close(self)

    def _offer(self, taker: Taker) -> None:
        self._offer_is_due = False
        is_taken = False
        try:
            is_taken = self._is_awaited and bool(self._batch) and taker(self._batch)
        finally:
            if is_taken:
                self._batch = []
                self._buffered_bytes = 0
            else:
                self._wake()  # also when the taker failed: whoever waits gets the batch, and meets the failure

    @property
    def _is_awaited(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_lost(self) -> bool:
        """Whether the consumer was too slow."""
        return self._lost
