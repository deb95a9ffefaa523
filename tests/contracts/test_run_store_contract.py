"""The contract of RunStore, held by both stores; the SQLite one also against the death of its process."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from iop_node.core.ports import RunRecord, RunStore
from iop_node.store.memory import MemoryRunStore
from iop_node.store.sqlite import Retention, SqliteRunStore
from iop_shared.clock import SystemClock
from iop_shared.errors import BadRequest, Unavailable
from iop_shared.ids import AdapterName, RunId, SessionId, TargetName, new_run_id
from iop_shared.runs import Operation, RunState
from iop_shared.runtime_events import Usage

pytestmark = pytest.mark.both_loops
MakeStore = Callable[[Path], Awaitable[RunStore]]


async def _memory(path: Path) -> RunStore:
    return MemoryRunStore()


async def _sqlite(path: Path) -> RunStore:
    return await SqliteRunStore.open(path / "node.db", clock=SystemClock())


@pytest.fixture(params=[_memory, _sqlite], ids=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RunStore]:
    make: MakeStore = request.param
    made = await make(tmp_path)
    yield made
    await made.aclose()


def record(run_id: RunId | None = None, attempt: int = 1) -> RunRecord:
    return RunRecord(
        run_id=run_id or new_run_id(),
        attempt=attempt,
        adapter=AdapterName("mock"),
        target=TargetName("größe/モデル:8b"),
        operation=Operation.CHAT,
        accepted_at_ms=1_700_000_000_000,
        session=SessionId("s-1"),
        source="openai",
        profile="small",
        input_bytes=12,
    )


def finished(begun: RunRecord) -> RunRecord:
    return replace(
        begun,
        state=RunState.FAILED,
        ended_at_ms=1_700_000_009_000,
        code="engine_error",
        layer="serving",
        message="the engine answered 500",
        finish_reason="error",
        usage=Usage(prompt_tokens=3, completion_tokens=0, cached_tokens=None, reasoning_tokens=2**40),
        queued_s=0.25,
        first_token_s=0.5,
        total_s=9.0,
        output_bytes=2**35,
        events=7,
    )


async def test_what_begin_recorded_is_there_to_read(store: RunStore) -> None:
    begun = record()

    await store.begin(begun)

    assert await store.get(begun.run_id, 1) == begun
    assert await store.get(begun.run_id, 2) is None


async def test_finish_completes_every_field(store: RunStore) -> None:
    begun = record()
    await store.begin(begun)

    await store.finish(finished(begun))

    assert await store.get(begun.run_id, 1) == finished(begun)


async def test_a_run_without_output_keeps_its_absent_values(store: RunStore) -> None:
    begun = replace(record(), session=None, profile="", source="")
    await store.begin(begun)
    done = replace(begun, state=RunState.CANCELLED, ended_at_ms=1, code="cancelled")

    await store.finish(done)

    kept = await store.get(begun.run_id, 1)
    assert kept == done
    assert kept is not None
    assert (kept.first_token_s, kept.usage, kept.session) == (None, None, None)


async def test_a_second_finish_changes_nothing(store: RunStore) -> None:
    begun = record()
    await store.begin(begun)
    await store.finish(finished(begun))

    await store.finish(replace(begun, state=RunState.SUCCEEDED))

    assert await store.get(begun.run_id, 1) == finished(begun)


async def test_finishing_what_never_began_adds_no_row(store: RunStore) -> None:
    await store.finish(finished(record()))

    assert await store.list_recent() == []


async def test_an_attempt_begins_once(store: RunStore) -> None:
    begun = record(RunId("0190b5a4-0000-7000-8000-000000000001"))
    await store.begin(begun)
    await store.finish(finished(begun))

    with pytest.raises(BadRequest) as caught:
        await store.begin(begun)

    assert str(caught.value) == (
        "run 0190b5a4-0000-7000-8000-000000000001 attempt 1 has been run on this node before (failed); "
        "a new try needs a new attempt number"
    )
    assert caught.value.code == "already_run"
    await store.begin(replace(begun, attempt=2))


async def test_newest_come_first_and_limit_bounds(store: RunStore) -> None:
    ids = [new_run_id(now_ms) for now_ms in (1000, 3000, 2000)]
    for run_id in ids:
        await store.begin(record(run_id))
    await store.begin(record(ids[1], attempt=2))

    recent = await store.list_recent(3)

    assert [(r.run_id, r.attempt) for r in recent] == [(ids[1], 2), (ids[1], 1), (ids[2], 1)]


async def test_open_rows_become_interrupted_and_ended_ones_stay(store: RunStore) -> None:
    left, done = record(), record()
    await store.begin(left)
    await store.begin(done)
    await store.finish(finished(done))

    interrupted = await store.interrupt_open("the node was restarted", 1_700_000_099_000)

    expected = replace(
        left,
        state=RunState.INTERRUPTED,
        ended_at_ms=1_700_000_099_000,
        code="node_restarted",
        layer="node",
        message="the node was restarted",
    )
    assert list(interrupted) == [expected]
    assert await store.get(left.run_id, 1) == expected
    assert await store.get(done.run_id, 1) == finished(done)
    assert await store.interrupt_open("again", 1) == []


async def test_an_ended_run_is_unsettled_until_the_edge_has_everything(store: RunStore) -> None:
    first, second, running = record(new_run_id(1)), record(new_run_id(2)), record(new_run_id(3))
    for begun in (first, second, running):
        await store.begin(begun)
    for begun in (first, second):
        await store.finish(finished(begun))
    ended_at_ms = finished(first).ended_at_ms or 0

    both = await store.list_unsettled(ended_at_ms, 10)
    assert [row.run_id for row in both] == [second.run_id, first.run_id]
    assert [row.run_id for row in await store.list_unsettled(0, 1)] == [second.run_id]
    assert await store.list_unsettled(ended_at_ms + 1, 10) == []

    await store.settle([(second.run_id, 1), (new_run_id(), 1)])
    await store.interrupt_open("the node was restarted", ended_at_ms)
    assert [row.run_id for row in await store.list_unsettled(0, 10)] == [first.run_id]


async def test_a_closed_store_is_unavailable_and_closes_twice(store: RunStore) -> None:
    await store.aclose()
    await store.aclose()

    with pytest.raises(Unavailable) as caught:
        await store.begin(record())
    assert caught.value.code == "journal_unavailable"
    with pytest.raises(Unavailable):
        await store.finish(record())


CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from iop_node.core.ports import RunRecord
from iop_node.store.sqlite import SqliteRunStore
from iop_shared.clock import SystemClock
from iop_shared.runs import Operation

async def main() -> None:
    store = await SqliteRunStore.open(Path(sys.argv[1]), clock=SystemClock())
    await store.begin(RunRecord(sys.argv[2], 1, "mock", "echo", Operation.CHAT, 1))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.may_leak  # the child is killed by itself in its middle
async def test_what_begin_recorded_survives_a_kill_of_the_process(tmp_path: Path) -> None:
    path, run_id = tmp_path / "node.db", new_run_id()

    command = [sys.executable, "-c", CHILD, str(path), run_id]
    child = await asyncio.to_thread(subprocess.run, command, check=False)

    assert child.returncode == -signal.SIGKILL
    store = await SqliteRunStore.open(path, clock=SystemClock())
    left = await store.interrupt_open("the node was restarted", 5)
    await store.aclose()
    assert [(r.run_id, r.state) for r in left] == [(run_id, RunState.INTERRUPTED)]


async def test_a_store_that_cannot_be_opened_says_where_and_why(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(Unavailable) as caught:
        await SqliteRunStore.open(tmp_path / "folder", clock=SystemClock())

    assert str(tmp_path / "folder") in str(caught.value)
    assert caught.value.code == "store_unavailable"


async def test_retention_keeps_the_newest_and_every_open_row(tmp_path: Path) -> None:
    clock = SystemClock()
    now_ms = clock.wall_ms()
    store = await SqliteRunStore.open(tmp_path / "node.db", clock=clock, retention=Retention(days=1, runs=3))
    old_ms = now_ms - 2 * 24 * 3600 * 1000
    open_old = replace(record(new_run_id(old_ms)), accepted_at_ms=old_ms)
    await store.begin(open_old)
    done_old = replace(record(new_run_id(old_ms + 1)), accepted_at_ms=old_ms)
    recent = [replace(record(new_run_id(now_ms + n)), accepted_at_ms=now_ms) for n in range(4)]
    for begun in (done_old, *recent):
        await store.begin(begun)
        await store.finish(finished(begun))

    deleted = await store.sweep()

    assert deleted == 3
    kept = [r.run_id for r in await store.list_recent()]
    assert kept == [recent[3].run_id, recent[2].run_id, open_old.run_id]
    await store.aclose()
