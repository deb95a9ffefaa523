"""EdgeService with real nodes on real sockets: runs from order to record, and what can go wrong on the way."""

import asyncio
from dataclasses import replace

import pytest
from tests.edge.conftest import MOCK, ORDER, SHORT_LIMITS, RunningEdge, StartEdge, read_all
from tests.support.fake_node import MOCK as MOCK_STATUS
from tests.support.fake_node import FakeNode, echo, refuse_busy
from tests.support.inbox import wait_for

from iop_edge.relay import RunStream
from iop_shared.errors import BadRequest, Busy, NoRoute, TooLarge, Unavailable, UnknownName
from iop_shared.ids import AdapterName, NodeId, RunId, SessionId, TargetName, new_boot_id, new_run_id
from iop_shared.link.messages import CancelRun, Gate, GateState, OpenRun, Verdict
from iop_shared.runs import RunRequest, RunState
from iop_shared.runtime_events import (
    Cancelled,
    Failed,
    Gap,
    Interrupted,
    RuntimeEvent,
    Started,
    Succeeded,
    Text,
    Usage,
)

pytestmark = pytest.mark.both_loops
GPU1, GPU2 = NodeId("gpu-1"), NodeId("gpu-2")


def text_of(events: list[RuntimeEvent]) -> str:
    return "".join(event.body.text for event in events if isinstance(event.body, Text))


def body_types(events: list[RuntimeEvent]) -> list[str]:
    return [type(event.body).__name__ for event in events]


async def next_events(stream: RunStream, count: int) -> list[RuntimeEvent]:
    """Returns events until there are `count` at least."""
    events: list[RuntimeEvent] = []
    while len(events) < count:
        batch = await stream.next_batch()
        assert batch, f"the stream ended after {len(events)} of {count} events"
        events += batch
    return events


async def state_of(edge: RunningEdge, run_id: RunId) -> RunState:
    return (await edge.service.get_run(run_id)).state


# --- the main job -----------------------------------------------------------------------------------------


async def test_a_run_is_streamed_recorded_and_listed(edge: RunningEdge) -> None:
    await edge.connect(on_run=echo)

    stream = edge.service.submit(replace(ORDER, source="test"))
    events = await read_all(stream)

    assert text_of(events) == "one two three "
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    view = await edge.service.get_run(stream.run_id)
    assert (view.state, view.node_id, view.attempt) == (RunState.SUCCEEDED, GPU1, 1)
    assert (view.finish_reason, view.output_bytes, view.input_bytes) == ("stop", 14, 13)
    assert view.queued_s is not None
    assert view.first_token_s is not None
    assert view.total_s is not None
    assert 0 <= view.queued_s <= view.first_token_s <= view.total_s < 5
    page = await edge.service.list_runs()
    assert page.runs == (view,)
    kept = await edge.service.run_events(stream.run_id)
    assert [type(event.body).__name__ for event in kept] == ["Started", "Text", "Text", "Text", "Succeeded"]
    assert [event.seq for event in await edge.service.run_events(stream.run_id, after_seq=3)] == [4, 5]
    with edge.service.subscribe(after_event_id=0) as bus:
        told = [e.kind for e in (await bus.next_batch()).events if e.run_id == stream.run_id]
    assert told == ["run_queued", "run_dispatched", "run_started", "run_finished"]


