"""A SQLite file on its way into use: connecting, checking, bringing its schema up, putting a damaged one aside.

What can be wrong with a file in this world is told as `Unavailable` with path and reason; what is left is our bug.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import aiosqlite

from iop_shared.errors import InternalError, IopError, Unavailable
from iop_shared.logs import get_logger

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 5000  # chosen: a command beside the daemon (`token add`) holds the file for milliseconds
MAX_WAL_BYTES: Final = 64 * 1024 * 1024  # chosen: what a checkpoint leaves on the disk
CHECKED_BYTES: Final = 64 * 1024 * 1024  # chosen: read whole in about 0.1 s when opened; larger files are trusted
CLOSE_TIMEOUT_S: Final = 5.0
_WAL_RETRY_S: Final = 0.01

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


class Connection(aiosqlite.Connection):
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


async def _connect(where: Path | None, prepare: Callable[[sqlite3.Connection], None]) -> Connection:
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

    opened = Connection(connector)
    try:
        await opened
    except BaseException:
        await opened.join()
        raise
    return opened


async def open_writer(where: Path | None, migrations: Sequence[str]) -> Connection:
    """Returns a connection for writing; the file is made (0600), checked, and its schema is that of `migrations`.

    Raises:
        sqlite3.DatabaseError: ask `is_damage`, or turn it into ours with `error_of`.
        Unavailable: the file cannot be made, or its schema is newer.
    """

    def prepare(connection: sqlite3.Connection) -> None:
        mode = _turn_to_wal(connection)
        if where is not None and mode != "wal":
            _log.warning("database_without_wal", path=str(where), mode=mode, effect="reads wait for writes")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
        connection.execute("PRAGMA foreign_keys = ON")
        # The savepoint of each write (see `aio/sqlite`) has a journal; it would be a file, made and removed again.
        connection.execute("PRAGMA temp_store = MEMORY")
        if 0 < size_of(where, "") <= CHECKED_BYTES:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                damage = sqlite3.DatabaseError(f"the check found: {verdict}")
                damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise damage
        _migrate(connection, migrations, where)

    if where is not None:
        _make_file(where)
    return await _connect(where, prepare)


def _turn_to_wal(connection: sqlite3.Connection) -> str:
    """Returns the journal mode that holds now. On the connection's thread: it may sleep.

    Two that turn a new file to WAL at once would wait for each other for ever, so SQLite refuses one of them
    without looking at the busy timeout. That one tries again, within the same time.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError as error:
            if _code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(_WAL_RETRY_S)


async def open_reader(where: Path) -> Connection:
    """Returns a connection that cannot write.

    Raises:
        sqlite3.DatabaseError: as `open_writer`.
    """
    return await _connect(where, _prepare_reader)


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


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is broken, or no database at all: the only cases in which it may be moved."""
    return _code_of(error) in _DAMAGED


def put_aside(where: Path, error: sqlite3.DatabaseError) -> Path:
    """Moves a damaged file and its side files to `<name>.corrupt-<time>`, logs that, and returns the new path.

    Raises:
        Unavailable: it cannot be moved.
    """
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


def size_of(where: Path | None, suffix: str) -> int:
    """Returns the bytes of the file, or of a side file (`suffix` "-wal"); 0 where there is none."""
    if where is None:
        return 0
    try:
        return where.with_name(where.name + suffix).stat().st_size
    except OSError:
        return 0


def _code_of(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF  # the primary code; the rest is detail


def error_of(where: Path | None, name: str, error: Exception) -> IopError:
    """Returns `error` as one of ours: Unavailable with the reason, or InternalError for SQL or values of ours."""
    reason = _REASONS.get(_code_of(error))
    if reason is None:
        return InternalError(f"database {where or name}: {error}")
    return Unavailable(f"database {where or name}: {reason}", code="store_unavailable")
