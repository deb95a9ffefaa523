"""One SQLite file: opened with care, written by one task that commits in groups, read beside it.

Writes wait on a bounded list; when it is full, `write` refuses at once. A read sees every write that has
returned before it. The file has one owner: that no second process opens it is the caller's matter.
"""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from iop_shared.aio.sqlite_file import (
    CLOSE_TIMEOUT_S,
    Connection,
    error_of,
    is_damage,
    open_reader,
    open_writer,
    put_aside,
    size_of,
)
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import IopError, Unavailable
from iop_shared.logs import get_logger

Statement = tuple[str, Sequence[Any]]
Row = tuple[Any, ...]

MAX_PENDING_WRITES: Final = 10_000  # chosen: callers; full means the disk does not keep up, and waiting hides it
MAX_GROUP_WRITES: Final = 500  # chosen: bounds how long one transaction holds the file

_log = get_logger("sqlite")


@dataclass(frozen=True, slots=True)
class DatabaseStatistics:
    """Counts since opening, and sizes now. `refused_writes`: the list of waiting writes was full."""

    pending_writes: int
    writes: int
    transactions: int
    failed_writes: int
    refused_writes: int
    reads: int
    file_bytes: int
    wal_bytes: int
    last_error: str
    last_write_s: float  # how long the last transaction took


@dataclass(slots=True)
class _Write:
    statements: Sequence[Statement]
    done: asyncio.Future[None]


@dataclass(slots=True)
class _Counts:
    writes: int = 0
    transactions: int = 0
    failed_writes: int = 0
    refused_writes: int = 0
    reads: int = 0
    last_error: str = ""
    last_write_s: float = field(default=0.0)


