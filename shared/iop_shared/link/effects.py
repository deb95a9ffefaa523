"""What a link machine asks its shell to do, and how a link ended, as frozen values. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from iop_shared.errors import LinkError, LinkLost, LinkRefused, ProtocolError
from iop_shared.link.messages import Hello, Message, OpenRuns, RejectClass, RunVerdicts, Welcome


class EndedBy(StrEnum):
    """Who or what ended a link."""

    US = "us"
    PEER = "peer"
    TRANSPORT = "transport"


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """Why a link ended. `message` is one sentence, safe to log and to show.

    `code`: what `close` was called with, or the reason in the peer's Goodbye, or the code of a Reject, or
    one of protocol_error, frame_too_large, frame_truncated, not_iop, protocol_version, handshake_timeout,
    link_silent, link_lost, send_overflow, internal.
    `stood_s`: how long it had been open. `reconnect_in_s`: the peer's hint, from a GoAway.
    `reject_class`: set when the link was refused; says what a node should do about it.
    """

    code: str
    message: str
    by: EndedBy
    was_open: bool = False
    stood_s: float = 0.0
    reconnect_in_s: float = 0.0
    reject_class: RejectClass | None = None

    def to_error(self) -> LinkError:
        """Returns the error that tells of this end: LinkRefused, ProtocolError or LinkLost."""
        if self.reject_class is not None:
            return LinkRefused(self.code, self.reject_class, self.message)
        if self.code in PEER_FAULTS:
            return ProtocolError(self.message, code=self.code)
        error = LinkLost(self.message)
        error.code = self.code
        return error


PEER_FAULTS: Final = frozenset(
    {"protocol_error", "frame_too_large", "frame_truncated", "not_iop", "protocol_version"}
)


@dataclass(frozen=True, slots=True)
class Send:
    """Send this, by its lane."""

    message: Message


@dataclass(frozen=True, slots=True)
class NeedVerdict:
    """Edge: a node asks to come in; answer with `admit` or `reject`. `auth_message`: what its proof covers."""

    hello: Hello
    auth_message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class JudgeOpenRuns:
    """Edge: the node reports what it still holds; answer with `answer_open_runs`."""

    open_runs: OpenRuns


@dataclass(frozen=True, slots=True)
class ReportOpenRuns:
    """Node: the edge accepted; answer with `report`."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class AllowFrames:
    """From now on a frame may have up to this many bytes, without its length prefix."""

    receive_max_bytes: int
    send_max_bytes: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The link is open. `verdicts`: on a node, the edge's answer."""

    verdicts: RunVerdicts | None = None


@dataclass(frozen=True, slots=True)
class Deliver:
    """A message for whoever is behind the link."""

    message: Message


@dataclass(frozen=True, slots=True)
class Ended:
    """The link is over: tell it once; nothing is delivered after it. The transport follows.

    `farewell` goes out last; `flush_data`: after everything that is queued, otherwise instead of it.
    """

    end: LinkEnd
    farewell: Message | None = None
    flush_data: bool = False


@dataclass(frozen=True, slots=True)
class CloseTransport:
    """Close the transport: with `abort` at once, otherwise after what has been written."""

    abort: bool = False


Effect = (
    Send | NeedVerdict | JudgeOpenRuns | ReportOpenRuns | AllowFrames | Opened | Deliver | Ended | CloseTransport
)
