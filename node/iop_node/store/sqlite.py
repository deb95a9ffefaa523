"""The RunStore on one SQLite file, with retention. What `begin` recorded survives a kill of the process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from iop_node.core.ports import RunRecord
from iop_node.store import schema
from iop_node.store.memory import already_run
from iop_shared.aio.sqlite import Database, DatabaseStatistics
from iop_shared.aio.tasks import TaskOwner
from iop_shared.clock import Clock
from iop_shared.errors import InternalError, IopError, Unavailable
from iop_shared.ids import RunId
from iop_shared.logs import get_logger

log = get_logger("node")

DAY_MS: Final = 24 * 3600 * 1000
SWEEP_INTERVAL_S: Final = 600.0
SWEEP_BATCH: Final = 500
"""Rows per delete: a few milliseconds of the file. Chosen."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept: nothing older than `days`, and at most `runs` rows. Open rows are always kept."""

    days: float = 30.0
    runs: int = 100_000


class SqliteRunStore:
    """Runs in the file at `path`. Make it with `open`."""

    def __init__(self, database: Database, retention: Retention, clock: Clock) -> None:
        self._database, self._retention, self._clock = database, retention, clock
        self._tasks = TaskOwner("run store", self._task_failed)

    @classmethod
    async def open(
        cls, path: Path | Literal[":memory:"], *, clock: Clock, retention: Retention = Retention()
    ) -> "SqliteRunStore":
        """Opens or makes the file.

        Raises:
            Unavailable: code `store_unavailable`, or `store_too_new`.
        """
        return cls(await Database.open(path, schema.MIGRATIONS, name="node journal"), retention, clock)

    async def begin(self, record: RunRecord) -> None:
        """See RunStore."""
        try:
            await self._database.write([(schema.INSERT, schema.row_of(record))])
        except Unavailable as error:
            raise _journal_unavailable(error) from error
        except InternalError:
            known = await self.get(record.run_id, record.attempt)
            if known is None:
                raise
            raise already_run(known) from None

    async def finish(self, record: RunRecord) -> None:
        """See RunStore."""
        try:
            await self._database.write([(schema.FINISH, schema.finish_values(record))])
        except Unavailable as error:
            raise _journal_unavailable(error) from error

    async def settle(self, keys: Sequence[tuple[RunId, int]]) -> None:
        """See RunStore."""
        try:
            await self._database.write([(schema.SETTLE, key) for key in keys])
        except Unavailable as error:
            raise _journal_unavailable(error) from error

    async def list_unsettled(self, ended_after_ms: int, limit: int) -> Sequence[RunRecord]:
        """See RunStore."""
        return await self._read(f"{schema.SELECT} {schema.WHERE_UNSETTLED}", (ended_after_ms, limit))

    async def get(self, run_id: RunId, attempt: int) -> RunRecord | None:
        """See RunStore."""
        rows = await self._read(f"{schema.SELECT} WHERE run_id = ? AND attempt = ?", (run_id, attempt))
        return rows[0] if rows else None

    async def list_recent(self, limit: int = 50) -> Sequence[RunRecord]:
        """See RunStore."""
        return await self._read(f"{schema.SELECT} ORDER BY run_id DESC, attempt DESC LIMIT ?", (limit,))

    async def interrupt_open(self, message: str, ended_at_ms: int) -> Sequence[RunRecord]:
        """See RunStore."""
        left = await self._read(f"{schema.SELECT} WHERE state = 'running'", ())
        try:
            await self._database.write([(schema.INTERRUPT, (ended_at_ms, message))])
        except Unavailable as error:
            raise _journal_unavailable(error) from error
        ended = [await self.get(record.run_id, record.attempt) for record in left]
        return [record for record in ended if record is not None]

    async def sweep(self) -> int:
        """Deletes what the retention does not keep, batch by batch; returns how many rows.

        Raises:
            Unavailable: code `journal_unavailable`.
        """
        before = await self._count()
        oldest_ms = round(self._clock.wall_ms() - self._retention.days * DAY_MS)
        try:
            while True:
                kept = await self._count()
                await self._database.write([(schema.DELETE_OLD, (oldest_ms, SWEEP_BATCH))])
                excess = await self._count() - self._retention.runs
                if excess > 0:
                    await self._database.write([(schema.DELETE_EXCESS, (min(excess, SWEEP_BATCH),))])
                if await self._count() == kept:
                    return before - kept
        except Unavailable as error:
            raise _journal_unavailable(error) from error

    def start_sweeping(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Begins to sweep now and then."""
        self._tasks.spawn(self._sweep_on(sleep), name="run store sweep")

    def statistics(self) -> DatabaseStatistics:
        """Returns the database's counts and sizes."""
        return self._database.statistics()

    async def aclose(self) -> None:
        """See RunStore."""
        await self._tasks.cancel_all()
        await self._database.aclose()

    async def _sweep_on(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        while True:
            try:
                deleted = await self.sweep()
            except IopError as error:
                log.warning("run_store_sweep_failed", error_code=error.code, error=str(error))
            else:
                if deleted:
                    log.info("run_store_swept", rows=deleted)
            await sleep(SWEEP_INTERVAL_S)

    async def _read(self, sql: str, params: Sequence[object]) -> list[RunRecord]:
        try:
            return [schema.record_of(row) for row in await self._database.read(sql, params)]
        except Unavailable as error:
            raise _journal_unavailable(error) from error

    async def _count(self) -> int:
        try:
            rows = await self._database.read("SELECT count(*) FROM runs")
        except Unavailable as error:
            raise _journal_unavailable(error) from error
        return int(rows[0][0])

    @staticmethod
    def _task_failed(name: str, error: BaseException) -> None:
        log.error("task_failed", task=name, error_type=type(error).__name__, exc_info=error)


def _journal_unavailable(error: Unavailable) -> Unavailable:
    return Unavailable(f"the run journal cannot be used: {error}", code="journal_unavailable")
