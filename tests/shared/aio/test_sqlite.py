import asyncio
import logging
import os
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from iop_shared.aio import sqlite, sqlite_file
from iop_shared.aio.sqlite import Database
from iop_shared.aio.sqlite_file import split_statements
from iop_shared.errors import InternalError, Unavailable

pytestmark = pytest.mark.both_loops

SCHEMA = ["CREATE TABLE runs (id TEXT PRIMARY KEY, n INTEGER NOT NULL);"]
INSERT = "INSERT INTO runs VALUES (?, ?)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "edge.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    database = await Database.open(path, SCHEMA, name="history")
    yield database
    await database.aclose()


def _threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if "_connection_worker_thread" in t.name}


async def _count(database: Database) -> int:
    ((count,),) = await database.read("SELECT count(*) FROM runs")
    return int(count)


# --- writing and reading -------------------------------------------------------------------------------------


async def test_a_read_sees_every_write_that_returned(database: Database) -> None:
    for n in range(20):
        await database.write([(INSERT, (f"r{n}", n))])
        assert await _count(database) == n + 1


async def test_writes_at_the_same_time_share_a_transaction(database: Database) -> None:
    await asyncio.gather(*(database.write([(INSERT, (f"r{n}", n))]) for n in range(300)))

    counted = database.statistics()
    assert (counted.writes, counted.failed_writes, counted.pending_writes) == (300, 0, 0)
    assert counted.transactions <= 2
    assert await _count(database) == 300


async def test_the_statements_of_one_write_hold_together(database: Database) -> None:
    with pytest.raises(InternalError):
        await database.write([(INSERT, ("a", 1)), (INSERT, ("b", None))])

    assert await _count(database) == 0


async def test_a_write_that_fails_takes_back_only_its_own(path: Path, database: Database) -> None:
    results = await asyncio.gather(
        database.write([(INSERT, ("a", 1))]),
        database.write([(INSERT, ("b", 2)), (INSERT, ("a", 3))]),
        database.write([(INSERT, ("c", 2**70))]),
        database.write([(INSERT, ("\ud800", 4))]),
        database.write([("INSERT INTO nowhere VALUES (1)", ())]),
        database.write([(INSERT, ("e", 5))]),
        return_exceptions=True,
    )

    assert [str(r) if r else None for r in results] == [
        None,
        f"database {path}: UNIQUE constraint failed: runs.id",
        f"database {path}: Python int too large to convert to SQLite INTEGER",
        f"database {path}: 'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
        f"database {path}: no such table: nowhere",
        None,
    ]
    assert all(isinstance(r, InternalError) for r in results if r)
    assert await database.read("SELECT id FROM runs ORDER BY id") == [("a",), ("e",)]
    assert database.statistics().failed_writes == 4


async def test_a_caller_that_leaves_harms_nobody(database: Database) -> None:
    leaving = asyncio.ensure_future(database.write([(INSERT, ("a", 1))]))  # noqa: TID251 -- the test's own
    staying = asyncio.ensure_future(database.write([(INSERT, ("b", 2))]))  # noqa: TID251 -- the test's own
    await asyncio.sleep(0)
    leaving.cancel()

    await staying

    assert leaving.cancelled() or leaving.cancelling()
    assert await _count(database) == 2


async def test_a_read_that_cannot_be_is_our_bug(path: Path, database: Database) -> None:
    with pytest.raises(InternalError) as caught:
        await database.read("SELECT * FROM nowhere")

    assert str(caught.value) == f"database {path}: no such table: nowhere"


async def test_a_read_cannot_write(path: Path, database: Database) -> None:
    with pytest.raises(Unavailable, match="it cannot be written"):
        await database.read(INSERT, ("a", 1))


async def test_memory_behaves_alike() -> None:
    database = await Database.open(":memory:", SCHEMA, name="scratch")
    try:
        await database.write([(INSERT, ("a", 1))])
        assert await _count(database) == 1
        with pytest.raises(InternalError) as caught:
            await database.write([(INSERT, ("a", 1))])
        assert str(caught.value) == "database scratch: UNIQUE constraint failed: runs.id"
        assert database.statistics().file_bytes == 0
    finally:
        await database.aclose()


# --- the file ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")
async def test_the_files_are_for_their_owner_alone(path: Path, database: Database) -> None:
    await database.write([(INSERT, ("a", 1))])

    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
    assert modes == {"edge.db": 0o600, "edge.db-wal": 0o600, "edge.db-shm": 0o600}


async def test_the_pragmas_hold(path: Path, database: Database) -> None:
    await database.write([(INSERT, ("a", 1))])

    assert await database.read("PRAGMA journal_mode") == [("wal",)]
    assert await database.read("PRAGMA busy_timeout") == [(5000,)]
    assert database.statistics().wal_bytes > 0
    assert database.statistics().file_bytes > 0


