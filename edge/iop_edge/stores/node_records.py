"""What the edge remembers of nodes over restarts: the next epoch, and the revision of each configuration."""

from typing import Final

from iop_edge.domain.node_configs import Revision
from iop_shared.aio.sqlite import Database
from iop_shared.ids import Epoch, NodeId

BLOCK: Final = 1_000_000
"""Epochs reserved at once, so that a link opens without a write (and while the disk is full). Chosen."""


class EpochCounter:
    """Gives out epochs that grow over restarts. Made by `open`; a process leaves the rest of its block unused."""

    def __init__(self, database: Database, first: int) -> None:
        self._database = database
        self._next, self._end = first, first + BLOCK

    @classmethod
    async def open(cls, database: Database) -> "EpochCounter":
        """Reserves a block.

        Raises:
            Unavailable: code `store_unavailable`.
        """
        rows = await database.read("SELECT next_epoch FROM epochs")
        counter = cls(database, int(rows[0][0]))
        await counter._reserve()
        return counter

    def take(self) -> Epoch:
        """Returns the next epoch."""
        self._next += 1
        return Epoch(self._next - 1)

    async def refill(self) -> None:
        """Reserves another block when this one is half used; call now and then.

        Raises:
            Unavailable: code `store_unavailable`; epochs go on in memory, try again later.
        """
        if self._end - self._next < BLOCK // 2:
            self._end = self._next + BLOCK
            await self._reserve()

    async def _reserve(self) -> None:
        await self._database.write([("UPDATE epochs SET next_epoch = max(next_epoch, ?)", (self._end,))])


async def load_revisions(database: Database) -> dict[NodeId, Revision]:
    """Returns the last revision of each node's configuration."""
    rows = await database.read("SELECT node_id, revision, hash FROM node_configs")
    return {NodeId(node_id): (revision, content_hash) for node_id, revision, content_hash in rows}


async def save_revision(database: Database, node_id: NodeId, revision: Revision) -> None:
    """Keeps the revision of a node's configuration.

    Raises:
        Unavailable: code `store_unavailable`.
    """
    await database.write([("INSERT OR REPLACE INTO node_configs VALUES (?, ?, ?)", (node_id, *revision))])
