"""Delays grow, are spread, and start afresh only after a stable minute."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.backoff import MAX_WINDOW_S, Backoff


class Fraction:
    """Draws always at the same place of the range."""

    def __init__(self, at: float) -> None:
        self._at = at

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self._at


def test_windows_double_up_to_a_minute() -> None:
    backoff = Backoff(random=Fraction(1.0))

    assert [backoff.after_failure() for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert backoff.failures == 9


def test_delay_is_never_hot() -> None:
    backoff = Backoff(random=Fraction(0.0))

    assert backoff.after_failure() == pytest.approx(1 / 3)
    assert backoff.after_failure() == pytest.approx(2 / 3)


def test_loss_after_a_stable_minute_is_spread_and_starts_afresh() -> None:
    backoff = Backoff(random=Fraction(1.0))
    for _ in range(5):
        backoff.after_failure()

    assert backoff.after_loss(60.0) == 5.0
    assert backoff.failures == 0
    assert backoff.after_failure() == 1.0


def test_loss_before_that_keeps_growing() -> None:
    backoff = Backoff(random=Fraction(1.0))

    assert [backoff.after_loss(59.9) for _ in range(4)] == [1, 2, 4, 8]


def test_slow_retry_waits_a_minute_or_two_and_a_hint_is_obeyed() -> None:
    assert Backoff(random=Fraction(0.0)).after_failure(slow=True) == 60.0
    assert Backoff(random=Fraction(1.0)).after_failure(slow=True) == 120.0
    assert Backoff(random=Fraction(0.0)).after_loss(100.0, hint_s=30.0) == 30.0
    assert Backoff(random=Fraction(1.0)).after_failure(hint_s=30.0) == 45.0


@given(seed=st.integers(0, 1000), fails=st.integers(1, 30))
def test_a_thousand_nodes_do_not_come_back_in_step(seed: int, fails: int) -> None:
    delays = []
    for node in range(100):
        backoff = Backoff(random=random.Random(seed * 100 + node))
        for _ in range(fails):
            delay_s = backoff.after_failure()
        delays.append(delay_s)

    assert all(0 < d <= MAX_WINDOW_S for d in delays)
    assert len({round(d, 6) for d in delays}) > 90
    window_s = min(MAX_WINDOW_S, 2.0 ** (fails - 1))
    assert max(delays) - min(delays) > window_s / 3
