"""Which adapter executes a request, or why none does. Pure.

`resolve` answers for what can be executed at all; whether there is room now is `admission`'s question.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from iop_node.core.spec import Capabilities, ExecutionSpec
from iop_shared.errors import InvalidName, nearest
from iop_shared.ids import AdapterName, TargetName, check_target, is_run_id
from iop_shared.link.messages import Gate, GateState
from iop_shared.runs import RunRequest


@dataclass(frozen=True, slots=True)
class AdapterOffer:
    """What an adapter offers now. `targets` None: nobody has asked its engine yet."""

    name: AdapterName
    type: str
    capabilities: Capabilities
    gate: Gate
    targets: tuple[TargetName, ...] | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not taken: a stable code and a sentence. `gate`: where a gate was the reason."""

    code: str
    message: str
    gate: Gate | None = None


def resolve(request: RunRequest, adapters: Mapping[AdapterName, AdapterOffer]) -> ExecutionSpec | Refusal:
    """Returns what to execute, or the first reason why not.

    Codes: bad_input, unknown_adapter, operation_unsupported, unknown_target, gate_closed. A gate that is
    unknown lets work through: the engine itself will say what is wrong.
    """
    problem = _problem_of(request)
    if problem is not None:
        return Refusal("bad_input", problem)
    offer = adapters.get(request.adapter)
    if offer is None:
        near = nearest(request.adapter, list(adapters))
        return Refusal("unknown_adapter", f"unknown adapter {request.adapter!r}: {near}")
    operations = offer.capabilities.operations
    if request.operation not in operations:
        known = ", ".join(operations) or "none"
        return Refusal(
            "operation_unsupported",
            f"adapter {offer.name!r} ({offer.type}) does not support operation {request.operation.value!r}: "
            f"it supports {known}",
        )
    if offer.gate.state is GateState.CLOSED:
        return Refusal("gate_closed", _closed(offer), offer.gate)
    if not offer.capabilities.any_target and offer.targets is not None and request.target not in offer.targets:
        near = nearest(request.target, list(offer.targets))
        return Refusal("unknown_target", f"adapter {offer.name!r} has no target {request.target!r}: {near}")
    return ExecutionSpec(
        run_id=request.run_id,
        adapter=request.adapter,
        target=request.target,
        operation=request.operation,
        input=request.input,
        content_type=request.content_type,
        limits=request.limits,
        session=request.session,
        engine_json=request.engine_json,
        stream=request.stream,
        requested_model=request.requested_model,
        options=request.options,
    )


def _problem_of(request: RunRequest) -> str | None:
    if not is_run_id(request.run_id):
        return f"run id {request.run_id[:40]!r} is not a UUIDv7 in its 36-character form"
    if request.attempt < 1:
        return f"attempt {request.attempt} of run {request.run_id} is not valid: attempts count from 1"
    try:
        check_target(request.target)
    except InvalidName as error:
        return str(error)
    limits = request.limits
    for name in ("first_byte_timeout_s", "idle_timeout_s", "total_timeout_s", "max_output_bytes"):
        value = getattr(limits, name)
        if not 0 <= value < float("inf"):
            return f"limit {name} is {value}; use 0 (the adapter's default) or more"
    return None


def _closed(offer: AdapterOffer) -> str:
    why = ": ".join(part for part in (offer.gate.check, offer.gate.reason) if part) or "no reason was given"
    return f"adapter {offer.name!r} takes no work now: {why}"
