"""Whether a request may start now: what has been cancelled or run before, draining, room. Pure.

What is remembered is bounded: the oldest is forgotten first. A cancel that overtakes its request is
remembered as a tombstone, and the request is refused when it comes.
"""

from collections import OrderedDict
from typing import Final

from iop_node.core.outbox import RunKey
from iop_node.core.roster import Roster
from iop_node.core.router import Refusal, resolve
from iop_node.core.spec import ExecutionSpec
from iop_shared.clock import Clock
from iop_shared.ids import RunId
from iop_shared.runs import RunRequest

MAX_TOMBSTONES: Final = 4096
TOMBSTONE_TTL_S: Final = 600.0
"""A cancel overtakes its request by milliseconds; ten minutes cover any stall of a link. Chosen."""
MAX_ENDED: Final = 8192
"""Attempts that are remembered after the edge has everything, so that a late repeat does not run them again."""


class Admission:
    """Decides on requests. Keeps no count of its own: room is derived from the live runs it is told."""

    def __init__(self, clock: Clock, *, max_runs: int) -> None:
        self._clock, self.max_runs = clock, max_runs
        self._tombstones: OrderedDict[RunId, tuple[float, str]] = OrderedDict()
        self._ended: OrderedDict[RunKey, None] = OrderedDict()
        self.draining_reason: str | None = None

    def note_cancelled(self, run_id: RunId, reason: str) -> None:
        """Remembers a cancel of a run that is not here (yet)."""
        # A cancel is repeated until it is settled; the first reason is the one that somebody gave.
        _, first_reason = self._tombstones.pop(run_id, (0.0, reason))
        self._tombstones[run_id] = (self._clock.monotonic() + TOMBSTONE_TTL_S, first_reason)
        while len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)

    def note_ended(self, key: RunKey) -> None:
        """Remembers that an attempt is over."""
        self._ended[key] = None
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def has_ended(self, key: RunKey) -> bool:
        """Whether this attempt is over, as far back as is remembered."""
        return key in self._ended

    def has_run(self, run_id: RunId) -> bool:
        """Whether any attempt of this run is remembered as over."""
        return any(key[0] == run_id for key in reversed(self._ended))

    def decide(self, request: RunRequest, roster: Roster, live_runs: int) -> ExecutionSpec | Refusal:
        """Returns what to execute, or the refusal. `live_runs`: all that hold a place, abandoned ones too."""
        tombstone = self._tombstones.get(request.run_id)
        if tombstone is not None and tombstone[0] > self._clock.monotonic():
            return Refusal("cancelled", f"run {request.run_id} was cancelled before it came: {tombstone[1]}")
        if self.draining_reason is not None:
            return Refusal("node_draining", f"this node takes no new runs: {self.draining_reason}")
        found = resolve(request, roster.offers())
        if isinstance(found, Refusal):
            return found
        if live_runs >= self.max_runs:
            return Refusal("node_busy", f"this node is busy ({live_runs}/{self.max_runs} runs)")
        slot = roster.get(request.adapter)
        assert slot is not None, "the router has just found it"
        in_flight, most = roster.in_flight(request.adapter), slot.config.max_concurrent
        if in_flight >= most:
            return Refusal("adapter_busy", f"adapter {request.adapter!r} is busy ({in_flight}/{most} runs)")
        return found
