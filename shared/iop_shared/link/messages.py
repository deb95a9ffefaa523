"""What travels on a link, as frozen values. `iop_shared.codec` turns each into a frame and back. Pure.

Control messages (`CONTROL_TYPES`) go ahead of data and never wait for a run, an adapter or a database.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from iop_shared.ids import AdapterName, BootId, CommandId, Epoch, NodeId, RunId, TargetName, TokenId
from iop_shared.runs import Operation, RunRequest
from iop_shared.runtime_events import RuntimeEvent

PROTOCOL_MIN: Final = 1
PROTOCOL_MAX: Final = 1
HANDSHAKE_MAX_FRAME_BYTES: Final = 16 * 1024
"""Until a peer is authenticated (architecture, "The link")."""
MAX_FRAME_BYTES: Final = 1024 * 1024
"""After it; announced in Welcome, enforced by both ends."""


class RejectClass(StrEnum):
    """What a refused node should do."""

    RETRY = "retry"
    RETRY_SLOW = "retry_slow"
    FATAL = "fatal"


class GateState(StrEnum):
    """Whether an adapter may take work now."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"


OPEN_GATES: Final = frozenset({GateState.OPEN, GateState.NOT_APPLICABLE})
"""The verdicts with which an adapter may take work. Unknown is not one of them."""


class Verdict(StrEnum):
    """What the edge says of a run that a node reports as open."""

    KEEP = "keep"
    CANCEL = "cancel"
    FORGET = "forget"


# --- handshake ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Challenge:
    """Edge to node, the first frame of a link. `nonce`: 32 random bytes."""

    nonce: bytes = field(repr=False)
    edge_id: str
    software_version: str
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX


@dataclass(frozen=True, slots=True)
class Hello:
    """Node to edge: who it is and the proof that it holds the token."""

    node_id: NodeId
    boot_id: BootId
    token_id: TokenId
    node_nonce: bytes = field(repr=False)
    proof: bytes = field(repr=False)
    software_version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    config_revision: int = 0
    config_hash: str = ""
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """What both ends keep to once the link stands."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    heartbeat_interval_s: float = 15.0
    dead_after_s: float = 40.0  # both sides know within 45 s
    disconnect_grace_s: float = 60.0


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """One adapter that a node should offer. `settings`: JSON values; the keys depend on `type`."""

    name: AdapterName
    type: str
    max_concurrent: int
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class NodeConfigPayload:
    """What a node should run. `hash`: SHA-256 over the canonical content (`iop_shared.node_config`)."""

    revision: int
    hash: str
    adapters: tuple[AdapterConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class Welcome:
    """Edge to node: accepted. `server_time_ms` is for display, never for liveness."""

    epoch: Epoch
    limits: LinkLimits
    server_time_ms: int
    config: NodeConfigPayload
    protocol: int = PROTOCOL_MAX


@dataclass(frozen=True, slots=True)
class Reject:
    """Edge to node: refused; the edge closes after it."""

    code: str
    reject_class: RejectClass
    message: str


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that a node still holds. `state`: accepted, running, cancelling or ended."""

    run_id: RunId
    attempt: int
    last_seq: int
    state: str


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """Node to edge, right after Welcome: everything it still holds."""

    runs: tuple[OpenRun, ...] = ()


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """What to do with one open run; KEEP replays from `acked_seq` + 1."""

    run_id: RunId
    attempt: int
    acked_seq: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class RunVerdicts:
    """Edge to node, answers OpenRuns. The link is open from here."""

    runs: tuple[RunVerdict, ...] = ()


# --- control -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Either way. `echo_ms`: the peer's last `sent_ms` (its own monotonic clock), for the round trip."""

    sent_ms: int
    echo_ms: int = 0
    cancelling: tuple[RunId, ...] = ()


@dataclass(frozen=True, slots=True)
class Goodbye:
    """Either way: the sender closes now, on purpose."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class GoAway:
    """Either way: send me no new runs; the open ones may finish until the deadline."""

    reason: str
    reconnect_in_s: float = 0.0
    deadline_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Edge to node. Idempotent; may overtake its RunRequest, and then wins."""

    run_id: RunId
    reason: str


@dataclass(frozen=True, slots=True)
class RunAck:
    """Everything of this attempt up to and including `seq` has arrived."""

    run_id: RunId
    attempt: int
    seq: int


