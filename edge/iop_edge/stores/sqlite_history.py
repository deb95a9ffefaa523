"""RunHistory in SQLite. Bounded reads, cursor pagination, deletion in batches."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

from iop_edge.domain.live_run import INTERRUPT_SENTENCES
from iop_edge.domain.ports import RunFilter
from iop_edge.domain.views import RunEventView, RunPage, RunView
from iop_edge.stores.rows import RUN_COLUMNS, Row, event_from_row, event_to_row, run_from_row, run_to_row
from iop_shared.aio.sqlite import Database, Statement
from iop_shared.errors import BadRequest
from iop_shared.ids import RunId, is_run_id
from iop_shared.runs import RunState

_SELECT: Final = f"SELECT {', '.join(RUN_COLUMNS)} FROM runs"
_SAVE: Final = f"INSERT OR REPLACE INTO runs ({', '.join(RUN_COLUMNS)}) VALUES "
_SAVE_EVENT: Final = "INSERT OR IGNORE INTO run_events VALUES "
ROWS_PER_STATEMENT: Final = 16
"""Chosen: the database's thread and the loop hand the interpreter's lock to and fro at every statement, which
costs more than the insert. Small enough that a statement of each size stays prepared."""


class SqliteRunHistory:
    """Records of runs in edge.db. The database stays the caller's: `aclose` here does nothing to it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, runs: Sequence[RunView], events: Sequence[tuple[RunId, RunEventView]]) -> None:
        """Writes records and lifecycle events in one transaction; see `RunHistory.save`."""
        run_rows = [run_to_row(view) for view in runs]
        event_rows = [event_to_row(run_id, event) for run_id, event in events]
        await self._database.write([*_insert(_SAVE, run_rows), *_insert(_SAVE_EVENT, event_rows)])

    async def get(self, run_id: RunId) -> RunView | None:
        """Returns a run, or None."""
        rows = await self._database.read(f"{_SELECT} WHERE run_id = ?", (run_id,))
        return run_from_row(rows[0]) if rows else None

    async def events(self, run_id: RunId, after_seq: int = 0, limit: int = 1000) -> Sequence[RunEventView]:
        """Returns lifecycle events in order."""
        rows = await self._database.read(
            "SELECT attempt, seq, at_ms, type, body FROM run_events WHERE run_id = ? AND seq > ? "
            "ORDER BY attempt, seq LIMIT ?",
            (run_id, after_seq, limit),
        )
        return [event_from_row(*row) for row in rows]

    async def page(self, limit: int, cursor: str | None, wanted: RunFilter) -> RunPage:
        """Returns runs, newest first. The cursor is the id of the last run shown."""
        check_cursor(cursor)
        conditions: list[str] = []
        params: list[Any] = []
        # Each has an index that ends in run_id, so a page costs what it shows.
        for column, value in (
            ("state", None if wanted.state is None else wanted.state.value),
            ("node_id", wanted.node_id),
            ("adapter", wanted.adapter),
        ):
            if value is not None:
                conditions.append(f"{column} = ?")
                params.append(value)
        if cursor is not None:
            conditions.append("run_id < ?")
            params.append(cursor)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        rows = await self._database.read(f"{_SELECT}{where} ORDER BY run_id DESC LIMIT ?", (*params, limit + 1))
        views = tuple(run_from_row(row) for row in rows[:limit])
        return RunPage(views, views[-1].run_id if len(rows) > limit else None)

    async def interrupt_live(self, code: str, at_ms: int) -> int:
        """Marks every run without an end as interrupted; returns how many."""
        rows = await self._database.read("SELECT count(*) FROM runs WHERE ended_at_ms IS NULL")
        message = INTERRUPT_SENTENCES[code]
        await self._database.write(
            [
                (
                    "UPDATE runs SET state = ?, code = ?, layer = 'edge', message = ?, ended_at_ms = ? "
                    "WHERE ended_at_ms IS NULL",
                    (RunState.INTERRUPTED.value, code, message, at_ms),
                )
            ]
        )
        return int(rows[0][0])

    async def prune(self, *, before_ms: int, keep_runs: int, batch: int) -> int:
        """Deletes at most `batch` ended runs, oldest first; returns how many."""
        rows = await self._database.read(
            "SELECT run_id FROM runs WHERE ended_at_ms IS NOT NULL AND (created_at_ms < ? OR run_id <= "
            "(SELECT run_id FROM runs ORDER BY run_id DESC LIMIT 1 OFFSET ?)) ORDER BY run_id LIMIT ?",
            (before_ms, keep_runs, batch),
        )
        if rows:
            gone = json.dumps([row[0] for row in rows])
            await self._database.write(
                [
                    ("DELETE FROM run_events WHERE run_id IN (SELECT value FROM json_each(?))", (gone,)),
                    ("DELETE FROM runs WHERE run_id IN (SELECT value FROM json_each(?))", (gone,)),
                ]
            )
        return len(rows)

    async def aclose(self) -> None:
        """Nothing to do: the database belongs to `app.py`."""


def _insert(head: str, rows: Sequence[Row]) -> Iterator[Statement]:
    """Yields statements that insert `rows`, all of one width, several rows each."""
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        block = rows[start : start + ROWS_PER_STATEMENT]
        places = f"({', '.join('?' * len(block[0]))})"
        yield head + ", ".join([places] * len(block)), tuple(chain.from_iterable(block))


def check_cursor(cursor: str | None) -> None:
    """Returns if `cursor` is None or one that a page gave out.

    Raises:
        BadRequest: with the value (cut).
    """
    if cursor is not None and not is_run_id(cursor):
        raise BadRequest(
            f"cursor {cursor[:40]!r} is not one of ours: pass the next_cursor of a page as it came",
            param="cursor",
            code="bad_cursor",
        )
