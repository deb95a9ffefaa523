"""Where links come from: listening for nodes on an edge, dialling an edge from a node."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final

from iop_shared.aio.connection import LinkConnection
from iop_shared.errors import Unavailable
from iop_shared.http_listen import ListenAddress, bind_listen_socket
from iop_shared.link import auth, rejects
from iop_shared.link.edge_side import EdgeSide
from iop_shared.link.handlers import EdgeLinkHandler, NodeLinkHandler
from iop_shared.link.machine import DEFAULT_TIMES, LinkTimes
from iop_shared.link.messages import PROTOCOL_MAX, PROTOCOL_MIN, Challenge
from iop_shared.link.node_side import NodeIdentity, NodeSide

MAX_HANDSHAKES: Final = 256
"""Chosen: at 5 s each, a storm of 1,000 nodes is through in a few windows of their back-off."""


class LinkListener:
    """Accepts links on one address. Stopping leaves the live ones alone."""

    def __init__(self, address: ListenAddress, links: set[LinkConnection], server: asyncio.Server) -> None:
        self._address = address
        self._links = links
        self._server = server

    @property
    def address(self) -> ListenAddress:
        """The bound address (port 0 resolved)."""
        return self._address

    @property
    def links(self) -> frozenset[LinkConnection]:
        """Every connection whose transport is not closed yet."""
        return frozenset(self._links)

    async def stop(self) -> None:
        """Stops accepting. Safe to call twice. Links are closed by whoever stands behind them."""
        self._server.close()
        # Not wait_closed(): from Python 3.12 on that waits for the connections too. uvloop closes the socket
        # in its next turn.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def listen_links(
    address: ListenAddress,
    make_handler: Callable[[LinkConnection], EdgeLinkHandler],
    *,
    edge_id: str,
    software_version: str,
    max_handshakes: int = MAX_HANDSHAKES,
    times: LinkTimes = DEFAULT_TIMES,
    protocol_range: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX),
) -> LinkListener:
    """Listens for nodes; each connection gets a handler of its own.

    More than `max_handshakes` links that are not open yet: the newest is refused with `edge_busy`.

    Raises:
        Unavailable: code `port_in_use` or `cannot_listen`, with the address and what to do.
    """
    links: set[LinkConnection] = set()
    handshaking: set[LinkConnection] = set()

    def make_connection() -> LinkConnection:
        def make_side(peer: str, now: float) -> EdgeSide:
            nonce = os.urandom(auth.NONCE_BYTES)
            challenge = Challenge(nonce, edge_id, software_version, *protocol_range)
            return EdgeSide(
                challenge,
                now=now,
                peer=peer,
                times=times,
                refusal=rejects.edge_busy(len(handshaking) - 1, max_handshakes)
                if len(handshaking) > max_handshakes
                else None,
                unsettled_cancels=lambda: handlers[0].unsettled_cancels(),
            )

        def make_and_keep_handler(made: LinkConnection) -> EdgeLinkHandler:
            links.add(made)
            handlers.append(make_handler(made))
            return handlers[0]

        handlers: list[EdgeLinkHandler] = []
        connection = LinkConnection(
            make_side, make_and_keep_handler, on_settled=handshaking.discard, on_lost=links.discard
        )
        handshaking.add(connection)
        return connection

    sock, bound = bind_listen_socket(address, "link")
    try:
        server = await asyncio.get_running_loop().create_server(make_connection, sock=sock, backlog=2048)
    except BaseException:
        sock.close()
        raise
    return LinkListener(bound, links, server)


async def dial_link(
    address: ListenAddress,
    make_handler: Callable[[LinkConnection], NodeLinkHandler],
    identity: NodeIdentity,
    *,
    connect_timeout_s: float = 5.0,
    times: LinkTimes = DEFAULT_TIMES,
) -> LinkConnection:
    """Dials an edge and returns the connection; the handshake runs on by itself (`on_open`, `on_closed`).

    The name is resolved afresh each time, and all its addresses are tried in turn within `connect_timeout_s`
    together. Cancelling leaves no socket behind.

    Raises:
        Unavailable: code `name_unresolved` or `edge_unreachable`, with the address and what to do.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + connect_timeout_s
    sock = await _connect(address, deadline)

    def make_side(peer: str, now: float) -> NodeSide:
        nonce = os.urandom(auth.NONCE_BYTES)
        return NodeSide(identity, node_nonce=nonce, now=now, peer=peer, times=times)

    try:
        _, connection = await loop.create_connection(
            lambda: LinkConnection(make_side, make_handler, peer=str(address)), sock=sock
        )
    except BaseException:
        sock.close()
        raise
    return connection


async def _connect(address: ListenAddress, deadline: float) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(deadline):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer in time"
        raise Unavailable(
            f"cannot find the edge {address}: {reason}; check the name, and that this machine can resolve it",
            code="name_unresolved",
        ) from error
    failures: list[str] = []
    for number, (family, kind, protocol, _, target) in enumerate(found):
        # What is left is shared, so that one address that swallows everything leaves time for the rest.
        share_s = (deadline - loop.time()) / (len(found) - number)
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(share_s):
                await loop.sock_connect(sock, target)
            return sock
        except (OSError, TimeoutError) as error:
            sock.close()
            # Not error.strerror: asyncio puts a sentence of its own there.
            reason = os.strerror(error.errno) if error.errno else "no answer in time"
            failures.append(f"{target[0]}: {reason}")
        except BaseException:
            sock.close()
            raise
    raise Unavailable(
        f"cannot reach the edge {address} ({'; '.join(failures)}): check that `iop-edge run` runs there "
        "and that this is its [link] port",
        code="edge_unreachable",
    )
