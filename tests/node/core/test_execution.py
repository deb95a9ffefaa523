"""One run: its endings, its budgets, its limits. Each ends in exactly one terminal body."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.node_fakes import PlayedAdapter, PlayedRun, eventually

from iop_node.core.execution import CancelAsked, Execution, ExecutionLimits, NodeGivesUp
from iop_node.core.outbox import Outbox, OutboxLimits, RunOutbox
from iop_node.core.pieces import MAX_PIECE_BYTES, MAX_WHOLE_BYTES
from iop_node.core.spec import ExecutionSpec
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import Layer, RunFailed
from iop_shared.ids import AdapterName, NodeId, RunId, TargetName
from iop_shared.runs import Operation, RunLimits
from iop_shared.runtime_events import (
    Body,
    Cancelled,
    EngineJson,
    Failed,
    Interrupted,
    RuntimeEvent,
    Started,
    Succeeded,
    Terminal,
    Text,
    Timings,
    Usage,
)

SPEC = ExecutionSpec(RunId("r"), AdapterName("played"), TargetName("echo"), Operation.CHAT, b"hello")
LIMITS = ExecutionLimits(cancel_grace_s=0.05, hard_cancel_s=0.05, max_output_bytes=1000)
ROOMY = OutboxLimits()
STARTED = Started(AdapterName("played"), TargetName("echo"), NodeId("n1"), "engine 1")


class Bench:
    """One execution with everything around it."""

    def __init__(
        self,
        *,
        spec: ExecutionSpec = SPEC,
        limits: ExecutionLimits = LIMITS,
        outbox: OutboxLimits = ROOMY,
    ) -> None:
        self.clock = FakeClock()
        self.adapter = PlayedAdapter(AdapterName("played"))
        self.sent: list[RuntimeEvent] = []
        self.outbox = Outbox(outbox)
        self.outbox.link_opened(self.sent.append)
        self.run_outbox: RunOutbox = self.outbox.open_run(spec.run_id, 1)
        self.failures: list[str] = []
        self.tasks = TaskOwner("test", lambda name, error: self.failures.append(name))
        self.execution = Execution(
            spec,
            self.adapter,
            self.run_outbox,
            node_id=NodeId("n1"),
            engine="engine 1",
            clock=self.clock,
            tasks=self.tasks,
            limits=limits,
            accepted_at=self.clock.monotonic(),
        )

    def start(self) -> "asyncio.Task[Terminal]":
        return self.tasks.spawn(self.execution.run(), name="run")

    async def started(self) -> "tuple[asyncio.Task[Terminal], PlayedRun]":
        task = self.start()
        return task, await self.adapter.wait_called()

    @property
    def bodies(self) -> list[Body]:
        return [event.body for event in self.sent]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.tasks.cancel_all()


async def test_a_run_that_completes_says_counts_checksum_timings_and_usage(bench: Bench) -> None:
    bench.clock.advance(0.5)
    task, played = await bench.started()
    bench.clock.advance(1.0)
    played.sink.emit(Text("Hel"))
    bench.clock.advance(2.0)
    played.sink.emit(Text("lö"))
    played.sink.emit(Usage(3, 2))

    played.complete("length")
    terminal = await task

    assert bench.bodies == [STARTED, Text("Hel"), Text("lö"), Usage(3, 2)]
    assert isinstance(terminal, Succeeded)
    closing = terminal.closing
    assert (closing.events, closing.output_bytes) == (4, 6)
    assert closing.output_sha256 == hashlib.sha256("Hellö".encode()).digest()
    assert closing.timings == Timings(accepted_to_start_s=0.5, first_token_s=1.5, total_s=3.5)
    assert (closing.usage, closing.finish_reason) == (Usage(3, 2), "length")


async def test_started_comes_before_anything_else_even_without_output(bench: Bench) -> None:
    task, played = await bench.started()
    await asyncio.sleep(0)

    assert bench.bodies == [STARTED]
    played.complete()
    terminal = await task
    assert terminal.closing.timings.first_token_s is None


async def test_an_adapter_may_name_its_engine_before_its_first_wait(bench: Bench) -> None:
    class Naming(PlayedAdapter):
        async def execute(self, spec, sink):  # type: ignore[no-untyped-def]
            sink.set_engine("llama.cpp b1")
            return await super().execute(spec, sink)

    bench.execution._adapter = Naming(AdapterName("played"))

    task = bench.start()
    await eventually(lambda: bench.bodies)

    assert bench.bodies == [replace(STARTED, engine="llama.cpp b1")]
    task.cancel()


async def test_a_failed_run_keeps_code_layer_and_what_the_engine_said(bench: Bench) -> None:
    task, played = await bench.started()

    played.fail(
        RunFailed(
            "the engine answered 429",
            code="engine_overloaded",
            layer=Layer.SERVING,
            retryable=True,
            engine_status=429,
            engine_body=b"x" * 100_000,
        )
    )
    terminal = await task

    assert isinstance(terminal, Failed)
    assert (terminal.code, terminal.layer, terminal.message) == (
        "engine_overloaded",
        Layer.SERVING,
        "the engine answered 429",
    )
    assert (terminal.retryable, terminal.engine_status, len(terminal.engine_body)) == (True, 429, 64 * 1024)
    assert bench.failures == []


async def test_a_bug_of_an_adapter_is_adapter_error_and_shows_no_detail(bench: Bench) -> None:
    task, played = await bench.started()

    played.fail(ValueError("secret prompt"))
    terminal = await task

    assert isinstance(terminal, Failed)
    assert (terminal.code, terminal.layer) == ("adapter_error", Layer.NODE)
    assert terminal.message == (
        "adapter 'played' (played) failed with ValueError; this is a bug, the node's log has the details"
    )


async def test_an_adapter_that_cancels_itself_is_adapter_error(bench: Bench) -> None:
    task, played = await bench.started()

    played._outcome.cancel()
    terminal = await task

    assert isinstance(terminal, Failed)
    assert terminal.code == "adapter_error"


async def test_a_terminal_body_from_an_adapter_is_our_bug(bench: Bench) -> None:
    _, played = await bench.started()

    with pytest.raises(Exception, match="an adapter must not emit Succeeded: the core does that"):
        played.sink.emit(Succeeded())
    played.complete()


async def test_a_cancel_ends_the_run_with_what_the_engine_confirmed(bench: Bench) -> None:
    bench.adapter.confirms = True
    task, _ = await bench.started()

    bench.execution.stop(CancelAsked("client left"))
    bench.execution.stop(CancelAsked("again"))
    terminal = await task

    assert isinstance(terminal, Cancelled)
    assert (terminal.reason, terminal.confirmed, terminal.took_ms) == ("client left", True, 0)


async def test_the_time_a_cancel_took_is_told(bench: Bench) -> None:
    bench.adapter.cleanup_s = 0.02
    task, played = await bench.started()

    bench.execution.stop(CancelAsked("x"))
    await eventually(lambda: played.cancels)
    bench.clock.advance(0.25)
    terminal = await task

    assert isinstance(terminal, Cancelled)
    assert (terminal.confirmed, terminal.took_ms) == (False, 250)


async def test_a_cancel_before_the_start_calls_no_adapter(bench: Bench) -> None:
    bench.execution.stop(CancelAsked("too late"))

    terminal = await bench.execution.run()

    assert isinstance(terminal, Cancelled)
    assert terminal.confirmed
    assert bench.adapter.runs == []
    assert bench.bodies == []


async def test_a_clean_up_that_hangs_is_cut_by_the_hard_budget(bench: Bench) -> None:
    bench.adapter.cleanup_s = 100
    task, _ = await bench.started()

    bench.execution.stop(CancelAsked("x"))
    terminal = await task

    assert isinstance(terminal, Cancelled)
    assert not terminal.confirmed
    assert not bench.execution.is_abandoned


async def test_an_adapter_that_ignores_both_cancels_is_abandoned(bench: Bench) -> None:
    bench.adapter.ignored_cancels = 2
    task, played = await bench.started()

    bench.execution.stop(CancelAsked("x"))
    terminal = await task

    assert isinstance(terminal, Cancelled)
    assert not terminal.confirmed
    assert bench.execution.is_abandoned
    sent = len(bench.sent)
    played.sink.emit(Text("late"))
    await asyncio.wait_for(played.sink.wait_ready(), 1)
    assert len(bench.sent) == sent, "what comes after the end is ignored"
    over = bench.tasks.spawn(bench.execution.wait_adapter_over(), name="over")
    await asyncio.sleep(0)
    assert not over.done()
    played.complete()
    await over
    assert not bench.execution.is_abandoned


async def test_a_run_that_completes_while_it_is_cancelled_has_succeeded(bench: Bench) -> None:
    bench.adapter.ignored_cancels = 1
    task, played = await bench.started()

    bench.execution.stop(CancelAsked("x"))
    await eventually(lambda: played.cancels)
    played.complete()

    assert isinstance(await task, Succeeded)


async def test_a_failure_while_being_cancelled_is_a_cancelled_run(bench: Bench) -> None:
    bench.adapter.ignored_cancels = 1
    task, played = await bench.started()

    bench.execution.stop(CancelAsked("x"))
    await eventually(lambda: played.cancels)
    played.fail(RunFailed("cut", code="engine_stream_truncated", layer=Layer.SERVING))

    assert isinstance(await task, Cancelled)


async def test_a_node_that_gives_up_interrupts_the_run(bench: Bench) -> None:
    task, _ = await bench.started()

    bench.execution.stop(NodeGivesUp("node_stopping", "the node stops"))

    terminal = await task
    assert isinstance(terminal, Interrupted)
    assert (terminal.code, terminal.message) == ("node_stopping", "the node stops")


async def test_the_total_timeout_fails_the_run() -> None:
    bench = Bench(spec=replace(SPEC, limits=RunLimits(total_timeout_s=0.03)))

    terminal = await bench.execution.run()

    assert isinstance(terminal, Failed)
    assert (terminal.code, terminal.layer, terminal.message) == (
        "run_timeout_total",
        Layer.SERVING,
        "the run did not end within its total timeout of 0.03 s (total_timeout_s)",
    )
    await bench.tasks.cancel_all()


@pytest.mark.parametrize(
    ("asked", "limit"), [(0, 1000), (100, 100), (5000, 1000)], ids=["the node's", "the run's", "never above"]
)
async def test_too_much_output_fails_the_run(asked: int, limit: int) -> None:
    bench = Bench(spec=replace(SPEC, limits=RunLimits(max_output_bytes=asked)))
    task, played = await bench.started()

    for _ in range(2000):
        played.sink.emit(Text("0123456789"))
    terminal = await task

    assert isinstance(terminal, Failed)
    assert (terminal.code, terminal.layer, terminal.message) == (
        "output_limit",
        Layer.NODE,
        f"the run produced more than {limit} bytes of output (max_output_bytes); ask for less, or raise the limit",
    )
    assert terminal.closing.output_bytes == limit + 10
    await bench.tasks.cancel_all()


async def test_a_body_too_large_for_a_frame_travels_in_pieces() -> None:
    bench = Bench(limits=replace(LIMITS, max_output_bytes=10_000_000))
    task, played = await bench.started()
    answer = b"{" + b"x" * (3 * MAX_PIECE_BYTES) + b"}"

    played.sink.emit(EngineJson((answer,), whole=True))
    played.complete()
    terminal = await task

    pieces = [body for body in bench.bodies if isinstance(body, EngineJson)]
    assert len(pieces) == 4
    assert b"".join(chunk for piece in pieces for chunk in piece.chunks) == answer
    assert terminal.closing.output_sha256 == hashlib.sha256(answer).digest()
    assert terminal.closing.events == 5
    await bench.tasks.cancel_all()


async def test_a_chunk_that_fits_no_frame_fails_the_run() -> None:
    bench = Bench(limits=replace(LIMITS, max_output_bytes=10_000_000))
    task, played = await bench.started()

    played.sink.emit(EngineJson((b"x" * (MAX_WHOLE_BYTES + 1),)))
    terminal = await task

    assert isinstance(terminal, Failed)
    assert terminal.message == (
        "the engine sent one EngineJson of more than 983040 bytes, which does not fit a frame of the link"
    )
    await bench.tasks.cancel_all()


async def test_wait_ready_holds_until_the_edge_has_acknowledged() -> None:
    bench = Bench(outbox=OutboxLimits(ready_bytes=300), limits=replace(LIMITS, max_output_bytes=10_000))
    task, played = await bench.started()
    await played.sink.wait_ready()
    for _ in range(3):
        played.sink.emit(Text("x" * 100))
    waiting = bench.tasks.spawn(played.sink.wait_ready(), name="waiting")
    await asyncio.sleep(0.01)
    assert not waiting.done()

    bench.outbox.ack(SPEC.run_id, 1, bench.sent[-1].seq)
    bench.execution.note_room()

    await asyncio.wait_for(waiting, 1)
    played.complete()
    await task


async def test_a_run_that_waits_for_room_can_be_stopped() -> None:
    bench = Bench(outbox=OutboxLimits(ready_bytes=10))
    task, played = await bench.started()
    waiting = bench.tasks.spawn(played.sink.wait_ready(), name="waiting")
    await asyncio.sleep(0)

    bench.execution.stop(CancelAsked("x"))

    await asyncio.wait_for(waiting, 1)
    assert isinstance(await task, Cancelled)
