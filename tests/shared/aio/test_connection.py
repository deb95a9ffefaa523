"""LinkConnection over real sockets, on both loops: the pair, its order and bounds, and every way to end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.support.fake_edge import FakeEdge, FakeSession
from tests.support.fake_node import FakeNode, echo
from tests.support.inbox import wait_for
from tests.support.tcp_relay import TcpRelay

from iop_shared.errors import InternalError, LinkRefused, TooLarge
from iop_shared.ids import AdapterName, RunId, TargetName, new_run_id
from iop_shared.link import rejects
from iop_shared.link.auth import new_token
from iop_shared.link.effects import EndedBy, LinkEnd
from iop_shared.link.messages import (
    CancelRun,
    ConfigResult,
    GoAway,
    Message,
    NodeCommandRequest,
    OpenRun,
    Reject,
    RejectClass,
    RunInputPart,
    RunSubmission,
    RunVerdict,
    Verdict,
)
from iop_shared.runs import Operation, RunRequest
from iop_shared.runtime_events import EngineJson, Succeeded, Text

pytestmark = pytest.mark.both_loops
TOKEN = new_token()


def make_request(text: str = "hello there") -> RunRequest:
    return RunRequest(
        new_run_id(),
        AdapterName("mock"),
        TargetName("echo"),
        Operation.GENERATE,
        text.encode(),
        content_type="text/plain",
    )


@pytest.fixture
async def edge() -> AsyncIterator[FakeEdge]:
    async with FakeEdge.listening(TOKEN) as edge:
        yield edge


@pytest.fixture
async def node(edge: FakeEdge) -> AsyncIterator[FakeNode]:
    node = FakeNode(edge.address, TOKEN, labels={"site": "lab"}, on_run=echo)
    yield node
    await node.aclose()


async def test_pair_opens_runs_and_says_goodbye(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    request = make_request()

    session.submit(request)
    events = await session.wait_terminal(request.run_id)
    await node.aclose()
    end = await session.wait_closed()

    assert [type(e.body) for e in events][1:] == [Text, Text, Succeeded]
    assert [e.seq for e in events] == [1, 2, 3, 4]
    assert session.hello is not None
    assert session.hello.labels == {"site": "lab"}
    assert (end.code, end.by, end.was_open) == ("stopped", EndedBy.PEER, True)
    assert end.message.endswith(": the node ended the link (stopped): the test is over")
    assert node.ends[0].by is EndedBy.US


async def test_edge_says_goodbye_too(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()

    session.link.close("update", "back in a moment")
    session.link.close("again", "")
    ends = (await session.wait_closed(), await node.wait_end())

    assert [e.code for e in ends] == ["update", "update"]
    assert ends[1].message == f"{edge.address}: the edge ended the link (update): back in a moment"
    assert len(edge.ends) == len(node.ends) == 1


async def test_open_runs_are_judged_before_the_link_is_open(edge: FakeEdge, node: FakeNode) -> None:
    run_id = new_run_id()
    node.open_runs = (OpenRun(run_id, 1, 9, "running"),)
    edge.verdicts[run_id] = (7, Verdict.KEEP)

    await node.connect()

    assert node.verdicts is not None
    assert node.verdicts.runs == (RunVerdict(run_id, 1, 7, Verdict.KEEP),)


async def test_config_and_commands_go_both_ways(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    assert (await session.wait_config_result(1)).applied
    node.reject_config_with = ("adapter 'x' is not allowed here",)

    config = session.push_config(())

    assert await session.wait_config_result(2) == ConfigResult(
        2, config.hash, False, ("adapter 'x' is not allowed here",)
    )
    assert (await session.command("status")).result == {"command": "status"}


@pytest.mark.parametrize(
    "reject", [rejects.token_invalid("gpu-1"), rejects.duplicate_node("gpu-1")], ids=lambda r: r.code
)
async def test_rejected_node_learns_why(edge: FakeEdge, node: FakeNode, reject: Reject) -> None:
    edge.reject = reject

    with pytest.raises(LinkRefused) as caught:
        await node.connect()
    await node.wait_end()
    end = await edge.wait_ended()

    assert str(caught.value) == f"{edge.address}: the edge refused this node ({reject.code}): {reject.message}"
    assert (caught.value.code, caught.value.reject_class) == (reject.code, reject.reject_class)
    assert (end.code, end.by, end.reject_class) == (reject.code, EndedBy.US, reject.reject_class)


@pytest.mark.parametrize("token", [None, new_token()], ids=["missing", "wrong"])
async def test_missing_and_wrong_tokens_are_refused(edge: FakeEdge, token: object) -> None:
    node = FakeNode(edge.address, token)  # type: ignore[arg-type]

    with pytest.raises(LinkRefused) as caught:
        await node.connect()
    await node.wait_end()

    assert caught.value.code == ("token_missing" if token is None else "token_invalid")
    assert caught.value.reject_class == RejectClass.FATAL
    await edge.wait_ended()


async def test_token_of_another_secret_is_refused_though_its_id_is_known(edge: FakeEdge) -> None:
    node = FakeNode(edge.address, replace(TOKEN, secret=b"x" * 32))

    with pytest.raises(LinkRefused) as caught:
        await node.connect()
    await node.wait_end()

    assert caught.value.code == "token_invalid"


# --- order and bounds -------------------------------------------------------------------------------------


async def test_control_goes_ahead_of_data_of_the_same_turn(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    request = make_request()
    node.on_run, node.obeys_cancel = None, False

    session.submit(request)
    session.cancel(request.run_id)
    await node.inbox.wait(RunSubmission)

    kinds = [type(m) for m in node.inbox.messages]
    assert kinds.index(CancelRun) < kinds.index(RunSubmission)


async def test_what_one_turn_sends_is_one_write(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    node.on_run = None
    request = make_request()
    session.submit(request)
    await node.wait_run()
    writes: list[int] = []
    assert node.link is not None
    transport = node.link._transport
    node.link._transport = _CountingTransport(transport, writes)  # type: ignore[assignment]

    node.start(request.run_id)
    for _ in range(100):
        node.emit(request.run_id, Text("x"))
    node.succeed(request.run_id)
    await session.wait_terminal(request.run_id)

    assert len(writes) == 1
    assert [e.seq for e in session.events(request.run_id)] == list(range(1, 103))


class _CountingTransport:
    def __init__(self, transport: asyncio.Transport, writes: list[int]) -> None:
        self._transport, self._writes = transport, writes

    def write(self, data: bytes) -> None:
        self._writes.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


async def test_peer_that_does_not_read_pauses_data_and_no_control(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    resumed = asyncio.Event()
    session.on_data_resumed = resumed.set  # type: ignore[method-assign]
    node.stop_reading()
    part = RunInputPart(new_run_id(), 1, 0, b"x" * 65536)

    sent = 0
    while not session.link.data_paused or session.link.statistics().queued_bytes < 2 << 20:
        session.send(part)
        sent += 1
        await asyncio.sleep(0)
        assert sent < 2000, "the kernel takes it all"
    # 100 data frames wait; the cancel is written over their heads, into the transport.
    session.cancel(new_run_id())
    queued = session.link.statistics().queued_bytes
    await asyncio.sleep(0)
    assert session.link.statistics().queued_bytes < queued
    assert not resumed.is_set()

    assert node.link is not None
    node.link._transport.resume_reading()
    await node.inbox.wait_until(lambda: len(node.inbox.of(RunInputPart)) == sent, "all the parts")
    await node.inbox.wait(CancelRun)
    async with asyncio.timeout(5):
        await resumed.wait()
    kinds = [type(m) for m in node.inbox.messages]
    assert kinds.index(CancelRun) < len(kinds) - 10, "the cancel overtook data"
    assert not session.link.data_paused


async def test_sender_that_ignores_the_pause_loses_the_link_with_a_reason(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    node.stop_reading()
    part = RunInputPart(new_run_id(), 1, 0, b"x" * 1_000_000)

    sent = 0
    while session.link.send(part):
        sent += 1
        assert sent < 200

    end = await session.wait_closed()
    assert end.code == "send_overflow"
    assert " bytes of data wait to be written, limit 33554432" in end.message
    assert session.link.send(part) is False


async def test_control_frames_of_a_peer_that_does_not_read_are_bounded(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    node.stop_reading()
    cancel = CancelRun(new_run_id(), "x" * 10_000)

    turns = 0
    while session.link.send(cancel):
        turns += 1
        await asyncio.sleep(0)
        assert turns < 20_000

    end = await session.wait_closed()
    assert end.code == "send_overflow"
    assert "the peer does not read" in end.message


async def test_frame_over_the_limit_is_not_sent_and_the_link_goes_on(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    node.on_run = None
    big = make_request("x" * (1024 * 1024))

    with pytest.raises(TooLarge) as caught:
        session.submit(big)

    assert "exceeds max_frame_bytes=1048576 of the link with 127.0.0.1:" in str(caught.value)
    small = make_request()
    session.submit(small)
    assert (await node.wait_run()).run_id == small.run_id


async def test_only_a_sides_own_messages_can_be_sent(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()

    with pytest.raises(InternalError) as caught:
        session.send(ConfigResult(1, "h", True))

    assert str(caught.value) == "ConfigResult may not be sent by this side of a link"


async def test_send_before_and_after_the_link_is_open_does_nothing(edge: FakeEdge, node: FakeNode) -> None:
    edge.is_mute = True
    link = await node.dial()
    assert link.send(ConfigResult(1, "h", True)) is False

    await node.cut()

    assert link.send(ConfigResult(1, "h", True)) is False


async def test_large_frames_and_many_small_ones_arrive_whole_and_in_order(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    edge.acks = False
    node.on_run = None
    request = make_request()
    session.submit(request)
    await node.wait_run()

    node.start(request.run_id)
    for number in range(300):
        size = 900_000 if number % 100 == 50 else 100 + number
        node.emit(request.run_id, EngineJson((bytes([number % 256]) * size,)))
        if number % 7 == 0:
            await asyncio.sleep(0)
    node.succeed(request.run_id)
    events = await session.wait_terminal(request.run_id)

    assert [e.seq for e in events] == list(range(1, 303))
    stats = session.link.statistics()
    assert stats.frames_in >= 303
    assert stats.bytes_in > 2_700_000
    assert stats.unknown_frames == 0


# --- liveness ---------------------------------------------------------------------------------------------


async def test_heartbeats_keep_an_idle_link_alive_and_measure_it(edge: FakeEdge, node: FakeNode) -> None:
    edge.limits = replace(edge.limits, heartbeat_interval_s=0.03, dead_after_s=1.0)
    await node.connect()
    session = await edge.wait_session()
    link = node.link
    assert link is not None

    await wait_for(lambda: link.statistics().round_trip_s is not None, "a round trip on the node")
    await wait_for(lambda: session.link.statistics().round_trip_s is not None, "and on the edge")

    assert link.is_open
    assert session.link.is_open


async def test_deadlines_that_are_due_already_are_met_at_once(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    link = node.link
    assert link is not None
    now = asyncio.get_running_loop().time()

    link._set_timer(now - 1.0)  # as after the loop was held up
    link._set_timer(now - 2.0)
    await asyncio.sleep(0.01)

    assert link.is_open
    assert link._timer_at > now, "set anew, for the next heartbeat"


async def test_half_open_connection_is_given_up_by_both_sides(edge: FakeEdge, node: FakeNode) -> None:
    edge.limits = replace(edge.limits, heartbeat_interval_s=0.05, dead_after_s=0.15)
    async with TcpRelay.to(edge.address) as relay:
        node.edge = relay.address
        await node.connect()
        session = await edge.wait_session()

        relay.freeze()
        ends = (await session.wait_closed(), await node.wait_end())

    assert [e.code for e in ends] == ["link_silent", "link_silent"]
    assert "dead_after_s=0.15; giving the link up" in ends[1].message
    assert [e.by for e in ends] == [EndedBy.TRANSPORT, EndedBy.TRANSPORT]


async def test_probe_is_answered_at_once(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    await session.wait_adapters()
    before = session.link.statistics().frames_in

    session.link.probe()

    await wait_for(lambda: session.link.statistics().frames_in > before, "an answer")
    assert session.link.statistics().round_trip_s is not None


async def test_unsettled_cancels_reach_the_node_again(edge: FakeEdge, node: FakeNode) -> None:
    edge.limits = replace(edge.limits, heartbeat_interval_s=0.03, dead_after_s=5.0)
    await node.connect()
    session = await edge.wait_session()
    run_id = new_run_id()

    session.cancels = (run_id,)

    assert await node.inbox.wait(CancelRun) == CancelRun(run_id, "repeated")


# --- ends -------------------------------------------------------------------------------------------------


async def test_cut_connection_is_a_lost_link(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()

    await node.cut()
    end = await session.wait_closed()

    assert (end.code, end.by, end.was_open) == ("link_lost", EndedBy.TRANSPORT, True)
    assert "the connection ended in state open (" in end.message


async def test_close_gives_up_waiting_for_a_peer_that_does_not_close(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    node.stop_reading()

    loop = asyncio.get_running_loop()
    started = loop.time()
    session.link.close("stop", "bye")
    end = await session.wait_closed()

    assert end.code == "stop"
    assert 0.4 < loop.time() - started < 2.0  # close_timeout_s of the fakes is 0.5
    await node.cut()


async def test_queued_data_goes_out_before_the_goodbye(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    node.on_run = None
    request = make_request()
    session.submit(request)
    await node.wait_run()

    node.start(request.run_id)
    for _ in range(500):
        node.emit(request.run_id, EngineJson((b"y" * 2000,)))
    node.succeed(request.run_id)
    assert node.link is not None
    node.link.close("stopped", "all said")
    end = await session.wait_closed()

    assert end.code == "stopped"
    assert session.events(request.run_id)[-1].is_terminal


async def test_go_away_hint_is_in_the_end(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    session.send(GoAway("update", reconnect_in_s=7.5, deadline_s=30.0))
    await node.inbox.wait(GoAway)

    await session.cut()

    assert (await node.wait_end()).reconnect_in_s == 7.5


async def test_waiting_for_the_end_can_be_cancelled_and_repeated(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    assert node.link is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await node.link.wait_closed()

    assert node.link.is_open
    node.link.close("done", "")
    first, second = await node.link.wait_closed(), await node.link.wait_closed()
    assert first is second


class _Failing(FakeSession):
    """An edge's handler with a bug."""

    def on_message(self, message: Message) -> None:
        raise RuntimeError("bug in the handler")


