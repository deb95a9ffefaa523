"""The tables of edge.db as numbered migrations. One that was released is never changed; a new one is added."""

from typing import Final

_FIRST: Final = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,            -- UUIDv7: its order is the order of birth
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,
    adapter TEXT NOT NULL,
    target TEXT NOT NULL,
    operation TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    node_id TEXT,
    profile TEXT,
    session TEXT,
    source TEXT NOT NULL,
    ended_at_ms INTEGER,                -- NULL: it lives, or the edge ended while it did
    code TEXT NOT NULL,
    layer TEXT NOT NULL,
    message TEXT NOT NULL,
    finish_reason TEXT NOT NULL,
    usage TEXT,                         -- JSON
    queued_s REAL,
    first_token_s REAL,
    total_s REAL,
    input_bytes INTEGER NOT NULL,
    output_bytes INTEGER NOT NULL,
    events INTEGER NOT NULL,
    cancel_reason TEXT NOT NULL,
    cancel_confirmed INTEGER,
    cancel_took_ms INTEGER,
    refusals TEXT NOT NULL              -- JSON
) WITHOUT ROWID;
CREATE INDEX runs_by_state ON runs (state, run_id);
CREATE INDEX runs_by_node ON runs (node_id, run_id);
CREATE INDEX runs_by_adapter ON runs (adapter, run_id);

CREATE TABLE run_events (
    run_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    type TEXT NOT NULL,
    body TEXT NOT NULL,                 -- JSON; never prompt or output
    PRIMARY KEY (run_id, attempt, seq)
) WITHOUT ROWID;

CREATE TABLE tokens (
    token_id TEXT PRIMARY KEY,
    node_id TEXT NOT NULL,
    stored_key BLOB NOT NULL,           -- verifies proofs and can make none
    label TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    revoked_at_ms INTEGER,
    last_used_at_ms INTEGER
) WITHOUT ROWID;
CREATE INDEX tokens_by_node ON tokens (node_id);

CREATE TABLE epochs (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    next_epoch INTEGER NOT NULL
);
INSERT INTO epochs VALUES (1, 1);

CREATE TABLE node_configs (
    node_id TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    hash TEXT NOT NULL
) WITHOUT ROWID;
"""

MIGRATIONS: Final = (_FIRST,)
