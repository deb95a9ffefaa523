"""Transcripts of the accepting side, every bad input of a link included."""

from unittest.mock import ANY

import pytest
from tests.support.link_values import CHALLENGE, PEER, TOKEN, WELCOME, make_hello, new_edge_side, open_edge
from tests.support.playbook import Playbook, like

from iop_shared.errors import InternalError, ProtocolError
from iop_shared.ids import AdapterName, NodeId, RunId, TargetName, TokenId
from iop_shared.link import auth, rejects
from iop_shared.link.effects import (
    AllowFrames,
    CloseTransport,
    Deliver,
    Ended,
    EndedBy,
    JudgeOpenRuns,
    LinkEnd,
    NeedVerdict,
    Opened,
    Send,
)
from iop_shared.link.messages import (
    CancelRun,
    DrainingChanged,
    EdgeNodeEvent,
    GoAway,
    Goodbye,
    Heartbeat,
    Hello,
    OpenRun,
    OpenRuns,
    Reject,
    RejectClass,
    RunAccepted,
    RunSubmission,
    RunVerdict,
    RunVerdicts,
    UnknownMessage,
    UnreadableRun,
    Verdict,
    Welcome,
)
from iop_shared.runs import Operation, RunRequest
from iop_shared.runtime_events import RuntimeEvent, Text

RUN = RunId("0199aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee")
HELLO = make_hello()


@pytest.fixture
def play() -> Playbook:
    return Playbook(new_edge_side())


def faulted(code: str, sentence: str, *, was_open: bool = False) -> tuple[Ended]:
    """What a peer's fault leads to: told once, said to the peer, closed by the peer or the deadline."""
    return (
        Ended(
            LinkEnd(code, f"{PEER}: {sentence}", EndedBy.US, was_open=was_open), farewell=Goodbye(code, sentence)
        ),
    )


def test_handshake_from_challenge_to_open(play: Playbook) -> None:
    edge = new_edge_side()
    play = Playbook(edge)
    play.when(edge.start)
    play.then(Send(CHALLENGE))

    play.when(HELLO)
    play.then(NeedVerdict(HELLO, auth.auth_message(CHALLENGE, HELLO)))
    play.when(lambda now: edge.admit(WELCOME, now))
    play.then(AllowFrames(1024 * 1024, 1024 * 1024), Send(WELCOME))

    open_runs = OpenRuns((OpenRun(RUN, 1, 12, "running"),))
    play.when(open_runs)
    play.then(JudgeOpenRuns(open_runs))
    verdicts = RunVerdicts((RunVerdict(RUN, 1, 10, Verdict.KEEP),))
    play.when(lambda now: edge.answer_open_runs(verdicts, now))
    play.then(Send(verdicts), Opened())

    event = RuntimeEvent(RUN, 1, 11, Text("x"))
    play.when(event)
    play.then(Deliver(event))


def test_proof_in_the_hello_verifies_and_another_nodes_does_not() -> None:
    message = auth.auth_message(CHALLENGE, HELLO)

    assert auth.verify_proof(auth.stored_key(TOKEN.secret), message, HELLO.proof)
    other = make_hello(node_id=NodeId("gpu-2"))
    assert not auth.verify_proof(auth.stored_key(TOKEN.secret), auth.auth_message(CHALLENGE, other), HELLO.proof)


@pytest.mark.parametrize(
    "reject",
    [
        rejects.token_invalid("gpu-1"),
        rejects.token_revoked("gpu-1", "0123456789ab"),
        rejects.node_unknown("gpu-1", "gpu-7"),
        rejects.duplicate_node("gpu-1"),
        rejects.edge_draining(),
    ],
    ids=lambda r: r.code,
)
def test_rejected_node_hears_why_and_is_closed(play: Playbook, reject: Reject) -> None:
    edge = new_edge_side()
    play = Playbook(edge)
    play.given_started()
    play.given(HELLO)

    play.when(lambda now: edge.reject(reject, now))

    message = f"{PEER}: refused ({reject.code}): {reject.message}"
    play.then(Ended(LinkEnd(reject.code, message, EndedBy.US, reject_class=reject.reject_class), farewell=reject))
    play.when_passed(2.0)
    play.then(CloseTransport(abort=True))


def test_missing_token_is_refused_without_asking(play: Playbook) -> None:
    play.given_started()

    play.when(make_hello(token_id=TokenId(""), proof=b""))

    play.then(like(Ended, farewell=rejects.token_missing("gpu-1")))


