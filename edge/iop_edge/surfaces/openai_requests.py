"""What the edge reads of an OpenAI request: the model, the way of answering, and the basic shape. Pure.

Only what routing and answering need is checked here. The client's bytes go on to the engine untouched, and the
engine judges the rest: it knows its own parameters better than we do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from iop_edge.surfaces.asgi import parse_json
from iop_shared.errors import BadRequest
from iop_shared.runs import Operation

_MODEL_IS: Final = "the name of a profile, or adapter/target"


@dataclass(frozen=True, slots=True)
class OpenAiRequest:
    """The parts of a request that matter to the edge. `include_usage`: send usage at a stream's end."""

    operation: Operation
    model: str
    stream: bool = False
    include_usage: bool = False
    as_base64: bool = False


def parse_chat(body: bytes) -> OpenAiRequest:
    """Returns what matters of a /v1/chat/completions body.

    Raises:
        BadRequest: with the parameter at fault and what it may be.
    """
    value = _parse_object(body)
    model = _read_model(value)
    check_messages(value)
    stream, include_usage = _read_stream(value)
    return OpenAiRequest(Operation.CHAT, model, stream, include_usage)


def parse_completion(body: bytes) -> OpenAiRequest:
    """Returns what matters of a /v1/completions body.

    Raises:
        BadRequest: with the parameter at fault and what it may be.
    """
    value = _parse_object(body)
    model = _read_model(value)
    check_texts(value, "prompt")
    stream, include_usage = _read_stream(value)
    return OpenAiRequest(Operation.COMPLETION, model, stream, include_usage)


def parse_embeddings(body: bytes) -> OpenAiRequest:
    """Returns what matters of a /v1/embeddings body.

    Raises:
        BadRequest: with the parameter at fault and what it may be.
    """
    value = _parse_object(body)
    model = _read_model(value)
    check_texts(value, "input")
    encoding = value.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise BadRequest(
            f"parameter 'encoding_format' must be 'float' or 'base64', but it is {_shown(encoding)}",
            param="encoding_format",
            code="invalid_value",
        )
    return OpenAiRequest(Operation.EMBED, model, as_base64=encoding == "base64")


PARSERS: Final[Mapping[Operation, Callable[[bytes], OpenAiRequest]]] = {
    Operation.CHAT: parse_chat,
    Operation.COMPLETION: parse_completion,
    Operation.EMBED: parse_embeddings,
}


def check_messages(value: Mapping[str, Any]) -> None:
    """Passes a chat body with a non-empty list of messages, each with a role.

    Raises:
        BadRequest: with the place at fault.
    """
    messages = value.get("messages")
    if messages is None:
        raise missing("messages", "a non-empty array of messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "a non-empty array of messages", messages)
    if not messages:
        raise _empty_array("messages")
    for position, message in enumerate(messages):
        place = f"messages[{position}]"
        if not isinstance(message, dict):
            raise wrong_type(place, "an object with a 'role'", message)
        if "role" not in message:
            raise missing(f"{place}.role", "a string such as 'user'")
        if not isinstance(message["role"], str):
            raise wrong_type(f"{place}.role", "a string such as 'user'", message["role"])


def check_texts(value: Mapping[str, Any], name: str) -> None:
    """Passes a body whose `name` is text, or a non-empty list of texts, of token ids or of lists of token ids.

    Raises:
        BadRequest: with the place at fault.
    """
    texts = value.get(name)
    allowed = "a string, or an array of strings, of token ids or of arrays of token ids"
    if texts is None:
        raise missing(name, allowed)
    if isinstance(texts, str):
        return
    if not isinstance(texts, list):
        raise wrong_type(name, allowed, texts)
    if not texts:
        raise _empty_array(name)
    kind = type(texts[0])
    for position, item in enumerate(texts):
        fits = type(item) is kind and (kind in (str, int) or (kind is list and item and _are_ids(item)))
        if not fits:
            raise wrong_type(f"{name}[{position}]", f"part of {allowed} (all of one kind)", item)


def missing(name: str, what: str) -> BadRequest:
    """Returns the error for a parameter that has to be there."""
    return BadRequest(
        f"missing required parameter {name!r}: {what}", param=name, code="missing_required_parameter"
    )


def wrong_type(name: str, allowed: str, value: Any) -> BadRequest:
    """Returns the error for a parameter of a wrong type."""
    return BadRequest(
        f"parameter {name!r} must be {allowed}, but it is {kind_of(value)}", param=name, code="invalid_type"
    )


def kind_of(value: Any) -> str:
    """Returns what kind of JSON value this is, as a phrase."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case []:
            return "an empty array"
        case list():
            return "an array"
        case _:
            return "an object"


def _parse_object(body: bytes) -> dict[str, Any]:
    value = parse_json(body)
    if not isinstance(value, dict):
        raise BadRequest(
            f"the request's body must be a JSON object, but it is {kind_of(value)}", code="invalid_type"
        )
    return value


def _read_model(value: Mapping[str, Any]) -> str:
    model = value.get("model")
    if model is None:
        raise missing("model", _MODEL_IS)
    if not isinstance(model, str):
        raise wrong_type("model", f"a string, {_MODEL_IS}", model)
    if not model:
        raise BadRequest(
            f"parameter 'model' must not be empty: give {_MODEL_IS}", param="model", code="empty_string"
        )
    return model


def _read_stream(value: Mapping[str, Any]) -> tuple[bool, bool]:
    stream = value.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise wrong_type("stream", "true or false", stream)
    options = value.get("stream_options")
    if options is None:
        return bool(stream), False
    if not isinstance(options, dict):
        raise wrong_type("stream_options", "an object", options)
    if not stream:
        raise BadRequest(
            "parameter 'stream_options' is only allowed together with 'stream': true",
            param="stream_options",
            code="invalid_value",
        )
    include_usage = options.get("include_usage")
    if include_usage is not None and not isinstance(include_usage, bool):
        raise wrong_type("stream_options.include_usage", "true or false", include_usage)
    return True, bool(include_usage)


def _empty_array(name: str) -> BadRequest:
    return BadRequest(
        f"parameter {name!r} must not be an empty array: give at least one", param=name, code="empty_array"
    )


def _are_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)


def _shown(value: Any) -> str:
    return repr(value[:40]) if isinstance(value, str) else kind_of(value)
