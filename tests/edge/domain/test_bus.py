"""The bus: numbers, the ring, and subscribers that lag."""

from tests.support.fake_clock import FakeClock

from iop_edge.domain.bus import EventBus
from iop_shared.ids import NodeId


def make(ring_events: int = 4) -> EventBus:
    return EventBus(FakeClock(), ring_events=ring_events)


def test_events_are_numbered_and_come_in_order() -> None:
    bus = make()
    woken: list[int] = []
    subscriber = bus.subscribe(lambda: woken.append(1))

    bus.publish("node_connected", node_id=NodeId("gpu-1"))
    bus.publish("node_lost", node_id=NodeId("gpu-1"), detail={"code": "link_lost"})

    batch = subscriber.take()
    assert [(e.event_id, e.kind) for e in batch.events] == [(1, "node_connected"), (2, "node_lost")]
    assert batch.dropped == 0
    assert woken == [1, 1]
    assert subscriber.take().events == ()


def test_a_subscriber_that_comes_back_gets_what_it_missed_and_how_much_is_gone() -> None:
    bus = make(ring_events=4)
    for number in range(1, 8):
        bus.publish(f"e{number}")

    batch = bus.subscribe(lambda: None, after_id=1).take()

    assert [e.event_id for e in batch.events] == [4, 5, 6, 7]
    assert batch.dropped == 2


def test_an_id_of_another_process_shows_everything_kept() -> None:
    bus = make()
    bus.publish("a")

    batch = bus.subscribe(lambda: None, after_id=900).take()

    assert [e.kind for e in batch.events] == ["a"]


def test_without_an_id_only_new_events_come() -> None:
    bus = make()
    bus.publish("old")

    subscriber = bus.subscribe(lambda: None)
    bus.publish("new")

    assert [e.kind for e in subscriber.take().events] == ["new"]


def test_a_subscriber_that_lags_loses_the_oldest_and_is_told_how_many() -> None:
    bus = make()
    slow = bus.subscribe(lambda: None, capacity=2)
    quick = bus.subscribe(lambda: None, capacity=10)
    for number in range(5):
        bus.publish(f"e{number}")

    batch = slow.take()

    assert [e.kind for e in batch.events] == ["e3", "e4"]
    assert batch.dropped == 3
    assert quick.take().dropped == 0
    bus.publish("e5")
    assert slow.take().dropped == 0


def test_unsubscribing_twice_is_safe_and_ends_the_stream() -> None:
    bus = make()
    subscriber = bus.subscribe(lambda: None)

    bus.unsubscribe(subscriber)
    bus.unsubscribe(subscriber)
    bus.publish("late")

    assert bus.subscriber_count == 0
    assert len(subscriber) == 0


def test_listeners_hear_each_event_at_once() -> None:
    bus = make()
    heard: list[str] = []
    bus.add_listener(lambda event: heard.append(event.kind))

    bus.publish("a")

    assert heard == ["a"]
    assert bus.last_id == 1
