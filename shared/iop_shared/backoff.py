"""When to dial again: windows that double up to a minute, and a random place inside each. Pure.

Fixed waits let every node of a site come back in step after an edge restart, so each delay is drawn:

    link lost after a stable minute     the windows start afresh; anywhere in the first `spread_s`
    link lost before that               as a failed dial: a link that keeps breaking must not dial hot
    dial failed, or refused (retry)     between a third of the window and all of it; the window doubles
    refused (retry_slow)                between `slow_s` and twice that
    the edge said when                  not before that, and spread over half as much again
"""

import random as random_module
from typing import Final, Protocol

FIRST_WINDOW_S: Final = 1.0
MAX_WINDOW_S: Final = 60.0
"""Architecture, "The link"."""
SPREAD_S: Final = 5.0
"""Chosen: 1,000 nodes coming back over it are 200 handshakes a second; change freely."""
STABLE_AFTER_S: Final = 60.0
SLOW_S: Final = 60.0


class Random(Protocol):
    """What is needed of `random.Random`."""

    def uniform(self, a: float, b: float) -> float:
        """Returns a number between a and b."""


class Backoff:
    """Delays of one dialler, in seconds. Draws from `random`; holds no clock."""

    def __init__(
        self,
        *,
        first_window_s: float = FIRST_WINDOW_S,
        max_window_s: float = MAX_WINDOW_S,
        spread_s: float = SPREAD_S,
        stable_after_s: float = STABLE_AFTER_S,
        random: Random | None = None,
    ) -> None:
        self._first_window_s = first_window_s
        self._max_window_s = max_window_s
        self._spread_s = spread_s
        self._stable_after_s = stable_after_s
        self._random: Random = random_module.SystemRandom() if random is None else random
        self._window_s = first_window_s
        self.failures = 0

    def after_failure(self, *, slow: bool = False, hint_s: float = 0.0) -> float:
        """Returns the delay after a dial that led to no open link.

        `slow`: the edge asked for it (retry_slow). `hint_s`: the edge said not to come before this.
        """
        window_s = self._window_s
        self.failures += 1
        self._window_s = min(self._max_window_s, window_s * 2)
        delay_s = self._random.uniform(window_s / 3, window_s)
        if slow:
            delay_s = self._random.uniform(SLOW_S, 2 * SLOW_S)
        return max(delay_s, self._not_before(hint_s))

    def after_loss(self, stood_for_s: float, *, hint_s: float = 0.0) -> float:
        """Returns the delay after an open link ended that had stood for `stood_for_s`."""
        if stood_for_s < self._stable_after_s:
            return self.after_failure(hint_s=hint_s)
        self._window_s = self._first_window_s
        self.failures = 0
        return max(self._random.uniform(0.0, self._spread_s), self._not_before(hint_s))

    def _not_before(self, hint_s: float) -> float:
        return self._random.uniform(hint_s, hint_s * 1.5) if hint_s > 0 else 0.0
