"""What the management API takes: a run to submit, a command for a node, a page of runs. Pure parsing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from iop_edge.domain.views import ResolvedModel, RunOrder
from iop_edge.service import EdgeService
from iop_edge.surfaces.openai_api import read_session
from iop_edge.surfaces.openai_requests import check_messages, check_texts, kind_of, missing, wrong_type
from iop_shared.errors import BadRequest, nearest
from iop_shared.ids import AdapterName, NodeId, check_name, check_target
from iop_shared.runs import Operation, RunLimits, RunState

_RUN_KEYS: Final = (
    "model", "adapter", "target", "operation", "input", "options", "limits", "session", "node", "node_labels",
    "stream",
)  # fmt: skip
_LIMIT_KEYS: Final = ("first_byte_timeout_s", "idle_timeout_s", "total_timeout_s", "max_output_bytes")
MAX_COMMAND_TIMEOUT_S: Final = 60.0
MAX_PAGE: Final = 500


def parse_run(value: Any, service: EdgeService) -> tuple[RunOrder, bool]:
    """Returns the run that a body asks for, and whether it asks for a stream.

    Raises:
        BadRequest: with the parameter at fault; UnknownName for a model that there is not.
    """
    fields = parse_object(value, _RUN_KEYS)
    resolved = _read_model(fields, service)
    operation = _read_choice(fields, "operation", Operation, Operation.CHAT)
    stream = _read(fields, "stream", bool, "true or false", False)
    input_bytes, content_type = _read_input(fields, operation)
    node = _read(fields, "node", str, "a string", "")
    order = RunOrder(
        adapter=resolved.adapter,
        target=resolved.target,
        operation=operation,
        input=input_bytes,
        content_type=content_type,
        limits=_read_limits(fields, resolved.limits),
        session=read_session(_read(fields, "session", str, "a string", ""), "session"),
        source="api",
        profile=resolved.profile,
        requested_model=resolved.name,
        options={**resolved.options, **_read(fields, "options", dict, "an object", {})},
        node=NodeId(check_name("node", node)) if node else None,
        node_labels={**resolved.node_labels, **_read_labels(fields)},
    )
    return order, stream


def parse_command(value: Any) -> tuple[str, dict[str, Any], float]:
    """Returns a node command's name, arguments and time limit in seconds.

    Raises:
        BadRequest: with the parameter at fault.
    """
    fields = parse_object(value, ("command", "arguments", "timeout_s"))
    command = _read(fields, "command", str, "a string such as 'status'", "")
    if not command:
        raise missing("command", "a string such as 'status'")
    timeout_s = _read_number(fields, "timeout_s", 10.0)
    if not 0.1 <= timeout_s <= MAX_COMMAND_TIMEOUT_S:
        raise BadRequest(
            f"parameter 'timeout_s' must be 0.1 to {MAX_COMMAND_TIMEOUT_S:g}, but it is {timeout_s:g}",
            param="timeout_s",
            code="invalid_value",
        )
    return command, _read(fields, "arguments", dict, "an object", {}), timeout_s


def parse_state(text: str) -> RunState:
    """Returns the run state that a query names.

    Raises:
        BadRequest: with the nearest states.
    """
    try:
        return RunState(text)
    except ValueError:
        known = nearest(text, [state.value for state in RunState])
        raise BadRequest(f"unknown state {text[:40]!r}: {known}", param="state", code="invalid_value") from None


def parse_count(text: str, param: str, most: int) -> int:
    """Returns a whole number from 0 to `most` that a query or header gives.

    Raises:
        BadRequest: it is none.
    """
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > most:
        raise BadRequest(
            f"parameter {param!r} must be a whole number up to {most}, but it is {text[:40]!r}",
            param=param,
            code="invalid_value",
        )
    return int(text)


def parse_object(value: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """Returns a body's fields.

    Raises:
        BadRequest: it is no object, or has a key that is not `known` (a misspelt one must not be ignored).
    """
    if not isinstance(value, dict):
        raise BadRequest(
            f"the request's body must be a JSON object, but it is {kind_of(value)}", code="invalid_type"
        )
    for key in value:
        if key not in known:
            raise BadRequest(
                f"unknown parameter {key[:40]!r}: {nearest(key, list(known))}",
                param=key[:40],
                code="unknown_parameter",
            )
    return value


def _read_model(fields: Mapping[str, Any], service: EdgeService) -> ResolvedModel:
    model = _read(fields, "model", str, "a string", "")
    adapter, target = _read(fields, "adapter", str, "a string", ""), _read(fields, "target", str, "a string", "")
    if model and (adapter or target):
        raise BadRequest(
            "give either 'model' or 'adapter' and 'target', not both", param="model", code="invalid_value"
        )
    if model:
        return service.resolve_model(model)
    if not adapter and not target:
        raise missing("model", "the name of a profile, or adapter/target (or give 'adapter' and 'target')")
    if not adapter or not target:
        raise missing("target" if adapter else "adapter", "'adapter' and 'target' go together")
    return ResolvedModel(f"{adapter}/{target}", AdapterName(check_name("adapter", adapter)), check_target(target))


def _read_input(fields: Mapping[str, Any], operation: Operation) -> tuple[bytes, str]:
    """Returns the input's bytes and content type: text takes the operation's own form, JSON goes on as it is."""
    value = fields.get("input")
    if value is None:
        raise missing("input", "text, or the operation's own JSON")
    match operation:
        case Operation.CHAT if isinstance(value, str):
            value = {"messages": [{"role": "user", "content": value}]}
        case Operation.CHAT:
            check_messages(_object_for(operation, value))
        case Operation.COMPLETION | Operation.EMBED:
            name = "prompt" if operation is Operation.COMPLETION else "input"
            if isinstance(value, str):
                value = {name: value}
            else:
                check_texts(_object_for(operation, value), name)
        case _ if isinstance(value, str):
            return value.encode(), "text/plain; charset=utf-8"
    return orjson.dumps(value), "application/json"


def _object_for(operation: Operation, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type("input", f"text, or an object for {operation.value!r}", value)
    return value


def _read_limits(fields: Mapping[str, Any], limits: RunLimits) -> RunLimits:
    given = parse_object(_read(fields, "limits", dict, "an object", {}), _LIMIT_KEYS)
    changes: dict[str, Any] = {}
    for name in given:
        number = _read_number(given, name, 0.0)
        if number < 0:
            raise BadRequest(
                f"parameter 'limits.{name}' must not be negative, but it is {number:g}",
                param=f"limits.{name}",
                code="invalid_value",
            )
        if number:
            changes[name] = int(number) if name == "max_output_bytes" else float(number)
    return replace(limits, **changes)


def _read_labels(fields: Mapping[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = _read(fields, "node_labels", dict, "an object of strings", {})
    for key, value in labels.items():
        if not isinstance(value, str):
            raise wrong_type(f"node_labels.{key}", "a string", value)
    return labels


def _read_choice(fields: Mapping[str, Any], name: str, choices: type[Operation], default: Operation) -> Operation:
    text = _read(fields, name, str, "a string", default.value)
    try:
        return choices(text)
    except ValueError:
        known = nearest(text, [choice.value for choice in choices])
        raise BadRequest(f"unknown {name} {text[:40]!r}: {known}", param=name, code="invalid_value") from None


def _read(fields: Mapping[str, Any], name: str, kind: type, allowed: str, default: Any) -> Any:
    """Returns a field of a type; absent and null mean the default."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise wrong_type(name, allowed, value)
    return value


def _read_number(fields: Mapping[str, Any], name: str, default: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a number", value)
    return value
