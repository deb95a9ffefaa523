"""Puts large run inputs together from their parts. Pure: time comes in.

Bounded per run and in total, and each input has a deadline that moves with its parts. What breaks a rule is
refused as `bad_input`; parts of an input that nobody waits for are dropped.
"""

from dataclasses import dataclass, replace
from typing import Final

from iop_node.core.outbox import RunKey
from iop_shared.ids import RunId
from iop_shared.link.messages import RunInputPart, RunRefused, RunSubmission
from iop_shared.runs import RunRequest

PART_TIMEOUT_S: Final = 30.0
"""Chosen: a part has at most 1 MiB, so this is a link of 35 KB/s."""
TOTAL_FACTOR: Final = 4
"""How many inputs of the greatest size may be under way at once. Chosen; change freely."""


@dataclass(slots=True)
class _Partial:
    request: RunRequest
    total_bytes: int
    data: bytearray
    deadline: float


class InputParts:
    """The inputs under way on one link."""

    def __init__(self, max_input_bytes: int) -> None:
        self._max_input_bytes = max_input_bytes
        self._partial: dict[RunKey, _Partial] = {}

    def __len__(self) -> int:
        return len(self._partial)

    def begin(self, submission: RunSubmission, now: float) -> RunRequest | RunRefused | None:
        """Takes a run; returns it if its input is whole, a refusal, or None: parts are to come."""
        request, total = submission.request, submission.input_bytes
        key = (request.run_id, request.attempt)
        self._partial.pop(key, None)
        have = len(request.input)
        if have > total:
            return _refuse(key, f"the input has {have} bytes where {total} were announced")
        if total > self._max_input_bytes:
            return _refuse(
                key, f"the input has {total} bytes, this node takes {self._max_input_bytes} (max_input_bytes)"
            )
        if have == total:
            return request
        announced = sum(partial.total_bytes for partial in self._partial.values())
        most = TOTAL_FACTOR * self._max_input_bytes
        if announced + total > most:
            return RunRefused(
                *key,
                "node_busy",
                f"{len(self._partial)} large inputs ({announced} bytes) are on their way to this node, "
                f"{total} more bytes would exceed {most}",
            )
        data = bytearray(request.input)
        self._partial[key] = _Partial(replace(request, input=b""), total, data, now + PART_TIMEOUT_S)
        return None

    def add(self, part: RunInputPart, now: float) -> RunRequest | RunRefused | None:
        """Takes a part; returns the run once its input is whole, or a refusal."""
        key = (part.run_id, part.attempt)
        partial = self._partial.get(key)
        if partial is None:
            return None
        have, size = len(partial.data), len(part.data)
        if part.offset != have:
            del self._partial[key]
            return _refuse(key, f"a part of the input begins at byte {part.offset}, expected {have}")
        if size == 0 or have + size > partial.total_bytes:
            del self._partial[key]
            return _refuse(
                key, f"a part of {size} bytes at {have} does not fit the {partial.total_bytes} announced"
            )
        partial.data += part.data
        partial.deadline = now + PART_TIMEOUT_S
        if have + size < partial.total_bytes:
            return None
        del self._partial[key]
        return replace(partial.request, input=bytes(partial.data))

    def drop(self, run_id: RunId) -> list[RunRequest]:
        """Lets go of every attempt of a run; returns them, without their input."""
        keys = [key for key in self._partial if key[0] == run_id]
        return [self._partial.pop(key).request for key in keys]

    def next_deadline(self) -> float | None:
        """Returns when `expire` has something to do."""
        return min((partial.deadline for partial in self._partial.values()), default=None)

    def expire(self, now: float) -> list[RunRefused]:
        """Refuses what has waited for its next part for too long."""
        late = [key for key, partial in self._partial.items() if partial.deadline <= now]
        refused = []
        for key in late:
            partial = self._partial.pop(key)
            refused.append(
                _refuse(
                    key,
                    f"the rest of the input did not come within {PART_TIMEOUT_S:g} s: "
                    f"{len(partial.data)} of {partial.total_bytes} bytes are here",
                )
            )
        return refused


def _refuse(key: RunKey, message: str) -> RunRefused:
    return RunRefused(*key, "bad_input", message)
