"""InputParts: sends runs over one link, a large input in parts, so that nothing else waits behind it.

Parts go out only while the transport takes them; several large inputs take turns. What waits is bounded by
the live runs of the node: parts are slices of inputs that the ledger holds anyway.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from iop_shared.aio.connection import LinkConnection
from iop_shared.errors import TooLarge
from iop_shared.ids import RunId
from iop_shared.link.messages import RunInputPart, RunSubmission
from iop_shared.runs import RunRequest

PART_BYTES: Final = 256 * 1024
"""Chosen: a quarter of the largest frame; 2 ms on a link of 1 Gbit/s."""


@dataclass(slots=True)
class _Rest:
    """What is left to send of one run; `offset` 0: all of it, the request first."""

    request: RunRequest
    offset: int


class InputParts:
    """What one link has still to send of its runs. `on_unsendable`: told of a run that fits into no frame."""

    def __init__(self, connection: LinkConnection, on_unsendable: Callable[[RunId, TooLarge], None]) -> None:
        self._connection, self._on_unsendable = connection, on_unsendable
        self._rests: deque[_Rest] = deque()

    def __len__(self) -> int:
        return len(self._rests)

    def send_run(self, request: RunRequest) -> None:
        """Sends the request with the first part of its input; the rest follows as the transport allows."""
        self._rests.append(_Rest(request, 0))
        self.pump()

    def pump(self) -> None:
        """Sends until the transport is full or nothing is left. Call when data has resumed."""
        while self._rests and not self._connection.data_paused:
            rest = self._rests.popleft()
            request = rest.request
            data = request.input[rest.offset : rest.offset + PART_BYTES]
            if rest.offset == 0:
                first = request if len(data) == len(request.input) else replace(request, input=data)
                try:
                    self._connection.send(RunSubmission(first, len(request.input)))
                except TooLarge as error:
                    self._on_unsendable(request.run_id, error)
                    continue
            else:
                self._connection.send(RunInputPart(request.run_id, request.attempt, rest.offset, data))
            rest.offset += len(data)
            if rest.offset < len(request.input):
                self._rests.append(rest)

    def drop(self, run_id: RunId) -> None:
        """Stops sending a run: it was cancelled, refused, or has ended."""
        if self._rests:
            self._rests = deque(rest for rest in self._rests if rest.request.run_id != run_id)
