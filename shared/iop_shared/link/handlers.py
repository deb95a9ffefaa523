"""What stands behind a link: the calls that its connection makes into a daemon. Pure.

Every call happens on the loop, returns at once and never raises on what a peer can do. One handler object
serves one link. A call that raises is our bug: it is reported and ends the link with code `internal`.
"""

from typing import Protocol

from iop_shared.ids import RunId
from iop_shared.link.effects import LinkEnd
from iop_shared.link.messages import Hello, Message, OpenRun, OpenRuns, RunVerdicts, Welcome


class EdgeLinkHandler(Protocol):
    """Behind the edge's end of a link with one node."""

    def on_hello(self, hello: Hello, auth_message: bytes) -> None:
        """A node asks to come in. Answer with `connection.admit(...)` or `connection.reject(...)`, now or later,
        but within the handshake's 5 s. The proof is checked with
        `auth.verify_proof(stored_key_or_None, auth_message, hello.proof)`. A Hello without token never gets here.
        """

    def on_open_runs(self, open_runs: OpenRuns) -> None:
        """The admitted node reports what it still holds. Answer with `connection.answer_open_runs(...)`."""

    def on_open(self) -> None:
        """The link is open: messages may be sent. Called within `answer_open_runs`."""

    def on_message(self, message: Message) -> None:
        """A message of the open link. RuntimeEvents come most often and straight from the decoder."""

    def on_data_resumed(self) -> None:
        """`connection.data_paused` has become false again."""

    def on_closed(self, end: LinkEnd) -> None:
        """The link is over, open before or not. Called exactly once; nothing is called after it."""

    def unsettled_cancels(self) -> tuple[RunId, ...]:
        """Returns the runs of this node whose cancel has not led to an end, oldest first. Must be cheap: it is
        asked at every heartbeat.
        """


class NodeLinkHandler(Protocol):
    """Behind the node's end of a link with one edge."""

    def on_welcome(self, welcome: Welcome) -> tuple[OpenRun, ...]:
        """The edge let this node in. Returns everything that is still held, for the edge to judge.

        `welcome.config` is what the node should run; it is answered with a ConfigResult once the link is open.
        """

    def on_open(self, verdicts: RunVerdicts) -> None:
        """The link is open: messages may be sent. `verdicts` has the edge's word on each reported run."""

    def on_message(self, message: Message) -> None:
        """A message of the open link. Cancels that the edge repeats in heartbeats come as CancelRun too."""

    def on_data_resumed(self) -> None:
        """`connection.data_paused` has become false again."""

    def on_closed(self, end: LinkEnd) -> None:
        """The link is over, open before or not. Called exactly once; nothing is called after it."""
