"""What an edge answers, as values: read from its JSON (docs/http-api.md), unknown fields ignored. Pure.

Each keeps the JSON it came from in `json`, so that `--json` shows everything, newer fields included.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

Json = Mapping[str, Any]
T = TypeVar("T")

TERMINAL_TYPES: Final = frozenset({"succeeded", "failed", "cancelled", "interrupted"})
"""Event types after which a run says nothing more; also its final states."""


class UnexpectedAnswer(Exception):
    """The answer is not what an edge says: which field of what is missing or of another type."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts; None where the engine did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    @classmethod
    def from_json(cls, value: Json) -> "TokenUsage":
        """Reads a `usage` object."""
        return cls(*(_read(value, name, int, None) for name in cls.__slots__))

    def sentence(self) -> str:
        """Returns the counts in words, for example `12 + 80 tokens` (prompt + answer); "" if nothing is known."""
        if self.prompt_tokens is None and self.completion_tokens is None:
            return ""
        if self.prompt_tokens is None:
            text = f"{self.completion_tokens} tokens"
        elif self.completion_tokens is None:
            text = f"{self.prompt_tokens} tokens read"
        else:
            text = f"{self.prompt_tokens} + {self.completion_tokens} tokens"
        extra = [
            f"{count} {word}"
            for count, word in ((self.cached_tokens, "cached"), (self.reasoning_tokens, "reasoning"))
            if count
        ]
        return text + (f" ({', '.join(extra)})" if extra else "")


@dataclass(frozen=True, slots=True)
class CandidateRefusal:
    """Why one node did not get the run."""

    node_id: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, live or from history. Durations are seconds, times wall-clock milliseconds."""

    run_id: str
    attempt: int
    state: str
    adapter: str
    target: str
    operation: str
    created_at_ms: int
    node_id: str | None
    profile: str | None
    session: str | None
    source: str
    ended_at_ms: int | None
    code: str
    layer: str
    message: str
    finish_reason: str
    usage: TokenUsage | None
    queued_s: float | None
    first_token_s: float | None
    total_s: float | None
    input_bytes: int
    output_bytes: int
    events: int
    cancel_reason: str
    cancel_confirmed: bool | None
    cancel_took_ms: int | None
    refusals: tuple[CandidateRefusal, ...]
    json: Json = field(repr=False, compare=False)

    @property
    def is_ended(self) -> bool:
        """Whether it has ended for good."""
        return self.state in TERMINAL_TYPES

    @classmethod
    def from_json(cls, value: Any) -> "RunRecord":
        """Reads a run.

        Raises:
            UnexpectedAnswer: the id, state, adapter or target is missing.
        """
        run = _object(value, "a run")
        usage = _read(run, "usage", dict, None)
        return cls(
            run_id=_need(run, "run_id", str, "a run"),
            attempt=_read(run, "attempt", int, 1),
            state=_need(run, "state", str, "a run"),
            adapter=_need(run, "adapter", str, "a run"),
            target=_need(run, "target", str, "a run"),
            operation=_read(run, "operation", str, ""),
            created_at_ms=_read(run, "created_at_ms", int, 0),
            node_id=_read(run, "node_id", str, None),
            profile=_read(run, "profile", str, None),
            session=_read(run, "session", str, None),
            source=_read(run, "source", str, ""),
            ended_at_ms=_read(run, "ended_at_ms", int, None),
            code=_read(run, "code", str, ""),
            layer=_read(run, "layer", str, ""),
            message=_read(run, "message", str, ""),
            finish_reason=_read(run, "finish_reason", str, ""),
            usage=None if usage is None else TokenUsage.from_json(usage),
            queued_s=_seconds(run, "queued_s"),
            first_token_s=_seconds(run, "first_token_s"),
            total_s=_seconds(run, "total_s"),
            input_bytes=_read(run, "input_bytes", int, 0),
            output_bytes=_read(run, "output_bytes", int, 0),
            events=_read(run, "events", int, 0),
            cancel_reason=_read(run, "cancel_reason", str, ""),
            cancel_confirmed=_read(run, "cancel_confirmed", bool, None),
            cancel_took_ms=_read(run, "cancel_took_ms", int, None),
            refusals=tuple(
                CandidateRefusal(
                    _read(refusal, "node_id", str, ""),
                    _read(refusal, "code", str, ""),
                    _read(refusal, "message", str, ""),
                )
                for refusal in _objects(run, "refusals")
            ),
            json=run,
        )


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run. `type` names the body; its fields are in `json`."""

    type: str
    seq: int
    attempt: int
    run_id: str
    at_ms: int | None
    json: Json = field(repr=False, compare=False)

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        return self.type in TERMINAL_TYPES

    def text(self, name: str) -> str:
        """Returns a text field of the body, "" if it has none."""
        found = self.json.get(name)
        return found if isinstance(found, str) else ""

    def number(self, name: str) -> int:
        """Returns a whole-number field of the body, 0 if it has none."""
        found = self.json.get(name)
        return found if isinstance(found, int) else 0

    @classmethod
    def from_json(cls, value: Any) -> "RunEvent":
        """Reads an event.

        Raises:
            UnexpectedAnswer: its type or number is missing.
        """
        event = _object(value, "an event")
        return cls(
            type=_need(event, "type", str, "an event"),
            seq=_need(event, "seq", int, "an event"),
            attempt=_read(event, "attempt", int, 1),
            run_id=_read(event, "run_id", str, ""),
            at_ms=_read(event, "at_ms", int, None),
            json=event,
        )


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """What a node says of one of its adapters."""

    name: str
    type: str
    gate_state: str
    gate_check: str
    gate_reason: str
    max_concurrent: int
    operations: tuple[str, ...]
    targets: tuple[str, ...]
    any_target: bool


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as its edge sees it."""

    node_id: str
    state: str
    epoch: int
    boot_id: str
    software_version: str
    address: str
    labels: Mapping[str, str]
    connected_at_ms: int
    last_heard_s: float | None
    config_revision: int
    config_state: str
    config_reasons: tuple[str, ...]
    adapters: tuple[AdapterRecord, ...]
    in_flight: Mapping[str, int]
    round_trip_s: float | None
    json: Json = field(repr=False, compare=False)

    @classmethod
    def from_json(cls, value: Any) -> "NodeRecord":
        """Reads a node.

        Raises:
            UnexpectedAnswer: its id or state is missing.
        """
        node = _object(value, "a node")
        return cls(
            node_id=_need(node, "node_id", str, "a node"),
            state=_need(node, "state", str, "a node"),
            epoch=_read(node, "epoch", int, 0),
            boot_id=_read(node, "boot_id", str, ""),
            software_version=_read(node, "software_version", str, ""),
            address=_read(node, "address", str, ""),
            labels=_read(node, "labels", dict, {}),
            connected_at_ms=_read(node, "connected_at_ms", int, 0),
            last_heard_s=_seconds(node, "last_heard_s"),
            config_revision=_read(node, "config_revision", int, 0),
            config_state=_read(node, "config_state", str, ""),
            config_reasons=_texts(node, "config_reasons"),
            adapters=tuple(_adapter(adapter) for adapter in _objects(node, "adapters")),
            in_flight=_read(node, "in_flight", dict, {}),
            round_trip_s=_seconds(node, "round_trip_s"),
            json=node,
        )


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A name that a client may ask for as `model`."""

    name: str
    adapter: str
    target: str
    nodes: tuple[str, ...]
    is_profile: bool
    json: Json = field(repr=False, compare=False)

    @classmethod
    def from_json(cls, value: Any) -> "ModelRecord":
        """Reads a model.

        Raises:
            UnexpectedAnswer: its name is missing.
        """
        model = _object(value, "a model")
        return cls(
            name=_need(model, "name", str, "a model"),
            adapter=_read(model, "adapter", str, ""),
            target=_read(model, "target", str, ""),
            nodes=_texts(model, "nodes"),
            is_profile=_read(model, "is_profile", bool, False),
            json=model,
        )