async def test_what_was_written_survives_closing(path: Path) -> None:
    first = await Database.open(path, SCHEMA, name="history")
    await first.write([(INSERT, ("a", 1))])
    await first.aclose()

    assert [p.name for p in path.parent.iterdir()] == ["edge.db"], "the last to close folds the WAL in"
    second = await Database.open(path, SCHEMA, name="history")
    try:
        assert await _count(second) == 1
    finally:
        await second.aclose()


async def test_closing_writes_what_waits_ends_the_threads_and_may_come_twice(path: Path) -> None:
    before = _threads()
    database = await Database.open(path, SCHEMA, name="history")
    assert len(_threads() - before) == 2
    writes = [
        asyncio.ensure_future(database.write([(INSERT, (f"r{n}", n))]))  # noqa: TID251 -- the test's own
        for n in range(50)
    ]
    await asyncio.sleep(0)

    await asyncio.gather(database.aclose(), database.aclose())

    assert [w.exception() for w in writes] == [None] * 50
    assert _threads() == before
    for use in (database.write([(INSERT, ("x", 1))]), database.read("SELECT 1")):
        with pytest.raises(Unavailable) as caught:
            await use
        assert str(caught.value) == f"database {path}: it is closed"


async def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    before = _threads()

    with pytest.raises(Unavailable) as caught:
        await Database.open(tmp_path / "no" / "edge.db", SCHEMA, name="history")

    assert caught.value.code == "store_unavailable"
    assert str(caught.value) == (
        f"database {tmp_path}/no/edge.db: cannot be opened: No such file or directory; "
        "check that its folder exists and may be written"
    )
    assert _threads() == before


async def test_a_folder_in_its_place_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        await Database.open(tmp_path, SCHEMA, name="history")

    assert str(caught.value) == (
        f"database {tmp_path}: cannot be opened: Is a directory; check that its folder exists and may be written"
    )


async def test_a_full_disk_is_said_and_writing_goes_on_by_itself(path: Path, database: Database) -> None:
    big = "x" * 200_000
    await database.write([(INSERT, ("a", 1)), ("PRAGMA max_page_count = 10", ())])  # SQLite then says FULL

    results = await asyncio.gather(
        database.write([(INSERT, (big + "1", 1))]),
        database.write([(INSERT, (big + "2", 2))]),
        return_exceptions=True,
    )
    for result in results:
        assert isinstance(result, Unavailable)
        assert result.code == "store_unavailable"
        assert str(result) == f"database {path}: the disk is full; free some space, writing then goes on by itself"
    assert database.statistics().last_error.endswith("writing then goes on by itself")
    assert await _count(database) == 1

    await database.write([("PRAGMA max_page_count = 1000000", ())])
    await database.write([(INSERT, (big, 3))])
    assert await _count(database) == 2


async def test_a_file_that_cannot_be_written_is_said(path: Path, database: Database) -> None:
    await database.write([("PRAGMA query_only = ON", ())])

    with pytest.raises(Unavailable) as caught:
        await database.write([(INSERT, ("a", 1))])

    assert str(caught.value) == f"database {path}: it cannot be written; check its owner and mode"


async def test_another_process_that_holds_the_file_is_waited_for_and_then_said(
    path: Path, database: Database
) -> None:
    await database.write([("PRAGMA busy_timeout = 50", ())])
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(Unavailable) as caught:
            await database.write([(INSERT, ("a", 1))])

        assert str(caught.value) == f"database {path}: another process has held it for more than 5 s"
        other.execute("ROLLBACK")
        await database.write([(INSERT, ("a", 1))])
        assert await _count(database) == 1
    finally:
        other.close()


async def test_a_full_list_of_waiting_writes_refuses_at_once(
    path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "MAX_PENDING_WRITES", 3)

    results = await asyncio.gather(
        *(database.write([(INSERT, (f"r{n}", n))]) for n in range(5)), return_exceptions=True
    )

    assert results[:3] == [None, None, None]
    assert [str(r) for r in results[3:]] == [
        f"database {path}: 3 writes are waiting (limit 3); the disk does not keep up, try again later"
    ] * 2
    assert database.statistics().refused_writes == 2
    assert await _count(database) == 3


# --- the schema ----------------------------------------------------------------------------------------------


async def test_missing_migrations_run_in_order_and_only_once(path: Path) -> None:
    first = await Database.open(path, SCHEMA, name="history")
    await first.write([(INSERT, ("a", 1))])
    await first.aclose()
    more = [*SCHEMA, "ALTER TABLE runs ADD COLUMN note TEXT;\nUPDATE runs SET note = 'a;b';", "DELETE FROM runs;"]

    second = await Database.open(path, more[:2], name="history")
    assert await second.read("SELECT * FROM runs") == [("a", 1, "a;b")]
    await second.aclose()
    third = await Database.open(path, more[:2], name="history")

    try:
        assert await third.read("SELECT * FROM runs") == [("a", 1, "a;b")]
        assert await third.read("PRAGMA user_version") == [(2,)]
    finally:
        await third.aclose()


