"""Asks an edge, by a real handshake, whether it takes this node. Reports nothing, runs nothing, leaves at once."""

import asyncio

from iop_shared.aio.connection import LinkConnection
from iop_shared.aio.link_io import dial_link
from iop_shared.errors import LinkError, NotAllowed, Unavailable
from iop_shared.http_listen import ListenAddress
from iop_shared.link.effects import LinkEnd
from iop_shared.link.machine import DEFAULT_TIMES, LinkTimes
from iop_shared.link.messages import Message, OpenRun, RejectClass, RunVerdicts, Welcome
from iop_shared.link.node_side import NodeIdentity

CHECK_TIMEOUT_S = 15.0
"""Dialling, the handshake and the goodbye have deadlines of their own; this bounds them together."""


class _Caller:
    """A NodeLinkHandler that leaves as soon as it is let in."""

    def __init__(self, connection: LinkConnection) -> None:
        self._connection = connection
        self.welcome: Welcome | None = None

    def on_welcome(self, welcome: Welcome) -> tuple[OpenRun, ...]:
        """See NodeLinkHandler."""
        self.welcome = welcome
        self._connection.close("join_checked", "the token is good; the node itself will follow")
        return ()

    def on_open(self, verdicts: RunVerdicts) -> None:
        """See NodeLinkHandler."""

    def on_message(self, message: Message) -> None:
        """See NodeLinkHandler."""

    def on_data_resumed(self) -> None:
        """See NodeLinkHandler."""

    def on_closed(self, end: LinkEnd) -> None:
        """See NodeLinkHandler."""


async def check_edge(
    address: ListenAddress, identity: NodeIdentity, *, times: LinkTimes = DEFAULT_TIMES
) -> Welcome:
    """Returns the edge's Welcome.

    Raises:
        NotAllowed: the edge refused the token or the name, with its own sentence.
        Unavailable: nothing answers there, or the edge takes no nodes right now.
        LinkError: what answers there is no edge, or it broke the protocol.
    """
    callers: list[_Caller] = []

    def make_caller(connection: LinkConnection) -> _Caller:
        callers.append(_Caller(connection))
        return callers[0]

    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            connection = await dial_link(address, make_caller, identity, times=times)
            try:
                end = await connection.wait_closed()
            finally:
                connection.abort("join_checked")
    except TimeoutError:
        raise Unavailable(
            f"the edge {address} did not answer within {CHECK_TIMEOUT_S:g} s", code="edge_unreachable"
        ) from None
    welcome = callers[0].welcome
    if welcome is not None:
        return welcome
    if end.reject_class is RejectClass.FATAL:
        raise NotAllowed(end.message, code=end.code)
    if end.reject_class is not None or end.code in ("link_lost", "handshake_timeout"):
        raise Unavailable(end.message, code=end.code)
    error: LinkError = end.to_error()
    raise error
