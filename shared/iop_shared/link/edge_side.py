"""What only the accepting side of a link does: challenge, have the Hello and the open runs judged. Pure."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from iop_shared.errors import InvalidName, ProtocolError
from iop_shared.ids import RunId, check_name
from iop_shared.link import auth, rejects
from iop_shared.link.effects import (
    AllowFrames,
    Effect,
    EndedBy,
    JudgeOpenRuns,
    NeedVerdict,
    Opened,
)
from iop_shared.link.machine import DEFAULT_TIMES, LinkMachine, LinkState, LinkTimes, Table
from iop_shared.link.messages import (
    NODE_ONLY_TYPES,
    Challenge,
    GoAway,
    Goodbye,
    Heartbeat,
    Hello,
    OpenRuns,
    Reject,
    RunVerdicts,
    Welcome,
)
from iop_shared.link.peer_text import MAX_LABEL_CHARS, MAX_WORD_CHARS, is_word, safe_sentence

_S: Final = LinkState
_BOOT_ID: Final = re.compile(r"[0-9a-f]{32}")
RECEIVES: Final[Table] = {
    _S.AWAIT_HELLO: frozenset({Hello, Goodbye}),
    _S.JUDGING_HELLO: frozenset({Goodbye}),
    _S.AWAIT_OPEN_RUNS: frozenset({OpenRuns, Goodbye}),
    _S.JUDGING_RUNS: frozenset({Goodbye}),
    _S.OPEN: frozenset(NODE_ONLY_TYPES) - {Hello, OpenRuns} | {Heartbeat, Goodbye, GoAway},
}


class EdgeSide(LinkMachine):
    """An edge's end of one link. `nonce`: fresh random bytes; the machine itself draws nothing.

    `refusal`: refuse whoever it is, before the challenge (the edge is busy or draining).
    `unsettled_cancels` names the runs whose cancel has not led to an end yet, oldest first; it must be cheap.
    """

    receives = RECEIVES
    our_word = "edge"
    peer_word = "node"
    silence_hint = "the other end said nothing that a node says"

    def __init__(
        self,
        challenge: Challenge,
        *,
        now: float,
        peer: str,
        times: LinkTimes = DEFAULT_TIMES,
        refusal: Reject | None = None,
        unsettled_cancels: Callable[[], tuple[RunId, ...]] = tuple,
    ) -> None:
        super().__init__(LinkState.AWAIT_HELLO, now=now, peer=peer, times=times)
        self._challenge = challenge
        self._refusal = refusal
        self._cancels = unsettled_cancels
        self._dispatch |= {Hello: self._on_hello, OpenRuns: self._on_open_runs}

    def start(self, now: float) -> list[Effect]:
        """The connection stands: the challenge goes out, or the refusal instead of it."""
        if self._refusal is not None:
            return self.reject(self._refusal, now)
        return [self._send(self._challenge, now)]

    def admit(self, welcome: Welcome, now: float) -> list[Effect]:
        """Lets the node in. The protocol version in `welcome` is replaced by the one that both speak.

        Returns an empty list when the link has ended meanwhile.

        Raises:
            InternalError: nobody asked.
        """
        if not self._expect(LinkState.JUDGING_HELLO, "admit"):
            return []
        self.state = LinkState.AWAIT_OPEN_RUNS
        self.limits = welcome.limits
        size = welcome.limits.max_frame_bytes
        return [AllowFrames(size, size), self._send(replace(welcome, protocol=self.protocol), now)]

    def reject(self, reject: Reject, now: float) -> list[Effect]:
        """Refuses the node and closes; in any state before the node was let in.

        Raises:
            InternalError: the node has been let in.
        """
        if self.state is not LinkState.AWAIT_HELLO and not self._expect(LinkState.JUDGING_HELLO, "reject"):
            return []
        message = f"{self._peer}: refused ({reject.code}): {reject.message}"
        return self._end(now, reject.code, message, EndedBy.US, reject, reject_class=reject.reject_class)

    def answer_open_runs(self, verdicts: RunVerdicts, now: float) -> list[Effect]:
        """Judges what the node still holds; the link is open from here.

        Raises:
            InternalError: nobody asked.
        """
        if not self._expect(LinkState.JUDGING_RUNS, "answer_open_runs"):
            return []
        sent = self._send(verdicts, now)
        self._open(now)
        return [sent, Opened()]

    def _unsettled_cancels(self) -> tuple[RunId, ...]:
        return self._cancels()

    def _on_hello(self, hello: Hello, now: float) -> list[Effect]:
        problem = _find_hello_problem(hello)
        if problem is not None:
            return self.fault(ProtocolError(problem), now)
        ours = (self._challenge.protocol_min, self._challenge.protocol_max)
        theirs = (hello.protocol_min, hello.protocol_max)
        self.protocol = min(ours[1], theirs[1])
        if self.protocol < max(ours[0], theirs[0]):
            return self.reject(rejects.protocol_version(ours, theirs, self._challenge.software_version), now)
        if not hello.token_id:
            return self.reject(rejects.token_missing(hello.node_id), now)
        self.state = LinkState.JUDGING_HELLO
        return [NeedVerdict(hello, auth.auth_message(self._challenge, hello))]

    def _on_open_runs(self, open_runs: OpenRuns, now: float) -> list[Effect]:
        self.state = LinkState.JUDGING_RUNS
        return [JudgeOpenRuns(open_runs)]


def _find_hello_problem(hello: Hello) -> str | None:
    """Returns a sentence for the first field that no node of ours would send, or None."""
    try:
        check_name("node", hello.node_id)
    except InvalidName as error:
        return safe_sentence(f"Hello: {error}")
    if _BOOT_ID.fullmatch(hello.boot_id) is None:
        return f"Hello: boot_id has {len(hello.boot_id)} characters, expected 32 hex digits"
    if len(hello.node_nonce) != auth.NONCE_BYTES:
        return f"Hello: node_nonce has {len(hello.node_nonce)} bytes, expected {auth.NONCE_BYTES}"
    if not is_word(hello.software_version):
        return f"Hello: software_version is not printable or longer than {MAX_WORD_CHARS} characters"
    if not all(is_word(word, MAX_LABEL_CHARS) for label in hello.labels.items() for word in label):
        return f"Hello: a label's name or value is not printable or longer than {MAX_LABEL_CHARS} characters"
    if not hello.token_id:
        return None
    if not auth.is_token_id(hello.token_id):
        return f"Hello: token_id has {len(hello.token_id)} characters, expected 12 of a-z 0-9"
    if len(hello.proof) != auth.PROOF_BYTES:
        return f"Hello: proof has {len(hello.proof)} bytes, expected {auth.PROOF_BYTES}"
    return None
