"""A run: what is asked for, its states, and the one table in which it changes state. Pure.

           +--------- reroute: refused or lost before anything was produced --------+
           v                                                                        |
    [queued] --> [dispatched] --> [running] --> [succeeded] / [failed] / [interrupted]
        |             |   \\           |  ^
        |             |    \\          v  |
        |             |     +----> [detached]      the link is lost; within the grace
        |             v                |
        +------> [cancelling] <--------+
        |             |
        v             v
    [cancelled]   [cancelled] / [succeeded] / [failed] / [interrupted]

The ledger of the edge and the core of the node both go through `apply_step`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from iop_shared.errors import InternalError
from iop_shared.ids import AdapterName, ProfileName, RunId, SessionId, TargetName


class Operation(StrEnum):
    """What a run does with its target."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBED = "embed"
    GENERATE = "generate"
    EXEC = "exec"
    HTTP = "http"


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    DETACHED = "detached"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended for good."""
        return self in TERMINAL_STATES


TERMINAL_STATES: Final = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.INTERRUPTED})


class RunStep(StrEnum):
    """What can happen to a run."""

    DISPATCH = "dispatch"
    REROUTE = "reroute"
    START = "start"
    DETACH = "detach"
    REATTACH = "reattach"
    CANCEL = "cancel"
    SUCCEED = "succeed"
    FAIL = "fail"
    END_CANCELLED = "end_cancelled"
    INTERRUPT = "interrupt"


_S, _T = RunState, RunStep
_ENDINGS: Final = {
    _T.SUCCEED: _S.SUCCEEDED,
    _T.FAIL: _S.FAILED,
    _T.END_CANCELLED: _S.CANCELLED,
    _T.INTERRUPT: _S.INTERRUPTED,
}
TRANSITIONS: Final[Mapping[RunState, Mapping[RunStep, RunState]]] = {
    _S.QUEUED: {
        _T.DISPATCH: _S.DISPATCHED,
        _T.CANCEL: _S.CANCELLING,
        _T.FAIL: _S.FAILED,
        _T.END_CANCELLED: _S.CANCELLED,
        _T.INTERRUPT: _S.INTERRUPTED,
    },
    _S.DISPATCHED: {
        _T.START: _S.RUNNING,
        _T.REROUTE: _S.QUEUED,
        _T.DETACH: _S.DETACHED,
        _T.CANCEL: _S.CANCELLING,
        **_ENDINGS,
    },
    _S.RUNNING: {_T.DETACH: _S.DETACHED, _T.CANCEL: _S.CANCELLING, **_ENDINGS},
    _S.DETACHED: {
        _T.REATTACH: _S.RUNNING,
        _T.REROUTE: _S.QUEUED,
        _T.CANCEL: _S.CANCELLING,
        **_ENDINGS,
    },
    # A second click is not an error; neither is a link that is lost or comes back meanwhile.
    _S.CANCELLING: {
        _T.CANCEL: _S.CANCELLING,
        _T.START: _S.CANCELLING,
        _T.DETACH: _S.CANCELLING,
        _T.REATTACH: _S.CANCELLING,
        **_ENDINGS,
    },
    _S.SUCCEEDED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
    _S.INTERRUPTED: {},
}


def apply_step(state: RunState, step: RunStep) -> RunState:
    """Returns the state after `step`.

    Raises:
        InternalError: the step is not allowed in this state. What a peer can cause must be checked with
            `allows_step` first.
    """
    try:
        return TRANSITIONS[state][step]
    except KeyError:
        raise InternalError(f"run step {step} is not allowed in state {state}") from None


def allows_step(state: RunState, step: RunStep) -> bool:
    """Whether `step` may happen in `state`."""
    return step in TRANSITIONS[state]


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Bounds of one run. 0: the adapter's default."""

    first_byte_timeout_s: float = 0.0
    idle_timeout_s: float = 0.0
    total_timeout_s: float = 0.0
    max_output_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the edge asks a node to run.

    `input` holds the client's own bytes, untouched: for chat, completion and embed the OpenAI-shaped JSON
    body; for the rest plain text or JSON by `content_type`. `engine_json`: the client speaks the engine's
    dialect, so an adapter that can do so sends the engine's own JSON (in pieces if `stream`, else as one
    whole answer) with `requested_model` put in as the model's name.
    """

    run_id: RunId
    adapter: AdapterName
    target: TargetName
    operation: Operation
    input: bytes = field(repr=False)
    attempt: int = 1
    content_type: str = "application/json"
    limits: RunLimits = RunLimits()
    session: SessionId | None = None
    traceparent: str = ""
    source: str = ""
    profile: ProfileName | None = None
    engine_json: bool = False
    stream: bool = True
    requested_model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
