"""RunQueue: the runs that wait for a free place, first come first served, each with a deadline. Pure.

Rule for full: a new run is refused (Busy); nothing that waits is thrown out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from iop_shared.errors import Busy
from iop_shared.ids import RunId


@dataclass(frozen=True, slots=True)
class Waiting:
    """One place in the queue. `since_s` and `deadline_s` are monotonic seconds."""

    run_id: RunId
    since_s: float
    deadline_s: float


class RunQueue:
    """Bounded, in order of arrival."""

    def __init__(self, *, max_queued: int, timeout_s: float) -> None:
        self._max_queued, self._timeout_s = max_queued, timeout_s
        # A dict keeps the order and lets a cancelled run leave from the middle.
        self._waiting: dict[RunId, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[RunId]:
        return iter(tuple(self._waiting))

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._waiting

    @property
    def max_queued(self) -> int:
        """The bound."""
        return self._max_queued

    @property
    def timeout_s(self) -> float:
        """How long a run may wait."""
        return self._timeout_s

    def check_room(self) -> None:
        """Returns if one more run could wait.

        Raises:
            Busy: with the bound.
        """
        if len(self._waiting) >= self._max_queued:
            raise Busy(
                f"the queue is full: {len(self._waiting)} of at most {self._max_queued} runs wait "
                "for a free place; try again later"
            )

    def put(self, run_id: RunId, now_s: float, *, since_s: float | None = None) -> None:
        """Adds a run at the end; one that waits already keeps its place.

        A run that was queued before (it was refused, and comes back) keeps its deadline through `since_s`,
        and gets a place even when the queue is full: it has been admitted.
        """
        if run_id not in self._waiting:
            since_s = now_s if since_s is None else since_s
            self._waiting[run_id] = Waiting(run_id, since_s, since_s + self._timeout_s)

    def remove(self, run_id: RunId) -> None:
        """Takes a run out. Safe when it does not wait."""
        self._waiting.pop(run_id, None)

    def position_of(self, run_id: RunId) -> int | None:
        """Returns the place in the queue from 1, or None."""
        if run_id not in self._waiting:
            return None
        return list(self._waiting).index(run_id) + 1

    def pop_expired(self, now_s: float) -> list[Waiting]:
        """Removes and returns the runs whose deadline has passed."""
        expired = [waiting for waiting in self._waiting.values() if now_s >= waiting.deadline_s]
        for waiting in expired:
            del self._waiting[waiting.run_id]
        return expired

    def next_deadline_s(self) -> float | None:
        """Returns the earliest deadline, or None when nothing waits."""
        return min((waiting.deadline_s for waiting in self._waiting.values()), default=None)
