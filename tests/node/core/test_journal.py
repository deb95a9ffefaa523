"""Completions reach the store even if it comes and goes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.node_fakes import eventually

from iop_node.core.journal import RETRY_S, Journal
from iop_node.core.ports import RunRecord
from iop_node.store.memory import MemoryRunStore
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import Unavailable
from iop_shared.ids import AdapterName, TargetName, new_run_id
from iop_shared.runs import Operation, RunState


class FlakyStore(MemoryRunStore):
    """A store whose disk is full, or hangs, until it is told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.hangs = False
        self.tries = 0

    async def finish(self, record: RunRecord) -> None:
        self.tries += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_full:
            raise Unavailable("the disk is full", code="journal_unavailable")
        await super().finish(record)


def record() -> RunRecord:
    return RunRecord(new_run_id(), 1, AdapterName("a"), TargetName("t"), Operation.CHAT, 1)


@pytest.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    owner = TaskOwner("test", lambda name, error: pytest.fail(f"{name}: {error}"))
    yield owner
    await owner.cancel_all()


async def test_a_completion_is_tried_again_until_the_store_takes_it(tasks: TaskOwner) -> None:
    store, clock = FlakyStore(), FakeClock()
    journal = Journal(store, tasks, sleep=clock.sleep)
    begun = record()
    await journal.begin(begun)
    done = replace(begun, state=RunState.SUCCEEDED)
    store.is_full = True

    await journal.finish(done)
    assert journal.pending == 1
    await eventually(lambda: clock.sleepers)
    clock.advance(RETRY_S)
    await eventually(lambda: store.tries == 2 and clock.sleepers)
    store.is_full = False
    clock.advance(RETRY_S)
    await eventually(lambda: not journal.pending)

    assert await store.get(begun.run_id, 1) == done


async def test_a_store_that_hangs_does_not_hold_up_the_run(tasks: TaskOwner) -> None:
    store, clock = FlakyStore(), FakeClock()
    store.hangs = True
    journal = Journal(store, tasks, finish_wait_s=0.01, sleep=clock.sleep)
    begun = record()
    await journal.begin(begun)
    done = replace(begun, state=RunState.SUCCEEDED)

    await asyncio.wait_for(journal.finish(done), 1)

    assert journal.pending == 1
    store.hangs = False
    await eventually(lambda: clock.sleepers)
    clock.advance(RETRY_S)
    await eventually(lambda: not journal.pending)
    assert await store.get(begun.run_id, 1) == done


async def test_flush_tries_once_more_and_says_whether_all_is_written(tasks: TaskOwner) -> None:
    store, clock = FlakyStore(), FakeClock()
    journal = Journal(store, tasks, sleep=clock.sleep)
    begun = record()
    await journal.begin(begun)
    store.is_full = True
    await journal.finish(replace(begun, state=RunState.SUCCEEDED))

    assert not await journal.flush()
    store.is_full = False
    assert await journal.flush()
