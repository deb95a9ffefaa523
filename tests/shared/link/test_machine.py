"""What both sides do alike: liveness, the close, and that no peer gets a machine out of its table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.link_messages import messages
from tests.support.link_values import (
    CHALLENGE,
    PEER,
    WELCOME,
    make_hello,
    new_edge_side,
    new_node_side,
    open_edge,
    open_node,
)
from tests.support.playbook import Playbook, like

from iop_shared.errors import LinkLost, ProtocolError
from iop_shared.link import edge_side, node_side
from iop_shared.link.edge_side import EdgeSide
from iop_shared.link.effects import CloseTransport, Deliver, Ended, EndedBy, LinkEnd, Send
from iop_shared.link.machine import LinkState
from iop_shared.link.messages import Goodbye, Heartbeat, OpenRuns, RunVerdicts, UnknownMessage
from iop_shared.link.node_side import NodeSide


@pytest.fixture
def play(request: pytest.FixtureRequest) -> Playbook:
    made = request.param()
    assert isinstance(made, Playbook)
    return made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "play" in metafunc.fixturenames:
        metafunc.parametrize("play", [open_edge, open_node], ids=["edge", "node"], indirect=True)


def test_heartbeat_when_nothing_else_was_sent(play: Playbook) -> None:
    play.now = 110.0
    play.machine.note_sent(110.0)
    play.machine.heard_at = 110.0
    assert play.machine.next_deadline() == 125.0

    play.when_passed(14.9)
    play.then()
    play.when_passed(0.1)
    play.then(Send(Heartbeat(sent_ms=125_000)))
    assert play.machine.next_deadline() == 140.0


def test_heartbeat_without_an_echo_is_answered_at_once_and_one_with_it_is_not(play: Playbook) -> None:
    play.when(Heartbeat(sent_ms=4711))
    play.then(Send(Heartbeat(sent_ms=100_000, echo_ms=4711)))

    play.when(Heartbeat(sent_ms=4712, echo_ms=99_000))
    play.then()


def test_busy_link_is_measured_too(play: Playbook) -> None:
    for _ in range(29):
        play.now += 1.0
        play.machine.heard_at = play.now
        play.machine.note_sent(play.now)
        assert play.machine.on_tick(play.now) == []

    play.when_passed(1.0)

    play.then(Send(Heartbeat(sent_ms=130_000)))


def test_answering_the_peer_does_not_keep_an_end_from_asking(play: Playbook) -> None:
    asked = 0
    for _ in range(100):
        play.now += 1.0
        if play.now % 14 == 0:  # the peer asks a little sooner, each time
            play.given(Heartbeat(sent_ms=1))
        asked += sum(isinstance(e, Send) for e in play.machine.on_tick(play.now))

    assert asked == 3


def test_round_trip_is_measured_by_the_echo(play: Playbook) -> None:
    play.given(play.machine.probe)
    play.now += 0.25

    play.given(Heartbeat(sent_ms=1, echo_ms=100_000))

    assert play.machine.round_trip_s == pytest.approx(0.25)


@pytest.mark.parametrize("echo_ms", [1, 10**15])
def test_echo_that_cannot_be_is_ignored(play: Playbook, echo_ms: int) -> None:
    play.given(Heartbeat(sent_ms=1, echo_ms=echo_ms))

    assert play.machine.round_trip_s is None


def test_link_is_dead_when_nothing_was_heard(play: Playbook) -> None:
    play.given_passed(39.0)
    assert play.machine.next_deadline() == 140.0

    play.when_passed(1.0)

    message = f"{PEER}: nothing heard for 40.0 s, dead_after_s=40; giving the link up"
    end = LinkEnd("link_silent", message, EndedBy.TRANSPORT, was_open=True, stood_s=40.0)
    play.then(Ended(end), CloseTransport(abort=True))
    assert isinstance(end.to_error(), LinkLost)
    assert end.to_error().code == "link_silent"
    assert play.machine.next_deadline() is None


def test_any_byte_counts_as_heard(play: Playbook) -> None:
    play.given_passed(39.0)
    play.machine.heard_at = play.now

    play.when_passed(2.0)

    play.then()


def test_stalled_process_looks_once_more_before_it_gives_up(play: Playbook) -> None:
    play.when_passed(1000.0)  # one step: the process was stopped, and the peer's bytes wait unread
    play.then(Send(like(Heartbeat, echo_ms=0)))

    play.when_passed(2.0)
    play.then(like(Ended, end=like(LinkEnd, code="link_silent")), CloseTransport(abort=True))


def test_both_ends_know_of_a_half_open_connection_within_45_s(play: Playbook) -> None:
    play.given_passed(45.0)

    assert play.machine.state is LinkState.CLOSED


def test_close_says_goodbye_after_the_data_and_waits_for_the_peer(play: Playbook) -> None:
    play.when(lambda now: play.machine.close("stop", "the edge stops", now))
    play.then(
        Ended(
            LinkEnd("stop", "the edge stops", EndedBy.US, was_open=True),
            farewell=Goodbye("stop", "the edge stops"),
            flush_data=True,
        )
    )

    play.when(lambda now: play.machine.close("again", "", now))
    play.then()
    play.when(lambda now: play.machine.transport_ended("closed", now))
    play.then()
    assert play.machine.state is LinkState.CLOSED


def test_close_aborts_when_the_peer_does_not_close(play: Playbook) -> None:
    play.given(lambda now: play.machine.close("stop", "", now))
    assert play.machine.next_deadline() == 102.0

    play.when_passed(2.0)
    play.then(CloseTransport(abort=True))
    play.when_passed(2.0)
    play.then()


def test_abort_needs_no_peer_and_cuts_a_close_short(play: Playbook) -> None:
    play.when(lambda now: play.machine.abort("revoked", "the token was revoked", now))
    play.then(
        Ended(LinkEnd("revoked", "the token was revoked", EndedBy.US, was_open=True)), CloseTransport(abort=True)
    )
    play.when(lambda now: play.machine.abort("again", "", now))
    play.then()


def test_abort_during_a_close(play: Playbook) -> None:
    play.given(lambda now: play.machine.close("stop", "", now))

    play.when(lambda now: play.machine.abort("now", "", now))

    play.then(CloseTransport(abort=True))


def test_goodbye_of_the_peer_ends_the_link(play: Playbook) -> None:
    play.when(Goodbye("update"))

    word = play.machine.peer_word
    play.then(
        Ended(LinkEnd("update", f"{PEER}: the {word} ended the link (update)", EndedBy.PEER, was_open=True)),
        CloseTransport(),
    )


def test_probe_before_the_link_is_open_does_nothing() -> None:
    assert new_edge_side().probe(100.0) == []
    assert new_node_side().probe(100.0) == []


# --- whatever a peer sends --------------------------------------------------------------------------------

steps = st.one_of(
    messages,
    st.sampled_from([CHALLENGE, WELCOME, make_hello(), OpenRuns(), RunVerdicts(), UnknownMessage(3)]),
    st.sampled_from(["shell", "tick", "fault", "gone", "close", "abort"]),
)


def _shell_step(machine: EdgeSide | NodeSide, now: float) -> list[object]:
    match machine.state:
        case LinkState.JUDGING_HELLO:
            assert isinstance(machine, EdgeSide)
            return list(machine.admit(WELCOME, now))
        case LinkState.JUDGING_RUNS:
            assert isinstance(machine, EdgeSide)
            return list(machine.answer_open_runs(RunVerdicts(), now))
        case LinkState.REPORTING:
            assert isinstance(machine, NodeSide)
            return list(machine.report(OpenRuns(), now))
        case _:
            return []


@pytest.mark.parametrize("side", ["edge", "node"])
@given(script=st.lists(steps, max_size=25))
def test_machine_never_leaves_its_table(side: str, script: list[object]) -> None:
    machine: EdgeSide | NodeSide = new_edge_side() if side == "edge" else new_node_side()
    receives = edge_side.RECEIVES if side == "edge" else node_side.RECEIVES
    states = {*receives, LinkState.CLOSING, LinkState.CLOSED}
    effects: list[object] = list(machine.start(100.0))
    now = 100.0
    for step in script:
        now += 0.7
        before, came = machine.state, list[object]()
        match step:
            case "shell":
                came = _shell_step(machine, now)
            case "tick":
                came = list(machine.on_tick(now))
            case "fault":
                came = list(machine.fault(ProtocolError("broken"), now))
            case "gone":
                came = list(machine.transport_ended("reset", now))
            case "close":
                came = list(machine.close("stop", "", now))
            case "abort":
                came = list(machine.abort("stop", "", now))
            case message:
                came = list(machine.receive(message, now))  # type: ignore[arg-type]
                if any(isinstance(e, Deliver) for e in came):
                    assert before is LinkState.OPEN
                if type(message) not in receives.get(before, frozenset()) and before in receives:
                    ended = machine.state is LinkState.CLOSING
                    assert ended or isinstance(message, UnknownMessage)
        effects += came
        assert machine.state in states

    ends = [e for e in effects if isinstance(e, Ended)]
    assert len(ends) == (machine.state in (LinkState.CLOSING, LinkState.CLOSED))
    if ends:
        # Told once, and nothing but the transport's close after it.
        after = effects[effects.index(ends[0]) + 1 :]
        assert all(isinstance(e, CloseTransport) for e in after)
    deadline = machine.next_deadline()
    assert (deadline is None) == (machine.state is LinkState.CLOSED)