@dataclass(frozen=True, slots=True)
class EventAck:
    """Edge to node, cumulative."""

    runs: tuple[RunAck, ...]


# --- configuration, commands, status --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigPush:
    """Edge to node: the configuration changed. Repeated until it is answered."""

    config: NodeConfigPayload


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """Node to edge. Rejected keeps the old configuration in force; `reasons` has a sentence for each."""

    revision: int
    hash: str
    applied: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeCommandRequest:
    """Edge to node: do something now that is no run. Commands: status, capabilities."""

    command_id: CommandId
    command: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeCommandResponse:
    """Node to edge: `result` (JSON values) or an error."""

    command_id: CommandId
    result: Any = None
    error_code: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """A verdict, the check that decided, and why."""

    state: GateState
    check: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """What a node says of one of its adapters. `any_target`: takes targets that are not listed."""

    name: AdapterName
    type: str
    gate: Gate
    max_concurrent: int
    operations: tuple[Operation, ...] = ()
    targets: tuple[TargetName, ...] = ()
    any_target: bool = False


@dataclass(frozen=True, slots=True)
class CapabilitiesChanged:
    """All adapters of the node, as they are now."""

    adapters: tuple[AdapterStatus, ...]


@dataclass(frozen=True, slots=True)
class GateChanged:
    """One adapter's gate moved."""

    adapter: AdapterName
    gate: Gate


@dataclass(frozen=True, slots=True)
class DrainingChanged:
    """The node stopped or resumed taking new runs."""

    draining: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeNotice:
    """Something worth knowing about the node."""

    code: str
    message: str


EdgeNodeEventBody = CapabilitiesChanged | GateChanged | DrainingChanged | NodeNotice


@dataclass(frozen=True, slots=True)
class EdgeNodeEvent:
    """What a link or a node says outside any run. `at_ms`: the node's wall clock, for display."""

    at_ms: int
    body: EdgeNodeEventBody


# --- runs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunSubmission:
    """Edge to node: run this. `input_bytes` larger than `len(request.input)`: RunInputParts follow."""

    request: RunRequest
    input_bytes: int


@dataclass(frozen=True, slots=True)
class RunInputPart:
    """Edge to node: the rest of a large input, in order; `offset` counts from its start."""

    run_id: RunId
    attempt: int
    offset: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunAccepted:
    """Node to edge: journalled, and starting."""

    run_id: RunId
    attempt: int


@dataclass(frozen=True, slots=True)
class RunRefused:
    """Node to edge: not taken; nothing was produced. `gate`: where a gate was the reason."""

    run_id: RunId
    attempt: int
    code: str
    message: str
    gate: Gate | None = None


# --- what a newer peer may send, and nobody sends -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnknownMessage:
    """A frame of `size_bytes` whose content this version does not know. Counted and ignored on an open link."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A RunSubmission whose operation this version does not know. A node refuses it instead of losing it."""

    run_id: RunId
    attempt: int
    operation: str


Message = (
    Challenge
    | Hello
    | Welcome
    | Reject
    | OpenRuns
    | RunVerdicts
    | Heartbeat
    | Goodbye
    | GoAway
    | CancelRun
    | EventAck
    | ConfigPush
    | ConfigResult
    | NodeCommandRequest
    | NodeCommandResponse
    | EdgeNodeEvent
    | RunSubmission
    | RunInputPart
    | RunAccepted
    | RunRefused
    | RuntimeEvent
)

Received = Message | UnknownMessage | UnreadableRun
"""What `iop_shared.codec` makes of a frame."""

HANDSHAKE_TYPES: Final = (Challenge, Hello, Welcome, Reject, OpenRuns, RunVerdicts)
CONTROL_TYPES: Final = (Heartbeat, Goodbye, GoAway, CancelRun, EventAck)
EDGE_ONLY_TYPES: Final = (
    Challenge,
    Welcome,
    Reject,
    RunVerdicts,
    CancelRun,
    EventAck,
    ConfigPush,
    NodeCommandRequest,
    RunSubmission,
    RunInputPart,
)
"""Only an edge may send these."""
NODE_ONLY_TYPES: Final = (
    Hello,
    OpenRuns,
    ConfigResult,
    NodeCommandResponse,
    EdgeNodeEvent,
    RunAccepted,
    RunRefused,
    RuntimeEvent,
)
"""Only a node may send these."""
