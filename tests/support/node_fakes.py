"""Stand-ins at the ports of the node's core: an adapter played by hand, an edge that notes what it is told."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from iop_node.core.ports import EventSink, ProbeResult
from iop_node.core.spec import Capabilities, Completion, ExecutionSpec
from iop_shared.ids import AdapterName, RunId, TargetName
from iop_shared.link.messages import EdgeNodeEventBody, Gate, GateState, RunRefused
from iop_shared.runs import Operation
from iop_shared.runtime_events import TERMINAL_TYPES, Body, RuntimeEvent, Terminal


async def eventually(holds: Callable[[], object], within_s: float = 2.0) -> None:
    """Waits until `holds()`; fails with a timeout. For states that nothing announces."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 -- there is no event to wait for
            await asyncio.sleep(0)


@dataclass(eq=False)
class PlayedRun:
    """One call of `execute`: the test says through it what the adapter does."""

    spec: ExecutionSpec
    sink: EventSink
    _outcome: "asyncio.Future[Completion]" = field(init=False)
    cancels: int = 0

    def __post_init__(self) -> None:
        self._outcome = asyncio.get_running_loop().create_future()

    def complete(self, finish_reason: str = "stop") -> None:
        """`execute` returns."""
        if not self._outcome.done():
            self._outcome.set_result(Completion(finish_reason))

    def fail(self, error: BaseException) -> None:
        """`execute` raises."""
        self._outcome.set_exception(error)

    async def play(self, adapter: "PlayedAdapter") -> Completion:
        """What `execute` does: waits for the test, and meets cancels as the adapter is told to."""
        while True:
            try:
                return await asyncio.shield(self._outcome)
            except asyncio.CancelledError:
                if self._outcome.cancelled():
                    raise
                self.cancels += 1
                if self.cancels <= adapter.ignored_cancels:
                    continue
                if adapter.cleanup_s:
                    await asyncio.sleep(adapter.cleanup_s)
                if adapter.confirms:
                    self.sink.confirm_cancel()
                raise


class PlayedAdapter:
    """An adapter whose runs the test plays. It answers probes with `probe_result`."""

    type = "played"

    def __init__(self, name: AdapterName, settings: dict[str, Any] | None = None) -> None:
        self._name = name
        self.settings = settings or {}
        self.capabilities = Capabilities((Operation.CHAT, Operation.COMPLETION))
        self.runs: list[PlayedRun] = []
        self.ignored_cancels = 0
        self.cleanup_s = 0.0
        self.confirms = False
        self.closed = 0
        self.probes = 0
        self.probe_result = ProbeResult(
            Gate(GateState.OPEN, "engine_reachable"), (TargetName("echo"),), "engine 1"
        )
        self.probe_error: Exception | None = None
        self.probe_gate = asyncio.Event()
        self.probe_gate.set()
        self._called = asyncio.Event()

    @property
    def name(self) -> AdapterName:
        """See Adapter."""
        return self._name

    async def execute(self, spec: ExecutionSpec, sink: EventSink) -> Completion:
        """See Adapter."""
        run = PlayedRun(spec, sink)
        self.runs.append(run)
        self._called.set()
        return await run.play(self)

    async def probe(self) -> ProbeResult:
        """See ListsTargets."""
        self.probes += 1
        await self.probe_gate.wait()
        if self.probe_error is not None:
            raise self.probe_error
        return self.probe_result

    async def aclose(self) -> None:
        """See Adapter."""
        self.closed += 1

    async def wait_called(self, times: int = 1) -> PlayedRun:
        """Waits until `execute` has been called `times` times and returns the last of them."""
        async with asyncio.timeout(2):
            while len(self.runs) < times:
                self._called.clear()
                await self._called.wait()
        return self.runs[times - 1]


class NotedEdge:
    """An EdgePort that notes everything it is told."""

    def __init__(self) -> None:
        self.accepted: list[tuple[RunId, int]] = []
        self.refused: list[RunRefused] = []
        self.events: list[RuntimeEvent] = []
        self.node_events: list[EdgeNodeEventBody] = []
        self._news = asyncio.Event()

    def run_accepted(self, run_id: RunId, attempt: int) -> None:
        """See EdgePort."""
        self.accepted.append((run_id, attempt))
        self._news.set()

    def run_refused(self, refused: RunRefused) -> None:
        """See EdgePort."""
        self.refused.append(refused)
        self._news.set()

    def runtime_event(self, event: RuntimeEvent) -> None:
        """See EdgePort."""
        self.events.append(event)
        self._news.set()

    def node_event(self, body: EdgeNodeEventBody) -> None:
        """See EdgePort."""
        self.node_events.append(body)
        self._news.set()

    async def wait_for(self, holds: Callable[[], bool], within_s: float = 2.0) -> None:
        """Waits until `holds()` after something was told."""
        async with asyncio.timeout(within_s):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def bodies(self, run_id: RunId) -> Sequence[Body]:
        """What this run said, in order."""
        return [event.body for event in self.events if event.run_id == run_id]

    async def wait_terminal(self, run_id: RunId) -> Terminal:
        """Waits for the end of a run and returns its terminal body."""
        await self.wait_for(lambda: any(e.run_id == run_id and e.is_terminal for e in self.events))
        last = self.bodies(run_id)[-1]
        assert isinstance(last, TERMINAL_TYPES)
        return last
