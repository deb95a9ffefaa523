"""LinkConnection: the asyncio shell of a link. Bytes come in, the machine decides, bytes go out."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from iop_shared.http_listen import ListenAddress
from iop_shared.link.effects import LinkEnd
from iop_shared.link.handlers import EdgeLinkHandler, NodeLinkHandler
from iop_shared.link.machine import DEFAULT_TIMES, LinkTimes
from iop_shared.link.messages import Message, Reject, RunVerdicts, Welcome
from iop_shared.link.node_side import NodeIdentity

# This file holds the signatures only; the bodies follow.


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """Counts of one connection since it was made. `round_trip_s`: None until the first heartbeat's answer."""

    frames_in: int
    frames_out: int
    bytes_in: int
    bytes_out: int
    queued_bytes: int
    unknown_frames: int
    round_trip_s: float | None


class LinkConnection(asyncio.Protocol):
    """One end of one link over one TCP connection."""

    @property
    def peer(self) -> str:
        """Returns "host:port" of the other end."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """Whether `send` takes messages."""
        raise NotImplementedError

    @property
    def data_paused(self) -> bool:
        """Whether data waits for the transport: send no more of it until `on_data_resumed`. Control may go on."""
        raise NotImplementedError

    @property
    def heard_at(self) -> float:
        """When the last byte came, on the loop's clock."""
        raise NotImplementedError

    def send(self, message: Message) -> bool:
        """Queues `message`; it is written at the end of this loop turn, control ahead of data.

        Returns False, and does nothing, when the link is not open.

        Raises:
            TooLarge: the frame would exceed the link's max_frame_bytes; nothing was sent, the link goes on.
            InternalError: only the other side may send this type.
        """
        raise NotImplementedError

    def admit(self, welcome: Welcome) -> bool:
        """Edge: lets the node in. False: the link has ended meanwhile. The protocol field is filled in here."""
        raise NotImplementedError

    def reject(self, reject: Reject) -> bool:
        """Edge: refuses the node and closes. False: the link has ended meanwhile."""
        raise NotImplementedError

    def answer_open_runs(self, verdicts: RunVerdicts) -> bool:
        """Edge: judges the open runs; calls `on_open`. False: the link has ended meanwhile."""
        raise NotImplementedError

    def probe(self) -> None:
        """Asks for a sign of life; a live peer answers at once, so look at `heard_at` afterwards."""
        raise NotImplementedError

    def close(self, code: str, message: str = "") -> None:
        """Ends the link: queued data and a Goodbye go out; aborts after `close_timeout_s`. Safe to call twice."""
        raise NotImplementedError

    def abort(self, code: str, message: str = "") -> None:
        """Ends the link at once, without a word. Safe to call twice."""
        raise NotImplementedError

    async def wait_closed(self) -> LinkEnd:
        """Waits until the transport is closed and returns how the link ended. Cancelling leaves the link alone."""
        raise NotImplementedError

    def statistics(self) -> LinkStatistics:
        """Returns the counts so far."""
        raise NotImplementedError


class LinkListener:
    """Accepts links on one address. `links`: the live connections; stopping leaves them alone."""

    @property
    def address(self) -> ListenAddress:
        """The bound address (port 0 resolved)."""
        raise NotImplementedError

    @property
    def links(self) -> frozenset[LinkConnection]:
        """Every connection whose transport is not closed yet."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stops accepting. Safe to call twice."""
        raise NotImplementedError


async def listen_links(
    address: ListenAddress,
    make_handler: Callable[[LinkConnection], EdgeLinkHandler],
    *,
    edge_id: str,
    software_version: str,
    max_handshakes: int = 256,
    times: LinkTimes = DEFAULT_TIMES,
) -> LinkListener:
    """Listens for nodes; each connection gets a handler of its own.

    More than `max_handshakes` links that are not open yet: the newest is refused with `edge_busy`.

    Raises:
        Unavailable: code `port_in_use` or `listen_failed`, with the address and what to do.
    """
    raise NotImplementedError


async def dial_link(
    address: ListenAddress,
    make_handler: Callable[[LinkConnection], NodeLinkHandler],
    identity: NodeIdentity,
    *,
    connect_timeout_s: float = 5.0,
    times: LinkTimes = DEFAULT_TIMES,
) -> LinkConnection:
    """Dials an edge and returns the connection; the handshake runs on by itself (`on_open`, `on_closed`).

    The name is resolved afresh, and all its addresses are tried in turn.

    Raises:
        Unavailable: code `edge_unreachable` or `name_unresolved`, with the address and what to do.
    """
    raise NotImplementedError
