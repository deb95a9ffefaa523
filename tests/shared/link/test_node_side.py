"""Transcripts of the dialling side, every bad input of a link included."""

from dataclasses import replace

import pytest
from tests.support.link_values import (
    CHALLENGE,
    IDENTITY,
    PEER,
    TOKEN,
    WELCOME,
    make_hello,
    new_node_side,
    open_node,
)
from tests.support.playbook import Playbook, like

from iop_shared.errors import InternalError, LinkRefused
from iop_shared.ids import Epoch, RunId
from iop_shared.link import auth, rejects
from iop_shared.link.effects import (
    AllowFrames,
    CloseTransport,
    Deliver,
    Ended,
    EndedBy,
    LinkEnd,
    Opened,
    ReportOpenRuns,
    Send,
)
from iop_shared.link.messages import (
    CancelRun,
    Challenge,
    ConfigPush,
    GoAway,
    Goodbye,
    Heartbeat,
    Hello,
    LinkLimits,
    OpenRun,
    OpenRuns,
    Reject,
    RejectClass,
    RunAccepted,
    RunRefused,
    RunVerdict,
    RunVerdicts,
    UnreadableRun,
    Verdict,
    Welcome,
)
from iop_shared.node_config import make_node_config

RUN = RunId("0199aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee")
MIB = 1024 * 1024


@pytest.fixture
def play() -> Playbook:
    return Playbook(new_node_side())


def faulted(sentence: str) -> Ended:
    return Ended(
        LinkEnd("protocol_error", f"{PEER}: {sentence}", EndedBy.US), farewell=Goodbye("protocol_error", sentence)
    )


def test_handshake_from_challenge_to_open() -> None:
    node = new_node_side()
    play = Playbook(node)
    play.when(node.start)
    play.then()

    play.when(CHALLENGE)
    play.then(AllowFrames(MIB, 16 * 1024), Send(make_hello()))
    play.when(WELCOME)
    play.then(AllowFrames(MIB, MIB), ReportOpenRuns(WELCOME))

    open_runs = OpenRuns((OpenRun(RUN, 1, 12, "running"),))
    play.when(lambda now: node.report(open_runs, now))
    play.then(Send(open_runs))
    verdicts = RunVerdicts((RunVerdict(RUN, 1, 10, Verdict.KEEP),))
    play.when(verdicts)
    play.then(Opened(verdicts))

    push = ConfigPush(make_node_config(4, ()))
    play.when(push)
    play.then(Deliver(push))


def test_proof_covers_the_challenge(play: Playbook) -> None:
    play.given_started()
    other = replace(CHALLENGE, nonce=b"X" * 32)

    play.when(other)

    hello = make_hello()
    proof = auth.make_proof(TOKEN.secret, auth.auth_message(other, hello))
    play.then(like(AllowFrames), Send(replace(hello, proof=proof)))
    assert proof != hello.proof


def test_node_without_a_token_says_so() -> None:
    play = Playbook(new_node_side(replace(IDENTITY, token=None)))
    play.given_started()

    play.when(CHALLENGE)

    play.then(like(AllowFrames), Send(like(Hello, token_id="", proof=b"")))


@pytest.mark.parametrize(
    ("state", "reject"),
    [
        ("await_welcome", rejects.token_missing("gpu-1")),
        ("await_welcome", rejects.token_invalid("gpu-1")),
        ("await_welcome", rejects.token_revoked("gpu-1", "0123456789ab")),
        ("await_welcome", rejects.node_unknown("gpu-1", "gpu-7")),
        ("await_welcome", rejects.duplicate_node("gpu-1")),
        ("await_challenge", rejects.edge_busy(256, 256)),
        ("await_challenge", rejects.edge_draining()),
    ],
    ids=lambda v: getattr(v, "code", v),
)
def test_reject_ends_the_link_with_its_class(play: Playbook, state: str, reject: Reject) -> None:
    play.given_started()
    if state == "await_welcome":
        play.given(CHALLENGE)

    play.when(reject)

    message = f"{PEER}: the edge refused this node ({reject.code}): {reject.message}"
    end = LinkEnd(reject.code, message, EndedBy.PEER, reject_class=reject.reject_class)
    play.then(Ended(end), CloseTransport())
    error = end.to_error()
    assert isinstance(error, LinkRefused)
    assert (error.code, error.reject_class, str(error)) == (reject.code, reject.reject_class, message)


def test_no_common_protocol_ends_it_before_a_proof_goes_out(play: Playbook) -> None:
    play.given_started()

    play.when(replace(CHALLENGE, protocol_min=2, protocol_max=2))

    gap = "no common protocol: edge (iop-platform 1.2.3) speaks 2 to 2, node speaks 1 to 1; update the node"
    play.then(
        Ended(
            LinkEnd("protocol_version", f"{PEER}: {gap}", EndedBy.US, reject_class=RejectClass.FATAL),
            farewell=Goodbye("protocol_version", gap),
        )
    )