class Database:
    """One open file. Made by `open`. `rebuilt_from`: where a damaged file was moved before this one was made."""

    def __init__(self, path: Path | None, name: str, writer: Connection, reader: Connection) -> None:
        self.name, self.path = name, path
        self.rebuilt_from: Path | None = None
        self._writer, self._reader = writer, reader
        self._pending: deque[_Write] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._closed: asyncio.Event | None = None
        self._counts = _Counts()
        self._tasks = TaskOwner(f"database {name}", self._on_failure)
        self._writing = self._tasks.spawn(self._write_groups(), name=f"database {name} writer")

    @classmethod
    async def open(cls, path: Path | Literal[":memory:"], migrations: Sequence[str], *, name: str) -> "Database":
        """Opens `path`, makes it if it is missing (0600), and brings its schema up to `migrations`.

        Migration n (counted from 1) is SQL that leads from `user_version` n-1 to n; all that are missing run
        in one transaction. A damaged file is moved to `<name>.corrupt-<time>` with its side files, logged as
        an error, and a new one is made.

        Raises:
            Unavailable: code `store_unavailable` (path and reason), or `store_too_new`.
        """
        where = None if path == ":memory:" else Path(path)
        rebuilt_from: Path | None = None
        try:
            writer = await open_writer(where, migrations)
        except sqlite3.DatabaseError as error:
            if where is None or not is_damage(error):
                raise error_of(where, name, error) from error
            rebuilt_from = put_aside(where, error)
            try:
                writer = await open_writer(where, migrations)
            except sqlite3.DatabaseError as again:
                raise error_of(where, name, again) from again
        try:
            reader = writer if where is None else await open_reader(where)
        except sqlite3.DatabaseError as error:
            await writer.close_and_join()
            raise error_of(where, name, error) from error
        database = cls(where, name, writer, reader)
        database.rebuilt_from = rebuilt_from
        return database

    async def write(self, statements: Sequence[Statement]) -> None:
        """Runs `statements` in one transaction and returns once it is committed (it survives a kill of the
        process). Callers that come at the same time share a transaction; one that fails takes back only its own.

        Cancelling the call does not take the write back.

        Raises:
            Unavailable: code `store_unavailable`; nothing of this call was kept.
            InternalError: SQL that is wrong, or a constraint that does not hold.
        """
        if self._closing:
            raise Unavailable(f"{self._where}: it is closed", code="store_unavailable")
        if len(self._pending) >= MAX_PENDING_WRITES:
            self._counts.refused_writes += 1
            raise Unavailable(
                f"{self._where}: {len(self._pending)} writes are waiting (limit {MAX_PENDING_WRITES}); "
                "the disk does not keep up, try again later",
                code="store_unavailable",
            )
        write = _Write(statements, asyncio.get_running_loop().create_future())
        self._pending.append(write)
        self._wake.set()
        await write.done

    async def read(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Returns all rows; bound them with LIMIT.

        Raises:
            Unavailable: code `store_unavailable`. InternalError: SQL that is wrong.
        """
        if self._closing:
            raise Unavailable(f"{self._where}: it is closed", code="store_unavailable")
        self._counts.reads += 1
        try:
            return await self._reader.run(lambda connection: connection.execute(sql, params).fetchall())
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise self._failed(error) from error

    async def aclose(self) -> None:
        """Writes what is waiting, then closes; both within `CLOSE_TIMEOUT_S` seconds. Safe to call twice.

        Cancelling it closes without writing what is waiting.
        """
        if self._closed is not None:
            await self._closed.wait()
            return
        self._closed, self._closing = asyncio.Event(), True
        self._wake.set()
        try:
            await asyncio.wait({self._writing}, timeout=CLOSE_TIMEOUT_S)
        finally:
            await self._tasks.cancel_all()
            self._fail_pending("it was closed before this was known to be written")
            connections = {id(c): c for c in (self._reader, self._writer)}  # the writer last: it checkpoints
            for connection in connections.values():
                if not await connection.close_and_join():
                    _log.error("database_close_timed_out", database=self.name, timeout_s=CLOSE_TIMEOUT_S)
            self._closed.set()

    def statistics(self) -> DatabaseStatistics:
        """Returns counts and sizes. Looks at the file system; call it for a scrape, not per run."""
        counts = self._counts
        return DatabaseStatistics(
            pending_writes=len(self._pending),
            writes=counts.writes,
            transactions=counts.transactions,
            failed_writes=counts.failed_writes,
            refused_writes=counts.refused_writes,
            reads=counts.reads,
            file_bytes=size_of(self.path, ""),
            wal_bytes=size_of(self.path, "-wal"),
            last_error=counts.last_error,
            last_write_s=counts.last_write_s,
        )

    @property
    def _where(self) -> str:
        return f"database {self.path or self.name}"

    async def _write_groups(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                group = [self._pending.popleft() for _ in range(min(len(self._pending), MAX_GROUP_WRITES))]
                await self._write_group(group)
            if self._closing:
                return

    async def _write_group(self, group: Sequence[_Write]) -> None:
        began = time.monotonic()
        try:
            work = [write.statements for write in group]
            outcomes = await self._writer.run(lambda connection: _run_group(connection, work))
        except sqlite3.Error as error:
            outcomes = [error] * len(group)
        except BaseException:
            self._pending.extendleft(reversed(group))  # `aclose` or `_on_failure` tells their callers
            raise
        self._counts.last_write_s = time.monotonic() - began
        self._counts.transactions += 1
        for write, outcome in zip(group, outcomes, strict=True):
            if outcome is None:
                self._counts.writes += 1
                if not write.done.done():  # its caller may have been cancelled
                    write.done.set_result(None)
            else:
                self._counts.failed_writes += 1
                failure = self._failed(outcome)
                if not write.done.done():
                    failure.__cause__ = outcome
                    write.done.set_exception(failure)

    def _failed(self, error: Exception) -> IopError:
        failure = error_of(self.path, self.name, error)
        self._counts.last_error = str(failure)
        return failure

    def _fail_pending(self, reason: str) -> None:
        while self._pending:
            write = self._pending.popleft()
            if not write.done.done():
                write.done.set_exception(Unavailable(f"{self._where}: {reason}", code="store_unavailable"))

    def _on_failure(self, task: str, error: BaseException) -> None:
        """The writer met a bug of ours: nothing can be written any more, and everybody is told."""
        _log.error("database_writer_failed", database=self.name, task=task, exc_info=error)
        self._closing = True
        self._fail_pending("its writer failed; restart the daemon")


def _run_group(connection: sqlite3.Connection, group: Sequence[Sequence[Statement]]) -> list[Exception | None]:
    """Runs a group in one transaction; returns per member None or why it was taken back. On the thread."""
    outcomes: list[Exception | None] = []
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in group:
            connection.execute("SAVEPOINT one")
            try:
                for sql, params in statements:
                    connection.execute(sql, params)
                connection.execute("RELEASE one")
                outcomes.append(None)
            except Exception as error:  # also numbers over 64 bits and text that is no Unicode
                if not connection.in_transaction:
                    raise  # a full disk may end the whole transaction: then nobody's write was kept
                connection.execute("ROLLBACK TO one")
                connection.execute("RELEASE one")
                outcomes.append(error)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return outcomes
