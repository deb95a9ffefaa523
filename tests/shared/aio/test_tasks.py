"""Tasks have names and owners, and no failure is lost."""

import asyncio

import pytest

from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import InternalError

pytestmark = pytest.mark.both_loops


class Failures:
    def __init__(self) -> None:
        self.seen: list[tuple[str, BaseException]] = []

    def __call__(self, name: str, error: BaseException) -> None:
        self.seen.append((name, error))


@pytest.fixture
def failures() -> Failures:
    return Failures()


async def hang() -> None:
    await asyncio.Event().wait()


async def test_task_is_named_held_and_let_go(failures: Failures) -> None:
    owner = TaskOwner("link node-7", failures)

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    task = owner.spawn(answer(), name="reader")
    assert task.get_name() == "link node-7 reader"
    assert len(owner) == 1
    assert await task == 42
    await asyncio.sleep(0)
    assert len(owner) == 0
    assert failures.seen == []


async def test_failure_is_reported_with_the_name(failures: Failures) -> None:
    owner = TaskOwner("node", failures)

    async def fail() -> None:
        raise ValueError("broken")

    owner.spawn(fail(), name="journal")
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [(name, str(error)) for name, error in failures.seen] == [("node journal", "broken")]
    assert len(owner) == 0


async def test_cancel_all_cancels_waits_and_may_be_repeated(failures: Failures) -> None:
    owner = TaskOwner("node", failures)
    cleaned: list[int] = []

    async def work(number: int) -> None:
        try:
            await hang()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    for number in range(3):
        owner.spawn(work(number), name=f"run {number}")
    await asyncio.sleep(0)

    await owner.cancel_all()
    await owner.cancel_all()

    assert sorted(cleaned) == [0, 1, 2]
    assert len(owner) == 0
    assert failures.seen == []


async def test_failure_during_a_cancel_is_reported_too(failures: Failures) -> None:
    owner = TaskOwner("node", failures)

    async def work() -> None:
        try:
            await hang()
        finally:
            raise OSError("cannot clean up")

    owner.spawn(work(), name="run")
    await asyncio.sleep(0)
    await owner.cancel_all()

    assert [(name, str(error)) for name, error in failures.seen] == [("node run", "cannot clean up")]


async def test_task_that_does_not_end_is_reported_by_name(failures: Failures) -> None:
    owner = TaskOwner("node", failures)
    may_end = asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    owner.spawn(stubborn(), name="adapter")
    await asyncio.sleep(0)

    await owner.cancel_all(timeout_s=0.02)

    assert [(name, str(error)) for name, error in failures.seen] == [
        ("node adapter", "task 'node adapter' did not end within 0.02 s of its cancel")
    ]
    assert len(owner) == 1
    may_end.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(owner) == 0


async def test_stopped_owner_starts_nothing(failures: Failures) -> None:
    owner = TaskOwner("node", failures)
    await owner.cancel_all()

    with pytest.raises(InternalError) as caught:
        owner.spawn(hang(), name="late")

    assert str(caught.value) == "task 'late' cannot start: its owner 'node' has been stopped"


async def test_task_may_stop_its_own_owner(failures: Failures) -> None:
    owner = TaskOwner("node", failures)

    async def stop() -> None:
        await owner.cancel_all()

    other = owner.spawn(hang(), name="other")
    async with asyncio.timeout(5):
        await owner.spawn(stop(), name="stopper")

    assert other.cancelled()
