"""LiveRun: what the edge knows of a run that has not ended. The ledger alone changes it. Pure."""

from dataclasses import dataclass, field, replace
from typing import Final

from iop_edge.domain.effects import LinkKey
from iop_edge.domain.views import Refusal, RunOrder, RunView
from iop_shared.clock import Clock
from iop_shared.errors import Layer
from iop_shared.ids import NodeId, RunId
from iop_shared.runs import Operation, RunRequest, RunState
from iop_shared.runtime_events import (
    Body,
    Cancelled,
    Closing,
    Failed,
    Gap,
    Interrupted,
    Started,
    Terminal,
    Timings,
    Usage,
)

# A command may have changed the world before it printed anything: once accepted it is not started again.
UNREPEATABLE: Final = frozenset({Operation.EXEC, Operation.HTTP})


@dataclass(frozen=True, slots=True)
class Shun:
    """A node that this run should not be sent to. `until_s`: monotonic; None: for as long as the run lives."""

    refusal: Refusal
    until_s: float | None = None


@dataclass(slots=True)
class LiveRun:
    """One run. Times `_s` are monotonic seconds. `link` is None while no link to its node stands.

    `waiting_since_s`: when it was queued; a node that was merely busy does not make it wait anew.
    """

    run_id: RunId
    order: RunOrder
    created_at_ms: int
    created_s: float
    input_bytes: int
    state: RunState = RunState.QUEUED
    attempt: int = 1
    node_id: NodeId | None = None
    link: LinkKey | None = None
    is_accepted: bool = False
    last_seq: int = 0
    events: int = 0
    output_bytes: int = 0
    has_output: bool = False
    has_gap: bool = False
    started_s: float | None = None
    first_output_s: float | None = None
    usage: Usage | None = None
    waiting_since_s: float = 0.0
    reroutes: int = 0
    cancel_reason: str = ""
    cancel_asked_s: float = 0.0
    refusals: tuple[Refusal, ...] = ()
    shunned: dict[NodeId, Shun] = field(default_factory=dict)

    @property
    def may_restart(self) -> bool:
        """Whether starting it again could not be noticed: nothing produced, and no command was begun."""
        return not self.has_output and not (self.is_accepted and self.order.operation in UNREPEATABLE)

    def begin_attempt(self, link: LinkKey) -> None:
        """Points the run at a node, with nothing heard of it yet."""
        self.node_id, self.link = link.node_id, link
        self.is_accepted = False
        self.last_seq = self.events = 0
        self.has_gap = False
        self.started_s = None

    def request(self) -> RunRequest:
        """Returns what the node is asked for this attempt."""
        order = self.order
        return RunRequest(
            run_id=self.run_id,
            adapter=order.adapter,
            target=order.target,
            operation=order.operation,
            input=order.input,
            attempt=self.attempt,
            content_type=order.content_type,
            limits=order.limits,
            session=order.session,
            traceparent=order.traceparent,
            source=order.source,
            profile=order.profile,
            engine_json=order.engine_json,
            stream=order.stream,
            requested_model=order.requested_model,
            options=order.options,
        )

    def closing(self, now_s: float) -> Closing:
        """Returns the closing of a terminal event that the edge itself writes."""
        return Closing(
            events=self.events,
            output_bytes=self.output_bytes,
            timings=Timings(total_s=now_s - self.created_s),
            usage=self.usage,
        )

    def cancelled(self, now_s: float, *, confirmed: bool) -> Cancelled:
        """Returns the end of a run that was asked to stop, where the edge itself writes it."""
        took_ms = round((now_s - self.cancel_asked_s) * 1000)
        return Cancelled(self.cancel_reason, confirmed, took_ms, self.closing(now_s))

    def count_output(self, size: int, clock: Clock) -> None:
        """Counts one event with `size` output bytes."""
        self.events += 1
        self.output_bytes += size
        if not self.has_output:
            self.has_output = True
            self.first_output_s = clock.monotonic()
            # It will not be sent again: let go of what may be tens of megabytes.
            self.order = replace(self.order, input=b"")

    def note(self, body: Body, clock: Clock) -> None:
        """Counts one event without output and takes from it what the record shows."""
        self.events += 1
        if isinstance(body, Usage):
            self.usage = body
        elif isinstance(body, Started):
            self.started_s = clock.monotonic()
        elif isinstance(body, Gap):
            self.has_gap = True

    def mismatch(self, terminal: Terminal) -> str:
        """Returns a sentence where the node's count of output bytes and ours differ with no gap announced."""
        said = terminal.closing.output_bytes
        if self.has_gap or said == self.output_bytes:
            return ""
        return f"the node counted {said} output bytes, {self.output_bytes} arrived, and no gap was announced"

    def view(self) -> RunView:
        """Returns the run as every surface shows it while it lives."""
        return self._view(_End(usage=self.usage, cancel_reason=self.cancel_reason))

    def _view(self, end: "_End") -> RunView:
        order = self.order
        return RunView(
            run_id=self.run_id,
            attempt=self.attempt,
            state=self.state,
            adapter=order.adapter,
            target=order.target,
            operation=order.operation,
            created_at_ms=self.created_at_ms,
            node_id=self.node_id,
            profile=order.profile,
            session=order.session,
            source=order.source,
            ended_at_ms=end.at_ms,
            code=end.code,
            layer=end.layer,
            message=end.message,
            finish_reason=end.finish_reason,
            usage=end.usage,
            queued_s=self._since_created(self.started_s),
            first_token_s=self._since_created(self.first_output_s),
            total_s=end.total_s,
            input_bytes=self.input_bytes,
            output_bytes=self.output_bytes,
            events=self.events,
            cancel_reason=end.cancel_reason,
            cancel_confirmed=end.cancel_confirmed,
            cancel_took_ms=end.cancel_took_ms,
            refusals=self.refusals,
        )

    def final_view(self, terminal: Terminal, now_s: float, now_ms: int) -> RunView:
        """Returns the record of the run, given how it ended. `state` is terminal already."""
        closing = terminal.closing
        end = _End(
            at_ms=now_ms,
            finish_reason=closing.finish_reason,
            usage=closing.usage if closing.usage is not None else self.usage,
            total_s=now_s - self.created_s,
            cancel_reason=self.cancel_reason,
        )
        if isinstance(terminal, Failed):
            end.code, end.layer, end.message = terminal.code, terminal.layer.value, terminal.message
        elif isinstance(terminal, Interrupted):
            end.code, end.message = terminal.code, terminal.message
            end.layer = INTERRUPT_LAYERS.get(terminal.code, Layer.NODE).value
        elif isinstance(terminal, Cancelled):
            end.cancel_reason = self.cancel_reason or terminal.reason
            end.cancel_confirmed, end.cancel_took_ms = terminal.confirmed, terminal.took_ms
        return self._view(end)

    def _since_created(self, moment_s: float | None) -> float | None:
        return None if moment_s is None else moment_s - self.created_s


@dataclass(slots=True)
class _End:
    """What a record says of a run's end. The defaults: it has not come."""

    at_ms: int | None = None
    code: str = ""
    layer: str = ""
    message: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    total_s: float | None = None
    cancel_reason: str = ""
    cancel_confirmed: bool | None = None
    cancel_took_ms: int | None = None


INTERRUPT_LAYERS: Final = {"edge_restarted": Layer.EDGE}
INTERRUPT_SENTENCES: Final = {
    "node_lost": "the link to the node was lost and did not come back within the grace",
    "node_restarted": "the node's process ended while the run was under way",
    "edge_restarted": "the edge's process ended while the run was under way",
}
"""What the edge itself says of a run that is lost."""
