"""Tokens and node records in edge.db."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from iop_edge.domain.ports import NodeToken
from iop_edge.stores import node_records
from iop_edge.stores.node_records import BLOCK, EpochCounter, load_revisions, save_revision
from iop_edge.stores.schema import MIGRATIONS
from iop_edge.stores.tokens import SqliteTokenStore
from iop_shared.aio.sqlite import Database
from iop_shared.errors import UnknownName
from iop_shared.ids import NodeId, TokenId

GPU1 = NodeId("gpu-1")
TOKEN = NodeToken(TokenId("aaaaaaaaaaaa"), GPU1, b"\x01" * 32, 1000, "first")


@pytest.fixture
async def database(tmp_path: Path, watched_tasks: None) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "edge.db", MIGRATIONS, name="edge")
    yield opened
    await opened.aclose()


async def test_tokens_are_kept_revoked_and_listed(database: Database) -> None:
    store = SqliteTokenStore(database)
    second = NodeToken(TokenId("bbbbbbbbbbbb"), GPU1, b"\x02" * 32, 2000)
    await store.add(second)
    await store.add(TOKEN)
    await store.note_used(TOKEN.token_id, 3000)

    revoked = await store.revoke(TOKEN.token_id, 4000)
    again = await store.revoke(TOKEN.token_id, 5000)

    assert revoked == again
    assert (revoked.is_revoked, revoked.revoked_at_ms, revoked.last_used_at_ms) == (True, 4000, 3000)
    assert await store.list_all() == [revoked, second]
    assert "\\x01" not in repr(revoked)


async def test_an_unknown_token_is_told_the_nearest(database: Database) -> None:
    store = SqliteTokenStore(database)
    await store.add(TOKEN)

    with pytest.raises(UnknownName) as unknown:
        await store.revoke(TokenId("aaaaaaaaaaab"), 1)

    assert str(unknown.value) == "unknown token 'aaaaaaaaaaab': did you mean 'aaaaaaaaaaaa'?"


async def test_another_process_that_writes_changes_the_version(database: Database, tmp_path: Path) -> None:
    store = SqliteTokenStore(database)
    before = await store.version()
    assert await store.version() == before
    other = await Database.open(tmp_path / "edge.db", MIGRATIONS, name="edge")
    await SqliteTokenStore(other).add(TOKEN)
    await other.aclose()

    assert await store.version() != before
    assert await store.list_all() == [TOKEN]


async def test_epochs_grow_over_restarts(database: Database) -> None:
    first = await EpochCounter.open(database)
    given = [first.take(), first.take(), first.take()]

    second = await EpochCounter.open(database)

    assert given == [1, 2, 3]
    assert second.take() == 1 + BLOCK


async def test_a_block_is_refilled_before_it_ends(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_records, "BLOCK", 4)
    counter = await EpochCounter.open(database)
    taken = [counter.take() for _ in range(3)]
    await counter.refill()
    taken += [counter.take() for _ in range(3)]

    after_restart = (await EpochCounter.open(database)).take()

    assert taken == [1, 2, 3, 4, 5, 6]
    assert after_restart > 6


async def test_revisions_are_remembered(database: Database) -> None:
    await save_revision(database, GPU1, (1, "a"))
    await save_revision(database, GPU1, (2, "b"))

    assert await load_revisions(database) == {GPU1: (2, "b")}