@dataclass(frozen=True, slots=True)
class BusEvent:
    """Something that happened in the edge."""

    event_id: int
    at_ms: int
    kind: str
    node_id: str | None
    run_id: str | None
    detail: Mapping[str, Any]
    json: Json = field(repr=False, compare=False)

    @classmethod
    def from_json(cls, value: Any) -> "BusEvent":
        """Reads an event of the bus.

        Raises:
            UnexpectedAnswer: its kind is missing.
        """
        event = _object(value, "an event")
        return cls(
            event_id=_read(event, "event_id", int, 0),
            at_ms=_read(event, "at_ms", int, 0),
            kind=_need(event, "kind", str, "an event"),
            node_id=_read(event, "node_id", str, None),
            run_id=_read(event, "run_id", str, None),
            detail=_read(event, "detail", dict, {}),
            json=event,
        )


def objects_under(answer: Any, name: str) -> list[Json]:
    """Returns the list of objects that stands under `name`.

    Raises:
        UnexpectedAnswer: there is no such list.
    """
    entries = _need(_object(answer, "the answer"), name, list, "the answer")
    return [_object(entry, f"an entry of {name}") for entry in entries]


def _adapter(adapter: Json) -> AdapterRecord:
    gate = _read(adapter, "gate", dict, {})
    return AdapterRecord(
        name=_need(adapter, "name", str, "an adapter"),
        type=_read(adapter, "type", str, ""),
        gate_state=_read(gate, "state", str, ""),
        gate_check=_read(gate, "check", str, ""),
        gate_reason=_read(gate, "reason", str, ""),
        max_concurrent=_read(adapter, "max_concurrent", int, 0),
        operations=_texts(adapter, "operations"),
        targets=_texts(adapter, "targets"),
        any_target=_read(adapter, "any_target", bool, False),
    )


def _object(value: Any, what: str) -> Json:
    if not isinstance(value, dict):
        raise UnexpectedAnswer(f"{what} is no JSON object")
    return value


def _need(value: Json, name: str, kind: type[T], what: str) -> T:
    found = value.get(name)
    if not isinstance(found, kind):
        raise UnexpectedAnswer(f"{what} has no {name!r}")
    return found


def _read(value: Json, name: str, kind: type[T], default: Any) -> Any:
    """Returns the field, or `default` where it is missing, null or of a type that we do not know (newer edge)."""
    found = value.get(name)
    if isinstance(found, bool) and kind is not bool:
        return default
    return found if isinstance(found, kind) else default


def _seconds(value: Json, name: str) -> float | None:
    found = value.get(name)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _texts(value: Json, name: str) -> tuple[str, ...]:
    return tuple(str(entry) for entry in _read(value, name, list, []))


def _objects(value: Json, name: str) -> list[Json]:
    return [entry for entry in _read(value, name, list, []) if isinstance(entry, dict)]
