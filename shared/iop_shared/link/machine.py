"""The part of a link's machine that both sides share: states, liveness, faults and the close. Pure.

    edge side                                     node side
    [await_hello]     Challenge goes out          [await_challenge]
         | Hello                                       | Challenge; Hello goes out
    [judging_hello]   the shell admits            [await_welcome]
         | admit; Welcome goes out                     | Welcome
    [await_open_runs]                             [reporting]       the shell reports
         | OpenRuns                                    | report; OpenRuns goes out
    [judging_runs]    the shell answers           [await_verdicts]
         | answer; RunVerdicts goes out                | RunVerdicts
         +-------------------> [open] <----------------+

    every state -- Goodbye, Reject, a fault, a deadline, close() --> [closing] --> [closed]

A machine does no IO and reads no clock: values and the time come in, effects (`iop_shared.link.effects`)
go out. Times are seconds of one monotonic clock. The shell calls `on_tick` at `next_deadline`.

Liveness: an end that has sent nothing for `heartbeat_interval_s` sends a heartbeat (and every second interval
whatever else it sends); one without an echo is answered at once by one with it, so the round trip is measured and
a probe gets its answer. An end that has heard no byte for `dead_after_s` gives the link up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, cast

from iop_shared.errors import InternalError, ProtocolError
from iop_shared.ids import RunId
from iop_shared.link.effects import CloseTransport, Deliver, Effect, Ended, EndedBy, LinkEnd, Send
from iop_shared.link.messages import (
    EDGE_ONLY_TYPES,
    NODE_ONLY_TYPES,
    GoAway,
    Goodbye,
    Heartbeat,
    LinkLimits,
    Message,
    Received,
    RejectClass,
    RunSubmission,
    UnknownMessage,
    UnreadableRun,
)
from iop_shared.link.peer_text import safe_code, safe_sentence


class LinkState(StrEnum):
    """Where a link stands; drawn at the top of this file."""

    AWAIT_HELLO = "await_hello"
    JUDGING_HELLO = "judging_hello"
    AWAIT_OPEN_RUNS = "await_open_runs"
    JUDGING_RUNS = "judging_runs"
    AWAIT_CHALLENGE = "await_challenge"
    AWAIT_WELCOME = "await_welcome"
    REPORTING = "reporting"
    AWAIT_VERDICTS = "await_verdicts"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


ENDED_STATES: Final = frozenset({LinkState.CLOSING, LinkState.CLOSED})

Table = Mapping[LinkState, frozenset[type]]
"""Which messages may arrive in which state; nothing may in a state that is not in it."""

Handler = Callable[..., list[Effect]]

# After a stall of this process the peer's bytes may wait unread behind our timer: look once more first.
# Chosen; with the default dead_after_s of 40 both sides still know within 45 s.
STALL_GRACE_S: Final = 2.0
STALL_S: Final = 1.0
MAX_CANCELS_PER_HEARTBEAT: Final = 256
"""Chosen: 10 KB a heartbeat. The oldest come first and leave when they settle."""


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Deadlines of our own end. The handshake's covers everything until the link is open."""

    handshake_timeout_s: float = 5.0
    close_timeout_s: float = 2.0


DEFAULT_TIMES: Final = LinkTimes()


