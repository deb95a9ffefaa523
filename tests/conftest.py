"""What every test gets: the loop it runs on, and a check that it leaves nothing behind.

Async tests run on asyncio's own loop. Mark a test, a class or (`pytestmark = pytest.mark.both_loops`) a
module whose subject does IO, and it runs on uvloop too. `@pytest.mark.may_leak` switches the leak check
off, for a test whose subject is a process that dies.
"""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, settings
from tests.support import leak_check

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

settings.register_profile("fast", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("IOP_HYPOTHESIS", "fast"))


def _uvloop_factory() -> LoopFactory | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_loops: runs on asyncio's own loop and on uvloop")
    config.addinivalue_line("markers", "may_leak: the leak check is off, with a reason beside it")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Tells pytest-asyncio which loops to run `item` on."""
    uvloop_factory = _uvloop_factory()
    if item.get_closest_marker("both_loops") is None or uvloop_factory is None:
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop_factory}


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a socket or a child process behind. Set up first, so it looks last."""
    if request.node.get_closest_marker("may_leak") is not None:
        yield
        return
    before = leak_check.held_now()
    yield
    left = leak_check.wait_nothing_beyond(before)
    assert not left, "the test left behind:\n  " + "\n  ".join(left)


@pytest.fixture(autouse=True)
def leaves_no_tasks_behind(leaves_nothing_behind: None, request: pytest.FixtureRequest) -> None:
    """Has the tasks checked too where the test has a loop."""
    is_async = inspect.iscoroutinefunction(getattr(request, "function", None))
    if is_async and request.node.get_closest_marker("may_leak") is None:
        request.getfixturevalue("watched_tasks")


@pytest.fixture
async def watched_tasks() -> AsyncIterator[None]:
    """Fails an async test that leaves a task running. Set up before other async fixtures, so it looks last."""
    before = asyncio.all_tasks()
    yield
    left = await leak_check.wait_no_tasks_beyond(before)
    assert not left, "the test left behind:\n  " + "\n  ".join(left)
