"""The event bus: what happened to nodes and runs, in order, for any number of bounded subscribers. Pure.

A ring keeps the last `capacity` events, so that a subscriber which comes back with the last id it saw can
go on from there. Rule for full: a subscriber that lags loses its oldest events and is told how many; nobody
waits for it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from iop_edge.domain.views import EdgeEvent
from iop_shared.clock import Clock
from iop_shared.ids import NodeId, RunId

RING_EVENTS: Final = 2048
"""Chosen; change freely. About 1 MiB at most."""
SUBSCRIBER_EVENTS: Final = 1024
"""What one subscriber may lag behind. Chosen; change freely."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What a subscriber gets at once. `dropped`: how many events are missing before these."""

    events: tuple[EdgeEvent, ...]
    dropped: int = 0


class Subscriber:
    """One bounded view of the bus. `on_events` is called with each event that arrives."""

    def __init__(self, capacity: int, on_events: Callable[[], None]) -> None:
        self._pending: deque[EdgeEvent] = deque()
        self._capacity = capacity
        self._dropped = 0
        self._on_events = on_events

    def offer(self, event: EdgeEvent) -> None:
        """Adds `event`; drops the oldest one when full."""
        if len(self._pending) >= self._capacity:
            self._pending.popleft()
            self._dropped += 1
        self._pending.append(event)
        self._on_events()

    def note_missing(self, count: int) -> None:
        """Counts events that were gone before this subscriber came."""
        self._dropped += count

    def take(self) -> EventBatch:
        """Returns everything that waits, possibly nothing, and forgets it."""
        batch = EventBatch(tuple(self._pending), self._dropped)
        self._pending.clear()
        self._dropped = 0
        return batch

    def __len__(self) -> int:
        return len(self._pending)


class EventBus:
    """Numbers events and hands them to subscribers in order."""

    def __init__(self, clock: Clock, *, ring_events: int = RING_EVENTS) -> None:
        self._clock = clock
        self._ring: deque[EdgeEvent] = deque(maxlen=ring_events)
        self._last_id = 0
        self._subscribers: list[Subscriber] = []
        self._listeners: list[Callable[[EdgeEvent], None]] = []

    @property
    def last_id(self) -> int:
        """The id of the newest event; 0 when there was none."""
        return self._last_id

    @property
    def subscriber_count(self) -> int:
        """How many subscribers there are now."""
        return len(self._subscribers)

    def publish(
        self,
        kind: str,
        *,
        node_id: NodeId | None = None,
        run_id: RunId | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> EdgeEvent:
        """Appends an event and offers it to everybody. Returns it. Never blocks."""
        self._last_id += 1
        event = EdgeEvent(self._last_id, self._clock.wall_ms(), kind, node_id, run_id, detail or {})
        self._ring.append(event)
        for listener in self._listeners:
            listener(event)
        for subscriber in self._subscribers:
            subscriber.offer(event)
        return event

    def add_listener(self, listener: Callable[[EdgeEvent], None]) -> None:
        """Calls `listener` with each event in the publisher's turn. For metrics and logs; must be quick."""
        self._listeners.append(listener)

    def subscribe(
        self,
        on_events: Callable[[], None],
        *,
        after_id: int | None = None,
        capacity: int = SUBSCRIBER_EVENTS,
    ) -> Subscriber:
        """Returns a new subscriber; it gets the kept events after `after_id` first (None: only new ones).

        An `after_id` from another process of the edge (it is larger than any of ours) counts as 0: everything
        kept is shown, since the numbers began anew.
        """
        subscriber = Subscriber(capacity, on_events)
        if after_id is not None:
            start = after_id if after_id <= self._last_id else 0
            oldest = self._ring[0].event_id if self._ring else self._last_id + 1
            subscriber.note_missing(max(0, oldest - start - 1))
            for event in self._ring:
                if event.event_id > start:
                    subscriber.offer(event)
        self._subscribers.append(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Forgets a subscriber. Safe to call twice."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)