async def test_events_reach_the_reader_while_the_run_goes_on(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = edge.service.submit(ORDER)
    await node.wait_run()
    node.start(stream.run_id)
    assert body_types(await next_events(stream, 1)) == ["Started"]

    node.emit(stream.run_id, Text("one"))
    assert text_of(await next_events(stream, 1)) == "one"
    assert await state_of(edge, stream.run_id) is RunState.RUNNING
    assert edge.service.get_node(GPU1).in_flight == {"mock": 1}

    node.succeed(stream.run_id)
    assert body_types(await read_all(stream)) == ["Succeeded"]
    assert edge.service.get_node(GPU1).in_flight == {}


async def test_two_nodes_get_what_each_can_do(edge: RunningEdge) -> None:
    other = replace(MOCK_STATUS, targets=(TargetName("llama"),))
    await edge.connect("gpu-1", on_run=echo)
    await edge.connect("gpu-2", on_run=echo, adapters=(other,))

    streams = [edge.service.submit(replace(ORDER, target=TargetName(t))) for t in ("echo", "llama", "llama")]
    for stream in streams:
        await read_all(stream)

    nodes = [(await edge.service.get_run(stream.run_id)).node_id for stream in streams]
    assert nodes == [GPU1, GPU2, GPU2]
    llama = await edge.service.get_run(streams[1].run_id)
    assert [(r.node_id, r.code) for r in llama.refusals] == [(GPU1, "target_missing")]


async def test_a_session_stays_with_its_node(edge: RunningEdge) -> None:
    await edge.connect("gpu-1", on_run=echo)
    await edge.connect("gpu-2", on_run=echo)
    order = replace(ORDER, session=SessionId("conversation-1"))

    nodes = set()
    for _ in range(8):
        stream = edge.service.submit(order)
        await read_all(stream)
        nodes.add((await edge.service.get_run(stream.run_id)).node_id)

    assert len(nodes) == 1


# --- what cannot be taken ---------------------------------------------------------------------------------


async def test_without_a_node_there_is_no_route(edge: RunningEdge) -> None:
    with pytest.raises(NoRoute) as refused:
        edge.service.submit(ORDER)

    assert str(refused.value) == (
        "no node can take adapter=mock target=echo: no node is known; start one with `iop-node run`"
    )


async def test_no_route_says_why_each_node_lost(edge: RunningEdge) -> None:
    closed = replace(MOCK_STATUS, gate=Gate(GateState.CLOSED, "serving.health", "connection refused"))
    await edge.connect("gpu-1", adapters=(closed,))
    gone = await edge.connect("gpu-2")
    await gone.aclose()
    await wait_for(lambda: edge.service.get_node(GPU2).state == "lost", "gpu-2 is lost")

    with pytest.raises(NoRoute) as refused:
        edge.service.submit(ORDER)

    assert str(refused.value) == (
        "no node can take adapter=mock target=echo: "
        "gpu-1 has the gate of mock closed by check serving.health: connection refused; gpu-2 is not connected"
    )


async def test_unknown_names_are_told_the_nearest(edge: RunningEdge) -> None:
    await edge.connect()

    with pytest.raises(UnknownName) as target:
        edge.service.submit(replace(ORDER, target=TargetName("ecco")))
    with pytest.raises(UnknownName) as adapter:
        edge.service.submit(replace(ORDER, adapter=AdapterName("moc")))
    with pytest.raises(UnknownName) as node:
        edge.service.submit(replace(ORDER, node=NodeId("gpu-9")))
    with pytest.raises(UnknownName) as run:
        await edge.service.get_run(RunId("nope"))

    assert str(target.value) == "unknown target 'ecco': did you mean 'echo'?"
    assert str(adapter.value) == "unknown adapter 'moc': did you mean 'mock'?"
    assert str(node.value) == "unknown node 'gpu-9': did you mean 'gpu-1'?"
    assert run.value.code == "unknown_run"
    for verb in (edge.service.attach, edge.service.runs.unknown_run):
        with pytest.raises(UnknownName):
            raise verb(RunId("nope"))  # type: ignore[misc]
    with pytest.raises(UnknownName):
        edge.service.cancel(RunId("nope"), "x")


async def test_an_input_over_the_limit_is_refused_with_both_numbers(start_edge: StartEdge) -> None:
    edge = await start_edge(MOCK + "[limits]\nmax_input_bytes = 10\n")

    with pytest.raises(TooLarge) as refused:
        edge.service.submit(ORDER)

    assert str(refused.value) == (
        "the input has 13 bytes and max_input_bytes is 10; "
        "send less, or raise [limits] max_input_bytes in edge.toml"
    )
    assert refused.value.param == "input"


async def test_too_many_live_runs_are_refused(start_edge: StartEdge) -> None:
    edge = await start_edge(MOCK + "[limits]\nmax_live_runs = 1\n")
    await edge.connect()
    edge.service.submit(ORDER)

    with pytest.raises(Busy) as refused:
        edge.service.submit(ORDER)

    assert str(refused.value) == "1 runs are live and max_live_runs is 1; try again later"


async def test_a_stopping_edge_takes_no_runs(edge: RunningEdge) -> None:
    await edge.connect()
    assert edge.service.is_ready() == (True, "")
    edge.service.begin_stop("SIGTERM")

    with pytest.raises(Unavailable) as refused:
        edge.service.submit(ORDER)

    assert str(refused.value) == "the edge is stopping (SIGTERM) and takes no new runs"
    assert edge.service.is_ready() == (False, "the edge is stopping (SIGTERM)")


async def test_limits_and_cursors_of_lists_are_checked(edge: RunningEdge) -> None:
    with pytest.raises(BadRequest, match="limit 501 is not 1 to 500"):
        await edge.service.list_runs(limit=501)
    with pytest.raises(BadRequest, match="cursor 'x' is not one of ours"):
        await edge.service.list_runs(cursor="x")


# --- the queue --------------------------------------------------------------------------------------------


async def test_runs_beyond_the_places_wait_in_order(edge: RunningEdge) -> None:
    node = await edge.connect(adapters=(replace(MOCK_STATUS, max_concurrent=1),))
    streams = [edge.service.submit(ORDER) for _ in range(3)]
    order: list[RunId] = []

    for number in range(1, 4):
        await node.wait_run(number=number)
        running = list(node.runs)[number - 1]
        order.append(running)
        assert [await state_of(edge, s.run_id) for s in streams[number:]] == [RunState.QUEUED] * (3 - number)
        node.start(running)
        node.succeed(running)

    for stream in streams:
        assert body_types(await read_all(stream)) == ["Started", "Succeeded"]
    assert order == [stream.run_id for stream in streams]


async def test_a_full_queue_refuses_at_once(start_edge: StartEdge) -> None:
    edge = await start_edge(MOCK + "[limits]\nmax_queued = 1\n")
    await edge.connect(adapters=(replace(MOCK_STATUS, max_concurrent=1),))
    edge.service.submit(ORDER)
    edge.service.submit(ORDER)

    with pytest.raises(Busy) as refused:
        edge.service.submit(ORDER)

    assert str(refused.value) == ("the queue is full: 1 of at most 1 runs wait for a free place; try again later")


async def test_a_run_that_waits_too_long_fails_with_the_reason(start_edge: StartEdge) -> None:
    edge = await start_edge(MOCK + "[limits]\nqueue_timeout_s = 0.1\n")
    await edge.connect(adapters=(replace(MOCK_STATUS, max_concurrent=1),))
    edge.service.submit(ORDER)
    waiting = edge.service.submit(ORDER)

    events = await read_all(waiting)

    assert isinstance(events[-1].body, Failed)
    assert (events[-1].body.code, events[-1].body.layer, events[-1].body.retryable) == (
        "queue_timeout",
        "edge",
        True,
    )
    assert events[-1].body.message == (
        "no place became free within 0.1 s: no node can take adapter=mock target=echo: "
        "gpu-1 is busy (1/1 runs of mock)"
    )


async def test_cancelling_a_queued_run_ends_it_at_once_and_starts_nothing(edge: RunningEdge) -> None:
    node = await edge.connect(adapters=(replace(MOCK_STATUS, max_concurrent=1),))
    first = edge.service.submit(ORDER)
    queued = edge.service.submit(ORDER)

    assert edge.service.cancel(queued.run_id, "changed my mind") is True

    events = await read_all(queued)
    assert [event.body for event in events] == [Cancelled("changed my mind", True, 0)]
    assert edge.service.cancel(queued.run_id, "again") is False
    await node.wait_run()
    assert list(node.runs) == [first.run_id]


async def test_a_busy_node_is_asked_again_until_it_takes_the_run(edge: RunningEdge) -> None:
    refusals = 0

    def busy_at_first(node: FakeNode, request: RunRequest) -> None:
        nonlocal refusals
        refusals += 1
        (refuse_busy if refusals < 3 else echo)(node, request)

    await edge.connect(on_run=busy_at_first)

    stream = edge.service.submit(ORDER)
    events = await read_all(stream)

    assert text_of(events) == "one two three "
    assert (await edge.service.get_run(stream.run_id)).attempt == 3


async def test_a_refused_run_goes_to_the_other_node(edge: RunningEdge) -> None:
    def refuse(node: FakeNode, request: RunRequest) -> None:
        node.refuse(request.run_id, "gate_closed", "no memory")

    await edge.connect("gpu-1", on_run=refuse)
    await edge.connect("gpu-2", on_run=echo)

    for _ in range(4):
        stream = edge.service.submit(ORDER)
        assert text_of(await read_all(stream)) == "one two three "
        assert (await edge.service.get_run(stream.run_id)).node_id == GPU2


async def test_a_run_that_everybody_refuses_ends_with_their_reasons(edge: RunningEdge) -> None:
    await edge.connect(on_run=lambda node, request: node.refuse(request.run_id, "gate_closed", "no memory"))

    events = await read_all(edge.service.submit(ORDER))

    assert isinstance(events[-1].body, Failed)
    assert events[-1].body.code == "no_route"
    assert events[-1].body.message == ("no node can take adapter=mock target=echo: gpu-1 refused it: no memory")


# --- cancel -----------------------------------------------------------------------------------------------


async def test_cancel_reaches_the_node_and_the_record(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = edge.service.submit(ORDER)
    await node.wait_run()
    node.start(stream.run_id)
    await next_events(stream, 1)

    edge.service.cancel(stream.run_id, "client left")

    events = await read_all(stream)
    assert [event.body for event in events if isinstance(event.body, Cancelled)] != []
    cancel = await node.inbox.wait(CancelRun)
    assert (cancel.run_id, cancel.reason) == (stream.run_id, "client left")
    view = await edge.service.get_run(stream.run_id)
    assert (view.state, view.cancel_reason, view.cancel_confirmed) == (
        RunState.CANCELLED,
        "client left",
        True,
    )


async def test_a_cancel_is_repeated_until_the_node_obeys(edge: RunningEdge) -> None:
    node = await edge.connect(obeys_cancel=False)
    stream = edge.service.submit(ORDER)
    await node.wait_run()
    node.start(stream.run_id)
    edge.service.cancel(stream.run_id, "enough")

    await node.inbox.wait_until(lambda: len(node.inbox.of(CancelRun)) >= 3, "the cancel comes again")

    assert await state_of(edge, stream.run_id) is RunState.CANCELLING
    node.emit(stream.run_id, Cancelled("enough", False, 400))
    await read_all(stream)
    assert (await edge.service.get_run(stream.run_id)).cancel_confirmed is False


# --- readers ----------------------------------------------------------------------------------------------


async def test_a_late_reader_gets_everything_from_where_it_asks(edge: RunningEdge) -> None:
    node = await edge.connect()
    first = edge.service.submit(ORDER)
    await node.wait_run()
    node.start(first.run_id)
    node.emit(first.run_id, Text("one"), Text("two"))
    await next_events(first, 3)

    second = edge.service.attach(first.run_id, after_seq=2)
    node.emit(first.run_id, Text("three"))
    node.succeed(first.run_id)

    assert text_of(await read_all(second)) == "twothree"
    late = edge.service.attach(first.run_id)
    assert text_of(await read_all(late)) == "onetwothree"


async def test_what_is_not_kept_any_more_shows_as_a_gap(start_edge: StartEdge) -> None:
    edge = await start_edge(MOCK + "[limits]\nkept_run_bytes = 2000\n")
    node = await edge.connect()
    stream = edge.service.submit(ORDER)
    await node.wait_run()
    node.start(stream.run_id)
    node.emit(stream.run_id, *[Text("x" * 100)] * 20)
    node.succeed(stream.run_id)
    await read_all(stream)

    events = await read_all(edge.service.attach(stream.run_id))

    gap = events[0].body
    assert isinstance(gap, Gap)
    assert gap.events == events[0].seq
    assert [event.seq for event in events[1:]] == list(range(gap.events + 1, 23))


async def test_a_slow_reader_loses_its_stream_and_nobody_else_does(start_edge: StartEdge) -> None:
    edge = await start_edge(MOCK + "[limits]\nstream_buffer_bytes = 2000\n")
    node = await edge.connect()
    slow = edge.service.submit(ORDER)
    quick = edge.service.attach(slow.run_id)
    await node.wait_run()
    node.start(slow.run_id)
    seen = await next_events(quick, 1)
    for number in range(30):
        node.emit(slow.run_id, Text("x" * 100))
        seen += await next_events(quick, 1)
        assert seen[-1].seq == number + 2
    node.succeed(slow.run_id)
    await read_all(quick)

    with pytest.raises(Busy) as lost:
        await slow.next_batch()
    slow.close()

    assert lost.value.code == "slow_consumer"
    assert await state_of(edge, slow.run_id) is RunState.SUCCEEDED
    assert edge.service.runs.slow_consumers == 1


async def test_closing_a_stream_does_not_cancel_the_run(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = edge.service.submit(ORDER)
    await node.wait_run()
    stream.close()
    node.start(stream.run_id)
    node.emit(stream.run_id, Text("on"))
    node.succeed(stream.run_id)

    await wait_for(lambda: edge.service.runs.ledger.get(stream.run_id) is None, "it has ended")

    assert await state_of(edge, stream.run_id) is RunState.SUCCEEDED
    assert edge.service.runs._streams == {}


# --- links break ------------------------------------------------------------------------------------------


async def a_run_under_way(edge: RunningEdge, node: FakeNode) -> RunStream:
    stream = edge.service.submit(ORDER)
    await node.wait_run(number=len(node.runs) + 1)
    node.start(stream.run_id)
    node.emit(stream.run_id, Text("one "))
    await next_events(stream, 2)
    return stream


async def test_a_short_break_is_bridged_and_nothing_is_missed(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = await a_run_under_way(edge, node)
    key = (stream.run_id, 1)
    await node.cut()
    await wait_for(lambda: edge.service.get_node(GPU1).state == "lost", "the edge knows")
    assert await state_of(edge, stream.run_id) is RunState.DETACHED

    node.open_runs = (OpenRun(stream.run_id, 1, 3, "running"),)
    await node.connect()

    assert node.verdicts is not None
    assert [(v.verdict, v.acked_seq) for v in node.verdicts.runs] == [(Verdict.KEEP, 2)]
    assert await state_of(edge, stream.run_id) is RunState.RUNNING
    node._next_seq[key] = 2  # replay, one more than needed
    node.emit(stream.run_id, Text("one "), Text("two"))
    node._output[key] = bytearray(b"one two")
    node.succeed(stream.run_id)
    assert text_of(await read_all(stream)) == "two"
    assert edge.service.runs.ledger.counts.duplicate_events == 1
    assert edge.service.runs.mismatches == 0


async def test_a_node_that_stays_away_interrupts_its_runs_after_the_grace(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = await a_run_under_way(edge, node)
    await node.cut()

    events = await read_all(stream)

    assert [type(e.body) for e in events] == [Interrupted]
    view = await edge.service.get_run(stream.run_id)
    assert (view.state, view.code, view.layer) == (RunState.INTERRUPTED, "node_lost", "node")
    node.open_runs = (OpenRun(stream.run_id, 1, 9, "running"),)
    await node.connect()
    assert node.verdicts is not None
    assert [v.verdict for v in node.verdicts.runs] == [Verdict.CANCEL]


async def test_a_killed_node_leaves_exactly_one_terminal_event(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = await a_run_under_way(edge, node)
    await node.cut()

    again = edge.make_node(node.identity.token, boot_id=new_boot_id())
    await again.connect()

    events = await read_all(stream)
    assert [type(e.body) for e in events] == [Interrupted]
    assert (await edge.service.get_run(stream.run_id)).code == "node_restarted"
    kept = await edge.service.run_events(stream.run_id)
    assert sum(isinstance(event.body, Interrupted) for event in kept) == 1


async def test_a_run_that_produced_nothing_moves_to_another_node_at_once(edge: RunningEdge) -> None:
    first = await edge.connect("gpu-1")
    stream = edge.service.submit(ORDER)
    await first.wait_run()
    first.start(stream.run_id)
    await next_events(stream, 1)
    await edge.connect("gpu-2", on_run=echo)

    await first.cut()

    events = await read_all(stream)
    assert text_of(events) == "one two three "
    assert {event.attempt for event in events} == {2}
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    view = await edge.service.get_run(stream.run_id)
    assert (view.node_id, view.attempt, view.state) == (GPU2, 2, RunState.SUCCEEDED)
    first.open_runs = (OpenRun(stream.run_id, 1, 1, "running"),)
    await first.connect()
    assert first.verdicts is not None
    assert [v.verdict for v in first.verdicts.runs] == [Verdict.CANCEL]


async def test_a_node_that_restarts_before_it_produced_anything_gets_the_run_again(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = edge.service.submit(ORDER)
    await node.wait_run()
    node.start(stream.run_id)
    await next_events(stream, 1)
    await node.cut()

    again = edge.make_node(node.identity.token, boot_id=new_boot_id(), on_run=echo)
    await again.connect()

    events = await read_all(stream)
    assert text_of(events) == "one two three "
    assert (await edge.service.get_run(stream.run_id)).attempt == 2


async def test_after_a_restart_of_the_edge_old_runs_are_interrupted_and_new_ones_go(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = await a_run_under_way(edge, node)
    await wait_for(lambda: edge.app._database is not None, "the database is there")  # type: ignore[union-attr]
    await edge.service._sink.flush()
    writer_of_old_process = edge.service._sink
    assert writer_of_old_process.trouble() == ""
    epoch = edge.service.get_node(GPU1).epoch
    # As a kill would: nothing is told to the history any more.
    edge.service.runs._sink = _DeafSink()  # type: ignore[assignment]
    await edge.stop(grace_s=0.0)
    await node.wait_end()

    await edge.start()
    assert edge.addresses is not None
    node.edge = edge.addresses.link
    node.open_runs = (OpenRun(stream.run_id, 1, 2, "running"),)
    await node.connect()
    await edge.wait_ready()

    view = await edge.service.get_run(stream.run_id)
    assert (view.state, view.code, view.layer) == (RunState.INTERRUPTED, "edge_restarted", "edge")
    assert node.verdicts is not None
    assert [v.verdict for v in node.verdicts.runs] == [Verdict.CANCEL]
    assert edge.service.get_node(GPU1).epoch > epoch
    node.on_run = echo
    assert text_of(await read_all(edge.service.submit(ORDER))) == "one two three "


class _DeafSink:
    """A sink of a process that is gone."""

    def record(self, *_: object) -> None:
        """Keeps nothing."""

    def record_event(self, *_: object) -> None:
        """Keeps nothing."""

    def trouble(self) -> str:
        return ""


async def test_a_clean_stop_cancels_what_runs_and_records_it(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = await a_run_under_way(edge, node)

    await edge.stop(grace_s=2.0)

    events = await read_all(stream)
    assert body_types(events) == ["Cancelled"]
    await edge.start()
    view = await edge.service.get_run(stream.run_id)
    assert (view.state, view.cancel_reason) == (RunState.CANCELLED, "edge_draining")


async def test_in_flight_numbers_survive_a_storm_of_breaks(edge: RunningEdge) -> None:
    node = await edge.connect()
    for _ in range(5):
        edge.service.submit(ORDER)
        await node.cut()
        await wait_for(lambda: edge.service.get_node(GPU1).state == "lost", "the edge knows")
        await node.connect()
        await edge.wait_ready()
    node.on_run = echo
    for run_id in [run.run_id for run in edge.service.runs.ledger]:
        edge.service.cancel(run_id, "enough")

    await wait_for(lambda: len(edge.service.runs.ledger) == 0, "all have ended")

    assert edge.service.get_node(GPU1).in_flight == {}
    assert text_of(await read_all(edge.service.submit(ORDER))) == "one two three "


# --- commands and failures of stores ----------------------------------------------------------------------


async def test_a_command_is_answered_by_the_node(edge: RunningEdge) -> None:
    await edge.connect()

    assert await edge.service.node_command(GPU1, "status", {}) == {"command": "status"}


async def test_commands_to_nodes_that_cannot_answer_fail_in_a_sentence(edge: RunningEdge) -> None:
    node = await edge.connect()
    with pytest.raises(UnknownName):
        await edge.service.node_command(NodeId("gpu-9"), "status", {})
    node.stop_reading()
    with pytest.raises(Unavailable) as silent:
        await edge.service.node_command(GPU1, "status", {}, timeout_s=0.05)
    asking = asyncio.ensure_future(  # noqa: TID251 - the test is the owner
        edge.service.node_command(GPU1, "status", {})
    )
    await asyncio.sleep(0)
    await node.cut()
    with pytest.raises(Unavailable) as lost:
        await asking
    with pytest.raises(Unavailable) as gone:
        await edge.service.node_command(GPU1, "status", {})

    assert str(silent.value) == "node gpu-1 did not answer the command 'status' within 0.05 s"
    assert str(lost.value).startswith("the link to node gpu-1 ended while it was asked: ")
    assert str(gone.value) == "node gpu-1 is not connected; it can be asked when it is back"


async def test_while_records_cannot_be_written_no_run_is_taken_and_running_ones_finish(
    edge: RunningEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await edge.connect()
    stream = await a_run_under_way(edge, node)
    full = Unavailable("edge.db: the disk is full", code="store_unavailable")
    database = edge.app._database  # type: ignore[union-attr]
    assert database is not None

    async def fail(*_: object) -> None:
        raise full

    monkeypatch.setattr(database, "write", fail)
    monkeypatch.setattr("iop_edge.stores.history_writer.RETRY_S", 0.02)
    node.succeed(stream.run_id)
    assert body_types(await read_all(stream)) == ["Succeeded"]
    await wait_for(lambda: not edge.service.is_ready()[0], "the edge is not ready")
    with pytest.raises(Unavailable) as refused:
        edge.service.submit(ORDER)
    assert (stream.run_id, 1) not in node.acked or node.acked[stream.run_id, 1] < 3

    monkeypatch.undo()

    await wait_for(lambda: node.acked.get((stream.run_id, 1)) == 3, "the terminal event is acknowledged")
    assert edge.service.is_ready() == (True, "")
    assert str(refused.value) == "no new runs while they cannot be recorded: edge.db: the disk is full"
    assert (await edge.service.get_run(stream.run_id)).state is RunState.SUCCEEDED


async def test_usage_and_engine_reach_the_record(edge: RunningEdge) -> None:
    node = await edge.connect()
    stream = edge.service.submit(ORDER)
    await node.wait_run()
    node.start(stream.run_id)
    node.emit(stream.run_id, Text("x"), Usage(3, 1))
    node.emit(stream.run_id, Succeeded())
    await read_all(stream)

    view = await edge.service.get_run(stream.run_id)

    assert view.usage == Usage(3, 1)
    started = (await edge.service.run_events(stream.run_id))[0].body
    assert isinstance(started, Started)
    assert started.engine == "fake"
    assert new_run_id() > stream.run_id
    assert SHORT_LIMITS in edge.config