async def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    await (await Database.open(path, SCHEMA, name="history")).aclose()
    before = _threads()

    with pytest.raises(InternalError) as caught:
        await Database.open(path, [*SCHEMA, "CREATE TABLE more (x);\nSELECT nonsense;"], name="history")

    assert str(caught.value) == f"database {path}: no such column: nonsense"
    assert _threads() == before
    database = await Database.open(path, SCHEMA, name="history")
    try:
        assert await database.read("SELECT name FROM sqlite_master WHERE type = 'table'") == [("runs",)]
    finally:
        await database.aclose()


async def test_a_newer_schema_is_refused_with_both_numbers(path: Path) -> None:
    await (await Database.open(path, [*SCHEMA, "SELECT 1;", "SELECT 1;"], name="history")).aclose()

    with pytest.raises(Unavailable) as caught:
        await Database.open(path, SCHEMA, name="history")

    assert caught.value.code == "store_too_new"
    assert str(caught.value) == (
        f"database {path}: its schema is version 3, this IOP knows versions up to 1; "
        "start a newer IOP, or move the file away"
    )


async def test_those_that_open_a_new_file_at_once_agree(tmp_path: Path) -> None:
    """SQLite refuses one of two that turn a file to WAL at once, whatever its timeout. Seldom, so: many times."""
    for attempt in range(15):
        path = tmp_path / f"{attempt}.db"
        opened = await asyncio.gather(
            *(Database.open(path, SCHEMA, name=f"number {n}") for n in range(4)), return_exceptions=True
        )
        databases = [database for database in opened if isinstance(database, Database)]
        try:
            assert [failure for failure in opened if isinstance(failure, BaseException)] == []
            await asyncio.gather(*(d.write([(INSERT, (str(n), n))]) for n, d in enumerate(databases)))
            assert await _count(databases[0]) == 4
        finally:
            for database in databases:
                await database.aclose()


def test_statements_are_told_apart_in_texts_and_triggers() -> None:
    trigger = "CREATE TRIGGER t AFTER INSERT ON runs BEGIN\n  DELETE FROM runs;\nEND;"

    assert split_statements(f"SELECT 'a;\nb';\n-- why; so\n{trigger}\nSELECT 1") == [
        "SELECT 'a;\nb';",
        f"-- why; so\n{trigger}",
        "SELECT 1",
    ]


# --- damage --------------------------------------------------------------------------------------------------


async def _make_large(path: Path) -> None:
    database = await Database.open(path, SCHEMA, name="history")
    await asyncio.gather(*(database.write([(INSERT, ("x" * 500 + str(n), n))]) for n in range(100)))
    await database.aclose()


@pytest.mark.parametrize("damage", ["all", "header", "middle"])
async def test_a_damaged_file_is_kept_aside_and_a_new_one_made(path: Path, damage: str) -> None:
    await _make_large(path)
    content = bytearray(path.read_bytes())
    places = {"all": slice(0, len(content)), "header": slice(0, 16), "middle": slice(4096, 3 * 4096)}
    content[places[damage]] = b"\x5a" * len(content[places[damage]])
    path.write_bytes(content)

    with capture_logs() as logs:
        database = await Database.open(path, SCHEMA, name="history")

    try:
        kept = database.rebuilt_from
        assert kept is not None
        assert kept.name.startswith("edge.db.corrupt-")
        assert kept.read_bytes() == content
        assert [(entry["event"], entry["log_level"], entry["path"], entry["moved_to"]) for entry in logs] == [
            ("database_rebuilt", "error", str(path), str(kept))
        ]
        await database.write([(INSERT, ("a", 1))])
        assert await _count(database) == 1
    finally:
        await database.aclose()


async def test_damage_found_twice_keeps_both(path: Path) -> None:
    kept = set()
    for n in range(2):
        path.write_bytes(b"no database at all, number %d" % n * 50)
        database = await Database.open(path, SCHEMA, name="history")
        kept.add(database.rebuilt_from)
        await database.aclose()

    assert len(kept) == 2
    assert None not in kept


async def test_a_file_in_good_health_is_not_moved(path: Path) -> None:
    await _make_large(path)

    database = await Database.open(path, SCHEMA, name="history")

    try:
        assert database.rebuilt_from is None
        assert await _count(database) == 100
    finally:
        await database.aclose()


async def test_damage_met_later_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await _make_large(path)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    path.write_bytes(content)
    monkeypatch.setattr(sqlite_file, "CHECKED_BYTES", 0)  # as for a file too large to be read whole at the start
    database = await Database.open(path, SCHEMA, name="history")

    try:
        with pytest.raises(Unavailable) as caught:
            await database.read("SELECT * FROM runs")
        assert str(caught.value) == (
            f"database {path}: it is damaged; stop the daemon, move the file away and start again"
        )
    finally:
        logging.getLogger("aiosqlite").setLevel(logging.ERROR)
        await database.aclose()
