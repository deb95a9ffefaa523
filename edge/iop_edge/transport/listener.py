"""LinkDoor: the port that nodes dial, and everything a new link needs to be judged."""

from typing import Final

from iop_edge.domain.ports import EpochSource
from iop_edge.service import EdgeService
from iop_edge.transport.node_link import PROBE_S, NodeLink
from iop_edge.transport.token_book import TokenBook
from iop_shared import __version__
from iop_shared.aio.connection import LinkConnection
from iop_shared.aio.link_io import LinkListener, listen_links
from iop_shared.aio.tasks import TaskOwner
from iop_shared.clock import Clock
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import NodeId
from iop_shared.link.machine import DEFAULT_TIMES, LinkTimes
from iop_shared.link.messages import LinkLimits

MAX_HANDSHAKES: Final = 256


class LinkDoor:
    """Listens for nodes. `start`, later `stop_accepting`, then `close`."""

    def __init__(
        self,
        *,
        service: EdgeService,
        tokens: TokenBook,
        epochs: EpochSource,
        limits: LinkLimits,
        clock: Clock,
        tasks: TaskOwner,
        edge_id: str,
        max_handshakes: int = MAX_HANDSHAKES,
        times: LinkTimes = DEFAULT_TIMES,
        probe_s: float = PROBE_S,
    ) -> None:
        self.service, self.tokens, self.epochs = service, tokens, epochs
        self.limits, self.clock, self.tasks, self.probe_s = limits, clock, tasks, probe_s
        self._edge_id, self._max_handshakes, self._times = edge_id, max_handshakes, times
        self._listener: LinkListener | None = None
        self._links: set[NodeLink] = set()
        tokens.on_change(self._close_revoked)

    @property
    def link_count(self) -> int:
        """Connections now, open or in their handshake."""
        return len(self._links)

    async def start(self, address: ListenAddress) -> ListenAddress:
        """Listens and returns the bound address.

        Raises:
            Unavailable: code `port_in_use` or `listen_failed`.
        """
        self._listener = await listen_links(
            address,
            self._make_link,
            edge_id=self._edge_id,
            software_version=__version__,
            max_handshakes=self._max_handshakes,
            times=self._times,
        )
        return self._listener.address

    async def stop_accepting(self) -> None:
        """Takes no new connections; those that stand go on. Safe to call twice."""
        if self._listener is not None:
            await self._listener.stop()

    async def close(self, code: str, message: str) -> None:
        """Says goodbye on every link and waits until all are closed (each within its `close_timeout_s`)."""
        await self.stop_accepting()
        if self._listener is None:
            return
        connections = tuple(self._listener.links)
        for connection in connections:
            connection.close(code, message)
        for connection in connections:
            await connection.wait_closed()

    def probe(self, node_id: NodeId) -> None:
        """Asks the present holder of a name for a sign of life."""
        for link in self._links:
            if link.key.node_id == node_id:
                link.probe()

    def forget(self, link: NodeLink) -> None:
        """A link has ended."""
        self._links.discard(link)

    def _make_link(self, connection: LinkConnection) -> NodeLink:
        link = NodeLink(connection, self)
        self._links.add(link)
        return link

    def _close_revoked(self) -> None:
        for link in tuple(self._links):
            if link.token_id is None or link.key.epoch == 0:
                continue  # not let in yet: its token is judged with the new tokens
            token = self.tokens.find(link.token_id)
            if token is None or token.is_revoked:
                node_id = link.key.node_id
                link.close(
                    "token_revoked",
                    f"token {link.token_id} of node {node_id!r} has been revoked: make a new one with "
                    f"`iop-edge token add {node_id}` and give it to `iop-node join EDGE --token TOKEN`",
                )
