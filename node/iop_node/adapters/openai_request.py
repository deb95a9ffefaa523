"""From a run to the request that an OpenAI-compatible engine is sent. Pure.

The client's own JSON goes on as it came, but for the model's name, the profile's options (under the client's
keys) and streaming: upstream always streams, because closing a plain request does not reliably stop every
engine, and always asks for the usage.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import orjson

from iop_node.adapters.openai_json import dump_json
from iop_node.core.spec import ExecutionSpec
from iop_shared.errors import Layer, RunFailed
from iop_shared.ids import AdapterName
from iop_shared.runs import Operation


class Route(Enum):
    """Where a request goes, below the engine's base URL."""

    CHAT = "/v1/chat/completions"
    COMPLETION = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What to send, and what to expect.

    `wants_usage`: the client itself asked for the usage event of a stream. `choices`: how many answers the
    stream has, as far as the request says.
    """

    route: Route
    body: bytes = field(repr=False)
    wants_usage: bool = False
    choices: int = 1


_ROUTES: Final[Mapping[Operation, Route]] = {
    Operation.CHAT: Route.CHAT,
    Operation.COMPLETION: Route.COMPLETION,
    Operation.GENERATE: Route.CHAT,  # one prompt through the model's chat template; JSON may say otherwise
    Operation.EMBED: Route.EMBEDDINGS,
}
OPERATIONS: Final = tuple(_ROUTES)
"""What an OpenAI-compatible engine can be asked."""


def build_request(spec: ExecutionSpec, model: str) -> EngineRequest:
    """Returns the request for `spec`, to be answered by the engine's `model`.

    Raises:
        RunFailed: `bad_input` (the input cannot be sent, with the place of the fault) or
            `operation_unsupported`.
    """
    route = _ROUTES.get(spec.operation)
    if route is None:
        raise operation_unsupported(spec.adapter, spec.operation)
    if _is_json(spec.content_type):
        given = _parse_object(spec.input, spec.adapter)
        if spec.operation is Operation.GENERATE and "prompt" in given and "messages" not in given:
            route = Route.COMPLETION
    else:
        given = _from_text(spec, route)
    body: dict[str, Any] = {**spec.options, **given, "model": model}
    if route is Route.EMBEDDINGS:
        return EngineRequest(route, dump_json(body))
    stream_options = _object_or_empty(given, "stream_options", spec.adapter)
    body["stream"] = True
    body["stream_options"] = {**stream_options, "include_usage": True}
    wants_usage = spec.stream and stream_options.get("include_usage") is True
    return EngineRequest(route, dump_json(body), wants_usage, _count_choices(route, body))


def operation_unsupported(adapter: AdapterName, operation: Operation) -> RunFailed:
    """Returns the failure of a run whose operation no OpenAI-compatible engine has."""
    return RunFailed(
        f"adapter {adapter!r} cannot do operation {operation.value!r}: "
        f"use one of {', '.join(o.value for o in OPERATIONS)}",
        code="operation_unsupported",
        layer=Layer.TARGET,
    )


def bad_input(message: str) -> RunFailed:
    """Returns the failure of a run whose input cannot be sent to any engine."""
    return RunFailed(message, code="bad_input", layer=Layer.TARGET)


def _count_choices(route: Route, body: Mapping[str, Any]) -> int:
    count = body.get("n")
    choices = count if type(count) is int and count > 0 else 1
    prompts = body.get("prompt")
    # A list of numbers is one prompt, in tokens.
    if route is Route.COMPLETION and isinstance(prompts, list) and prompts and type(prompts[0]) is not int:
        choices *= len(prompts)
    return choices


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type in ("", "application/json") or media_type.endswith("+json")


def _from_text(spec: ExecutionSpec, route: Route) -> dict[str, Any]:
    try:
        text = spec.input.decode()
    except UnicodeDecodeError as error:
        raise bad_input(
            f"the input for adapter {spec.adapter!r} is not UTF-8 text: byte {error.start} of "
            f"{len(spec.input)} ({error.reason}); send UTF-8, or JSON with content type application/json"
        ) from None
    match route:
        case Route.CHAT:
            return {"messages": [{"role": "user", "content": text}]}
        case Route.COMPLETION:
            return {"prompt": text}
        case Route.EMBEDDINGS:
            return {"input": text}


def _parse_object(data: bytes, adapter: AdapterName) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as first:
        try:
            # Takes what orjson does not: single surrogates, which some clients send for half an emoji.
            value = json.loads(data, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            where = f"line {first.lineno} column {first.colno}" if data else "the input is empty"
            raise bad_input(
                f"the input for adapter {adapter!r} is not valid JSON: {first.msg.split(':')[0]} "
                f"({where}, {len(data)} bytes); send one JSON object, or text with content type text/plain"
            ) from None
    if not isinstance(value, dict):
        raise bad_input(
            f"the input for adapter {adapter!r} is {_kind(value)}, not a JSON object: "
            'send for example {"messages": [{"role": "user", "content": "Hello"}]}'
        )
    return value


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are no JSON; engines answer them each in its own way


def _object_or_empty(body: Mapping[str, Any], key: str, adapter: AdapterName) -> dict[str, Any]:
    value = body.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_input(f"{key!r} in the input for adapter {adapter!r} is {_kind(value)}, not a JSON object")
    return value


_KINDS: Final[tuple[tuple[type, str], ...]] = (
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (str, "a string"),
    (list, "an array"),
    (dict, "an object"),
)


def _kind(value: object) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "null")
