"""Checks what a client received token by token: nothing lost, doubled or reordered. Pure."""

import re
from typing import Final

TOKEN: Final = re.compile(rb"(\d{6}):(\d{19}) ")
"""What `engine.TOKEN_TEXT` writes, wherever it stands in the answer."""


class TokenCheck:
    """One answer of `expected` tokens. `latencies_ns`: from the engine's write to our read, one per token."""

    def __init__(self, name: str, expected: int, *, streamed: bool) -> None:
        self.name, self.expected = name, expected
        self.latencies_ns: list[int] = []
        self.seen = 0
        self.problems: list[str] = []
        self._streamed = streamed
        self._is_done = False
        self._rest = b""

    def feed(self, data: bytes, received_ns: int) -> None:
        """Takes bytes of the answer's body that were read at `received_ns` (monotonic)."""
        if self._rest:
            data = self._rest + data
        # A token may be cut by a read; events end in an empty line, a plain answer has no events at all.
        end = data.rfind(b"\n\n") if self._streamed else -1
        if end < 0:
            self._rest = data
            return
        self._rest = data[end + 2 :]
        self._take(data[: end + 2], received_ns)

    def finish(self, received_ns: int) -> None:
        """The answer has ended; afterwards `problems` says what is wrong with it."""
        if self._rest:
            self._take(self._rest, received_ns)
            self._rest = b""
        if self.seen != self.expected:
            self.problems.append(f"{self.name}: {self.seen} of {self.expected} tokens arrived")
        if self._streamed and not self._is_done:
            self.problems.append(f"{self.name}: the stream ended without [DONE]")

    def _take(self, data: bytes, received_ns: int) -> None:
        for match in TOKEN.finditer(data):
            number = int(match[1])
            if number != self.seen and len(self.problems) < 3:
                self.problems.append(f"{self.name}: token {number} came where {self.seen} was due")
            self.seen += 1
            self.latencies_ns.append(received_ns - int(match[2]))
        if b"data: [DONE]" in data:
            self._is_done = True


def percentile(values: list[int], share: float) -> int | None:
    """Returns the value below which `share` (0 to 1) of `values` lie; None if there are none."""
    if not values:
        return None
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
