"""Settings from a TOML file and environment variables into a pydantic model, with every problem told at once.

A variable `IOP_EDGE__HTTP__LISTEN` stands for `[http] listen` and wins over the file. Its text is taken as it
is where the setting is a text, and read as a TOML value (`true`, `5`, `["a", "b"]`) elsewhere.
"""

import json
import os
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from iop_shared.errors import InvalidConfig, nearest
from iop_shared.http_listen import ListenAddress
from iop_shared.redaction import MASK, is_secret_key, redact_text

M = TypeVar("M", bound=BaseModel)
Key = str | int
MAX_FILE_BYTES: Final = 1024 * 1024  # chosen: a file for 1,000 nodes has about 100 KB
_SHOWN_CHARS: Final = 80

_MADE_BY: Final = {
    "IOP_EDGE": "iop-edge init",
    "IOP_NODE": "iop-node join EDGE --token TOKEN",
}


class Section(BaseModel):
    """A table of a configuration file: unknown keys are an error, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _parse_listen(value: object) -> ListenAddress:
    if isinstance(value, ListenAddress):
        return value
    if not isinstance(value, str):
        raise ValueError('must be a text of the form "HOST:PORT", for example "127.0.0.1:7480"')
    return ListenAddress.parse(value)


Listen = Annotated[ListenAddress, PlainValidator(_parse_listen), PlainSerializer(str)]
"""A setting of the form "HOST:PORT"."""


def load_settings(
    model: type[M],
    path: Path,
    *,
    env_prefix: str,
    environ: Mapping[str, str] | None = None,
    made_by: str | None = None,
) -> M:
    """Returns the settings in `path`, with those from the environment put over them.

    `env_prefix`: "IOP_EDGE" for variables that begin with `IOP_EDGE__`. `environ`: instead of the process's
    own. `made_by`: the command that makes the file, told when it is missing; known for both daemons.

    Raises:
        InvalidConfig: with one sentence per problem, all of them: where, which key, which value (secrets
            masked), what is allowed, and the nearest known key.
    """
    prefix = env_prefix.rstrip("_")
    data = _read_toml(path, made_by or _MADE_BY.get(prefix))
    overrides = list(_overrides(model, prefix + "__", os.environ if environ is None else environ))
    problems = []
    for override in overrides:
        problem = _put(data, override)
        if problem is not None:
            problems.append(problem)
    try:
        settings = model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        sources = {override.keys: override for override in overrides}
        for detail in error.errors(include_url=False):
            problems.append(_sentence(model, data, detail, path, sources))
        raise InvalidConfig("", problems) from None  # the original would show values unmasked
    if problems:
        raise InvalidConfig("", problems)
    return settings


def key_paths(model: type[BaseModel]) -> list[tuple[str, ...]]:
    """Returns the path of every setting of `model`; `*` stands for a name that the operator chooses."""
    found: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        found.extend((key, *rest) for rest in _paths_below(field.annotation))
    return found


def _paths_below(annotation: Any) -> list[tuple[str, ...]]:
    for candidate in _alternatives(annotation):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return key_paths(candidate)
        value_type = _value_type(candidate)
        if value_type is not None:
            below = _paths_below(value_type)
            if below != [()]:
                return [("*", *rest) for rest in below]
    return [()]


# --- reading -----------------------------------------------------------------------------------------------


def _read_toml(path: Path, made_by: str | None) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        hint = f"; make it with: {made_by}" if made_by else ""
        raise InvalidConfig(str(path), [f"there is no such file{hint}"]) from None
    except OSError as error:
        raise InvalidConfig(str(path), [f"cannot be read: {error.strerror}"]) from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidConfig(str(path), [f"is larger than {MAX_FILE_BYTES} bytes; this is no settings file"])
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidConfig(str(path), [f"line {line}: not UTF-8 text; save it as UTF-8"]) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(str(path), [f"not valid TOML: {redact_text(_with_line_and_column(error))}"]) from None


def _with_line_and_column(error: tomllib.TOMLDecodeError) -> str:
    """Returns the parser's sentence; it ends with the place: "(at line 3, column 5)" or "(at end of document)"."""
    text = str(error)
    sentence, found, place = text.rpartition(" (at ")
    return f"{place.rstrip(')')}: {sentence}" if found else text


