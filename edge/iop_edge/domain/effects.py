"""What the ledger wants done, as frozen values. `EdgeService` carries them out. Pure.

A `RuntimeEvent` among the effects means: hand this event to the run's readers and keep it. It stands for
itself, so that the commonest effect costs no object.
"""

from dataclasses import dataclass
from typing import NamedTuple

from iop_edge.domain.views import RunView
from iop_shared.ids import Epoch, NodeId, RunId
from iop_shared.runs import RunRequest, RunState, RunStep
from iop_shared.runtime_events import RuntimeEvent, hot_value


class LinkKey(NamedTuple):
    """One link of one node. All state of a link is reached through it, never through an object."""

    node_id: NodeId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SendRun:
    """Send the request to the node behind `link`."""

    link: LinkKey
    request: RunRequest


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Ask the node to stop the run. Idempotent there."""

    link: LinkKey
    run_id: RunId
    reason: str


@dataclass(frozen=True, slots=True)
class AckUpTo:
    """Acknowledge again: the node sent what had already arrived, or what nobody waits for any more."""

    link: LinkKey
    run_id: RunId
    attempt: int
    seq: int


@dataclass(frozen=True, slots=True)
class RouteAgain:
    """The run is queued again: choose a node for it, or let it wait."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class TryElsewhere:
    """The run's node is gone and nothing was produced: if another node can take it now, reroute it."""

    run_id: RunId


@hot_value
class RunMoved:
    """The run changed its state (and has not ended)."""

    run_id: RunId
    step: RunStep
    state: RunState


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over; `view` is its final record. `ack`: what to acknowledge once that record is safe.

    `mismatch`: a sentence where the node's counts and ours differ, though no gap was announced; "" if none.
    """

    view: RunView
    ack: AckUpTo | None
    mismatch: str = ""


Effect = RuntimeEvent | SendRun | SendCancel | AckUpTo | RouteAgain | TryElsewhere | RunMoved | RunEnded
