"""BusStream: waiting for events, closing."""

import asyncio

import pytest
from tests.support.fake_clock import FakeClock

from iop_edge.bus_stream import BusStream
from iop_edge.domain.bus import EventBus

pytestmark = pytest.mark.both_loops


async def test_a_waiting_reader_gets_what_one_turn_brings() -> None:
    bus = EventBus(FakeClock())
    with BusStream(bus) as stream:
        waiting = asyncio.ensure_future(stream.next_batch())  # noqa: TID251 - the test is the owner
        await asyncio.sleep(0)
        bus.publish("a")
        bus.publish("b")

        assert [e.kind for e in (await waiting).events] == ["a", "b"]


async def test_leaving_the_context_unsubscribes_and_wakes() -> None:
    bus = EventBus(FakeClock())
    stream = BusStream(bus)
    waiting = asyncio.ensure_future(stream.next_batch())  # noqa: TID251 - the test is the owner
    await asyncio.sleep(0)

    stream.close()
    stream.close()

    assert (await waiting).events == ()
    assert bus.subscriber_count == 0


async def test_missed_events_come_first() -> None:
    bus = EventBus(FakeClock())
    bus.publish("a")
    bus.publish("b")
    with BusStream(bus, after_id=1) as stream:
        assert [e.kind for e in (await stream.next_batch()).events] == ["b"]
