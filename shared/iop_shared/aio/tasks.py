"""The only place that creates tasks: each has a name and an owner, and its failure is reported.

A loop holds its tasks weakly: one that nobody refers to can vanish in its middle. And a task whose
result nobody awaits fails in silence. So a task here is held until it ends, and what it raises goes to
its owner's `on_failure`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from iop_shared.errors import InternalError

T = TypeVar("T")


class TaskOwner:
    """Holds the tasks of one part of a daemon until they end.

    `on_failure(name, error)` hears of every task that raised (a cancelled one has not failed). It is called
    on the loop and must not raise.
    """

    def __init__(self, name: str, on_failure: Callable[[str, BaseException], None]) -> None:
        self.name = name
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Starts `coro` as the task "<owner> <name>" and returns it; keeping the result is not needed.

        Raises:
            InternalError: `cancel_all` has been called: a stopped owner starts nothing any more.
        """
        if self._stopped:
            coro.close()  # otherwise the interpreter warns that it was never awaited
            raise InternalError(f"task {name!r} cannot start: its owner {self.name!r} has been stopped")
        task = asyncio.create_task(coro, name=f"{self.name} {name}")  # noqa: TID251 -- the one allowed place
        self._tasks.add(task)
        task.add_done_callback(self._settle)
        return task

    async def cancel_all(self, timeout_s: float = 5.0) -> None:
        """Cancels every task and waits until all have ended, at most `timeout_s` together.

        From then on `spawn` refuses. Safe to call twice, and from one of the owned tasks (which is left out).
        A task that does not end in time is reported to `on_failure` by name, and stays owned.
        """
        self._stopped = True
        pending = self._tasks - {asyncio.current_task()}
        for task in pending:
            task.cancel()
        if not pending:
            return
        _, stuck = await asyncio.wait(pending, timeout=timeout_s)
        for task in stuck:
            self._on_failure(
                task.get_name(),
                TimeoutError(f"task {task.get_name()!r} did not end within {timeout_s:g} s of its cancel"),
            )

    def __len__(self) -> int:
        return len(self._tasks)

    def _settle(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._on_failure(task.get_name(), error)
