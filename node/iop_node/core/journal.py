"""Keeps the record of runs complete while the store comes and goes (a full disk, for example).

A run starts only once `begin` has recorded it. A completion that the store does not take is kept here and
tried again; the run itself is not held up by that for more than `finish_wait_s`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from iop_node.core.outbox import RunKey
from iop_node.core.ports import RunRecord, RunStore
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import IopError
from iop_shared.logs import get_logger

log = get_logger("node")

MAX_PENDING: Final = 10_000
"""About 10 MB of records. When full, the oldest completion is given up, which the log says."""
RETRY_S: Final = 2.0
SETTLE_S: Final = 0.5
FINISH_WAIT_S: Final = 2.0


class Journal:
    """Writes records through a RunStore and retries completions."""

    def __init__(
        self,
        store: RunStore,
        tasks: TaskOwner,
        *,
        finish_wait_s: float = FINISH_WAIT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store, self._tasks = store, tasks
        self._finish_wait_s, self._sleep = finish_wait_s, sleep
        self._pending: OrderedDict[RunKey, RunRecord] = OrderedDict()
        self._settled: dict[RunKey, None] = {}
        self._retrying: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self.given_up = 0

    @property
    def pending(self) -> int:
        """How many completions the store has not taken yet."""
        return len(self._pending)

    async def begin(self, record: RunRecord) -> None:
        """Records that a run starts.

        Raises:
            Unavailable: code `journal_unavailable`. BadRequest: this attempt has been recorded before.
        """
        await self._store.begin(record)

    async def finish(self, record: RunRecord) -> None:
        """Completes a record; returns once that is done or, at the latest, after `finish_wait_s`."""
        key = (record.run_id, record.attempt)
        self._pending[key] = record
        if len(self._pending) > MAX_PENDING:
            lost, _ = self._pending.popitem(last=False)
            self.given_up += 1
            log.error("run_record_given_up", run_id=lost[0], attempt=lost[1], pending=MAX_PENDING)
        try:
            async with asyncio.timeout(self._finish_wait_s):
                await self._write(key, record)
        except TimeoutError:
            self._retry_soon()  # the write that is given up may still be made; once more changes nothing

    def settle_nowait(self, key: RunKey) -> None:
        """Notes, soon and many at a time, that the edge has everything of an attempt."""
        self._settled[key] = None
        if len(self._settled) > MAX_PENDING:
            # The edge will be told of it again after a restart, and will say that it knows.
            del self._settled[next(iter(self._settled))]
        if self._settling is None or self._settling.done():
            self._settling = self._tasks.spawn(self._settle_soon(), name="journal settle")

    async def flush(self) -> bool:
        """Writes everything pending once more; returns whether no completion is left."""
        for key, record in tuple(self._pending.items()):
            await self._write(key, record)
        await self._settle()
        return not self._pending

    async def _settle_soon(self) -> None:
        while self._settled:
            await self._sleep(SETTLE_S)
            if not await self._settle():
                await self._sleep(RETRY_S)

    async def _settle(self) -> bool:
        keys = tuple(self._settled)
        if keys:
            try:
                await self._store.settle(keys)
            except IopError as error:
                log.debug("runs_not_settled", runs=len(keys), error_code=error.code)
                return False
            for key in keys:
                self._settled.pop(key, None)
        return True

    async def _write(self, key: RunKey, record: RunRecord) -> None:
        try:
            await self._store.finish(record)
        except IopError as error:
            log.warning("run_record_deferred", run_id=record.run_id, error_code=error.code, error=str(error))
            self._retry_soon()
        else:
            self._pending.pop(key, None)

    def _retry_soon(self) -> None:
        if self._retrying is None or self._retrying.done():
            self._retrying = self._tasks.spawn(self._retry(), name="journal retry")

    async def _retry(self) -> None:
        while self._pending:
            await self._sleep(RETRY_S)
            for key, record in tuple(self._pending.items()):
                try:
                    await self._store.finish(record)
                except IopError:
                    break  # the next one would fail alike
                self._pending.pop(key, None)
        log.info("run_records_caught_up")