def test_challenge_with_a_short_nonce(play: Playbook) -> None:
    play.given_started()

    play.when(Challenge(b"short", "edge-1", "1"))

    play.then(faulted("Challenge: nonce has 5 bytes, expected 32"))


@pytest.mark.parametrize(
    ("welcome", "sentence"),
    [
        (
            replace(WELCOME, protocol=9),
            "Welcome: protocol 9 was chosen, expected 1, the highest that both speak",
        ),
        (replace(WELCOME, epoch=Epoch(0)), "Welcome: epoch is 0, expected at least 1"),
        (
            replace(WELCOME, limits=LinkLimits(max_frame_bytes=100)),
            "Welcome: max_frame_bytes=100, expected 16384 to 67108864",
        ),
        (
            replace(WELCOME, limits=LinkLimits(heartbeat_interval_s=0.0)),
            "Welcome: heartbeat_interval_s=0, expected 0.01 to 604800",
        ),
        (
            replace(WELCOME, limits=LinkLimits(heartbeat_interval_s=15.0, dead_after_s=15.0)),
            "Welcome: dead_after_s=15, expected more than heartbeat_interval_s=15 and at most 604800",
        ),
        (
            replace(WELCOME, limits=LinkLimits(disconnect_grace_s=1e7)),
            "Welcome: disconnect_grace_s=1e+07, expected 0 to 604800",
        ),
    ],
    ids=["protocol", "epoch", "max_frame_bytes", "heartbeat", "dead_after", "grace"],
)
def test_insane_welcome(play: Playbook, welcome: Welcome, sentence: str) -> None:
    play.given_started()
    play.given(CHALLENGE)

    play.when(welcome)

    play.then(faulted(sentence))


def test_wrong_direction(play: Playbook) -> None:
    play.given_started()

    play.when(make_hello())

    play.then(faulted("Hello came from an edge, but only a node may send it"))


def test_out_of_turn(play: Playbook) -> None:
    play.given_started()

    play.when(WELCOME)

    play.then(faulted("Welcome came in state await_challenge; expected Challenge or Goodbye or Reject"))


def test_wrong_direction_on_an_open_link() -> None:
    play = open_node()

    play.when(RunAccepted(RUN, 1))

    play.then(
        like(
            Ended,
            farewell=Goodbye("protocol_error", "RunAccepted came from an edge, but only a node may send it"),
        )
    )


def test_silent_edge_is_given_up_with_a_hint(play: Playbook) -> None:
    play.given_started()

    play.when_passed(5.0)

    said = "no link within 5 s (state await_challenge)"
    message = f"{PEER}: {said}; check that the address is an edge's link port ([link] listen in edge.toml)"
    play.then(
        Ended(LinkEnd("handshake_timeout", message, EndedBy.US), farewell=Goodbye("handshake_timeout", said))
    )


def test_cancels_repeated_in_a_heartbeat_are_delivered() -> None:
    play = open_node()

    play.when(Heartbeat(sent_ms=77, cancelling=(RUN,)))

    play.then(Send(like(Heartbeat, echo_ms=77)), Deliver(CancelRun(RUN, "repeated")))


def test_run_of_an_unknown_operation_is_refused() -> None:
    play = open_node()

    play.when(UnreadableRun(RUN, 2, "paint"))

    message = "operation 'paint' is not known to this node (iop-platform 1.2.0); update the node"
    play.then(Send(RunRefused(RUN, 2, "operation_unsupported", message)))


def test_go_away_is_remembered_for_the_redial() -> None:
    play = open_node()
    play.given(GoAway("update", reconnect_in_s=12.0))

    play.when(lambda now: play.machine.transport_ended("reset by peer", now))

    play.then(
        Ended(
            LinkEnd(
                "link_lost",
                f"{PEER}: the connection ended in state open (reset by peer)",
                EndedBy.TRANSPORT,
                was_open=True,
                reconnect_in_s=12.0,
            )
        )
    )


def test_a_connection_that_ends_before_a_word_came_says_what_to_check() -> None:
    node = new_node_side()

    assert node.transport_ended("Connection reset by peer", 100.0) == [
        Ended(
            LinkEnd(
                "link_lost",
                f"{PEER}: the connection ended in state await_challenge (Connection reset by peer); "
                "check that the address is an edge's link port ([link] listen in edge.toml)",
                EndedBy.TRANSPORT,
            )
        )
    ]


def test_report_nobody_asked_for_is_our_bug() -> None:
    node = new_node_side()

    with pytest.raises(InternalError):
        node.report(OpenRuns(), 100.0)
    node.transport_ended("gone", 100.0)
    assert node.report(OpenRuns(), 100.0) == []
