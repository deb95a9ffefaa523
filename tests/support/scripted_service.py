"""An EdgeService whose runs say what a test tells them to. For what surfaces render, without any node."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from iop_edge.bus_stream import BusStream
from iop_edge.domain.bus import EventBus
from iop_edge.domain.views import (
    ModelView,
    NodeView,
    ResolvedModel,
    RunEventView,
    RunOrder,
    RunPage,
    RunView,
)
from iop_edge.relay import RunStream
from iop_edge.service import EdgeService
from iop_shared.clock import SystemClock
from iop_shared.errors import IopError, UnknownName
from iop_shared.ids import AdapterName, NodeId, RunId, TargetName, new_run_id
from iop_shared.runs import RunState
from iop_shared.runtime_events import TERMINAL_STATE, TERMINAL_TYPES, Body, RuntimeEvent, Started, output_bytes_of

NODE = NodeId("gpu-1")


class ScriptedRun:
    """One submitted run. `emit` says something as the node would."""

    def __init__(self, order: RunOrder, max_buffered_bytes: int) -> None:
        self.run_id = new_run_id()
        self.order = order
        self.attempt = 1
        self.events: list[RuntimeEvent] = []
        self.cancel_reasons: list[str] = []
        self.cancelled = asyncio.Event()
        self.streams: list[RunStream] = []
        self._max_buffered_bytes = max_buffered_bytes

    def emit(self, *bodies: Body) -> None:
        """Numbers the bodies and hands them to every stream."""
        for body in bodies:
            event = RuntimeEvent(self.run_id, self.attempt, len(self.events) + 1, body)
            self.events.append(event)
            for stream in self.streams:
                stream.push(event, len(output_bytes_of(body)))
                if event.is_terminal:
                    stream.complete()

    def start(self) -> None:
        """Says that the run has started on `NODE`."""
        self.emit(Started(self.order.adapter, self.order.target, NODE))

    def open_stream(self, after_seq: int = 0) -> RunStream:
        """Returns a new stream with what was said before."""
        stream = RunStream(self.run_id, max_buffered_bytes=self._max_buffered_bytes)
        stream.prefill([event for event in self.events if event.seq > after_seq])
        if self.state.is_terminal:
            stream.complete()
        self.streams.append(stream)
        return stream

    @property
    def state(self) -> RunState:
        """Running until a terminal body was said."""
        last = self.events[-1].body if self.events else None
        return TERMINAL_STATE[type(last)] if isinstance(last, TERMINAL_TYPES) else RunState.RUNNING


class ScriptedService(EdgeService):
    """Knows the models `small` (a profile of mock/echo), `mock/*` and nothing else.

    `script`: what each run says as soon as it is submitted. `refusal`: raised by submit instead.
    """

    def __init__(self, script: Sequence[Body] = (), *, max_buffered_bytes: int = 8 * 1024 * 1024) -> None:
        self.script = script
        self.refusal: IopError | None = None
        self.scripted: dict[RunId, ScriptedRun] = {}
        self.submitted = asyncio.Event()
        self.on_submit: Callable[[ScriptedRun], None] | None = None
        self.nodes: list[NodeView] = []
        self.commands: list[tuple[NodeId, str, Mapping[str, Any], float]] = []
        self.bus = EventBus(SystemClock(), ring_events=8)
        self.not_ready = ""
        self.attachable = True
        self._max_buffered_bytes = max_buffered_bytes

    @property
    def last_run(self) -> ScriptedRun:
        """The newest run."""
        return list(self.scripted.values())[-1]

    async def wait_submitted(self) -> ScriptedRun:
        """Returns the next run when it has been submitted."""
        async with asyncio.timeout(5):
            await self.submitted.wait()
        self.submitted.clear()
        return self.last_run

    def resolve_model(self, model: str) -> ResolvedModel:
        if model == "small":
            return ResolvedModel(model, AdapterName("mock"), TargetName("echo"), options={"temperature": 0})
        adapter, slash, target = model.partition("/")
        if adapter != "mock" or not slash:
            raise UnknownName("model", model, [view.name for view in self.list_models()], param="model")
        return ResolvedModel(model, AdapterName(adapter), TargetName(target))

    def list_models(self) -> Sequence[ModelView]:
        return [
            ModelView("small", AdapterName("mock"), TargetName("echo"), (NODE,), True),
            ModelView("mock/org/echo", AdapterName("mock"), TargetName("org/echo"), (NODE,), False),
        ]

    def submit(self, order: RunOrder) -> RunStream:
        if self.refusal is not None:
            raise self.refusal
        run = ScriptedRun(order, self._max_buffered_bytes)
        self.scripted[run.run_id] = run
        stream = run.open_stream()
        run.emit(*self.script)
        self.submitted.set()
        if self.on_submit is not None:
            self.on_submit(run)
        return stream

    def attach(self, run_id: RunId, after_seq: int = 0) -> RunStream:
        if not self.attachable:
            raise UnknownName("run", run_id, [])
        return self._run(run_id).open_stream(after_seq)

    def cancel(self, run_id: RunId, reason: str) -> bool:
        run = self._run(run_id)
        if run.state.is_terminal:
            return False
        run.cancel_reasons.append(reason)
        run.cancelled.set()
        return True

    async def get_run(self, run_id: RunId) -> RunView:
        run = self._run(run_id)
        order = run.order
        return RunView(
            run_id, run.attempt, run.state, order.adapter, order.target, order.operation, 1_700_000_000_000,
            node_id=NODE, source=order.source, events=len(run.events),
        )  # fmt: skip

    async def run_events(self, run_id: RunId, after_seq: int = 0, limit: int = 1000) -> Sequence[RunEventView]:
        events = [event for event in self._run(run_id).events if event.seq > after_seq]
        return [RunEventView(event.seq, event.attempt, 1_700_000_000_000, event.body) for event in events[:limit]]

    async def list_runs(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        state: RunState | None = None,
        node_id: NodeId | None = None,
        adapter: str | None = None,
    ) -> RunPage:
        views = [await self.get_run(run_id) for run_id in reversed(self.scripted)]
        found = [v for v in views if state in (None, v.state) and adapter in (None, v.adapter)]
        return RunPage(tuple(found[:limit]), "next" if len(found) > limit else None)

    def list_nodes(self) -> Sequence[NodeView]:
        return self.nodes

    def get_node(self, node_id: NodeId) -> NodeView:
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        raise UnknownName("node", node_id, [node.node_id for node in self.nodes])

    def subscribe(self, after_event_id: int | None = None) -> BusStream:
        return BusStream(self.bus, after_id=after_event_id, capacity=4)

    async def node_command(
        self, node_id: NodeId, command: str, arguments: Mapping[str, Any], timeout_s: float = 10.0
    ) -> Any:
        self.get_node(node_id)
        self.commands.append((node_id, command, arguments, timeout_s))
        return {"uptime_s": 12}

    def is_ready(self) -> tuple[bool, str]:
        return not self.not_ready, self.not_ready

    def _run(self, run_id: RunId) -> ScriptedRun:
        if run_id not in self.scripted:
            raise UnknownName("run", run_id, [])
        return self.scripted[run_id]
