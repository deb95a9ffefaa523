"""The writer: batches, only the newest state, what happens while the disk is full, the end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.inbox import wait_for

from iop_edge.domain.views import RunEventView, RunView
from iop_edge.stores import history_writer
from iop_edge.stores.history_writer import HistoryWriter
from iop_edge.stores.memory_history import MemoryRunHistory
from iop_shared.errors import InternalError, Unavailable
from iop_shared.ids import AdapterName, RunId, TargetName, new_run_id
from iop_shared.runs import Operation, RunState
from iop_shared.runtime_events import Text, Usage

RUN = new_run_id(1_700_000_000_000)
VIEW = RunView(
    RUN, 1, RunState.RUNNING, AdapterName("mock"), TargetName("echo"), Operation.CHAT, 1_700_000_000_000
)
DONE = replace(VIEW, state=RunState.SUCCEEDED, ended_at_ms=1_700_000_000_500)


class CountingHistory(MemoryRunHistory):
    """A history whose disk a test can fill, and that keeps what was written at once."""

    def __init__(self) -> None:
        super().__init__()
        self.saves: list[tuple[int, int]] = []
        self.fail_with: Exception | None = None

    async def save(self, runs: Sequence[RunView], events: Sequence[tuple[RunId, RunEventView]]) -> None:
        await asyncio.sleep(0)
        if self.fail_with is not None:
            raise self.fail_with
        self.saves.append((len(runs), len(events)))
        await super().save(runs, events)


@pytest.fixture
def history() -> CountingHistory:
    return CountingHistory()


@pytest.fixture
async def writer(
    history: CountingHistory, watched_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HistoryWriter]:
    monkeypatch.setattr(history_writer, "RETRY_S", 0.01)
    made = HistoryWriter(history, FakeClock(), flush_interval_s=0.005)
    made.start()
    yield made
    await made.aclose()


async def test_a_short_run_costs_one_record(writer: HistoryWriter, history: CountingHistory) -> None:
    saved: list[str] = []
    writer.record(RUN, lambda: VIEW)
    writer.record_event(RUN, RunEventView(1, 1, 5, Usage(1)))
    writer.record(RUN, lambda: DONE, lambda: saved.append("done"))
    assert writer.pending_view(RUN) == DONE
    assert writer.pending == 2

    await wait_for(lambda: bool(saved), "the record is safe")

    assert history.saves == [(1, 1)]
    assert await history.get(RUN) == DONE
    assert writer.pending_view(RUN) is None
    assert writer.pending == 0


async def test_output_is_never_recorded(writer: HistoryWriter, history: CountingHistory) -> None:
    writer.record_event(RUN, RunEventView(1, 1, 5, Text("secret answer")))

    await writer.flush()

    assert history.saves == []
    assert writer.pending == 0


async def test_flush_returns_when_what_waits_is_written(writer: HistoryWriter, history: CountingHistory) -> None:
    writer.record(RUN, lambda: VIEW)

    await writer.flush()

    assert await history.get(RUN) == VIEW


async def test_a_full_disk_keeps_the_records_until_there_is_room(
    writer: HistoryWriter, history: CountingHistory
) -> None:
    saved: list[str] = []
    history.fail_with = Unavailable("edge.db: the disk is full", code="store_unavailable")
    writer.record(RUN, lambda: VIEW, lambda: saved.append("first"))
    writer.record_event(RUN, RunEventView(1, 1, 5, Usage(1)))
    await wait_for(lambda: writer.trouble() != "", "the trouble shows")
    assert writer.trouble() == "edge.db: the disk is full"
    writer.record(RUN, lambda: DONE, lambda: saved.append("second"))
    await writer.flush()
    assert saved == []

    history.fail_with = None
    await wait_for(lambda: len(saved) == 2, "everything is written")

    assert await history.get(RUN) == DONE
    assert [e.seq for e in await history.events(RUN)] == [1]
    assert writer.trouble() == ""
    assert writer.failed_batches >= 1


@pytest.mark.parametrize("bug", [InternalError("a value the table cannot hold"), TypeError("not a text")])
async def test_a_record_that_cannot_be_written_does_not_stop_the_others(
    writer: HistoryWriter, history: CountingHistory, bug: Exception
) -> None:
    history.fail_with = bug
    writer.record(RUN, lambda: VIEW)
    await wait_for(lambda: writer.failed_batches == 1, "the batch is given up")
    history.fail_with = None

    writer.record(RUN, lambda: DONE)
    await writer.flush()

    assert await history.get(RUN) == DONE
    assert writer.trouble() == ""


async def test_closing_writes_what_waits(history: CountingHistory) -> None:
    writer = HistoryWriter(history, FakeClock(), flush_interval_s=10.0)
    writer.start()
    saved: list[str] = []
    writer.record(RUN, lambda: DONE, lambda: saved.append("done"))

    await writer.aclose()
    await writer.aclose()

    assert await history.get(RUN) == DONE
    assert saved == ["done"]


async def test_events_beyond_the_bound_lose_the_oldest_and_are_counted(
    monkeypatch: pytest.MonkeyPatch, history: CountingHistory
) -> None:
    monkeypatch.setattr(history_writer, "MAX_PENDING_EVENTS", 3)
    writer = HistoryWriter(history, FakeClock())
    for seq in range(1, 6):
        writer.record_event(RUN, RunEventView(seq, 1, 5, Usage(seq)))

    await writer.aclose()

    assert writer.dropped_events == 2
    assert [e.seq for e in await history.events(RUN)] == [3, 4, 5]


async def test_retention_goes_on_until_nothing_is_too_old(
    monkeypatch: pytest.MonkeyPatch, history: CountingHistory
) -> None:
    monkeypatch.setattr(history_writer, "PRUNE_BATCH", 2)
    clock = FakeClock(wall_ms=1_700_000_000_000 + 2 * 86_400_000)
    writer = HistoryWriter(history, clock, retain_days=1.0)
    views = [replace(DONE, run_id=new_run_id(1_700_000_000_000 + n)) for n in range(5)]
    await history.save(views, [])

    assert await writer.prune() == 5
    assert await writer.prune() == 0
