"""Values that cross between the service and the surfaces: what is asked, and what is shown. Pure.

Times named `_at_ms` are wall-clock milliseconds (UTC), durations `_s` are seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iop_shared.ids import AdapterName, BootId, Epoch, NodeId, ProfileName, RunId, SessionId, TargetName
from iop_shared.link.messages import AdapterStatus
from iop_shared.runs import Operation, RunLimits, RunState
from iop_shared.runtime_events import Body, Usage, hot_value


@hot_value
class RunOrder:
    """What a client wants run. Fields mean what they mean in `iop_shared.runs.RunRequest`.

    `node`: only this node may take it (None: any).
    """

    adapter: AdapterName
    target: TargetName
    operation: Operation
    input: bytes = field(repr=False)
    content_type: str = "application/json"
    limits: RunLimits = RunLimits()
    session: SessionId | None = None
    source: str = ""
    profile: ProfileName | None = None
    engine_json: bool = False
    stream: bool = True
    requested_model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    traceparent: str = ""
    node: NodeId | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)


@hot_value
class ResolvedModel:
    """What an API client's `model` stands for: a profile, or `adapter/target` named directly."""

    name: str
    adapter: AdapterName
    target: TargetName
    profile: ProfileName | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: RunLimits = RunLimits()
    node_labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelView:
    """One name that /v1/models lists. `nodes`: the connected nodes that offer it now."""

    name: str
    adapter: AdapterName
    target: TargetName
    nodes: tuple[NodeId, ...]
    is_profile: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one candidate did not get the run. `code`: stable, `message`: a phrase with values."""

    node_id: NodeId
    code: str
    message: str


@hot_value
class RunView:
    """A run as every surface shows it; a row of the edge's history. Never prompt or output."""

    run_id: RunId
    attempt: int
    state: RunState
    adapter: AdapterName
    target: TargetName
    operation: Operation
    created_at_ms: int
    node_id: NodeId | None = None
    profile: ProfileName | None = None
    session: SessionId | None = None
    source: str = ""
    ended_at_ms: int | None = None
    code: str = ""
    layer: str = ""
    message: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    queued_s: float | None = None  # from submission to the start on the node
    first_token_s: float | None = None  # from submission to the first output at the edge
    total_s: float | None = None  # from submission to the terminal event at the edge
    input_bytes: int = 0
    output_bytes: int = 0
    events: int = 0
    cancel_reason: str = ""
    cancel_confirmed: bool | None = None
    cancel_took_ms: int | None = None
    refusals: tuple[Refusal, ...] = ()  # of the last routing decision


@hot_value
class RunEventView:
    """One event of a run as it is kept: output bodies are kept while the run is live and a short while after,
    the rest for as long as the run's record. `at_ms`: when it reached the edge."""

    seq: int
    attempt: int
    at_ms: int
    body: Body


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs, newest first. `next_cursor`: pass it to get the next page; None at the end."""

    runs: tuple[RunView, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as every surface shows it. `state`: connected, draining, lost or rejected_config."""

    node_id: NodeId
    state: str
    epoch: Epoch
    boot_id: BootId
    software_version: str
    address: str
    labels: Mapping[str, str]
    connected_at_ms: int
    last_heard_s: float | None  # ago; None when not connected
    config_revision: int
    config_state: str  # pending, applied, rejected
    config_reasons: tuple[str, ...]
    adapters: tuple[AdapterStatus, ...]
    in_flight: Mapping[AdapterName, int]
    round_trip_s: float | None = None


@hot_value
class EdgeEvent:
    """What the bus carries: something happened to a node or a run, or in the edge.

    `event_id` grows by one per event within one process of the edge. `kind` is noun_verb_past
    (docs/events.md lists them). `detail` holds JSON values; never a secret, prompt or output.
    """

    event_id: int
    at_ms: int
    kind: str
    node_id: NodeId | None = None
    run_id: RunId | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