@pytest.fixture
def failures() -> list[dict[str, object]]:
    seen: list[dict[str, object]] = []
    return seen


async def test_bug_in_a_handler_ends_its_link_alone(
    edge: FakeEdge, node: FakeNode, failures: list[dict[str, object]]
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    edge._make_handler = lambda link: _Failing(edge, link)  # type: ignore[method-assign]
    await edge.aclose()
    await edge.start()
    node.edge = edge.address

    await node.dial()
    end = await node.wait_end()

    assert end.message == f"{edge.address}: the edge ended the link (internal): an internal error"
    assert [str(f["exception"]) for f in failures] == ["bug in the handler"]


async def test_bug_in_on_closed_still_closes_the_transport(
    edge: FakeEdge, node: FakeNode, failures: list[dict[str, object]]
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    await node.connect()
    session = await edge.wait_session()

    def fail(end: LinkEnd) -> None:
        raise RuntimeError("bug")

    session.on_closed = fail  # type: ignore[method-assign]
    await node.aclose()

    assert (await session.wait_closed()).code == "stopped"
    assert [str(f["exception"]) for f in failures] == ["bug"]


async def test_bug_in_what_heartbeats_repeat_ends_the_link(
    edge: FakeEdge, node: FakeNode, failures: list[dict[str, object]]
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    await node.connect()
    session = await edge.wait_session()

    def fail() -> tuple[RunId, ...]:
        raise RuntimeError("bug")

    session.unsettled_cancels = fail  # type: ignore[method-assign]
    session.link.probe()

    assert (await session.wait_closed()).code == "internal"
    assert [str(f["exception"]) for f in failures] == ["bug"]


async def test_answer_too_large_for_a_frame_ends_the_link_before_it_opens(edge: FakeEdge, node: FakeNode) -> None:
    edge.limits = replace(edge.limits, max_frame_bytes=16 * 1024)
    node.open_runs = tuple(
        OpenRun(new_run_id(), 1, 0, "") for _ in range(380)
    )  # 16,000 bytes; the answer has more
    edge.verdicts = {run.run_id: (2**60, Verdict.FORGET) for run in node.open_runs}

    await node.dial()
    end = await edge.wait_ended()
    await node.wait_end()

    assert end.code == "internal"
    assert "RunVerdicts of " in end.message
    assert " exceeds max_frame_bytes=16384 of the link with 127.0.0.1:" in end.message
    assert edge.sessions == []  # on_open was not called


async def test_message_after_a_close_by_the_handler_is_not_delivered(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    await session.wait_adapters()
    await session.wait_config_result(1)
    seen: list[Message] = []

    def close_at_once(message: Message) -> None:
        seen.append(message)
        session.link.close("enough", "")

    session.on_message = close_at_once  # type: ignore[method-assign]
    for _ in range(5):
        node.announce(node.adapters)
    await session.wait_closed()

    assert len(seen) == 1


async def test_handler_that_cannot_be_made_closes_the_connection(
    edge: FakeEdge, node: FakeNode, failures: list[dict[str, object]]
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    await edge.aclose()

    def fail(link: object) -> FakeSession:
        raise RuntimeError("bug")

    edge._make_handler = fail  # type: ignore[method-assign]
    await edge.start()
    node.edge = edge.address
    await node.dial()

    assert (await node.wait_end()).code == "link_lost"
    await wait_for(lambda: edge._listener is not None and not edge._listener.links, "closed on the edge")
    assert str(failures[0]["exception"]) == "bug"


async def test_command_to_a_node_whose_link_ended_is_not_sent(edge: FakeEdge, node: FakeNode) -> None:
    await node.connect()
    session = await edge.wait_session()
    await node.aclose()
    await session.wait_closed()

    assert session.link.send(NodeCommandRequest(RunId("c"), "status")) is False  # type: ignore[arg-type]
