"""One contract, both histories: SQLite and memory."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from iop_edge.domain.ports import RunFilter, RunHistory
from iop_edge.domain.views import Refusal, RunEventView, RunView
from iop_edge.stores.memory_history import MemoryRunHistory
from iop_edge.stores.schema import MIGRATIONS
from iop_edge.stores.sqlite_history import SqliteRunHistory
from iop_shared.aio.sqlite import Database
from iop_shared.errors import BadRequest, Layer
from iop_shared.ids import AdapterName, NodeId, ProfileName, RunId, SessionId, TargetName, new_run_id
from iop_shared.runs import Operation, RunState
from iop_shared.runtime_events import (
    Body,
    Cancelled,
    Closing,
    Failed,
    Gap,
    Interrupted,
    Notice,
    Started,
    Succeeded,
    Timings,
    Usage,
)

MOCK, ECHO, GPU1 = AdapterName("mock"), TargetName("echo"), NodeId("gpu-1")
CLOSING = Closing(3, 12, b"\x01" * 32, Timings(0.1, 0.2, 0.3), Usage(1, 2, 3, None), "stop")


@pytest.fixture(params=["sqlite", "memory"])
async def history(
    request: pytest.FixtureRequest, tmp_path: Path, watched_tasks: None
) -> AsyncIterator[RunHistory]:
    if request.param == "memory":
        yield MemoryRunHistory()
        return
    database = await Database.open(tmp_path / "edge.db", MIGRATIONS, name="edge")
    yield SqliteRunHistory(database)
    await database.aclose()


def run_id(number: int) -> RunId:
    return new_run_id(1_700_000_000_000 + number)


def live(number: int, **changes: object) -> RunView:
    view = RunView(run_id(number), 1, RunState.RUNNING, MOCK, ECHO, Operation.CHAT, 1_700_000_000_000 + number)
    return replace(view, **changes)  # type: ignore[arg-type]


def ended(number: int, **changes: object) -> RunView:
    return live(number, state=RunState.SUCCEEDED, ended_at_ms=1_700_000_001_000 + number, **changes)


async def test_a_record_comes_back_as_it_was(history: RunHistory) -> None:
    view = RunView(
        run_id(1),
        3,
        RunState.CANCELLED,
        MOCK,
        ECHO,
        Operation.EMBED,
        1_700_000_000_001,
        node_id=GPU1,
        profile=ProfileName("small"),
        session=SessionId("s-1"),
        source="openai",
        ended_at_ms=1_700_000_000_999,
        code="c",
        layer="node",
        message="why",
        finish_reason="stop",
        usage=Usage(1, None, 3, 4),
        queued_s=0.25,
        first_token_s=0.5,
        total_s=0.75,
        input_bytes=10,
        output_bytes=20,
        events=30,
        cancel_reason="enough",
        cancel_confirmed=False,
        cancel_took_ms=12,
        refusals=(Refusal(NodeId("gpu-2"), "draining", "is draining"),),
    )

    await history.save([view, live(2)], [])

    assert await history.get(view.run_id) == view
    assert await history.get(run_id(99)) is None


async def test_a_newer_record_replaces_an_older_one(history: RunHistory) -> None:
    view = live(1)
    await history.save([view], [])
    await history.save([replace(view, state=RunState.FAILED, code="engine_error", ended_at_ms=5)], [])

    found = await history.get(view.run_id)

    assert found is not None
    assert (found.state, found.code) == (RunState.FAILED, "engine_error")
    assert len((await history.page(10, None, RunFilter())).runs) == 1


@pytest.mark.parametrize(
    "body",
    [
        Started(MOCK, ECHO, GPU1, "llama.cpp b1"),
        Usage(1, None, 3, None),
        Notice("slow", "the engine is slow"),
        Gap(3, 40, "full"),
        Succeeded(CLOSING),
        Failed("engine_error", Layer.SERVING, "HTTP 500", CLOSING, retryable=True, engine_status=500),
        Cancelled("enough", True, 12, CLOSING),
        Interrupted("node_lost", "the link was lost", Closing()),
    ],
)
async def test_lifecycle_events_come_back_as_they_were(history: RunHistory, body: Body) -> None:
    event = RunEventView(7, 2, 1_700_000_000_123, body)

    await history.save([live(1)], [(run_id(1), event)])
    first = (await history.page(1, None, RunFilter())).runs[0].run_id
    await history.save([], [(first, event)])

    assert await history.events(first) == [event]


async def test_an_engines_own_error_is_not_kept(history: RunHistory) -> None:
    view = live(1)
    failed = Failed("engine_rejected", Layer.TARGET, "no", engine_status=400, engine_body=b'{"prompt": "secret"}')
    await history.save([view], [(view.run_id, RunEventView(1, 1, 5, failed))])

    assert await history.events(view.run_id) == [RunEventView(1, 1, 5, replace(failed, engine_body=b""))]


async def test_events_come_in_order_after_a_number_and_bounded(history: RunHistory) -> None:
    view = live(1)
    events = [RunEventView(seq, attempt, 5, Usage(seq)) for attempt in (2, 1) for seq in (3, 1, 2)]
    await history.save([view], [(view.run_id, event) for event in events])
    await history.save([view], [(view.run_id, RunEventView(1, 1, 99, Usage(99)))])

    found = await history.events(view.run_id)

    assert [(e.attempt, e.seq) for e in found] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert found[0].at_ms == 5  # the first one written stays
    assert [(e.attempt, e.seq) for e in await history.events(view.run_id, after_seq=2)] == [(1, 3), (2, 3)]
    assert len(await history.events(view.run_id, limit=2)) == 2


async def test_pages_go_from_new_to_old_without_loss(history: RunHistory) -> None:
    views = [live(number) for number in range(7)]
    await history.save(views, [])
    seen: list[RunId] = []
    cursor = None
    while True:
        page = await history.page(3, cursor, RunFilter())
        seen += [view.run_id for view in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert seen == [view.run_id for view in reversed(views)]


async def test_a_page_that_is_just_full_has_no_next(history: RunHistory) -> None:
    await history.save([live(1), live(2)], [])

    assert (await history.page(2, None, RunFilter())).next_cursor is None
    assert (await history.page(1, None, RunFilter())).next_cursor is not None


async def test_filters_narrow_the_page(history: RunHistory) -> None:
    await history.save(
        [
            live(1, node_id=GPU1),
            ended(2, node_id=GPU1),
            ended(3, node_id=NodeId("gpu-2"), adapter=AdapterName("vllm")),
        ],
        [],
    )

    async def numbers(wanted: RunFilter) -> list[int]:
        page = await history.page(10, None, wanted)
        return [view.created_at_ms - 1_700_000_000_000 for view in page.runs]

    assert await numbers(RunFilter(state=RunState.SUCCEEDED)) == [3, 2]
    assert await numbers(RunFilter(node_id=GPU1)) == [2, 1]
    assert await numbers(RunFilter(adapter="vllm")) == [3]
    assert await numbers(RunFilter(RunState.SUCCEEDED, GPU1, "mock")) == [2]
    assert await numbers(RunFilter(adapter="nope")) == []


async def test_a_foreign_cursor_is_refused(history: RunHistory) -> None:
    with pytest.raises(BadRequest) as refused:
        await history.page(10, "page-2", RunFilter())

    assert str(refused.value) == ("cursor 'page-2' is not one of ours: pass the next_cursor of a page as it came")
    assert (refused.value.code, refused.value.param) == ("bad_cursor", "cursor")


async def test_runs_left_live_are_interrupted_at_the_next_start(history: RunHistory) -> None:
    open_run, done = live(1), ended(2)
    await history.save([open_run, done], [])

    assert await history.interrupt_live("edge_restarted", 77) == 1
    assert await history.interrupt_live("edge_restarted", 78) == 0

    found = await history.get(open_run.run_id)
    assert found is not None
    assert (found.state, found.code, found.layer) == (RunState.INTERRUPTED, "edge_restarted", "edge")
    assert (found.message, found.ended_at_ms) == (
        "the edge's process ended while the run was under way",
        77,
    )
    assert await history.get(done.run_id) == done


async def test_retention_deletes_the_oldest_ended_in_batches(history: RunHistory) -> None:
    await history.save([live(0)] + [ended(number) for number in range(1, 10)], [])
    first = (await history.page(1, None, RunFilter())).runs[0].run_id
    await history.save([], [(first, RunEventView(1, 1, 1, Usage()))])

    async def kept() -> list[int]:
        page = await history.page(20, None, RunFilter())
        return [view.created_at_ms - 1_700_000_000_000 for view in page.runs]

    assert await history.prune(before_ms=1_700_000_000_004, keep_runs=100, batch=2) == 2
    assert await kept() == [9, 8, 7, 6, 5, 4, 3, 0]  # what lives stays, whatever its age
    assert await history.prune(before_ms=0, keep_runs=3, batch=100) == 4
    assert await kept() == [9, 8, 7, 0]
    assert await history.prune(before_ms=0, keep_runs=0, batch=100) == 3
    assert await history.events(first) == []
