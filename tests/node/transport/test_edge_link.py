"""The node's link against an edge on a real socket: opening, runs, breaks, refusals, stopping."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.support.fake_edge import FakeEdge
from tests.support.inbox import wait_for
from tests.support.node_fakes import PlayedAdapter

from iop_node.adapters.mock import build as build_mock
from iop_node.core.allow import AllowList
from iop_node.core.execution import ExecutionLimits
from iop_node.core.node import Node, NodeLimits
from iop_node.store.memory import MemoryRunStore
from iop_node.transport.edge_link import EdgeLink
from iop_shared.aio.tasks import TaskOwner
from iop_shared.backoff import Backoff
from iop_shared.clock import SystemClock
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import AdapterName, BootId, NodeId, TargetName, new_run_id
from iop_shared.link import rejects
from iop_shared.link.auth import Token, new_token
from iop_shared.link.effects import LinkEnd
from iop_shared.link.messages import (
    AdapterConfig,
    GoAway,
    LinkLimits,
    Reject,
    RejectClass,
    RunAccepted,
    RunInputPart,
    RunRefused,
    RunSubmission,
    Verdict,
)
from iop_shared.link.node_side import NodeIdentity
from iop_shared.runs import Operation, RunRequest
from iop_shared.runtime_events import Cancelled, Gap, Interrupted, Succeeded, Text

pytestmark = pytest.mark.both_loops
MOCK = AdapterConfig(AdapterName("mock"), "mock", 8)
LIMITS = NodeLimits(execution=ExecutionLimits(cancel_grace_s=0.1, hard_cancel_s=0.1))
BOOT = BootId("b" * 32)
MAX_INPUT_BYTES = 4 * 1024 * 1024


class Bench:
    """A node and its link to one edge."""

    def __init__(self, edge: FakeEdge, token: Token | None, address: ListenAddress | None = None) -> None:
        self.failures: list[str] = []
        self.tasks = TaskOwner("link", lambda name, error: self.failures.append(f"{name}: {error!r}"))
        self.played: list[PlayedAdapter] = []
        self.node = Node(
            NodeId("n1"),
            BOOT,
            factories={"mock": build_mock, "played": self._make},
            allow=AllowList(("mock", "played"), ("http://127.0.0.1:*",)),
            store=MemoryRunStore(),
            clock=SystemClock(),
            limits=LIMITS,
        )
        self.link = EdgeLink(
            address or edge.address,
            self.node,
            lambda: NodeIdentity(NodeId("n1"), BOOT, token, "0-test", {"site": "lab"}, *self.node.config_held),
            tasks=self.tasks,
            clock=SystemClock(),
            max_input_bytes=MAX_INPUT_BYTES,
            backoff=Backoff(first_window_s=0.02, max_window_s=0.05, spread_s=0.01, stable_after_s=0.0),
            watchdog_s=1.0,
        )
        self.running: asyncio.Task[LinkEnd | None] | None = None

    def _make(self, name: AdapterName, max_concurrent: int, settings: dict[str, object]) -> PlayedAdapter:
        self.played.append(PlayedAdapter(name, settings))
        return self.played[-1]

    def start(self) -> None:
        self.running = self.tasks.spawn(self.link.run(), name="run")

    async def aclose(self) -> None:
        await self.node.stop(flush_s=0.0)
        await self.link.stop("node_stopping", "the test is over")
        await self.tasks.cancel_all()
        assert self.failures == []


@contextlib.asynccontextmanager
async def linked(*adapters: AdapterConfig) -> AsyncIterator[tuple[FakeEdge, Bench]]:
    token = new_token()
    async with FakeEdge.listening(token, adapters=adapters or (MOCK,)) as edge:
        bench = Bench(edge, token)
        bench.start()
        try:
            yield edge, bench
        finally:
            await bench.aclose()


def request(target: str = "echo", prompt: bytes = b"one two three", adapter: str = "mock") -> RunRequest:
    return RunRequest(
        new_run_id(),
        AdapterName(adapter),
        TargetName(target),
        Operation.GENERATE,
        prompt,
        content_type="text/plain",
    )


async def test_a_link_opens_applies_the_configuration_and_tells_what_it_offers() -> None:
    async with linked() as (edge, bench):
        session = await edge.wait_session()

        result = await session.wait_config_result(1)
        adapters = await session.wait_adapters()

        assert result.applied
        assert [a.name for a in adapters] == ["mock"]
        assert "echo" in adapters[0].targets
        assert session.hello is not None
        assert (session.hello.node_id, session.hello.labels) == ("n1", {"site": "lab"})
        assert bench.link.is_open
        assert bench.link.epoch == 1


async def test_a_run_streams_and_is_settled_by_acknowledgements() -> None:
    async with linked() as (edge, bench):
        session = await edge.wait_session()
        await session.wait_config_result(1)
        asked = request()

        session.submit(asked)
        events = await session.wait_terminal(asked.run_id)

        assert isinstance(await session.wait_answer(asked.run_id), RunAccepted)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert "".join(e.body.text for e in events if isinstance(e.body, Text)) == "one two three"
        assert isinstance(events[-1].body, Succeeded)
        await wait_for(lambda: not bench.node.open_runs(), "the run is settled")


async def test_a_cancel_in_mid_stream_is_confirmed() -> None:
    async with linked() as (edge, _):
        session = await edge.wait_session()
        await session.wait_config_result(1)
        asked = request("hang")
        session.submit(asked)
        await session.wait_answer(asked.run_id)

        session.cancel(asked.run_id, "client left")
        terminal = (await session.wait_terminal(asked.run_id))[-1].body

        assert isinstance(terminal, Cancelled)
        assert (terminal.reason, terminal.confirmed) == ("client left", True)


async def test_a_large_input_comes_in_parts_and_a_cancel_overtakes_another() -> None:
    async with linked() as (edge, _):
        session = await edge.wait_session()
        await session.wait_config_result(1)
        data = b"x " * 700_000
        large, cancelled = request("tokens", data[:500_000]), request("tokens", data[:500_000])
        for asked in (large, cancelled):
            session.send(RunSubmission(asked, len(data)))
        session.cancel(cancelled.run_id)  # goes ahead of the data
        for offset in (500_000, 1_000_000):
            session.send(RunInputPart(large.run_id, 1, offset, data[offset : offset + 500_000]))

        events = await session.wait_terminal(large.run_id)
        refused = await session.wait_answer(cancelled.run_id)

        assert isinstance(events[-1].body, Succeeded)
        assert events[-1].body.closing.usage is not None
        assert events[-1].body.closing.usage.prompt_tokens == 700_001
        assert isinstance(refused, RunRefused)
        assert refused.code == "cancelled"


async def test_a_cancel_ends_an_input_that_is_on_its_way() -> None:
    async with linked() as (edge, _):
        session = await edge.wait_session()
        await session.wait_config_result(1)
        asked = request("tokens", b"x" * 1000)
        session.send(RunSubmission(asked, 5000))
        await session.command("status")  # the submission has arrived by now

        session.cancel(asked.run_id, "client left")
        refused = await session.wait_answer(asked.run_id)

        assert isinstance(refused, RunRefused)
        assert (refused.code, refused.message) == (
            "cancelled",
            f"run {asked.run_id} was cancelled before it came: client left",
        )


async def test_a_run_that_would_be_refused_is_refused_before_its_input_has_come() -> None:
    async with linked() as (edge, _):
        session = await edge.wait_session()
        await session.wait_config_result(1)
        asked = request("ecko", b"x")

        session.send(RunSubmission(asked, 1_000_000))
        refused = await session.wait_answer(asked.run_id)

        assert isinstance(refused, RunRefused)
        assert refused.code == "unknown_target"


async def test_an_input_over_the_limit_is_refused() -> None:
    async with linked() as (edge, _):
        session = await edge.wait_session()
        await session.wait_config_result(1)
        asked = request()

        session.send(RunSubmission(asked, MAX_INPUT_BYTES + 1))

        assert await session.wait_answer(asked.run_id) == RunRefused(
            asked.run_id,
            1,
            "bad_input",
            "the input has 4194305 bytes, this node takes 4194304 (max_input_bytes)",
        )


async def test_a_configuration_that_is_pushed_later_is_applied_or_rejected() -> None:
    async with linked() as (edge, _):
        session = await edge.wait_session()
        await session.wait_config_result(1)

        session.push_config([MOCK, AdapterConfig(AdapterName("m2"), "mock", 1)])
        assert (await session.wait_config_result(2)).applied
        session.push_config([AdapterConfig(AdapterName("sh"), "cli", 1)])
        rejected = await session.wait_config_result(3)

        assert not rejected.applied
        assert rejected.reasons == ("adapter 'sh': unknown adapter type 'cli': known: mock, played",)


async def test_commands_are_answered() -> None:
    async with linked() as (edge, _):
        session = await edge.wait_session()

        status = await session.command("status")
        unknown = await session.command("reboot")

        assert status.result["node_id"] == "n1"
        assert unknown.error_code == "unknown_command"


async def test_a_break_in_mid_run_loses_nothing() -> None:
    played = AdapterConfig(AdapterName("p"), "played", 2)
    async with linked(played) as (edge, bench):
        session = await edge.wait_session()
        await session.wait_config_result(1)
        asked = request(adapter="p")
        asked = RunRequest(asked.run_id, asked.adapter, asked.target, Operation.CHAT, b"{}")
        session.submit(asked)
        run = await bench.played[0].wait_called()
        run.sink.emit(Text("one "))
        await wait_for(lambda: len(session.events(asked.run_id)) == 2, "the first events")

        await session.cut()
        edge.verdicts[asked.run_id] = (2, Verdict.KEEP)
        run.sink.emit(Text("two "))
        again = await edge.wait_session(2)
        run.sink.emit(Text("three"))
        run.complete()
        events = await again.wait_terminal(asked.run_id)

        assert again.open_runs is not None
        assert [(r.run_id, r.state) for r in again.open_runs.runs] == [(asked.run_id, "running")]
        assert [(e.seq, e.body) for e in events[:2]] == [(3, Text("two ")), (4, Text("three"))]
        assert isinstance(events[-1].body, Succeeded)
        assert (again.hello.config_revision if again.hello else 0) == 1


async def test_an_edge_that_lost_its_memory_gets_a_gap_for_what_it_had_acknowledged() -> None:
    played = AdapterConfig(AdapterName("p"), "played", 2)
    async with linked(played) as (edge, bench):
        session = await edge.wait_session()
        await session.wait_config_result(1)
        asked = RunRequest(new_run_id(), AdapterName("p"), TargetName("echo"), Operation.CHAT, b"{}")
        session.submit(asked)
        run = await bench.played[0].wait_called()
        run.sink.emit(Text("one"))
        await wait_for(lambda: len(session.events(asked.run_id)) == 2, "the first events")
        await wait_for(lambda: bench.node.statistics().outbox.held_bytes == 0, "the acknowledgement")

        await session.cut()
        again = await edge.wait_session(2)
        run.complete()
        events = await again.wait_terminal(asked.run_id)

        assert [(e.seq, e.body) for e in events[:1]] == [(2, Gap(2, 0, "acknowledged_before"))]
        assert isinstance(events[-1].body, Succeeded)


async def test_after_the_grace_a_run_is_interrupted_and_told_when_a_link_comes_back() -> None:
    async with linked() as (edge, bench):
        edge.limits = LinkLimits(disconnect_grace_s=0.05)
        session = await edge.wait_session()
        await session.cut()  # the limits hold from the next link on
        session = await edge.wait_session(2)
        await session.wait_config_result(1)
        asked = request("hang")
        session.submit(asked)
        await session.wait_answer(asked.run_id)
        address = edge.address

        await edge.aclose(cut=True)
        await wait_for(lambda: [r.state for r in bench.node.open_runs()] == ["ended"], "the grace is over")
        await edge.start(address)
        session = await edge.wait_session(3)
        terminal = (await session.wait_terminal(asked.run_id))[-1].body

        assert isinstance(terminal, Interrupted)
        assert (terminal.code, terminal.message) == (
            "node_lost",
            "no link to the edge for 0.05 s (disconnect_grace_s)",
        )


async def test_a_flood_to_an_edge_that_does_not_read_is_bounded_and_arrives_in_the_end() -> None:
    async with linked() as (edge, bench):
        session = await edge.wait_session()
        await session.wait_config_result(1)
        transport = session.link._transport
        transport.pause_reading()
        flood = b'{"prompt": "", "mock": {"tokens": 600, "token_bytes": 8000}}'
        asked = RunRequest(new_run_id(), AdapterName("mock"), TargetName("tokens"), Operation.GENERATE, flood)
        session.submit(asked)
        await wait_for(lambda: bench.node.statistics().outbox.held_bytes > 500_000, "the outbox fills")
        await asyncio.sleep(0.1)

        assert bench.node.statistics().outbox.held_bytes < 1_200_000
        transport.resume_reading()
        events = await session.wait_terminal(asked.run_id, timeout_s=20)

        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert isinstance(events[-1].body, Succeeded)
        assert events[-1].body.closing.output_bytes == 4_800_000
        assert not any(isinstance(event.body, Gap) for event in events)


async def test_a_fatal_refusal_ends_the_link_for_good() -> None:
    async with FakeEdge.listening(new_token()) as edge:
        bench = Bench(edge, new_token())
        bench.start()
        assert bench.running is not None

        end = await asyncio.wait_for(bench.running, 5)

        assert end is not None
        assert (end.code, end.reject_class) == ("token_invalid", RejectClass.FATAL)
        assert rejects.token_invalid("n1").message in end.message
        assert bench.link.dials == 1
        await bench.aclose()


async def test_a_refusal_that_may_pass_is_tried_again() -> None:
    token = new_token()
    async with FakeEdge.listening(token, adapters=(MOCK,)) as edge:
        edge.reject = Reject("edge_busy", RejectClass.RETRY, "too many at once")
        bench = Bench(edge, token)
        bench.start()
        await edge.wait_ended(2)

        edge.reject = None
        await edge.wait_session()

        assert bench.link.dials >= 3
        await bench.aclose()


async def test_an_edge_that_is_not_there_yet_is_dialled_until_it_is() -> None:
    token = new_token()
    edge = FakeEdge(token, adapters=(MOCK,))
    await edge.start()
    address = edge.address
    await edge.aclose()
    bench = Bench(edge, token, address)
    bench.start()
    await wait_for(lambda: bench.link.dials >= 2, "dials to nobody")
    assert not bench.link.is_open

    await edge.start(address)
    await edge.wait_session()

    await bench.aclose()
    await edge.aclose()


async def test_a_stop_says_goodbye_and_ends_a_pause_between_dials() -> None:
    async with linked() as (edge, bench):
        session = await edge.wait_session()
        bench.link.announce_drain("SIGTERM", 30)
        await session.inbox.wait(GoAway)

        await bench.link.stop("node_stopping", "SIGTERM")
        assert bench.running is not None
        assert await asyncio.wait_for(bench.running, 1) is None

        end = await session.wait_closed()
        assert end.code == "node_stopping"


async def test_an_edge_that_allows_only_small_frames_is_told_why() -> None:
    token = new_token()
    async with FakeEdge.listening(token) as edge:
        edge.limits = LinkLimits(max_frame_bytes=65536)
        bench = Bench(edge, token)
        bench.start()

        end = await edge.wait_ended()

        assert end.code == "frame_limit_too_small"
        assert "the edge allows frames of 65536 bytes, this node needs 1048576" in end.message
        assert edge.sessions == []
        await bench.aclose()


async def test_the_watchdog_cuts_a_link_that_gets_nowhere() -> None:
    async with linked() as (edge, bench):
        await edge.wait_session()
        bench.link._watchdog_s = 0.05
        # As a bug would: the session never says that it is open.
        bench.link._note_settled = lambda session: None  # type: ignore[method-assign]

        await edge.sessions[0].cut()
        await edge.wait_ended(3)

        assert bench.link.dials >= 3
