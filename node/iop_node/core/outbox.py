"""What runs have said and the edge has not acknowledged yet: numbered, bounded, replayed after a break. Pure.

    adapter --put--> [waiting] --number, send--> [in flight] --ack--> gone
                         ^                            |
                         +-------- a new link --------+      (numbers stay)

A body gets its number when it is first sent, not when it is put. So numbers have no holes whatever is dropped,
and only what has no number yet can be dropped. Written rules:

- at most `run_bytes` of one run and `link_bytes` of all runs are in flight; the rest waits for acknowledgements
- a delta that finds its run over `run_bytes` becomes part of a Gap; Usage, Step, Artifact and Notice do so
  only `reserve_bytes` later; Started and the terminal body never
- an answer that comes whole (EngineJson with `whole`, Embeddings) is worthless in part: only the total bound
  can turn it into a Gap
- over `total_bytes`, the run with most droppable bytes loses all of them to Gaps, until the bound holds

A Gap counts for its `events`: a receiver that adds these up comes to `Closing.events`.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from iop_node.core.pieces import EVENT_OVERHEAD_BYTES, OUTPUT_BYTES, other_bytes
from iop_shared.ids import RunId
from iop_shared.runtime_events import (
    TERMINAL_TYPES,
    Artifact,
    Body,
    Embeddings,
    EngineJson,
    Gap,
    Notice,
    RuntimeEvent,
    Started,
    Step,
    Usage,
)

_MIB: Final = 1024 * 1024
Send = Callable[[RuntimeEvent], None]
RunKey = tuple[RunId, int]

_LATE_TYPES: Final = (Usage, Step, Artifact, Notice)
_KEPT_TYPES: Final = (Started, *TERMINAL_TYPES)


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """Bounds in bytes (payload plus a fixed cost per event). Chosen; change freely.

    `ready_bytes`: an adapter that asks (`wait_ready`) is held back above this, so it meets no other bound.
    """

    run_bytes: int = 1 * _MIB
    reserve_bytes: int = 256 * 1024
    ready_bytes: int = 512 * 1024
    link_bytes: int = 16 * _MIB
    total_bytes: int = 64 * _MIB


@dataclass(frozen=True, slots=True)
class OutboxStatistics:
    """What an outbox holds now, and what it has dropped since the start."""

    runs: int
    held_bytes: int
    in_flight_bytes: int
    dropped_events: int
    dropped_bytes: int


class _Held:
    """One thing that waits: a body, a Gap that may still grow (`body` is None), or a numbered event."""

    __slots__ = ("body", "event", "missing_bytes", "missing_events", "reason", "size")

    def __init__(self, body: Body | None, size: int, event: RuntimeEvent | None = None) -> None:
        self.body, self.size, self.event = body, size, event
        self.missing_events = self.missing_bytes = 0
        self.reason = ""

    @property
    def is_droppable(self) -> bool:
        return self.event is None and self.body is not None and not isinstance(self.body, _KEPT_TYPES)


class RunOutbox:
    """The part of one attempt. `emitted` and `output_bytes` count what was put, dropped or not."""

    __slots__ = (
        "_box",
        "_in_flight",
        "_next_seq",
        "_sha256",
        "_waiting",
        "acked_seq",
        "attempt",
        "droppable_bytes",
        "emitted",
        "forgotten",
        "has_ended",
        "held_bytes",
        "in_flight_bytes",
        "output_bytes",
        "run_id",
    )

    def __init__(self, box: "Outbox", run_id: RunId, attempt: int) -> None:
        self._box, self.run_id, self.attempt = box, run_id, attempt
        self._in_flight: deque[tuple[RuntimeEvent, int]] = deque()
        self._waiting: deque[_Held] = deque()
        self._next_seq = 1
        self._sha256 = hashlib.sha256()
        self.acked_seq = self.emitted = self.output_bytes = 0
        self.held_bytes = self.in_flight_bytes = self.droppable_bytes = 0
        self.has_ended = self.forgotten = False

    @property
    def last_seq(self) -> int:
        """The number of the last event that was sent; 0 if none was."""
        return self._next_seq - 1

    @property
    def held_seq(self) -> int:
        """The number of the last event that is held, sent or not: what it will have if nothing more is dropped."""
        return self.last_seq + sum(held.event is None for held in self._waiting)

    @property
    def output_sha256(self) -> bytes:
        """Over all output bytes that were put, in order."""
        return self._sha256.digest()

    @property
    def is_ready(self) -> bool:
        """Whether an adapter may go on without meeting the bounds."""
        return self.forgotten or self.held_bytes <= self._box.limits.ready_bytes

    @property
    def is_settled(self) -> bool:
        """Whether the run has ended and the edge has everything."""
        return self.has_ended and not self._in_flight and not self._waiting

    def put(self, body: Body) -> int:
        """Takes the next body, sends it at once if the windows allow; returns its output bytes.

        The body must fit a frame (see `pieces.cut`). After a terminal body nothing may follow.
        """
        assert not self.has_ended, "a terminal body is the last one"
        take = OUTPUT_BYTES.get(type(body))
        output = 0
        if take is not None:
            data = take(body)
            output = len(data)
            self.output_bytes += output
            self._sha256.update(data)
            size = output + EVENT_OVERHEAD_BYTES
        else:
            size = other_bytes(body) + EVENT_OVERHEAD_BYTES
            self.has_ended = isinstance(body, TERMINAL_TYPES)
        if not self.has_ended:
            self.emitted += 1
        if self.forgotten:
            return output
        box = self._box
        if (
            box.send is not None
            and not self._waiting
            and self.in_flight_bytes < box.limits.run_bytes
            and box.in_flight_bytes < box.limits.link_bytes
        ):
            seq = self._next_seq
            self._next_seq = seq + 1
            event = RuntimeEvent(self.run_id, self.attempt, seq, body)
            self._in_flight.append((event, size))
            self.in_flight_bytes += size
            self.held_bytes += size
            box.in_flight_bytes += size
            box.held_bytes += size
            box.send(event)
            if box.held_bytes > box.limits.total_bytes:
                box.shed()
            return output
        self._put_waiting(body, size)
        return output

    def _put_waiting(self, body: Body, size: int) -> None:
        limits = self._box.limits
        bound: int | None
        if isinstance(body, (*_KEPT_TYPES, Embeddings)) or (isinstance(body, EngineJson) and body.whole):
            bound = None
        elif isinstance(body, _LATE_TYPES):
            bound = limits.run_bytes + limits.reserve_bytes
        else:
            bound = limits.run_bytes
        if bound is not None and self.held_bytes + size > bound:
            self._drop_into_gap(self._waiting, size, "outbox_full")
        else:
            held = _Held(body, size)
            self._waiting.append(held)
            self._hold(size)
            if held.is_droppable:
                self.droppable_bytes += size
        self._box.note_waiting(self)
        if self._box.held_bytes > limits.total_bytes:
            self._box.shed()

    def _drop_into_gap(self, waiting: deque[_Held], size: int, reason: str) -> None:
        """Counts one dropped body of `size` into a Gap at the end of `waiting`."""
        tail = waiting[-1] if waiting else None
        if tail is None or tail.body is not None or tail.event is not None:
            tail = _Held(None, EVENT_OVERHEAD_BYTES)
            tail.reason = reason
            waiting.append(tail)
            self._hold(tail.size)
        payload = size - EVENT_OVERHEAD_BYTES
        tail.missing_events += 1
        tail.missing_bytes += payload
        self._box.dropped_events += 1
        self._box.dropped_bytes += payload

    def _hold(self, size: int) -> None:
        self.held_bytes += size
        self._box.held_bytes += size

    def skip_to(self, seq: int) -> None:
        """Gives the next event the number `seq`. Only before anything was put."""
        assert self.held_bytes == 0, "numbers have no holes"
        self._next_seq = seq

    def drop_waiting(self, reason: str) -> None:
        """Turns everything droppable into Gaps, each where it stood."""
        kept: deque[_Held] = deque()
        for held in self._waiting:
            if held.is_droppable:
                self._hold(-held.size)
                self._drop_into_gap(kept, held.size, reason)
            else:
                tail = kept[-1] if kept else None
                if tail is not None and tail.body is held.body is None and tail.event is held.event is None:
                    # Two Gaps side by side are one.
                    tail.missing_events += held.missing_events
                    tail.missing_bytes += held.missing_bytes
                    self._hold(-held.size)
                else:
                    kept.append(held)
        self._waiting = kept
        self.droppable_bytes = 0

    def pump(self) -> bool:
        """Sends what waits while the windows allow; returns whether nothing waits any more."""
        box = self._box
        while self._waiting:
            if (
                box.send is None
                or self.in_flight_bytes >= box.limits.run_bytes
                or box.in_flight_bytes >= box.limits.link_bytes
            ):
                return False
            held = self._waiting.popleft()
            if held.event is None:
                if held.is_droppable:
                    self.droppable_bytes -= held.size
                body = held.body or Gap(held.missing_events, held.missing_bytes, held.reason)
                held.event = RuntimeEvent(self.run_id, self.attempt, self._next_seq, body)
                self._next_seq += 1
            self._in_flight.append((held.event, held.size))
            self.in_flight_bytes += held.size
            box.in_flight_bytes += held.size
            box.send(held.event)
        return True

    def ack(self, seq: int) -> None:
        """Everything up to `seq` has arrived. A number that was never sent counts as the last one sent."""
        while self._in_flight and self._in_flight[0][0].seq <= seq:
            _, size = self._in_flight.popleft()
            self.in_flight_bytes -= size
            self._box.in_flight_bytes -= size
            self._hold(-size)
        self.acked_seq = max(self.acked_seq, min(seq, self.last_seq))

    def rewind(self, acked_seq: int) -> None:
        """A new link stands and the edge has everything up to `acked_seq`: the rest waits to be sent again.

        An edge that forgot what it once acknowledged (it was restarted) is told so by a Gap that takes the
        number of the last such event.
        """
        self.ack(acked_seq)
        for event, size in reversed(self._in_flight):
            self._waiting.appendleft(_Held(event.body, size, event))
        self._box.in_flight_bytes -= self.in_flight_bytes
        self.in_flight_bytes = 0
        self._in_flight.clear()
        missing = self.acked_seq - acked_seq
        if missing > 0:
            gap = Gap(missing, 0, "acknowledged_before")
            event = RuntimeEvent(self.run_id, self.attempt, self.acked_seq, gap)
            self._waiting.appendleft(_Held(gap, EVENT_OVERHEAD_BYTES, event))
            self._hold(EVENT_OVERHEAD_BYTES)
        if self._waiting:
            self._box.note_waiting(self)

    def clear(self) -> None:
        """Lets go of everything; what is put later is only counted."""
        self.forgotten = True
        self._box.in_flight_bytes -= self.in_flight_bytes
        self._hold(-self.held_bytes)
        self.in_flight_bytes = self.droppable_bytes = 0
        self._in_flight.clear()
        self._waiting.clear()


class Outbox:
    """All runs' unacknowledged events. `send` is set while a link stands."""

    def __init__(self, limits: OutboxLimits = OutboxLimits()) -> None:
        self.limits = limits
        self.send: Send | None = None
        self._paused_send: Send | None = None
        self.held_bytes = self.in_flight_bytes = 0
        self.dropped_events = self.dropped_bytes = 0
        self._runs: dict[RunKey, RunOutbox] = {}
        self._with_waiting: dict[RunKey, RunOutbox] = {}

    def open_run(self, run_id: RunId, attempt: int) -> RunOutbox:
        """Starts the numbering of an attempt. Each attempt is opened once."""
        key = (run_id, attempt)
        assert key not in self._runs, "an attempt has one outbox"
        run = self._runs[key] = RunOutbox(self, run_id, attempt)
        return run

    def restore_run(self, run_id: RunId, attempt: int, events: int, terminal: Body) -> RunOutbox:
        """Holds the end of an attempt whose `events` events before it are lost: an earlier process said them.

        Rewinding it puts a Gap in front of `terminal`, for those that the edge does not have.
        """
        run = self.open_run(run_id, attempt)
        run.acked_seq = run.emitted = events
        run.skip_to(events + 1)
        run.put(terminal)
        return run

    def get(self, run_id: RunId, attempt: int) -> RunOutbox | None:
        """Returns the part of an attempt that is still held."""
        return self._runs.get((run_id, attempt))

    def __iter__(self) -> Iterator[RunOutbox]:
        return iter(tuple(self._runs.values()))

    def __len__(self) -> int:
        return len(self._runs)

    def link_opened(self, send: Send) -> None:
        """A link stands. Rewind every run before; then whatever waits is sent as the windows allow."""
        self.send, self._paused_send = send, None
        self._pump_all()

    def link_lost(self) -> None:
        """The link is gone; what runs say from now on waits."""
        self.send = self._paused_send = None

    def pause(self) -> None:
        """The link is full; what runs say waits until `resume`. Safe to repeat, also from within `send`."""
        if self.send is not None:
            self._paused_send, self.send = self.send, None

    def resume(self) -> None:
        """The link takes more. Does nothing unless it was paused."""
        if self._paused_send is not None:
            send, self._paused_send = self._paused_send, None
            self.link_opened(send)

    def ack(self, run_id: RunId, attempt: int, seq: int) -> RunOutbox | None:
        """Trims an attempt and sends what now fits; returns it, or None if it is not held."""
        run = self._runs.get((run_id, attempt))
        if run is None:
            return None
        link_was_full = self.in_flight_bytes >= self.limits.link_bytes
        run.ack(seq)
        if link_was_full:
            self._pump_all()
        elif (run_id, attempt) in self._with_waiting and run.pump():
            del self._with_waiting[run_id, attempt]
        return run

    def forget(self, run_id: RunId, attempt: int) -> None:
        """Lets go of an attempt. Safe to call for one that is not held."""
        run = self._runs.pop((run_id, attempt), None)
        self._with_waiting.pop((run_id, attempt), None)
        if run is not None:
            link_was_full = self.in_flight_bytes >= self.limits.link_bytes
            run.clear()
            if link_was_full:
                self._pump_all()

    def note_waiting(self, run: RunOutbox) -> None:
        """Remembers that something of `run` waits to be sent."""
        self._with_waiting[run.run_id, run.attempt] = run

    def shed(self) -> None:
        """Drops what may be dropped, greatest run first, until the total bound holds or nothing is left."""
        while self.held_bytes > self.limits.total_bytes:
            greatest = max(self._with_waiting.values(), key=lambda run: run.droppable_bytes, default=None)
            if greatest is None or greatest.droppable_bytes == 0:
                return
            greatest.drop_waiting("outbox_total_full")

    def statistics(self) -> OutboxStatistics:
        """Returns what is held and what was dropped."""
        return OutboxStatistics(
            len(self._runs), self.held_bytes, self.in_flight_bytes, self.dropped_events, self.dropped_bytes
        )

    def _pump_all(self) -> None:
        for key, run in tuple(self._with_waiting.items()):
            if run.pump():
                self._with_waiting.pop(key, None)