def test_busy_edge_refuses_before_the_challenge() -> None:
    edge = new_edge_side(refusal=rejects.edge_busy(256, 256))
    play = Playbook(edge)

    play.when(edge.start)

    play.then(like(Ended, farewell=rejects.edge_busy(256, 256)))


def test_no_common_protocol_is_refused(play: Playbook) -> None:
    play.given_started()

    play.when(make_hello(protocol_min=2, protocol_max=3))

    message = "no common protocol: edge (iop-platform 1.2.3) speaks 1 to 1, node speaks 2 to 3; update the edge"
    play.then(like(Ended, farewell=Reject("protocol_version", RejectClass.FATAL, message)))


def test_newer_node_that_still_speaks_our_protocol_is_admitted_with_it() -> None:
    edge = new_edge_side()
    play = Playbook(edge)
    play.given_started()
    play.given(make_hello(protocol_min=1, protocol_max=9))

    play.when(lambda now: edge.admit(WELCOME, now))

    play.then(like(AllowFrames), Send(like(Welcome, protocol=1)))


@pytest.mark.parametrize(
    ("hello", "sentence"),
    [
        (
            make_hello(node_id=NodeId("GPU 1")),
            "Hello: node 'GPU 1' is not a valid name: use 1 to 63 of a-z 0-9 . _ - "
            "and begin and end with a letter or digit",
        ),
        (make_hello(boot_id="short"), "Hello: boot_id has 5 characters, expected 32 hex digits"),
        (make_hello(node_nonce=b"1"), "Hello: node_nonce has 1 bytes, expected 32"),
        (make_hello(token_id=TokenId("nope")), "Hello: token_id has 4 characters, expected 12 of a-z 0-9"),
        (make_hello(proof=b""), "Hello: proof has 0 bytes, expected 32"),
        (
            make_hello(software_version="1\n2"),
            "Hello: software_version is not printable or longer than 64 characters",
        ),
        (
            make_hello(labels={"site": "x" * 129}),
            "Hello: a label's name or value is not printable or longer than 128 characters",
        ),
    ],
    ids=["node_id", "boot_id", "node_nonce", "token_id", "proof", "version", "label"],
)
def test_malformed_hello(play: Playbook, hello: Hello, sentence: str) -> None:
    play.given_started()

    play.when(hello)

    play.then(*faulted("protocol_error", sentence))


def test_wrong_direction(play: Playbook) -> None:
    play.given_started()

    play.when(CHALLENGE)

    play.then(*faulted("protocol_error", "Challenge came from a node, but only an edge may send it"))


def test_wrong_direction_on_an_open_link() -> None:
    play = open_edge()
    request = RunRequest(RUN, AdapterName("mock"), TargetName("echo"), Operation.CHAT, b"{}")

    play.when(RunSubmission(request, 2))

    play.then(
        *faulted("protocol_error", "RunSubmission came from a node, but only an edge may send it", was_open=True)
    )


def test_out_of_turn(play: Playbook) -> None:
    play.given_started()

    play.when(OpenRuns())

    play.then(*faulted("protocol_error", "OpenRuns came in state await_hello; expected Goodbye or Hello"))


def test_second_hello(play: Playbook) -> None:
    play.given_started()
    play.given(HELLO)

    play.when(HELLO)

    play.then(*faulted("protocol_error", "Hello came in state judging_hello; expected Goodbye"))


def test_run_of_an_unknown_kind_from_a_node() -> None:
    play = open_edge()

    play.when(UnreadableRun(RUN, 1, "paint"))

    play.then(
        *faulted("protocol_error", "RunSubmission came from a node, but only an edge may send it", was_open=True)
    )


def test_unknown_frame_is_counted_on_an_open_link_and_a_fault_before() -> None:
    play = open_edge()
    play.when(UnknownMessage(9))
    play.then()
    assert play.machine.unknown_messages == 1

    play = Playbook(new_edge_side())
    play.given_started()
    play.when(UnknownMessage(9))
    sentence = "a frame of unknown content came in state await_hello; expected Goodbye or Hello"
    play.then(*faulted("protocol_error", sentence))


def test_fault_found_by_framing_is_said_to_the_peer(play: Playbook) -> None:
    play.given_started()
    sentence = "a frame of 20000 bytes exceeds max_frame_bytes=16384; closing the link"

    play.when(lambda now: play.machine.fault(ProtocolError(sentence, code="frame_too_large"), now))

    play.then(*faulted("frame_too_large", sentence))


