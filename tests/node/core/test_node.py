"""The node at its ports: admission, the order of record and event, links that come and go, draining, stopping."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.node_fakes import NotedEdge, PlayedAdapter, PlayedRun, eventually

from iop_node.core.allow import AllowList
from iop_node.core.execution import ExecutionLimits
from iop_node.core.node import Node, NodeLimits
from iop_node.core.ports import ProbeResult, RunRecord
from iop_node.store.memory import MemoryRunStore
from iop_shared.errors import Layer, RunFailed, Unavailable
from iop_shared.ids import AdapterName, BootId, CommandId, NodeId, RunId, TargetName, new_run_id
from iop_shared.link.messages import (
    AdapterConfig,
    AdapterStatus,
    CapabilitiesChanged,
    ConfigResult,
    DrainingChanged,
    Gate,
    GateChanged,
    GateState,
    NodeCommandRequest,
    OpenRun,
    RunRefused,
    RunVerdict,
    Verdict,
)
from iop_shared.node_config import make_node_config
from iop_shared.runs import Operation, RunRequest, RunState
from iop_shared.runtime_events import Cancelled, Failed, Gap, Interrupted, Started, Succeeded, Text, Usage

LIMITS = NodeLimits(max_runs=3, execution=ExecutionLimits(cancel_grace_s=0.05, hard_cancel_s=0.05))
OPEN = Gate(GateState.OPEN, "engine_reachable")
CLOSED = Gate(GateState.CLOSED, "engine_reachable", "connection refused")


class FailingStore(MemoryRunStore):
    """A store whose disk can be full."""

    is_full = False

    async def begin(self, record: RunRecord) -> None:
        await asyncio.sleep(0)
        if self.is_full:
            raise Unavailable("the run journal cannot be used: the disk is full", code="journal_unavailable")
        await super().begin(record)


class Bench:
    def __init__(self) -> None:
        self.clock, self.store, self.edge = FakeClock(), FailingStore(), NotedEdge()
        self.made: list[PlayedAdapter] = []
        self.refused: list[str] = []
        self.ended: list[RunRecord] = []
        self.node = Node(
            NodeId("n1"),
            BootId("b1"),
            factories={"played": self._make},
            allow=AllowList(("played",), ("http://127.0.0.1:*",)),
            store=self.store,
            clock=self.clock,
            observer=self,
            limits=LIMITS,
        )

    def _make(self, name: AdapterName, max_concurrent: int, settings: dict[str, object]) -> PlayedAdapter:
        self.made.append(PlayedAdapter(name, settings))
        return self.made[-1]

    def run_refused(self, code: str) -> None:
        self.refused.append(code)

    def run_ended(self, record: RunRecord) -> None:
        self.ended.append(record)

    async def configure(self, *adapters: AdapterConfig, revision: int = 1) -> ConfigResult:
        chosen = adapters or (AdapterConfig(AdapterName("a"), "played", 2),)
        return await self.node.on_config(make_node_config(revision, chosen))

    def connect(self, *verdicts: RunVerdict) -> NotedEdge:
        self.edge = NotedEdge()
        self.node.on_link_open(self.edge, verdicts)
        return self.edge

    async def started(self) -> tuple[RunRequest, PlayedRun]:
        """A run that is under way."""
        asked = request()
        self.node.on_run_request(asked)
        adapter = self.made[-1]
        played = await adapter.wait_called(len(adapter.runs) + 1)
        await eventually(lambda: self.edge.bodies(asked.run_id) or self.node._edge is None)
        return asked, played


def request(adapter: str = "a", target: str = "echo", attempt: int = 1) -> RunRequest:
    return RunRequest(
        new_run_id(), AdapterName(adapter), TargetName(target), Operation.CHAT, b"hello", attempt, source="test"
    )


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.node.start()
    await made.configure()
    made.connect()
    yield made
    await made.node.stop(flush_s=0.0)


async def test_a_run_is_journalled_then_accepted_then_executed_then_recorded_then_told(bench: Bench) -> None:
    asked, played = await bench.started()
    row = await bench.store.get(asked.run_id, 1)
    assert row is not None
    assert (row.state, row.source, row.input_bytes) == (RunState.RUNNING, "test", 5)
    assert bench.edge.accepted == [(asked.run_id, 1)]

    played.sink.emit(Text("hi"))
    played.sink.emit(Usage(1, 1))
    played.complete()
    terminal = await bench.edge.wait_terminal(asked.run_id)

    assert bench.edge.bodies(asked.run_id) == [
        Started(AdapterName("a"), TargetName("echo"), NodeId("n1"), "engine 1"),
        Text("hi"),
        Usage(1, 1),
        terminal,
    ]
    assert [event.seq for event in bench.edge.events] == [1, 2, 3, 4]
    assert isinstance(terminal, Succeeded)
    row = await bench.store.get(asked.run_id, 1)
    assert row is not None
    assert (row.state, row.usage, row.output_bytes, row.events) == (RunState.SUCCEEDED, Usage(1, 1), 2, 3)
    assert row.finish_reason == "stop"
    assert bench.ended == [row]


async def test_a_failed_run_is_recorded_with_code_layer_and_sentence(bench: Bench) -> None:
    asked, played = await bench.started()

    played.fail(RunFailed("the engine answered 500", code="engine_error", layer=Layer.SERVING))
    await bench.edge.wait_terminal(asked.run_id)

    row = await bench.store.get(asked.run_id, 1)
    assert row is not None
    assert (row.state, row.code, row.layer, row.message) == (
        RunState.FAILED,
        "engine_error",
        "serving",
        "the engine answered 500",
    )


async def test_a_repeated_request_is_answered_again_and_not_run_again(bench: Bench) -> None:
    asked, played = await bench.started()

    bench.node.on_run_request(asked)
    assert bench.edge.accepted == [(asked.run_id, 1)] * 2
    played.complete()
    await bench.edge.wait_terminal(asked.run_id)
    bench.node.on_run_request(asked)
    bench.node.on_ack(asked.run_id, 1, bench.edge.events[-1].seq)
    bench.node.on_run_request(asked)

    await asyncio.sleep(0.01)
    assert bench.edge.accepted == [(asked.run_id, 1)] * 4
    assert len(bench.made[0].runs) == 1


async def test_a_second_attempt_is_a_run_of_its_own(bench: Bench) -> None:
    asked, played = await bench.started()
    played.complete()
    await bench.edge.wait_terminal(asked.run_id)

    bench.node.on_run_request(replace(asked, attempt=2))
    await bench.made[0].wait_called(2)

    assert bench.edge.accepted == [(asked.run_id, 1), (asked.run_id, 2)]


async def test_refusals_reach_the_edge_with_code_and_sentence(bench: Bench) -> None:
    asked = request(target="ecko")

    bench.node.on_run_request(asked)

    message = "adapter 'a' has no target 'ecko': did you mean 'echo'?"
    assert bench.edge.refused == [RunRefused(asked.run_id, 1, "unknown_target", message)]
    assert bench.refused == ["unknown_target"]


async def test_a_journal_that_cannot_be_written_refuses_and_recovers(bench: Bench) -> None:
    bench.store.is_full = True
    asked = request()
    bench.node.on_run_request(asked)
    await bench.edge.wait_for(lambda: bench.edge.refused)  # type: ignore[arg-type, return-value]

    assert bench.edge.refused == [
        RunRefused(asked.run_id, 1, "journal_unavailable", "the run journal cannot be used: the disk is full")
    ]
    assert bench.node.open_runs() == ()
    bench.store.is_full = False
    await bench.started()


async def test_places_are_counted_per_adapter_and_in_total_and_come_free(bench: Bench) -> None:
    await bench.configure(
        AdapterConfig(AdapterName("a"), "played", 2), AdapterConfig(AdapterName("b"), "played", 9), revision=2
    )
    first, second = request(), request()
    for asked in (first, second, request()):
        bench.node.on_run_request(asked)
    b = request(adapter="b")
    bench.node.on_run_request(b)
    bench.node.on_run_request(request(adapter="b"))

    assert [refused.code for refused in bench.edge.refused] == ["adapter_busy", "node_busy"]
    played = await bench.made[0].wait_called(2)
    bench.made[0].runs[0].complete()
    played.complete()
    await bench.edge.wait_terminal(first.run_id)
    await bench.edge.wait_terminal(second.run_id)
    await eventually(lambda: bench.node.statistics().live_runs == 1)
    bench.node.on_run_request(request())
    await bench.made[0].wait_called(3)


async def test_an_abandoned_adapter_keeps_its_place_until_it_is_over(bench: Bench) -> None:
    bench.made[0].ignored_cancels = 2
    asked, played = await bench.started()

    bench.node.on_cancel(asked.run_id, "x")
    terminal = await bench.edge.wait_terminal(asked.run_id)

    assert isinstance(terminal, Cancelled)
    assert not terminal.confirmed
    statistics = bench.node.statistics()
    assert (statistics.live_runs, statistics.abandoned_runs) == (1, 1)
    played.complete()
    await eventually(lambda: bench.node.statistics().live_runs == 0)
    row = await bench.store.get(asked.run_id, 1)
    assert row is not None
    assert (row.state, row.code) == (RunState.CANCELLED, "cancelled_unconfirmed")


async def test_a_cancel_that_overtakes_its_request_wins(bench: Bench) -> None:
    asked = request()

    bench.node.on_cancel(asked.run_id, "client left")
    bench.node.on_run_request(asked)

    assert [refused.code for refused in bench.edge.refused] == ["cancelled"]


async def test_a_cancel_during_the_journal_write_starts_no_adapter(bench: Bench) -> None:
    asked = request()

    bench.node.on_run_request(asked)
    bench.node.on_cancel(asked.run_id, "client left")
    terminal = await bench.edge.wait_terminal(asked.run_id)

    assert isinstance(terminal, Cancelled)
    assert terminal.confirmed
    assert bench.made[0].runs == []


async def test_a_cancel_of_an_ended_run_does_nothing(bench: Bench) -> None:
    asked, played = await bench.started()
    played.complete()
    await bench.edge.wait_terminal(asked.run_id)

    bench.node.on_cancel(asked.run_id, "late")
    bench.node.on_run_request(replace(asked, attempt=2))

    await bench.made[0].wait_called(2)


# --- links ------------------------------------------------------------------------------------------------


async def test_open_runs_tell_state_and_last_number(bench: Bench) -> None:
    asked, played = await bench.started()
    assert bench.node.open_runs() == (OpenRun(asked.run_id, 1, 1, "running"),)

    bench.made[0].ignored_cancels = 9
    bench.node.on_cancel(asked.run_id, "x")
    assert bench.node.open_runs() == (OpenRun(asked.run_id, 1, 1, "cancelling"),)

    played.complete()
    await bench.edge.wait_terminal(asked.run_id)
    assert bench.node.open_runs() == (OpenRun(asked.run_id, 1, 2, "ended"),)
    bench.node.on_ack(asked.run_id, 1, 2)
    assert bench.node.open_runs() == ()


async def test_a_run_goes_on_without_a_link_and_is_replayed_from_the_acknowledgement(bench: Bench) -> None:
    asked, played = await bench.started()
    played.sink.emit(Text("one "))
    bench.node.on_link_lost(60)
    played.sink.emit(Text("two"))
    played.complete()
    await eventually(lambda: bench.node.open_runs()[0].state == "ended")

    edge = bench.connect(RunVerdict(asked.run_id, 1, 1, Verdict.KEEP))

    assert [(event.seq, event.body) for event in edge.events[:2]] == [(2, Text("one ")), (3, Text("two"))]
    assert isinstance(edge.events[2].body, Succeeded)


async def test_after_the_grace_without_a_link_runs_are_interrupted(bench: Bench) -> None:
    asked, _ = await bench.started()

    bench.node.on_link_lost(0.02)
    await eventually(lambda: bench.node.open_runs()[0].state == "ended")
    edge = bench.connect(RunVerdict(asked.run_id, 1, 1, Verdict.KEEP))

    terminal = edge.events[-1].body
    assert isinstance(terminal, Interrupted)
    assert (terminal.code, terminal.message) == (
        "node_lost",
        "no link to the edge for 0.02 s (disconnect_grace_s)",
    )


async def test_a_link_within_the_grace_stops_its_clock(bench: Bench) -> None:
    asked, played = await bench.started()

    bench.node.on_link_lost(0.02)
    bench.connect(RunVerdict(asked.run_id, 1, 1, Verdict.KEEP))
    await asyncio.sleep(0.05)

    assert bench.node.open_runs()[0].state == "running"
    played.complete()


@pytest.mark.parametrize("verdict", [Verdict.CANCEL, Verdict.FORGET, None])
async def test_an_edge_that_does_not_want_a_run_has_it_stopped(bench: Bench, verdict: Verdict | None) -> None:
    asked, played = await bench.started()
    bench.node.on_link_lost(60)

    edge = bench.connect(*([RunVerdict(asked.run_id, 1, 1, verdict)] if verdict else []))
    await eventually(lambda: played.cancels)
    await eventually(lambda: bench.node.statistics().live_runs == 0)

    row = await bench.store.get(asked.run_id, 1)
    assert row is not None
    assert row.state is RunState.CANCELLED
    if verdict is Verdict.FORGET:
        assert edge.events == []
        assert bench.node.open_runs() == ()
    else:
        assert isinstance(edge.events[-1].body, Cancelled)


async def test_a_paused_link_gets_no_events_until_it_is_resumed(bench: Bench) -> None:
    asked, played = await bench.started()
    bench.node.on_link_paused()
    played.sink.emit(Text("a"))
    assert len(bench.edge.events) == 1

    bench.node.on_link_resumed()

    assert [event.seq for event in bench.edge.events] == [1, 2]
    bench.node.on_link_resumed()
    played.complete()
    await bench.edge.wait_terminal(asked.run_id)


async def test_a_run_that_ended_without_a_link_tells_that_it_has_more_to_say(bench: Bench) -> None:
    asked, played = await bench.started()
    bench.node.on_link_lost(60)

    played.complete()
    await eventually(lambda: bench.node.open_runs()[0].state == "ended")

    assert bench.node.open_runs() == (OpenRun(asked.run_id, 1, 2, "ended"),)


async def test_the_end_of_a_run_outlives_the_process_until_the_edge_has_it(bench: Bench) -> None:
    asked, played = await bench.started()
    bench.node.on_link_lost(60)
    played.sink.emit(Text("one"))
    played.sink.emit(Usage(1, 1))
    played.fail(RunFailed("the engine answered 500", code="engine_error", layer=Layer.SERVING))
    await eventually(lambda: bench.node.open_runs()[0].state == "ended")

    again = Bench()
    again.store = bench.store
    again.node._store = again.node._journal._store = bench.store
    await again.node.start()
    assert again.node.open_runs() == (OpenRun(asked.run_id, 1, 4, "ended"),)
    edge = again.connect(RunVerdict(asked.run_id, 1, 1, Verdict.KEEP))
    again.node.on_run_request(asked)

    assert [(event.seq, type(event.body)) for event in edge.events] == [(3, Gap), (4, Failed)]
    terminal = edge.events[-1].body
    assert isinstance(terminal, Failed)
    assert (terminal.code, terminal.message) == ("engine_error", "the engine answered 500")
    assert (terminal.closing.usage, terminal.closing.output_bytes) == (Usage(1, 1), 3)
    assert edge.accepted == [(asked.run_id, 1)], "a repeat is answered, and not run again"
    again.node.on_ack(asked.run_id, 1, 4)
    assert again.node.open_runs() == ()
    await again.node._journal.flush()
    assert await bench.store.list_unsettled(0, 10) == []
    await again.node._tasks.cancel_all()


# --- configuration, probes, commands ------------------------------------------------------------------------

STATUS = AdapterStatus(
    AdapterName("a"), "played", OPEN, 2, (Operation.CHAT, Operation.COMPLETION), (TargetName("echo"),)
)


async def test_a_link_is_told_everything_and_a_change_once(bench: Bench) -> None:
    assert bench.edge.node_events == [CapabilitiesChanged((STATUS,))]

    assert await bench.configure() == ConfigResult(
        1, make_node_config(1, [AdapterConfig(AdapterName("a"), "played", 2)]).hash, applied=True
    )
    assert len(bench.edge.node_events) == 1, "the same configuration again is no change"
    await bench.configure(revision=2)
    assert len(bench.edge.node_events) == 1, "a new revision with the same content is none either"
    assert len(bench.made) == 1


async def test_a_run_of_an_unchanged_adapter_is_untouched_and_a_removed_one_is_closed_after_its_last_run(
    bench: Bench,
) -> None:
    asked, played = await bench.started()

    await bench.configure(AdapterConfig(AdapterName("b"), "played", 1), revision=2)
    old = bench.made[0]
    assert not played.cancels
    assert old.closed == 0
    bench.node.on_run_request(request())
    assert bench.edge.refused[-1].code == "unknown_adapter"

    played.complete()
    await bench.edge.wait_terminal(asked.run_id)
    await eventually(lambda: old.closed == 1)


async def test_a_rejected_configuration_tells_why_and_leaves_the_old_one_in_force(bench: Bench) -> None:
    config = AdapterConfig(AdapterName("a"), "played", 2, {"base_url": "http://10.0.0.1:1"})

    result = await bench.configure(config, revision=2)

    assert (result.applied, result.revision) == (False, 2)
    assert result.reasons == (
        "adapter 'a': base_url 'http://10.0.0.1:1' is not allowed on this node (allow.base_urls in its own file: "
        "http://127.0.0.1:*)",
    )
    assert bench.node.config_held[0] == 1
    await eventually(lambda: True)
    await bench.started()


async def test_an_unreachable_engine_is_asked_at_once_and_its_gate_is_told_and_refuses(bench: Bench) -> None:
    asked, played = await bench.started()
    bench.made[0].probe_result = ProbeResult(CLOSED, (TargetName("echo"),), "engine 1")

    played.fail(RunFailed("connection refused", code="engine_unreachable", layer=Layer.SERVING))
    await bench.edge.wait_for(lambda: GateChanged(AdapterName("a"), CLOSED) in bench.edge.node_events)

    assert isinstance(await bench.edge.wait_terminal(asked.run_id), Failed)
    bench.node.on_run_request(request())
    assert bench.edge.refused[-1].gate == CLOSED
    assert bench.edge.refused[-1].message == (
        "adapter 'a' takes no work now: engine_reachable: connection refused"
    )


async def test_status_and_capabilities_are_json_values(bench: Bench) -> None:
    asked, played = await bench.started()
    played.sink.emit(Text("hi"))
    bench.clock.advance(1.5)

    status = await bench.node.on_command(NodeCommandRequest(CommandId("c1"), "status"))
    capabilities = await bench.node.on_command(NodeCommandRequest(CommandId("c2"), "capabilities"))

    assert (status.command_id, status.error_code) == ("c1", "")
    assert status.result["runs"] == {"live": 1, "abandoned": 0, "max": 3}
    assert status.result["live_runs"] == [
        {
            "run_id": asked.run_id,
            "attempt": 1,
            "adapter": "a",
            "target": "echo",
            "state": "running",
            "age_s": 1.5,
            "events": 2,
            "output_bytes": 2,
            "held_bytes": 2 * 96 + 2,
        }
    ]
    assert capabilities.result == {
        "adapters": [
            {
                "name": "a",
                "type": "played",
                "gate": {"state": "open", "check": "engine_reachable", "reason": ""},
                "max_concurrent": 2,
                "operations": ["chat", "completion"],
                "targets": ["echo"],
                "any_target": False,
            }
        ]
    }


async def test_an_unknown_command_names_the_nearest(bench: Bench) -> None:
    response = await bench.node.on_command(NodeCommandRequest(CommandId("c"), "statsu"))

    assert (response.error_code, response.error_message) == (
        "unknown_command",
        "unknown command 'statsu': did you mean 'status'?",
    )


# --- end ----------------------------------------------------------------------------------------------------


async def test_draining_finishes_what_runs_refuses_the_rest_and_is_told(bench: Bench) -> None:
    _, played = await bench.started()

    assert not await bench.node.drain("SIGTERM", 0.01)
    bench.node.on_run_request(request())
    assert bench.edge.refused[-1].code == "node_draining"
    assert bench.edge.node_events[-1] == DrainingChanged(True, "SIGTERM")
    played.complete()
    assert await bench.node.drain("again", 1)
    assert bench.edge.node_events.count(DrainingChanged(True, "SIGTERM")) == 1
    assert DrainingChanged(True, "SIGTERM") in bench.connect().node_events


async def test_stopping_interrupts_what_runs_tells_it_and_closes_everything_once(bench: Bench) -> None:
    asked, _ = await bench.started()

    await bench.node.stop("SIGTERM", flush_s=0.01)
    await bench.node.stop()

    terminal = await bench.edge.wait_terminal(asked.run_id)
    assert isinstance(terminal, Interrupted)
    assert terminal.code == "node_stopping"
    assert terminal.message == "SIGTERM; the run was not complete"
    assert bench.made[0].closed == 1
    with pytest.raises(Unavailable):
        await bench.store.list_recent()


async def test_stopping_waits_for_the_edge_to_acknowledge(bench: Bench) -> None:
    asked, _ = await bench.started()

    stopping = asyncio.gather(bench.node.stop(flush_s=2))
    await bench.edge.wait_terminal(asked.run_id)
    await asyncio.sleep(0.01)
    assert not stopping.done()
    bench.node.on_ack(asked.run_id, 1, 99)

    await asyncio.wait_for(stopping, 1)


async def test_rows_that_an_earlier_process_left_open_are_interrupted_at_the_start() -> None:
    bench = Bench()
    left = RunRecord(RunId(new_run_id()), 1, AdapterName("a"), TargetName("t"), Operation.CHAT, 1)
    await bench.store.begin(left)

    rows = await bench.node.start()

    assert [(row.run_id, row.state, row.message) for row in rows] == [
        (left.run_id, RunState.INTERRUPTED, "the node was restarted")
    ]
    await bench.node.stop()
