"""One SQLite file: opened with care, written by one task that commits in groups, read beside it.

Writes wait on a bounded list; when it is full, `write` refuses at once. A read sees every write that has
returned before it. The file has one owner: that no second process opens it is the caller's matter.
"""

import asyncio
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import aiosqlite

from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import InternalError, IopError, Unavailable
from iop_shared.logs import get_logger

T = TypeVar("T")
Statement = tuple[str, Sequence[Any]]
Row = tuple[Any, ...]

BUSY_TIMEOUT_MS: Final = 5000  # chosen: a command beside the daemon (`token add`) holds the file for milliseconds
MAX_WAL_BYTES: Final = 64 * 1024 * 1024  # chosen: what a checkpoint leaves on the disk
MAX_PENDING_WRITES: Final = 10_000  # chosen: callers; full means the disk does not keep up, and waiting hides it
MAX_GROUP_WRITES: Final = 500  # chosen: bounds how long one transaction holds the file
CHECKED_BYTES: Final = 64 * 1024 * 1024  # chosen: read whole in about 0.1 s when opened; larger files are trusted
CLOSE_TIMEOUT_S: Final = 5.0

_log = get_logger("sqlite")

# Primary result codes (sqlite.org/rescode.html) that are the world's fault, with the reason we tell.
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REASONS: Final = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space, writing then goes on by itself",
    sqlite3.SQLITE_READONLY: "it cannot be written; check its owner and mode",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that its folder exists and may be written",
    sqlite3.SQLITE_IOERR: "reading or writing the disk failed",
    sqlite3.SQLITE_PERM: "this user may not use it",
    sqlite3.SQLITE_AUTH: "this user may not use it",
    sqlite3.SQLITE_BUSY: f"another process has held it for more than {BUSY_TIMEOUT_MS // 1000} s",
    sqlite3.SQLITE_LOCKED: f"another process has held it for more than {BUSY_TIMEOUT_MS // 1000} s",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
    sqlite3.SQLITE_CORRUPT: "it is damaged; stop the daemon, move the file away and start again",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database; stop the daemon, move the file away and start again",
}


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


class _Connection(aiosqlite.Connection):
    """A connection that can run a whole function on its thread: one hop for a group of writes."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        # A disk that hangs must not keep the process from ending.
        self._thread.daemon = True

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Returns what `work` returns; it must not keep the connection."""
        result: T = await self._execute(work, self._conn)  # type: ignore[no-untyped-call]
        return result

    async def close_and_join(self) -> bool:
        """Closes and waits for the thread to be over; False when it did not end in time."""
        try:
            await asyncio.wait_for(self.close(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            return False
        return await self.join()

    async def join(self) -> bool:
        """Waits until the thread, which has been told to end, is over; False after a second."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, 1.0)
        return not self._thread.is_alive()


class Database:
    """One open file. Made by `open`. `rebuilt_from`: where a damaged file was moved before this one was made."""

    def __init__(self, path: Path | None, name: str, writer: _Connection, reader: _Connection) -> None:
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
            writer = await _open_connection(where, migrations)
        except sqlite3.DatabaseError as error:
            if where is None or _code_of(error) not in _DAMAGED:
                raise _error_of(where, name, error) from error
            rebuilt_from = _quarantine(where, error)
            try:
                writer = await _open_connection(where, migrations)
            except sqlite3.DatabaseError as again:
                raise _error_of(where, name, again) from again
        try:
            reader = writer if where is None else await _connect(where, _prepare_reader)
        except sqlite3.DatabaseError as error:
            await writer.close_and_join()
            raise _error_of(where, name, error) from error
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
            file_bytes=_size_of(self.path, ""),
            wal_bytes=_size_of(self.path, "-wal"),
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
        failure = _error_of(self.path, self.name, error)
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


async def _connect(where: Path | None, prepare: Callable[[sqlite3.Connection], None]) -> _Connection:
    def connector() -> sqlite3.Connection:
        target = ":memory:" if where is None else str(where)
        # A cache of 512 statements: every statement of a store stays prepared.
        connection = sqlite3.connect(target, isolation_level=None, cached_statements=512, check_same_thread=False)
        try:
            # First of all: setting WAL under contention fails at once without it.
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    opened = _Connection(connector)
    try:
        await opened
    except BaseException:
        await opened.join()
        raise
    return opened


async def _open_connection(where: Path | None, migrations: Sequence[str]) -> _Connection:
    def prepare(connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if where is not None and mode != "wal":
            _log.warning("database_without_wal", path=str(where), mode=mode, effect="reads wait for writes")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
        connection.execute("PRAGMA foreign_keys = ON")
        if 0 < _size_of(where, "") <= CHECKED_BYTES:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                damage = sqlite3.DatabaseError(f"the check found: {verdict}")
                damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise damage
        _migrate(connection, migrations, where)

    if where is not None:
        _make_file(where)
    return await _connect(where, prepare)


def _prepare_reader(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only = ON")


def _migrate(connection: sqlite3.Connection, migrations: Sequence[str], where: Path | None) -> None:
    connection.execute("BEGIN IMMEDIATE")  # a second process waits here and then finds the work done
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(migrations):
            raise Unavailable(
                f"database {where}: its schema is version {version}, this IOP knows versions up to "
                f"{len(migrations)}; start a newer IOP, or move the file away",
                code="store_too_new",
            )
        for number, script in enumerate(migrations[version:], version + 1):
            for statement in split_statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def split_statements(script: str) -> list[str]:
    """Returns the statements of `script`: sqlite3's own `executescript` would commit between them.

    A statement ends with a semicolon at the end of a line (semicolons in texts and triggers are understood).
    """
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current.strip())
            current = ""
    if current.strip():
        statements.append(current.strip())
    return statements


def _make_file(where: Path) -> None:
    """Makes the file for its owner alone; SQLite gives its side files the same mode."""
    try:
        os.close(os.open(where, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise Unavailable(
            f"database {where}: cannot be opened: {error.strerror}; check that its folder exists "
            "and may be written",
            code="store_unavailable",
        ) from error


def _quarantine(where: Path, error: sqlite3.DatabaseError) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = where.with_name(f"{where.name}.corrupt-{stamp}")
    attempt = 1
    while target.exists():
        attempt += 1
        target = where.with_name(f"{where.name}.corrupt-{stamp}-{attempt}")
    try:
        for suffix in ("-wal", "-shm", ""):  # the file itself last: until then the next start does this again
            source = where.with_name(where.name + suffix)
            if source.exists():
                source.rename(target.with_name(target.name + suffix))
    except OSError as failure:
        raise Unavailable(
            f"database {where}: it is damaged ({error}) and cannot be moved away: {failure.strerror}",
            code="store_unavailable",
        ) from failure
    _log.error("database_rebuilt", path=str(where), moved_to=str(target), reason=str(error))
    return target


def _size_of(where: Path | None, suffix: str) -> int:
    if where is None:
        return 0
    try:
        return where.with_name(where.name + suffix).stat().st_size
    except OSError:
        return 0


def _code_of(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF  # the primary code; the rest is detail


def _error_of(where: Path | None, name: str, error: Exception) -> IopError:
    reason = _REASONS.get(_code_of(error))
    if reason is None:
        return InternalError(f"database {where or name}: {error}")
    return Unavailable(f"database {where or name}: {reason}", code="store_unavailable")
