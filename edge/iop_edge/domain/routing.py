"""Which node gets a run, and for every other one, why not. A pure function of values.

A candidate goes through `_CHECKS` in order; the first that objects names the reason. Capacity comes last,
so that a candidate which lost by it could take the run later: such a run may wait in the queue. Among the
rest: the node of the session, then the largest free share, then the fewest runs in flight, then by lot.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from iop_edge.domain.views import Refusal
from iop_shared.ids import AdapterName, NodeId, TargetName
from iop_shared.link.messages import OPEN_GATES, AdapterStatus
from iop_shared.runs import Operation

# Reasons that pass by themselves; a run that meets only these (beside permanent ones) may wait.
WAITABLE_CODES: Final = frozenset({"capacity", "node_busy", "adapter_busy", "config_pending"})
MAX_REASONS_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node as routing sees it. `config_state`: pending, applied or rejected."""

    node_id: NodeId
    is_connected: bool
    is_draining: bool = False
    config_state: str = "applied"
    labels: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[AdapterName, AdapterStatus] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Need:
    """What a run asks of a node. `shunned`: nodes that have refused this run. `favourite`: the session's node."""

    adapter: AdapterName
    target: TargetName
    operation: Operation
    node: NodeId | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    shunned: Mapping[NodeId, Refusal] = field(default_factory=dict)
    favourite: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome. `node_id` None: nobody can take it now; `may_wait`: but somebody could, later.

    `refusals`: one for each candidate that was turned down by a check; a node that was merely less
    preferred has none.
    """

    node_id: NodeId | None
    refusals: tuple[Refusal, ...]
    may_wait: bool = False


InFlight = Callable[[NodeId, AdapterName], int]
Objection = tuple[str, str]


def choose_node(candidates: Iterable[Candidate], need: Need, in_flight: InFlight, rng: Random) -> Decision:
    """Returns the node that gets the run, or none, with the reason of each that was refused.

    Total: it has an answer for any input. `in_flight` gives the live runs of one adapter on one node.
    """
    fit: list[tuple[float, int, NodeId]] = []
    refusals: list[Refusal] = []
    may_wait = False
    for candidate in candidates:
        objection = _object(candidate, need, in_flight)
        if objection is None:
            limit = candidate.adapters[need.adapter].max_concurrent
            running = in_flight(candidate.node_id, need.adapter)
            fit.append((running / limit, running, candidate.node_id))
        else:
            code, message = objection
            may_wait = may_wait or code in WAITABLE_CODES
            refusals.append(Refusal(candidate.node_id, code, message))
    if not fit:
        return Decision(None, tuple(refusals), may_wait)
    if need.favourite is not None and any(node_id == need.favourite for _, _, node_id in fit):
        return Decision(need.favourite, tuple(refusals))
    best = min(fit)[:2]
    ties = [node_id for used, running, node_id in fit if (used, running) == best]
    return Decision(ties[0] if len(ties) == 1 else rng.choice(ties), tuple(refusals))


def explain(need: Need, refusals: Sequence[Refusal]) -> str:
    """Returns the sentence of a NoRoute: what was asked for, and why each node lost."""
    asked = f"no node can take adapter={need.adapter} target={need.target}"
    if not refusals:
        return f"{asked}: no node is known; start one with `iop-node run`"
    shown = "; ".join(f"{r.node_id} {r.message}" for r in refusals[:MAX_REASONS_SHOWN])
    more = len(refusals) - MAX_REASONS_SHOWN
    return f"{asked}: {shown}" + (f"; and {more} more" if more > 0 else "")


def _object(candidate: Candidate, need: Need, in_flight: InFlight) -> Objection | None:
    for check in _CHECKS:
        objection = check(candidate, need)
        if objection is not None:
            return objection
    status = candidate.adapters[need.adapter]
    running = in_flight(candidate.node_id, need.adapter)
    if running >= status.max_concurrent:
        return "capacity", f"is busy ({running}/{status.max_concurrent} runs of {need.adapter})"
    return None


def _check_pin(candidate: Candidate, need: Need) -> Objection | None:
    if need.node is not None and candidate.node_id != need.node:
        return "pinned_elsewhere", f"is not the node asked for ({need.node})"
    return None


def _check_labels(candidate: Candidate, need: Need) -> Objection | None:
    for key, wanted in need.labels.items():
        actual = candidate.labels.get(key)
        if actual != wanted:
            has = "has no such label" if actual is None else f"has {key}={actual}"
            return "label_mismatch", f"{has}, wanted {key}={wanted}"
    return None


def _check_connected(candidate: Candidate, need: Need) -> Objection | None:
    return None if candidate.is_connected else ("not_connected", "is not connected")


def _check_draining(candidate: Candidate, need: Need) -> Objection | None:
    return ("draining", "is draining") if candidate.is_draining else None


def _check_config(candidate: Candidate, need: Need) -> Objection | None:
    match candidate.config_state:
        case "applied":
            return None
        case "rejected":
            # Its old configuration stays in force, and what that offers is as good as before.
            if need.adapter in candidate.adapters:
                return None
            return "config_rejected", f"lacks the adapter {need.adapter} and has rejected its configuration"
        case _:
            return "config_pending", "has not applied its configuration yet"


def _check_adapter(candidate: Candidate, need: Need) -> Objection | None:
    if need.adapter not in candidate.adapters:
        return "adapter_missing", f"lacks the adapter {need.adapter}"
    return None


def _check_operation(candidate: Candidate, need: Need) -> Objection | None:
    operations = candidate.adapters[need.adapter].operations
    if need.operation not in operations:
        offered = ", ".join(operations) or "nothing"
        return "operation_unsupported", f"cannot {need.operation} with {need.adapter} (it offers {offered})"
    return None


def _check_gate(candidate: Candidate, need: Need) -> Objection | None:
    gate = candidate.adapters[need.adapter].gate
    if gate.state in OPEN_GATES:
        return None
    why = gate.reason or "no reason given"
    check = f" by check {gate.check}" if gate.check else ""
    return "gate_closed", f"has the gate of {need.adapter} {gate.state}{check}: {why}"


def _check_target(candidate: Candidate, need: Need) -> Objection | None:
    status = candidate.adapters[need.adapter]
    if status.any_target or need.target in status.targets:
        return None
    return "target_missing", f"lacks the target {need.target}"


def _check_shunned(candidate: Candidate, need: Need) -> Objection | None:
    before = need.shunned.get(candidate.node_id)
    return None if before is None else (before.code, f"refused it: {before.message}")


# The gate stands before the target: with a closed gate the list of targets is often empty or old.
_CHECKS: Final[tuple[Callable[[Candidate, Need], Objection | None], ...]] = (
    _check_pin,
    _check_labels,
    _check_connected,
    _check_draining,
    _check_config,
    _check_adapter,
    _check_operation,
    _check_gate,
    _check_target,
    _check_shunned,
)
