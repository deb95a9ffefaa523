"""TokenBook: the tokens in memory, kept true to the store, and the verdict on a node's proof."""

import asyncio
from collections.abc import Callable
from typing import Final

from iop_edge.domain.ports import NodeToken, TokenStore
from iop_shared.clock import Clock
from iop_shared.errors import Unavailable
from iop_shared.ids import TokenId
from iop_shared.link import auth, rejects
from iop_shared.link.messages import Hello, Reject
from iop_shared.logs import get_logger

POLL_INTERVAL_S: Final = 2.0
"""A revoked token's link must be closed within 5 s. Chosen."""

_log = get_logger("tokens")


class TokenBook:
    """A copy of the table of tokens. `iop-edge token add|revoke` change the table from another process."""

    def __init__(self, store: TokenStore, clock: Clock, *, poll_interval_s: float = POLL_INTERVAL_S) -> None:
        self._store, self._clock = store, clock
        self._poll_interval_s = poll_interval_s
        self._tokens: dict[TokenId, NodeToken] = {}
        self._version = -1
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, call: Callable[[], None]) -> None:
        """Calls `call` after the tokens have been read anew."""
        self._on_change.append(call)

    def find(self, token_id: TokenId) -> NodeToken | None:
        """Returns a token as it was when last read."""
        return self._tokens.get(token_id)

    def judge(self, hello: Hello, auth_message: bytes) -> Reject | None:
        """Returns why the node may not come in, or None. Takes the same time for known and unknown tokens."""
        token = self._tokens.get(hello.token_id)
        key = None if token is None else token.stored_key
        if not auth.verify_proof(key, auth_message, hello.proof) or token is None:
            return rejects.token_invalid(hello.node_id)
        if token.is_revoked:
            return rejects.token_revoked(hello.node_id, hello.token_id)
        if token.node_id != hello.node_id:
            return rejects.node_unknown(hello.node_id, token.node_id)
        return None

    async def refresh(self) -> None:
        """Reads the tokens if anybody has written to the file since.

        Raises:
            Unavailable: code `store_unavailable`; the copy stays as it was.
        """
        version = await self._store.version()
        if version == self._version:
            return
        tokens = {token.token_id: token for token in await self._store.list_all()}
        self._version = version
        if tokens != self._tokens:
            self._tokens = tokens
            for call in self._on_change:
                call()

    async def note_used(self, token_id: TokenId) -> None:
        """Remembers when a token opened a link. A store that is not there is no reason to refuse a node."""
        try:
            await self._store.note_used(token_id, self._clock.wall_ms())
        except Unavailable as error:
            _log.warning("token_use_not_recorded", token_id=token_id, reason=str(error))

    async def watch(self) -> None:
        """Keeps the copy true until it is cancelled."""
        told = False
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            try:
                await self.refresh()
                told = False
            except Unavailable as error:
                if not told:
                    _log.error("tokens_unreadable", reason=str(error))
                told = True
