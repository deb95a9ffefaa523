"""KeptEvents: the latest events of live and just ended runs, for consumers that come late. Pure.

Bounded per run and in total. Rule for full: a run loses its own oldest events; when the total is reached,
the output of runs that have ended goes first (oldest end first), then again the pushing run's oldest.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, cast

from iop_edge.domain.event_size import EVENT_OVERHEAD_BYTES
from iop_shared.ids import RunId
from iop_shared.runtime_events import Body, EngineJson, Gap, RuntimeEvent, Text

PER_RUN_BYTES: Final = 1024 * 1024
TOTAL_BYTES: Final = 64 * 1024 * 1024
RETAIN_ENDED_S: Final = 300.0
"""All three chosen; change freely."""


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """One event, the bytes it counts for, and when it came (wall-clock milliseconds)."""

    event: RuntimeEvent
    size: int
    at_ms: int


# seq, attempt, size, at_ms, body. The bodies of tokens are kept as their plain contents: a tuple of nothing but
# numbers and bytes is left alone by the garbage collector, which would otherwise walk over every token of the
# last minutes and hold up the loop for 100 ms at 60,000 of them.
_Packed = tuple[int, int, int, int, Body | tuple[bytes, ...] | str]


@dataclass(slots=True)
class _Shelf:
    events: deque[_Packed] = field(default_factory=deque)
    size: int = 0
    first_kept_seq: int = 1
    dropped_bytes: int = 0


class KeptEvents:
    """What is kept, by run."""

    def __init__(
        self,
        *,
        per_run_bytes: int = PER_RUN_BYTES,
        total_bytes: int = TOTAL_BYTES,
        retain_ended_s: float = RETAIN_ENDED_S,
    ) -> None:
        self._per_run_bytes, self._total_bytes = per_run_bytes, total_bytes
        self._retain_ended_s = retain_ended_s
        self._shelves: dict[RunId, _Shelf] = {}
        self._ended: OrderedDict[RunId, float] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes kept now, overhead included."""
        return self._size

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._shelves

    def begin(self, run_id: RunId) -> None:
        """Starts keeping a run (again from nothing, if it is known)."""
        self._drop(run_id)
        self._shelves[run_id] = _Shelf()

    def push(self, event: RuntimeEvent, payload_bytes: int, at_ms: int) -> None:
        """Keeps an event of a run that was begun; others are ignored."""
        shelf = self._shelves.get(event.run_id)
        if shelf is None:
            return
        size = payload_bytes + EVENT_OVERHEAD_BYTES
        body = event.body
        packed: Body | tuple[bytes, ...] | str = body
        if type(body) is EngineJson:
            if not body.whole:
                packed = body.chunks
        elif type(body) is Text and body.index == 0:
            packed = body.text
        shelf.events.append((event.seq, event.attempt, size, at_ms, packed))
        shelf.size += size
        self._size += size
        while shelf.size > self._per_run_bytes and shelf.events:
            self._drop_oldest(shelf)
        if self._size > self._total_bytes:
            self._make_room(shelf)

    def end(self, run_id: RunId, now_s: float) -> None:
        """Says that the run has ended; what is kept of it goes `retain_ended_s` later."""
        if run_id in self._shelves:
            self._ended[run_id] = now_s

    def expire(self, now_s: float) -> None:
        """Forgets runs that ended long enough ago."""
        while self._ended:
            run_id, ended_at_s = next(iter(self._ended.items()))
            if now_s - ended_at_s < self._retain_ended_s:
                return
            self._drop(run_id)

    def after(self, run_id: RunId, after_seq: int) -> list[RuntimeEvent]:
        """Returns the kept events with a seq over `after_seq`, a Gap in front of them if some are missing."""
        shelf = self._shelves.get(run_id)
        if shelf is None:
            return []
        found = [_unpack(run_id, packed) for packed in shelf.events if packed[0] > after_seq]
        missing = shelf.first_kept_seq - 1 - after_seq
        if missing > 0 and shelf.first_kept_seq > 1:
            attempt = shelf.events[0][1] if shelf.events else 1
            gap = Gap(missing, shelf.dropped_bytes, "no longer kept by the edge")
            found.insert(0, RuntimeEvent(run_id, attempt, shelf.first_kept_seq - 1, gap))
        return found

    def listed(self, run_id: RunId) -> list[KeptEvent]:
        """Returns everything kept of a run, in order."""
        shelf = self._shelves.get(run_id)
        if shelf is None:
            return []
        return [KeptEvent(_unpack(run_id, packed), packed[2], packed[3]) for packed in shelf.events]

    def _make_room(self, pushing: _Shelf) -> None:
        while self._size > self._total_bytes and self._ended:
            self._drop(next(iter(self._ended)))
        while self._size > self._total_bytes and pushing.events:
            self._drop_oldest(pushing)

    def _drop_oldest(self, shelf: _Shelf) -> None:
        seq, _, size, _, _ = shelf.events.popleft()
        shelf.size -= size
        self._size -= size
        shelf.dropped_bytes += size - EVENT_OVERHEAD_BYTES
        shelf.first_kept_seq = seq + 1

    def _drop(self, run_id: RunId) -> None:
        shelf = self._shelves.pop(run_id, None)
        self._ended.pop(run_id, None)
        if shelf is not None:
            self._size -= shelf.size


def _unpack(run_id: RunId, packed: _Packed) -> RuntimeEvent:
    seq, attempt, _, _, content = packed
    body: Body
    if type(content) is tuple:
        body = EngineJson(content)
    elif type(content) is str:
        body = Text(content)
    else:
        body = cast("Body", content)
    return RuntimeEvent(run_id, attempt, seq, body)
