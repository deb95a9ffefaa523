"""The ports of the node's core. `app.py` supplies the objects behind them.

edge link  --->  NodeHandler (core.node.Node)  --->  Adapter, RunStore
edge link  <---  EdgePort                            EventSink (given to the adapter)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from iop_node.core.spec import Capabilities, Completion, ExecutionSpec
from iop_shared.ids import AdapterName, RunId, SessionId, TargetName
from iop_shared.link.messages import (
    ConfigResult,
    EdgeNodeEventBody,
    Gate,
    NodeCommandRequest,
    NodeCommandResponse,
    NodeConfigPayload,
    OpenRun,
    RunRefused,
    RunVerdict,
)
from iop_shared.runs import Operation, RunRequest, RunState
from iop_shared.runtime_events import Body, RuntimeEvent, Usage


class EventSink(Protocol):
    """Where an adapter puts what a run says. Given per run; not to be used after `execute` returned."""

    def emit(self, body: Body) -> None:
        """Takes a non-terminal body and returns at once; numbering and sending happen behind it.

        Usage is emitted as soon as the engine gives it; the last one enters the record. Started,
        Gap and terminal bodies belong to the core: an adapter never emits them, except that it may call
        `set_engine` before its first output. Never raises on a bound of the run: the run is then stopped.
        """

    def set_engine(self, engine: str) -> None:
        """Names the engine's flavour and version for the record (for example "llama.cpp b11434")."""

    async def wait_ready(self) -> None:
        """Waits while the run has more unacknowledged bytes than its window; call before each read upstream."""

    def confirm_cancel(self) -> None:
        """Says that the engine confirmed the stop. Called while a cancel is under way."""


class Adapter(Protocol):
    """A way of executing. One object per configured adapter; `execute` may run many times at once.

    Cancelling: the core cancels the task that runs `execute`. The adapter stops its engine in `finally`
    (within `cancel_grace_s`), calls `sink.confirm_cancel()` if the engine confirmed it, and lets
    CancelledError through. An adapter that does not end in time is abandoned: the run ends unconfirmed and
    its place stays taken until the task is over.
    """

    @property
    def name(self) -> AdapterName:
        """The configured name."""

    @property
    def type(self) -> str:
        """mock, vllm ..."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    async def execute(self, spec: ExecutionSpec, sink: EventSink) -> Completion:
        """Runs `spec` to its end and returns how it finished.

        Raises:
            RunFailed: with a stable code and the layer at fault; anything else is our bug (`adapter_error`).
        """

    async def aclose(self) -> None:
        """Releases connections and children. Safe to call twice. No run is under way when it is called."""


@runtime_checkable
class ListsTargets(Protocol):
    """Optional: an adapter that knows its targets and whether its engine is there."""

    async def probe(self) -> "ProbeResult":
        """Asks the engine, cheaply: never a completion, never a model load. Never raises on engine trouble."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The gate of an adapter and the targets its engine offers now."""

    gate: Gate
    targets: tuple[TargetName, ...] = ()
    engine: str = ""


