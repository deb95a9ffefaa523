"""The queue: order, bound, deadlines."""

import pytest

from iop_edge.domain.queue import RunQueue
from iop_shared.errors import Busy
from iop_shared.ids import RunId

A, B, C = RunId("a"), RunId("b"), RunId("c")


def make() -> RunQueue:
    return RunQueue(max_queued=2, timeout_s=30.0)


def test_first_come_first_served() -> None:
    queue = make()
    queue.put(B, 1.0)
    queue.put(A, 2.0)
    queue.put(B, 3.0)

    assert list(queue) == [B, A]
    assert (queue.position_of(B), queue.position_of(A), queue.position_of(C)) == (1, 2, None)


def test_a_full_queue_refuses_the_newcomer_and_keeps_what_waits() -> None:
    queue = make()
    queue.put(A, 1.0)
    queue.check_room()
    queue.put(B, 1.0)

    with pytest.raises(Busy) as refused:
        queue.check_room()

    assert str(refused.value) == ("the queue is full: 2 of at most 2 runs wait for a free place; try again later")
    assert list(queue) == [A, B]


def test_a_run_that_was_admitted_comes_back_into_a_full_queue_with_its_old_deadline() -> None:
    queue = make()
    queue.put(A, 10.0)
    queue.put(B, 10.0)
    queue.put(C, 20.0, since_s=0.0)

    assert queue.next_deadline_s() == 30.0
    assert [w.run_id for w in queue.pop_expired(30.0)] == [C]
    assert list(queue) == [A, B]


def test_leaving_from_the_middle_is_safe_twice() -> None:
    queue = make()
    queue.put(A, 1.0)
    queue.put(B, 1.0)

    queue.remove(A)
    queue.remove(A)

    assert list(queue) == [B]
    assert A not in queue
    assert len(queue) == 1


def test_an_empty_queue_has_no_deadline() -> None:
    assert make().next_deadline_s() is None
    assert make().pop_expired(1e9) == []
