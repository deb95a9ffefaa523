"""Tokens of nodes in SQLite. The secret of a token is in no row: only what verifies a proof."""

from collections.abc import Sequence
from typing import Any, Final

from iop_edge.domain.ports import NodeToken
from iop_shared.aio.sqlite import Database
from iop_shared.errors import UnknownName
from iop_shared.ids import NodeId, TokenId

_COLUMNS: Final = "token_id, node_id, stored_key, label, created_at_ms, revoked_at_ms, last_used_at_ms"


class SqliteTokenStore:
    """The table `tokens` of edge.db. The daemon and the commands use it at the same time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, token: NodeToken) -> None:
        """Keeps a new token."""
        row = (
            token.token_id,
            token.node_id,
            token.stored_key,
            token.label,
            token.created_at_ms,
            token.revoked_at_ms,
            token.last_used_at_ms,
        )
        await self._database.write([(f"INSERT INTO tokens ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)])

    async def list_all(self) -> Sequence[NodeToken]:
        """Returns all tokens, by node and age; revoked ones too."""
        rows = await self._database.read(
            f"SELECT {_COLUMNS} FROM tokens ORDER BY node_id, created_at_ms, token_id"
        )
        return [_from_row(row) for row in rows]

    async def revoke(self, token_id: TokenId, at_ms: int) -> NodeToken:
        """Revokes a token; one that is revoked already stays as it is.

        Raises:
            UnknownName: with the nearest known ids.
        """
        await self._database.write(
            [
                (
                    "UPDATE tokens SET revoked_at_ms = ? WHERE token_id = ? AND revoked_at_ms IS NULL",
                    (at_ms, token_id),
                )
            ]
        )
        tokens = {token.token_id: token for token in await self.list_all()}
        if token_id not in tokens:
            raise UnknownName("token", token_id, sorted(tokens), param="token_id")
        return tokens[token_id]

    async def note_used(self, token_id: TokenId, at_ms: int) -> None:
        """Remembers when a token last opened a link."""
        await self._database.write(
            [("UPDATE tokens SET last_used_at_ms = ? WHERE token_id = ?", (at_ms, token_id))]
        )

    async def version(self) -> int:
        """Returns a number that changes when anybody has written to the file; cheap."""
        rows = await self._database.read("PRAGMA data_version")
        return int(rows[0][0])


def _from_row(row: tuple[Any, ...]) -> NodeToken:
    token_id, node_id, stored_key, label, created_at_ms, revoked_at_ms, last_used_at_ms = row
    return NodeToken(
        token_id=TokenId(token_id),
        node_id=NodeId(node_id),
        stored_key=bytes(stored_key),
        label=label,
        created_at_ms=created_at_ms,
        revoked_at_ms=revoked_at_ms,
        last_used_at_ms=last_used_at_ms,
    )