class LinkMachine:
    """One end of one link, from the first byte to the last. Subclasses know the handshake of their side."""

    receives: ClassVar[Table]
    our_word: ClassVar[str]
    peer_word: ClassVar[str]
    peer_only_types: ClassVar[tuple[type, ...]]
    silence_hint: ClassVar[str]

    def __init__(self, first_state: LinkState, *, now: float, peer: str, times: LinkTimes) -> None:
        self.state = self._first_state = first_state
        self.limits = LinkLimits()
        self.protocol = 0
        self.round_trip_s: float | None = None
        self.unknown_messages = 0
        self.heard_at = now
        """When the last byte came. The shell sets it; nothing else needs to be told of bytes."""
        self._peer = peer
        self._times = times
        self._sent_at = now
        self._opened_at = now
        self._heartbeat_at = now
        self._asked_at = now
        self._handshake_deadline = now + times.handshake_timeout_s
        self._close_deadline = 0.0
        self._reconnect_in_s = 0.0
        # Who handles which message; what is not in here is delivered as it is.
        self._dispatch: dict[type, Handler] = {
            Heartbeat: self._on_heartbeat,
            Goodbye: self._on_goodbye,
            GoAway: self._on_go_away,
        }

    # --- what the shell tells ------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether messages other than the handshake's may be sent."""
        return self.state is LinkState.OPEN

    def receive(self, message: Received, now: float) -> list[Effect]:
        """Takes one message of the peer. Never raises on what a peer can do."""
        state = self.state
        if state in ENDED_STATES:
            return []
        kind = type(message)
        if kind in self.receives[state]:
            handler = self._dispatch.get(kind)
            # What no table knows (UnknownMessage) never gets here.
            return handler(message, now) if handler is not None else [Deliver(cast("Message", message))]
        if kind is UnknownMessage and state is LinkState.OPEN:
            self.unknown_messages += 1
            return []
        return self.fault(ProtocolError(self._describe_unexpected(kind)), now)

    def note_sent(self, now: float) -> None:
        """Bytes were written."""
        self._sent_at = now

    def fault(self, error: ProtocolError, now: float) -> list[Effect]:
        """The peer broke the protocol, as found here or by the shell (framing, codec)."""
        # What does not speak our protocol is not answered in it.
        farewell = None if error.code == "not_iop" else Goodbye(error.code, str(error))
        return self._end(now, error.code, f"{self._peer}: {error}", EndedBy.US, farewell)

    def close(self, code: str, message: str, now: float, *, flush_data: bool = True) -> list[Effect]:
        """Ends the link on purpose: a Goodbye goes out, after all queued data if `flush_data`. Idempotent."""
        return self._end(now, code, message, EndedBy.US, Goodbye(code, message), flush_data=flush_data)

    def abort(self, code: str, message: str, now: float) -> list[Effect]:
        """Ends the link without a word. Idempotent."""
        if self.state is LinkState.CLOSING:
            self.state = LinkState.CLOSED
            return [CloseTransport(abort=True)]
        return self._end(now, code, message, EndedBy.US, None, abort=True)

    def transport_ended(self, detail: str, now: float) -> list[Effect]:
        """The connection is gone, whoever closed it. Idempotent."""
        state, was_ended = self.state, self.state in ENDED_STATES
        self.state = LinkState.CLOSED
        if was_ended:
            return []
        message = f"{self._peer}: the connection ended in state {state} ({detail})"
        if state is self._first_state:  # perhaps no end of a link at all
            message += f"; {self.silence_hint}"
        return [Ended(self._link_end(now, "link_lost", message, EndedBy.TRANSPORT, state is LinkState.OPEN))]

    def probe(self, now: float) -> list[Effect]:
        """Asks the peer for a sign of life; see `heard_at` afterwards. Nothing happens unless the link is open."""
        return [self._heartbeat(now, echo_ms=0)] if self.is_open else []

    # --- time -----------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Returns when `on_tick` has to be called at the latest; None: never again."""
        match self.state:
            case LinkState.CLOSED:
                return None
            case LinkState.CLOSING:
                return self._close_deadline
            case LinkState.OPEN:
                return min(self.heard_at + self.limits.dead_after_s, self._heartbeat_due())
            case _:
                return self._handshake_deadline

    def on_tick(self, now: float) -> list[Effect]:
        """Does what has become due. Too early a call does nothing."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        if self.state is LinkState.CLOSING:
            self.state = LinkState.CLOSED
            return [CloseTransport(abort=True)]
        if self.state is not LinkState.OPEN:
            return self._handshake_timed_out(now)
        silent_s = now - self.heard_at
        if silent_s >= self.limits.dead_after_s:
            if silent_s > self.limits.dead_after_s + STALL_GRACE_S + STALL_S:
                self.heard_at = now - self.limits.dead_after_s + STALL_GRACE_S
                return [self._heartbeat(now, echo_ms=0)]
            message = (
                f"{self._peer}: nothing heard for {silent_s:.1f} s, dead_after_s={self.limits.dead_after_s:g}; "
                "giving the link up"
            )
            return self._end(now, "link_silent", message, EndedBy.TRANSPORT, None, abort=True)
        return [self._heartbeat(now, echo_ms=0)]

    def _heartbeat_due(self) -> float:
        interval_s = self.limits.heartbeat_interval_s
        # Cancels that are not settled are repeated even while other things are sent.
        due = (self._heartbeat_at if self._unsettled_cancels() else self._sent_at) + interval_s
        # Answers to the peer's heartbeats, or a busy link, must not keep this end from ever measuring its own.
        return min(due, self._asked_at + 2 * interval_s)

    def _handshake_timed_out(self, now: float) -> list[Effect]:
        if self.state in (LinkState.JUDGING_HELLO, LinkState.JUDGING_RUNS, LinkState.REPORTING):
            why = f"this {self.our_word} itself did not answer in time"
        else:
            why = self.silence_hint
        said = f"no link within {self._times.handshake_timeout_s:g} s (state {self.state})"
        farewell = Goodbye("handshake_timeout", said)
        return self._end(now, "handshake_timeout", f"{self._peer}: {said}; {why}", EndedBy.US, farewell)

    # --- what both sides do alike ---------------------------------------------------------------------

    def _on_heartbeat(self, heartbeat: Heartbeat, now: float) -> list[Effect]:
        if heartbeat.echo_ms:
            round_trip_s = now - heartbeat.echo_ms / 1000
            if 0 <= round_trip_s <= self.limits.dead_after_s:
                self.round_trip_s = round_trip_s
            return []
        return [self._heartbeat(now, echo_ms=heartbeat.sent_ms)]

    def _on_goodbye(self, goodbye: Goodbye, now: float) -> list[Effect]:
        code = safe_code(goodbye.reason, "goodbye")
        said = f": {safe_sentence(goodbye.message)}" if goodbye.message else ""
        message = f"{self._peer}: the {self.peer_word} ended the link ({code}){said}"
        return self._end(now, code, message, EndedBy.PEER, None)

    def _on_go_away(self, go_away: GoAway, now: float) -> list[Effect]:
        self._reconnect_in_s = go_away.reconnect_in_s
        return [Deliver(go_away)]

    def _unsettled_cancels(self) -> tuple[RunId, ...]:
        return ()

    def _heartbeat(self, now: float, *, echo_ms: int) -> Send:
        self._heartbeat_at = now
        if not echo_ms:
            self._asked_at = now
        # Never 0, which stands for "no echo" when it comes back.
        sent_ms = max(1, int(now * 1000))
        return self._send(Heartbeat(sent_ms, echo_ms, self._unsettled_cancels()[:MAX_CANCELS_PER_HEARTBEAT]), now)

    def _send(self, message: Message, now: float) -> Send:
        self._sent_at = now
        return Send(message)

    def _open(self, now: float) -> None:
        self.state = LinkState.OPEN
        self._opened_at = self._heartbeat_at = self._asked_at = self.heard_at = now

    def _expect(self, state: LinkState, step: str) -> bool:
        """Whether the shell's `step` is still wanted; False: the link has ended meanwhile."""
        if self.state in ENDED_STATES:
            return False
        if self.state is not state:
            raise InternalError(f"{step} is not allowed in state {self.state}, only in {state}")
        return True

    def _end(
        self,
        now: float,
        code: str,
        message: str,
        by: EndedBy,
        farewell: Message | None,
        *,
        flush_data: bool = False,
        reject_class: RejectClass | None = None,
        abort: bool = False,
    ) -> list[Effect]:
        if self.state in ENDED_STATES:
            return []
        end = self._link_end(now, code, message, by, self.state is LinkState.OPEN, reject_class)
        ended = Ended(end, farewell, flush_data)
        if abort:
            self.state = LinkState.CLOSED
            return [ended, CloseTransport(abort=True)]
        self.state = LinkState.CLOSING
        self._close_deadline = now + self._times.close_timeout_s
        # With a farewell the peer closes first, once it has read it: closing over its unread bytes could
        # reset the connection and take the farewell with it.
        return [ended] if farewell is not None else [ended, CloseTransport()]

    def _link_end(
        self,
        now: float,
        code: str,
        message: str,
        by: EndedBy,
        was_open: bool,
        reject_class: RejectClass | None = None,
    ) -> LinkEnd:
        stood_s = now - self._opened_at if was_open else 0.0
        return LinkEnd(code, message, by, was_open, stood_s, self._reconnect_in_s, reject_class)

    def _describe_unexpected(self, kind: type) -> str:
        if kind is UnknownMessage:
            return f"a frame of unknown content came in state {self.state}; {self._describe_expected()}"
        if kind is UnreadableRun:
            kind = RunSubmission
        if kind in (EDGE_ONLY_TYPES if self.peer_word == "node" else NODE_ONLY_TYPES):
            theirs, ours = _with_article(self.peer_word), _with_article(self.our_word)
            return f"{kind.__name__} came from {theirs}, but only {ours} may send it"
        return f"{kind.__name__} came in state {self.state}; {self._describe_expected()}"

    def _describe_expected(self) -> str:
        names = sorted(k.__name__ for k in self.receives[self.state] if k is not UnreadableRun)
        return "expected " + " or ".join(names)


def _with_article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
