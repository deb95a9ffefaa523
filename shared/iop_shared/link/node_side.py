"""What only the dialling side of a link does: prove who it is and report what it still holds. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from iop_shared.errors import ProtocolError
from iop_shared.ids import BootId, NodeId, TokenId
from iop_shared.link import auth, rejects
from iop_shared.link.effects import (
    AllowFrames,
    Deliver,
    Effect,
    EndedBy,
    Opened,
    ReportOpenRuns,
)
from iop_shared.link.machine import DEFAULT_TIMES, LinkMachine, LinkState, LinkTimes, Table
from iop_shared.link.messages import (
    EDGE_ONLY_TYPES,
    HANDSHAKE_MAX_FRAME_BYTES,
    MAX_FRAME_BYTES,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    CancelRun,
    Challenge,
    GoAway,
    Goodbye,
    Heartbeat,
    Hello,
    LinkLimits,
    OpenRuns,
    Reject,
    RunRefused,
    RunVerdicts,
    UnreadableRun,
    Welcome,
)
from iop_shared.link.peer_text import MAX_WORD_CHARS, safe_code, safe_sentence

_S: Final = LinkState
RECEIVES: Final[Table] = {
    # Refused before the challenge: the edge is busy or draining.
    _S.AWAIT_CHALLENGE: frozenset({Challenge, Reject, Goodbye}),
    _S.AWAIT_WELCOME: frozenset({Welcome, Reject, Goodbye}),
    _S.REPORTING: frozenset({Goodbye}),
    _S.AWAIT_VERDICTS: frozenset({RunVerdicts, Goodbye}),
    _S.OPEN: frozenset(EDGE_ONLY_TYPES) - {Challenge, Welcome, Reject, RunVerdicts}
    | {Heartbeat, Goodbye, GoAway, UnreadableRun},
}
# What an edge may ask of this end. Wide: they guard against nonsense, not against an operator's taste.
MAX_FRAME_BYTES_ACCEPTED: Final = 64 * 1024 * 1024
MAX_SECONDS_ACCEPTED: Final = 7 * 24 * 3600.0
MIN_HEARTBEAT_INTERVAL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who dials. `token` None: none is configured, and the edge will say so."""

    node_id: NodeId
    boot_id: BootId
    token: auth.Token | None
    software_version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    config_revision: int = 0
    config_hash: str = ""
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX


class NodeSide(LinkMachine):
    """A node's end of one link. `node_nonce`: fresh random bytes; the machine itself draws nothing."""

    receives = RECEIVES
    our_word = "node"
    peer_word = "edge"
    silence_hint = "check that the address is an edge's link port ([link] listen in edge.toml)"

    def __init__(
        self,
        identity: NodeIdentity,
        *,
        node_nonce: bytes,
        now: float,
        peer: str,
        times: LinkTimes = DEFAULT_TIMES,
    ) -> None:
        super().__init__(LinkState.AWAIT_CHALLENGE, now=now, peer=peer, times=times)
        self._identity = identity
        self._node_nonce = node_nonce
        self._dispatch |= {
            Challenge: self._on_challenge,
            Welcome: self._on_welcome,
            Reject: self._on_reject,
            RunVerdicts: self._on_verdicts,
            UnreadableRun: self._on_unreadable_run,
        }

    def start(self, now: float) -> list[Effect]:
        """The connection stands; the edge speaks first."""
        return []

    def report(self, open_runs: OpenRuns, now: float) -> list[Effect]:
        """Answers ReportOpenRuns with everything that is still held.

        Returns an empty list when the link has ended meanwhile.

        Raises:
            InternalError: nobody asked.
        """
        if not self._expect(LinkState.REPORTING, "report"):
            return []
        self.state = LinkState.AWAIT_VERDICTS
        return [self._send(open_runs, now)]

    def _on_challenge(self, challenge: Challenge, now: float) -> list[Effect]:
        if len(challenge.nonce) != auth.NONCE_BYTES:
            problem = f"Challenge: nonce has {len(challenge.nonce)} bytes, expected {auth.NONCE_BYTES}"
            return self.fault(ProtocolError(problem), now)
        me = self._identity
        ours = (me.protocol_min, me.protocol_max)
        theirs = (challenge.protocol_min, challenge.protocol_max)
        self.protocol = min(ours[1], theirs[1])
        if self.protocol < max(ours[0], theirs[0]):
            # The edge would refuse this with the same words; one round trip less, and no proof goes out.
            version = safe_sentence(challenge.software_version, MAX_WORD_CHARS)
            gap = rejects.describe_version_gap(theirs, ours, version)
            return self._end(
                now,
                "protocol_version",
                f"{self._peer}: {gap}",
                EndedBy.US,
                Goodbye("protocol_version", gap),
                reject_class=rejects.REJECT_CLASSES["protocol_version"],
            )
        self.state = LinkState.AWAIT_WELCOME
        # The Welcome carries our configuration and may be large; what we send stays small until it came.
        return [
            AllowFrames(MAX_FRAME_BYTES, HANDSHAKE_MAX_FRAME_BYTES),
            self._send(self._make_hello(challenge), now),
        ]

    def _make_hello(self, challenge: Challenge) -> Hello:
        me = self._identity
        hello = Hello(
            node_id=me.node_id,
            boot_id=me.boot_id,
            token_id=me.token.token_id if me.token is not None else TokenId(""),
            node_nonce=self._node_nonce,
            proof=b"",
            software_version=me.software_version,
            labels=me.labels,
            config_revision=me.config_revision,
            config_hash=me.config_hash,
            protocol_min=me.protocol_min,
            protocol_max=me.protocol_max,
        )
        if me.token is None:
            return hello
        return replace(hello, proof=auth.make_proof(me.token.secret, auth.auth_message(challenge, hello)))

    def _on_welcome(self, welcome: Welcome, now: float) -> list[Effect]:
        problem = _find_welcome_problem(welcome, self.protocol)
        if problem is not None:
            return self.fault(ProtocolError(problem), now)
        self.state = LinkState.REPORTING
        self.limits = welcome.limits
        size = welcome.limits.max_frame_bytes
        return [AllowFrames(size, size), ReportOpenRuns(welcome)]

    def _on_reject(self, reject: Reject, now: float) -> list[Effect]:
        code = safe_code(reject.code, "rejected")
        message = f"{self._peer}: the edge refused this node ({code}): {safe_sentence(reject.message)}"
        return self._end(now, code, message, EndedBy.PEER, None, reject_class=reject.reject_class)

    def _on_verdicts(self, verdicts: RunVerdicts, now: float) -> list[Effect]:
        self._open(now)
        return [Opened(verdicts)]

    def _on_heartbeat(self, heartbeat: Heartbeat, now: float) -> list[Effect]:
        repeated: list[Effect] = [Deliver(CancelRun(run_id, "repeated")) for run_id in heartbeat.cancelling]
        return super()._on_heartbeat(heartbeat, now) + repeated

    def _on_unreadable_run(self, run: UnreadableRun, now: float) -> list[Effect]:
        message = (
            f"operation {safe_sentence(run.operation, MAX_WORD_CHARS)!r} is not known to this node "
            f"(iop-platform {self._identity.software_version}); update the node"
        )
        return [self._send(RunRefused(run.run_id, run.attempt, "operation_unsupported", message), now)]


def _find_welcome_problem(welcome: Welcome, protocol: int) -> str | None:
    """Returns a sentence for the first thing that no sane edge would ask for, or None."""
    if welcome.protocol != protocol:
        return f"Welcome: protocol {welcome.protocol} was chosen, expected {protocol}, the highest that both speak"
    if welcome.epoch < 1:
        return f"Welcome: epoch is {welcome.epoch}, expected at least 1"
    return _find_limits_problem(welcome.limits)


def _find_limits_problem(limits: LinkLimits) -> str | None:
    if not HANDSHAKE_MAX_FRAME_BYTES <= limits.max_frame_bytes <= MAX_FRAME_BYTES_ACCEPTED:
        return (
            f"Welcome: max_frame_bytes={limits.max_frame_bytes}, expected "
            f"{HANDSHAKE_MAX_FRAME_BYTES} to {MAX_FRAME_BYTES_ACCEPTED}"
        )
    if not MIN_HEARTBEAT_INTERVAL_S <= limits.heartbeat_interval_s <= MAX_SECONDS_ACCEPTED:
        return (
            f"Welcome: heartbeat_interval_s={limits.heartbeat_interval_s:g}, expected "
            f"{MIN_HEARTBEAT_INTERVAL_S:g} to {MAX_SECONDS_ACCEPTED:g}"
        )
    if not limits.heartbeat_interval_s < limits.dead_after_s <= MAX_SECONDS_ACCEPTED:
        return (
            f"Welcome: dead_after_s={limits.dead_after_s:g}, expected more than "
            f"heartbeat_interval_s={limits.heartbeat_interval_s:g} and at most {MAX_SECONDS_ACCEPTED:g}"
        )
    if not 0 <= limits.disconnect_grace_s <= MAX_SECONDS_ACCEPTED:
        return f"Welcome: disconnect_grace_s={limits.disconnect_grace_s:g}, expected 0 to {MAX_SECONDS_ACCEPTED:g}"
    return None