class AdapterFactory(Protocol):
    """Builds the adapters of one type."""

    def __call__(self, name: AdapterName, max_concurrent: int, settings: dict[str, Any]) -> Adapter:
        """Returns the adapter.

        Raises:
            InvalidConfig: settings that this type does not understand, every problem in a sentence.
        """


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A row of the node's journal. Times are wall-clock milliseconds; durations are seconds.

    `state` is RUNNING until the run is complete. `queued_s`: from acceptance to the start of execution.
    `output_sha256` and texts of runs are not in here: a record never holds prompt or output.
    """

    run_id: RunId
    attempt: int
    adapter: AdapterName
    target: TargetName
    operation: Operation
    accepted_at_ms: int
    state: RunState = RunState.RUNNING
    session: SessionId | None = None
    source: str = ""
    profile: str = ""
    ended_at_ms: int | None = None
    code: str = ""
    layer: str = ""
    message: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    queued_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0
    input_bytes: int = 0
    output_bytes: int = 0
    events: int = 0


class RunStore(Protocol):
    """The node's journal of runs. One row per (run_id, attempt)."""

    async def begin(self, record: RunRecord) -> None:
        """Records that a run is about to start; returns once that would survive a kill of this process.

        Raises:
            Unavailable: code `journal_unavailable`; the run must not start.
            BadRequest: code `already_run`; this attempt has a row, and must not run again.
        """

    async def finish(self, record: RunRecord) -> None:
        """Completes the row. A second call for the same attempt changes nothing and returns normally.

        Raises:
            Unavailable: code `journal_unavailable`.
        """

    async def settle(self, keys: Sequence[tuple[RunId, int]]) -> None:
        """Notes that the edge has everything of these attempts. Unknown ones change nothing.

        Raises:
            Unavailable: code `journal_unavailable`.
        """

    async def list_unsettled(self, ended_after_ms: int, limit: int) -> Sequence[RunRecord]:
        """Returns ended attempts that the edge may not know the end of, newest first, at most `limit`.

        Those that ended by `interrupt_open` are not among them: the edge finds out about these by itself.
        """

    async def get(self, run_id: RunId, attempt: int) -> RunRecord | None:
        """Returns the row, or None."""

    async def list_recent(self, limit: int = 50) -> Sequence[RunRecord]:
        """Returns the newest rows first, at most `limit`."""

    async def interrupt_open(self, message: str, ended_at_ms: int) -> Sequence[RunRecord]:
        """Marks every row that is still RUNNING as INTERRUPTED (`node_restarted`) and returns them.

        Called once at start.
        """

    async def aclose(self) -> None:
        """Closes within seconds. Safe to call twice."""


class EdgePort(Protocol):
    """What the core may send towards the edge. While no link stands, calls return and do nothing:
    the core's outbox keeps run events, and everything else is told afresh when a link opens."""

    def run_accepted(self, run_id: RunId, attempt: int) -> None:
        """The run is journalled and starts."""

    def run_refused(self, refused: RunRefused) -> None:
        """The run is not taken."""

    def runtime_event(self, event: RuntimeEvent) -> None:
        """One event; it stays in the outbox until the edge acknowledges it."""

    def node_event(self, body: EdgeNodeEventBody) -> None:
        """Something outside any run."""


class NodeHandler(Protocol):
    """What a link may ask of the core. Nothing here blocks; slow work happens in the core's own tasks."""

    def on_run_request(self, request: RunRequest) -> None:
        """Admit or refuse; the answer goes through EdgePort. A repeated request is answered again, not rerun."""

    def wants_input(self, request: RunRequest) -> bool:
        """Whether the rest of a large input is worth waiting for: `on_run_request` would start this run now."""

    def on_cancel(self, run_id: RunId, reason: str) -> None:
        """Cancel. Idempotent; may come before the request, which is then refused with code `cancelled`."""

    async def on_command(self, request: NodeCommandRequest) -> NodeCommandResponse:
        """Answer a command. Never raises: a failure is in the response."""

    async def on_config(self, config: NodeConfigPayload) -> ConfigResult:
        """Apply or reject. Runs of unchanged adapters are not touched."""

    def open_runs(self) -> tuple[OpenRun, ...]:
        """Everything still held, for the edge to judge."""

    def on_link_open(self, edge: EdgePort, verdicts: Sequence[RunVerdict]) -> None:
        """A link stands: obey the verdicts, replay what is unacknowledged, tell the capabilities."""

    def on_link_lost(self, disconnect_grace_s: float) -> None:
        """The link is gone; runs go on for the grace and are then cancelled."""

    def on_link_paused(self) -> None:
        """The link stands but is full: no runtime events until it is resumed. Safe to repeat."""

    def on_link_resumed(self) -> None:
        """The link takes runtime events again. Does nothing unless it was paused."""

    def on_ack(self, run_id: RunId, attempt: int, seq: int) -> None:
        """Everything up to `seq` has arrived at the edge."""
