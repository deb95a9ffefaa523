"""RunStream: batches, one wake, the bound, the end."""

import asyncio
from collections.abc import Sequence

import pytest

from iop_edge.domain.event_size import EVENT_OVERHEAD_BYTES
from iop_edge.relay import RunStream
from iop_shared.errors import Busy
from iop_shared.ids import RunId
from iop_shared.runtime_events import RuntimeEvent, Succeeded, Text

RUN = RunId("01900000-0000-7000-8000-000000000001")
pytestmark = pytest.mark.both_loops


def event(seq: int) -> RuntimeEvent:
    return RuntimeEvent(RUN, 1, seq, Text("x"))


async def test_a_batch_has_everything_since_the_last() -> None:
    stream = RunStream(RUN)
    stream.push(event(1), 1)
    stream.push(event(2), 1)

    assert [e.seq for e in await stream.next_batch()] == [1, 2]
    stream.push(event(3), 1)
    assert [e.seq for e in await stream.next_batch()] == [3]


async def test_a_waiting_reader_wakes_once_for_what_one_turn_brings() -> None:
    stream = RunStream(RUN)
    batches: list[list[int]] = []

    async def read() -> None:
        batches.append([e.seq for e in await stream.next_batch()])

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        await asyncio.sleep(0)
        for seq in range(1, 6):
            stream.push(event(seq), 1)

    assert batches == [[1, 2, 3, 4, 5]]


async def test_after_the_terminal_batch_come_empty_ones() -> None:
    stream = RunStream(RUN)
    stream.push(RuntimeEvent(RUN, 1, 1, Succeeded()), 0)
    stream.complete()

    assert [e.seq for e in await stream.next_batch()] == [1]
    assert await stream.next_batch() == []
    assert await stream.next_batch() == []


async def test_a_slow_reader_loses_its_stream_with_the_reason() -> None:
    stream = RunStream(RUN, max_buffered_bytes=2 * EVENT_OVERHEAD_BYTES + 20)
    stream.push(event(1), 10)
    stream.push(event(2), 10)
    stream.push(event(3), 10)
    stream.push(event(4), 10)

    with pytest.raises(Busy) as lost:
        await stream.next_batch()

    assert lost.value.code == "slow_consumer"
    assert str(lost.value) == (
        f"this reader of run {RUN} was too slow: more than {2 * EVENT_OVERHEAD_BYTES + 20} bytes waited for it; "
        "attach again to go on"
    )
    assert stream.is_lost


async def test_a_reader_that_waits_learns_of_the_loss_too() -> None:
    stream = RunStream(RUN, max_buffered_bytes=EVENT_OVERHEAD_BYTES)
    waiting = asyncio.ensure_future(stream.next_batch())  # noqa: TID251 - the test is the owner
    await asyncio.sleep(0)
    stream.push(event(1), 10)
    stream.push(event(2), 10)

    with pytest.raises(Busy):
        await waiting


async def test_one_event_over_the_bound_is_let_through() -> None:
    stream = RunStream(RUN, max_buffered_bytes=10)
    stream.push(event(1), 1000)

    assert [e.seq for e in await stream.next_batch()] == [1]


async def test_closing_wakes_the_reader_and_drops_what_comes_later() -> None:
    closed: list[RunStream] = []
    stream = RunStream(RUN, on_close=closed.append)
    waiting = asyncio.ensure_future(stream.next_batch())  # noqa: TID251 - the test is the owner
    await asyncio.sleep(0)

    stream.close()
    stream.close()
    stream.push(event(1), 1)

    assert await waiting == []
    assert await stream.next_batch() == []
    assert closed == [stream]


async def test_cancelling_a_wait_loses_nothing() -> None:
    stream = RunStream(RUN)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await stream.next_batch()

    stream.push(event(1), 1)

    assert [e.seq for e in await stream.next_batch()] == [1]


async def test_kept_events_come_before_live_ones() -> None:
    stream = RunStream(RUN)
    stream.push(event(3), 1)
    stream.prefill([event(1), event(2)])

    assert [e.seq for e in await stream.next_batch()] == [1, 2, 3]


class Taker:
    """Takes the batches without a terminal event, while `is_willing`."""

    def __init__(self) -> None:
        self.is_willing = True
        self.taken: list[list[int]] = []

    def __call__(self, batch: Sequence[RuntimeEvent]) -> bool:
        if not self.is_willing or batch[-1].is_terminal:
            return False
        self.taken.append([e.seq for e in batch])
        return True


async def test_a_taker_gets_what_comes_while_the_reader_waits_and_the_reader_the_rest() -> None:
    stream, taker = RunStream(RUN), Taker()
    stream.offer_to(taker)
    stream.push(event(1), 1)  # nobody waits yet: it is the reader's
    assert [e.seq for e in await stream.next_batch()] == [1]
    waiting = asyncio.ensure_future(stream.next_batch())  # noqa: TID251 - the test is the owner
    await asyncio.sleep(0)

    stream.push(event(2), 1)
    stream.push(event(3), 1)
    await asyncio.sleep(0)
    stream.push(event(4), 1)
    await asyncio.sleep(0)
    assert (taker.taken, waiting.done()) == ([[2, 3], [4]], False)
    stream.push(event(5), 1)
    stream.push(RuntimeEvent(RUN, 1, 6, Succeeded()), 0)
    stream.complete()

    assert [e.seq for e in await waiting] == [5, 6]
    assert await stream.next_batch() == []


async def test_what_was_taken_does_not_count_against_the_bound() -> None:
    stream, taker = RunStream(RUN, max_buffered_bytes=2 * EVENT_OVERHEAD_BYTES + 20), Taker()
    stream.offer_to(taker)
    waiting = asyncio.ensure_future(stream.next_batch())  # noqa: TID251 - the test is the owner
    await asyncio.sleep(0)
    for seq in range(1, 6):
        stream.push(event(seq), 10)
        await asyncio.sleep(0)
    assert taker.taken == [[1], [2], [3], [4], [5]]

    taker.is_willing = False
    stream.push(event(6), 10)
    assert [e.seq for e in await waiting] == [6]
    for seq in (7, 8, 9):
        stream.push(event(seq), 10)

    with pytest.raises(Busy):
        await stream.next_batch()


async def test_after_a_taker_has_failed_the_reader_gets_the_batch() -> None:
    def fail(_batch: Sequence[RuntimeEvent]) -> bool:
        raise RuntimeError("the connection is gone")

    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(str(context["exception"])))
    stream = RunStream(RUN)
    stream.offer_to(fail)
    waiting = asyncio.ensure_future(stream.next_batch())  # noqa: TID251 - the test is the owner
    await asyncio.sleep(0)

    stream.push(event(1), 1)

    assert [e.seq for e in await waiting] == [1]
    assert told == ["the connection is gone"]


async def test_a_closed_stream_offers_nothing() -> None:
    stream, taker = RunStream(RUN), Taker()
    stream.offer_to(taker)
    waiting = asyncio.ensure_future(stream.next_batch())  # noqa: TID251 - the test is the owner
    await asyncio.sleep(0)

    stream.push(event(1), 1)
    stream.close()

    assert await waiting == []
    assert taker.taken == []