@dataclass(frozen=True, slots=True)
class _Override:
    variable: str
    keys: tuple[str, ...]
    value: Any


def _overrides(model: type[BaseModel], prefix: str, environ: Mapping[str, str]) -> Iterator[_Override]:
    for variable in sorted(environ):
        if variable.startswith(prefix):
            keys = tuple(part.lower() for part in variable[len(prefix) :].split("__"))
            yield _Override(variable, keys, _value_of(environ[variable], _annotation_at(model, keys)))


def _value_of(text: str, annotation: Any) -> Any:
    if annotation is not None and any(_is_text(candidate) for candidate in _alternatives(annotation)):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _is_text(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, str | Path | ListenAddress)


def _put(data: dict[str, Any], override: _Override) -> str | None:
    """Puts one override into `data`; returns a problem if its path runs through something that is no table."""
    if not all(override.keys):
        return f"environment variable {override.variable}: names no setting; write IOP_<DAEMON>__<SECTION>__<KEY>"
    table = data
    for key in override.keys[:-1]:
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            return f"environment variable {override.variable}: {key!r} is a value, not a section"
        table = inner
    table[override.keys[-1]] = override.value
    return None


# --- types of the model --------------------------------------------------------------------------------------


def _alternatives(annotation: Any) -> list[Any]:
    """Returns the members of a union (None left out), each without `Annotated`."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [one for member in get_args(annotation) for one in _alternatives(member)]
    return [] if annotation is type(None) else [annotation]


def _value_type(annotation: Any) -> Any:
    """Returns V of `dict[str, V]`, or None for anything else."""
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(args) == 2:
        return args[1]
    return None


def _annotation_at(model: type[BaseModel], keys: Sequence[Key]) -> Any:
    """Returns the type of the setting at `keys`, or None where the model does not say."""
    annotation: Any = model
    for key in keys:
        for candidate in _alternatives(annotation):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                fields = {field.alias or name: field for name, field in candidate.model_fields.items()}
                field = fields.get(str(key))
                annotation = None if field is None else field.annotation
                break
            value_type = _value_type(candidate)
            if value_type is not None:
                annotation = value_type
                break
        else:
            return None
        if annotation is None:
            return None
    return annotation


def _known_keys(model: type[BaseModel], table: Sequence[Key]) -> list[str]:
    for candidate in _alternatives(_annotation_at(model, table)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return [field.alias or name for name, field in candidate.model_fields.items()]
    return []


# --- sentences -----------------------------------------------------------------------------------------------


def _sentence(
    model: type[BaseModel],
    data: dict[str, Any],
    detail: ErrorDetails,
    path: Path,
    overrides: Mapping[tuple[str, ...], _Override],
) -> str:
    keys = _keys_in(data, detail)
    value = _MISSING if detail["type"] == "missing" else _lookup(data, keys)
    what = redact_text(_what_is_wrong(model, detail, keys))
    override = next((overrides[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in overrides), None)  # type: ignore[index]
    if override is not None:
        return f"environment variable {override.variable}{_shown(override.keys, override.value)}: {what}"
    return f"{path}: {_place(keys)}{_shown(keys, value)}: {what}" if keys else f"{path}: {what}"


class _Missing:
    pass


_MISSING: Final = _Missing()


def _keys_in(data: Any, detail: ErrorDetails) -> tuple[Key, ...]:
    """Returns the part of pydantic's location that names places in the file; it also names validators."""
    keys: list[Key] = []
    for part in detail["loc"]:
        is_there = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if is_there:
            keys.append(part)
            data = data[part]
        elif detail["type"] == "missing" and part == detail["loc"][-1]:
            keys.append(part)
    return tuple(keys)