def test_other_protocol_is_closed_without_an_answer(play: Playbook) -> None:
    play.given_started()
    error = ProtocolError("this is an HTTP request, not an iop link: ...", code="not_iop")

    play.when(lambda now: play.machine.fault(error, now))

    play.then(Ended(LinkEnd("not_iop", f"{PEER}: {error}", EndedBy.US)), CloseTransport())


def test_silent_peer_is_given_up_after_the_handshake_deadline(play: Playbook) -> None:
    play.given_started()
    assert play.machine.next_deadline() == 105.0

    play.when_passed(5.0)

    said = "no link within 5 s (state await_hello)"
    message = f"{PEER}: {said}; the other end said nothing that a node says"
    play.then(
        Ended(LinkEnd("handshake_timeout", message, EndedBy.US), farewell=Goodbye("handshake_timeout", said))
    )


def test_bytes_do_not_push_the_handshake_deadline_away(play: Playbook) -> None:
    play.given_started()
    play.now = 104.0
    play.machine.heard_at = 104.0

    assert play.machine.next_deadline() == 105.0


def test_own_slow_verdict_is_called_by_its_name(play: Playbook) -> None:
    play.given_started()
    play.given(HELLO)

    play.when_passed(5.0)

    message = f"{PEER}: no link within 5 s (state judging_hello); this edge itself did not answer in time"
    play.then(like(Ended, end=LinkEnd("handshake_timeout", message, EndedBy.US)))


def test_verdict_after_the_end_does_nothing() -> None:
    edge = new_edge_side()
    play = Playbook(edge)
    play.given_started()
    play.given(HELLO, lambda now: edge.transport_ended("reset", now))

    assert edge.admit(WELCOME, play.now) == []
    assert edge.reject(rejects.edge_draining(), play.now) == []
    assert edge.answer_open_runs(RunVerdicts(), play.now) == []


def test_verdict_nobody_asked_for_is_our_bug() -> None:
    edge = new_edge_side()

    with pytest.raises(InternalError) as caught:
        edge.admit(WELCOME, 100.0)
    assert str(caught.value) == "admit is not allowed in state await_hello, only in judging_hello"
    with pytest.raises(InternalError):
        edge.answer_open_runs(RunVerdicts(), 100.0)
    play = open_edge()
    with pytest.raises(InternalError):
        play.machine.reject(rejects.edge_draining(), play.now)  # type: ignore[union-attr]


def test_unsettled_cancels_are_repeated_whatever_else_is_sent() -> None:
    cancels: list[RunId] = []
    play = open_edge(unsettled_cancels=lambda: tuple(cancels))
    cancels.append(RUN)
    for _ in range(14):
        play.now += 1.0
        play.machine.heard_at = play.now
        play.machine.note_sent(play.now)

    play.when_passed(1.0)
    play.then(Send(like(Heartbeat, cancelling=(RUN,), echo_ms=0)))

    cancels.clear()
    play.when(Heartbeat(sent_ms=5))
    play.then(Send(like(Heartbeat, cancelling=(), echo_ms=5)))


def test_many_cancels_are_told_oldest_first_and_bounded() -> None:
    cancels = tuple(RunId(f"run-{n}") for n in range(1000))
    play = open_edge(unsettled_cancels=lambda: cancels)

    play.when(play.machine.probe)

    play.then(Send(like(Heartbeat, cancelling=cancels[:256])))


def test_nodes_drain_notice_and_go_away() -> None:
    play = open_edge()
    event = EdgeNodeEvent(1, DrainingChanged(True, "update"))
    play.when(event)
    play.then(Deliver(event))

    away = GoAway("update", reconnect_in_s=9.0, deadline_s=30.0)
    play.when(away)
    play.then(Deliver(away))
    play.when(Goodbye("update", "restarting"))
    play.then(
        Ended(
            LinkEnd(
                "update",
                f"{PEER}: the node ended the link (update): restarting",
                EndedBy.PEER,
                was_open=True,
                reconnect_in_s=9.0,
            )
        ),
        CloseTransport(),
    )


def test_nothing_is_delivered_after_the_end() -> None:
    play = open_edge()
    play.given(lambda now: play.machine.close("stop", "bye", now))

    play.when(RunAccepted(RUN, 1))
    play.then()
    play.when(CancelRun(RUN, "wrong direction, but nobody listens any more"))
    play.then()


def test_playbook_compares_anything() -> None:
    play = open_edge()
    play.when(play.machine.probe)
    with pytest.raises(AssertionError, match=r"differ:\n- Deliver"):
        play.then(Deliver(Goodbye("x")))
    play.when(play.machine.probe)
    play.then(ANY)
