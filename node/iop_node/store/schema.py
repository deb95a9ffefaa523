"""The journal's tables as numbered migrations, and how a record becomes a row and back. Pure.

A migration that has been released never changes: add a new one.
"""

from operator import itemgetter
from typing import Any, Final

from iop_node.core.ports import RunRecord
from iop_shared.ids import AdapterName, RunId, SessionId, TargetName
from iop_shared.runs import Operation, RunState
from iop_shared.runtime_events import Usage

MIGRATIONS: Final = (
    """
    CREATE TABLE runs (
        run_id TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        adapter TEXT NOT NULL,
        target TEXT NOT NULL,
        operation TEXT NOT NULL,
        accepted_at_ms INTEGER NOT NULL,
        state TEXT NOT NULL,
        session TEXT,
        source TEXT NOT NULL,
        profile TEXT NOT NULL,
        ended_at_ms INTEGER,
        code TEXT NOT NULL,
        layer TEXT NOT NULL,
        message TEXT NOT NULL,
        finish_reason TEXT NOT NULL,
        prompt_tokens INTEGER,
        completion_tokens INTEGER,
        cached_tokens INTEGER,
        reasoning_tokens INTEGER,
        queued_s REAL NOT NULL,
        first_token_s REAL,
        total_s REAL NOT NULL,
        input_bytes INTEGER NOT NULL,
        output_bytes INTEGER NOT NULL,
        events INTEGER NOT NULL,
        settled INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (run_id, attempt)
    ) WITHOUT ROWID;
    CREATE INDEX runs_open ON runs (run_id) WHERE state = 'running';
    CREATE INDEX runs_unsettled ON runs (run_id) WHERE settled = 0;
    """,
)

COLUMNS: Final = (
    "run_id",
    "attempt",
    "adapter",
    "target",
    "operation",
    "accepted_at_ms",
    "state",
    "session",
    "source",
    "profile",
    "ended_at_ms",
    "code",
    "layer",
    "message",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "queued_s",
    "first_token_s",
    "total_s",
    "input_bytes",
    "output_bytes",
    "events",
)
_FINISHED: Final = (
    "state",
    *COLUMNS[COLUMNS.index("ended_at_ms") : COLUMNS.index("input_bytes")],
    "output_bytes",
    "events",
)
_finished_of: Final = itemgetter(*(COLUMNS.index(column) for column in _FINISHED))

SELECT: Final = f"SELECT {', '.join(COLUMNS)} FROM runs"
INSERT: Final = f"INSERT INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
# Only an open row: a second completion changes nothing.
FINISH: Final = (
    f"UPDATE runs SET {', '.join(f'{column} = ?' for column in _FINISHED)} "
    "WHERE run_id = ? AND attempt = ? AND state = 'running'"
)
SETTLE: Final = "UPDATE runs SET settled = 1 WHERE run_id = ? AND attempt = ?"
WHERE_UNSETTLED: Final = (
    "WHERE settled = 0 AND state <> 'running' AND ended_at_ms >= ? ORDER BY run_id DESC, attempt DESC LIMIT ?"
)
INTERRUPT: Final = (
    "UPDATE runs SET settled = 1, state = 'interrupted', ended_at_ms = ?, "
    "code = 'node_restarted', layer = 'node', message = ? "
    "WHERE state = 'running'"
)
# By batches, so that no write holds the file for long. UUIDv7 sorts by time of birth.
DELETE_OLD: Final = (
    "DELETE FROM runs WHERE (run_id, attempt) IN "
    "(SELECT run_id, attempt FROM runs WHERE state <> 'running' AND accepted_at_ms < ? LIMIT ?)"
)
DELETE_EXCESS: Final = (
    "DELETE FROM runs WHERE (run_id, attempt) IN "
    "(SELECT run_id, attempt FROM runs WHERE state <> 'running' ORDER BY run_id, attempt LIMIT ?)"
)


def row_of(record: RunRecord) -> tuple[Any, ...]:
    """Returns the values of `COLUMNS`."""
    usage = record.usage or Usage()
    return (
        record.run_id,
        record.attempt,
        record.adapter,
        record.target,
        record.operation.value,
        record.accepted_at_ms,
        record.state.value,
        record.session,
        record.source,
        record.profile,
        record.ended_at_ms,
        record.code,
        record.layer,
        record.message,
        record.finish_reason,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
        record.queued_s,
        record.first_token_s,
        record.total_s,
        record.input_bytes,
        record.output_bytes,
        record.events,
    )


def finish_values(record: RunRecord) -> tuple[Any, ...]:
    """Returns the parameters of `FINISH`."""
    return (*_finished_of(row_of(record)), record.run_id, record.attempt)


def record_of(row: tuple[Any, ...]) -> RunRecord:
    """Returns the record of a row of `SELECT`."""
    v = dict(zip(COLUMNS, row, strict=True))
    counts = (v["prompt_tokens"], v["completion_tokens"], v["cached_tokens"], v["reasoning_tokens"])
    return RunRecord(
        run_id=RunId(v["run_id"]),
        attempt=v["attempt"],
        adapter=AdapterName(v["adapter"]),
        target=TargetName(v["target"]),
        operation=Operation(v["operation"]),
        accepted_at_ms=v["accepted_at_ms"],
        state=RunState(v["state"]),
        session=SessionId(v["session"]) if v["session"] is not None else None,
        source=v["source"],
        profile=v["profile"],
        ended_at_ms=v["ended_at_ms"],
        code=v["code"],
        layer=v["layer"],
        message=v["message"],
        finish_reason=v["finish_reason"],
        # No count at all and no usage are the same thing to a reader.
        usage=None if counts == (None,) * 4 else Usage(*counts),
        queued_s=v["queued_s"],
        first_token_s=v["first_token_s"],
        total_s=v["total_s"],
        input_bytes=v["input_bytes"],
        output_bytes=v["output_bytes"],
        events=v["events"],
    )