def _lookup(data: Any, keys: Sequence[Key]) -> Any:
    for key in keys:
        data = data[key]
    return data


def _place(keys: Sequence[Key]) -> str:
    """Returns `[adapters.small] base_url`, `edges[0]` ... for a location in the file."""
    split = len(keys) - 1
    while split > 0 and isinstance(keys[split], int):
        split -= 1
    name = str(keys[split]) + "".join(f"[{index}]" for index in keys[split + 1 :])
    section = ".".join(str(key) for key in keys[:split])
    return f"[{section}] {name}" if section else name


def _shown(keys: Sequence[Key], value: Any) -> str:
    if value is _MISSING:
        return ""
    if any(is_secret_key(str(key)) for key in keys):
        return f' = "{MASK}"'
    if isinstance(value, dict):
        return " = {...}" if value else " = {}"
    text = redact_text(json.dumps(value, ensure_ascii=False, default=str))
    if is_list_of_tables := isinstance(value, list) and any(isinstance(item, dict) for item in value):
        text = "[{...}]"
    cut = not is_list_of_tables and len(text) > _SHOWN_CHARS
    return f" = {text[:_SHOWN_CHARS]}..." if cut else f" = {text}"


def _what_is_wrong(model: type[BaseModel], detail: ErrorDetails, keys: Sequence[Key]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key; {nearest(str(keys[-1]), _known_keys(model, keys[:-1]))}"
    if kind in ("literal_error", "enum"):
        value = detail["input"]
        close = nearest(str(value), _choices(context)) if isinstance(value, str) else ""
        hint = f"; {close}" if close.startswith("did you mean") else ""
        return f"is not one of the allowed values: {context.get('expected', '')}{hint}"
    make = _SENTENCES.get(kind)
    if make is not None:
        return make(context)
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", detail["msg"]))
    return detail["msg"][:1].lower() + detail["msg"][1:]


def _choices(context: Mapping[str, Any]) -> list[str]:
    text = str(context.get("expected", "")).replace(" or ", ", ")
    return [choice.strip().strip("'") for choice in text.split(",")]


_SENTENCES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "missing": lambda c: "is required, but it is not there",
    "bool_type": lambda c: "must be true or false",
    "bool_parsing": lambda c: "must be true or false",
    "int_type": lambda c: "must be a whole number",
    "int_parsing": lambda c: "must be a whole number",
    "int_from_float": lambda c: "must be a whole number",
    "float_type": lambda c: "must be a number",
    "float_parsing": lambda c: "must be a number",
    "finite_number": lambda c: "must be a finite number",
    "string_type": lambda c: "must be a text in quotes",
    "list_type": lambda c: "must be a list: [ ... ]",
    "tuple_type": lambda c: "must be a list: [ ... ]",
    "set_type": lambda c: "must be a list: [ ... ]",
    "frozen_set_type": lambda c: "must be a list: [ ... ]",
    "dict_type": lambda c: "must be a table: { ... } or a [section]",
    "model_type": lambda c: "must be a table: { ... } or a [section]",
    "model_attributes_type": lambda c: "must be a table: { ... } or a [section]",
    "path_type": lambda c: "must be a path in quotes",
    "greater_than": lambda c: f"must be greater than {c['gt']:.15g}",
    "greater_than_equal": lambda c: f"must be at least {c['ge']:.15g}",
    "less_than": lambda c: f"must be less than {c['lt']:.15g}",
    "less_than_equal": lambda c: f"must be at most {c['le']:.15g}",
    "string_too_short": lambda c: f"must have at least {c['min_length']} characters",
    "string_too_long": lambda c: f"must have at most {c['max_length']} characters",
    "string_pattern_mismatch": lambda c: f"must match the pattern {c['pattern']}",
    "too_short": lambda c: f"must have at least {c['min_length']} entries, has {c['actual_length']}",
    "too_long": lambda c: f"must have at most {c['max_length']} entries, has {c['actual_length']}",
}
