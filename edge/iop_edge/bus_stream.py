"""BusStream: the waiting side of one subscription to the event bus."""

import asyncio

from iop_edge.domain.bus import SUBSCRIBER_EVENTS, EventBatch, EventBus


class BusStream:
    """Events of the edge for one consumer, in order, in batches. Use as a context manager, or call `close`.

    Bounded by `capacity` events: a consumer that lags loses the oldest ones and finds their number in
    `EventBatch.dropped`. One task at a time may wait in `next_batch`.
    """

    def __init__(self, bus: EventBus, *, after_id: int | None = None, capacity: int = SUBSCRIBER_EVENTS) -> None:
        self._bus = bus
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._subscriber = bus.subscribe(self._wake, after_id=after_id, capacity=capacity)

    async def next_batch(self) -> EventBatch:
        """Returns everything that happened since the last call; waits if there is nothing.

        After `close` (by anybody) returns an empty batch. Cancelling it loses nothing.
        """
        while not self._closed and not len(self._subscriber):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return EventBatch(()) if self._closed else self._subscriber.take()

    def close(self) -> None:
        """Ends the subscription. Safe to call twice."""
        self._closed = True
        self._bus.unsubscribe(self._subscriber)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __enter__(self) -> "BusStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
