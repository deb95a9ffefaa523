"""Transcripts for a link machine: what happened, what it did about it, as a test to read from top to bottom.

    play = Playbook(edge_side)
    play.given_started()
    play.when(HELLO)
    play.then(NeedVerdict(HELLO, ANY))

`when` must be followed by `then`, which compares all effects and shows both lists where they differ.
"""

import difflib
from collections.abc import Callable
from typing import Any

from iop_shared.link.edge_side import EdgeSide
from iop_shared.link.effects import Effect
from iop_shared.link.messages import Received
from iop_shared.link.node_side import NodeSide


def like(kind: type, **fields: Any) -> Any:
    """Returns what equals any value of `kind` whose named fields are as given; the rest does not matter."""
    return _Like(kind, fields)


class _Like:
    def __init__(self, kind: type, fields: dict[str, Any]) -> None:
        self._kind, self._fields = kind, fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, self._kind) and all(getattr(other, k) == v for k, v in self._fields.items())

    def __hash__(self) -> int:
        return hash(self._kind)

    def __repr__(self) -> str:
        return f"{self._kind.__name__}({', '.join(f'{k}={v!r}' for k, v in self._fields.items())}, ...)"


class Playbook:
    """Plays events against one machine on a clock of its own (seconds, from 100)."""

    def __init__(self, machine: EdgeSide | NodeSide, now: float = 100.0) -> None:
        self.machine = machine
        self.now = now
        self._effects: list[Effect] | None = None

    def given(self, *events: Received | Callable[[float], list[Effect]]) -> None:
        """Plays what led here; what the machine did then is not of interest."""
        self._check_asserted()
        for event in events:
            self._play(event)

    def given_started(self) -> None:
        """The connection stands, and the machine has said its first word."""
        self.given(self.machine.start)

    def when(self, event: Received | Callable[[float], list[Effect]]) -> None:
        """Plays a message of the peer, or a call such as `lambda now: machine.admit(welcome, now)`."""
        self._check_asserted()
        self._effects = self._play(event)

    def when_passed(self, seconds: float) -> None:
        """Lets the time pass in one step, then has the machine look at the clock."""
        self.now += seconds
        self.when(self.machine.on_tick)

    def given_passed(self, seconds: float) -> None:
        """Lets the time pass as a shell would: with a tick at each deadline on the way."""
        self._check_asserted()
        end = self.now + seconds
        while (deadline := self.machine.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.machine.on_tick(self.now)
        self.now = end

    def then(self, *expected: object) -> None:
        """Compares everything that the machine did since `when`, in order.

        Raises:
            AssertionError: with both lists, line by line.
        """
        assert self._effects is not None, "then() without when()"
        actual, self._effects = self._effects, None
        if list(expected) != actual:
            lines = difflib.ndiff([f"{e!r}" for e in expected], [f"{a!r}" for a in actual])
            raise AssertionError("expected (-) and done (+) differ:\n" + "\n".join(lines))

    def _play(self, event: Received | Callable[[float], list[Effect]]) -> list[Effect]:
        if callable(event):
            return event(self.now)
        self.machine.heard_at = self.now
        return self.machine.receive(event, self.now)

    def _check_asserted(self) -> None:
        assert self._effects is None, f"a when() without then(): {self._effects}"
