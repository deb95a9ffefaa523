"""The one answer of a plain request, joined from a stream: chat.completion or text_completion. Pure.

Fields are joined by what they are, not by name, so that fields of engines we do not know come through:
pieces of text add up, lists (logprobs, token ids) are chained, of everything else the last value that is not
null stays.
"""

from typing import Any, Final

from iop_node.adapters.openai_errors import EngineAt
from iop_node.adapters.openai_json import dump_json
from iop_node.adapters.openai_stream import Choices, CompletionStream, Event, ToolCallIndex, arguments_text
from iop_shared.errors import Layer, RunFailed
from iop_shared.runtime_events import Body, EngineJson

MAX_WHOLE_BYTES: Final = 64 * 1024 * 1024
"""What an answer's events may add up to. Chosen: 300,000 tokens of 200 bytes; change freely."""

_HEAD: Final = frozenset({"id", "object", "created", "model"})
_FIRST_STAYS: Final = frozenset({"id", "created", "object"})
_CHUNK_SUFFIX: Final = ".chunk"
_NAMES: Final = frozenset({"role", "type", "id", "name", "object", "model", "finish_reason"})
"""Text that is a name: said once, or said again, but never in pieces."""


class WholeStream(CompletionStream):
    """Joins a stream into one EngineJson(whole=True), given when the stream has ended well."""

    def __init__(self, engine: EngineAt, requested_model: str, *, max_bytes: int = 0, choices: int = 1) -> None:
        super().__init__(engine, choices=choices)
        self._requested_model = requested_model
        self._max_bytes = max_bytes or MAX_WHOLE_BYTES
        self._bytes = 0
        self._top: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    @property
    def has_output(self) -> bool:
        """Never before the end."""
        return False

    def _add(self, payload: bytes, event: Event, choices: Choices) -> None:
        self._bytes += len(payload)
        if self._bytes > self._max_bytes:
            self.failure = RunFailed(
                f"the answer of {self._engine} exceeds max_output_bytes={self._max_bytes}; "
                "stream it, or raise the limit",
                code="output_limit",
                layer=Layer.NODE,
            )
            return
        for key, value in event.items():
            if key != "choices" and (key not in self._top or (value is not None and key not in _FIRST_STAYS)):
                self._top[key] = value
        for choice in choices:
            index = choice.get("index") or 0
            known = self._choices.get(index)
            if known is None:
                known = self._choices[index] = _Choice(index)
            known.add(choice)

    def _holds_output(self) -> bool:
        return False

    def _flush(self) -> list[Body]:
        return []

    def _ending(self) -> list[Body]:
        answer = dict(self._top)
        kind = answer.get("object")
        if isinstance(kind, str):
            answer["object"] = kind.removesuffix(_CHUNK_SUFFIX)
        if self._requested_model:
            answer["model"] = self._requested_model
        # In the place where the engines have them, before usage and the rest.
        rest = {key: answer.pop(key) for key in tuple(answer) if key not in _HEAD}
        answer["choices"] = [choice.joined() for _, choice in sorted(self._choices.items())]
        return [EngineJson((dump_json({**answer, **rest}),), whole=True)]


class _Choice:
    """One choice while its pieces come in."""

    def __init__(self, index: int) -> None:
        self._fields: dict[str, Any] = {"index": index}
        self._message: dict[str, Any] | None = None  # None: a text completion
        self._calls: dict[int, dict[str, Any]] = {}
        self._places = ToolCallIndex()

    def add(self, choice: dict[str, Any]) -> None:
        """Takes one piece up."""
        fields = self._fields
        for key, value in choice.items():
            if key == "delta":
                self._add_delta(value or {})
            elif key == "index":
                pass
            elif value is None:  # what most members of most events are
                fields.setdefault(key)
            else:
                _join(fields, key, value)

    def joined(self) -> dict[str, Any]:
        """Returns the choice as a plain answer has it."""
        fields = _closed(self._fields)
        if self._message is None:
            return fields
        message = _closed(self._message)
        if self._calls:
            message["tool_calls"] = [_closed(call) for _, call in sorted(self._calls.items())]
        message.setdefault("role", "assistant")
        if message.get("content") is None:  # null beside tool calls, else empty
            message["content"] = None if self._calls else ""
        return {"index": fields.pop("index"), "message": message, **fields}

    def _add_delta(self, delta: dict[str, Any]) -> None:
        message = self._message
        if message is None:
            message = self._message = {"role": "assistant", "content": None}
        for key, value in delta.items():
            known = message.get(key)
            if type(known) is _Pieces and type(value) is str:  # as all but the first token
                known.append(value)
            elif key == "tool_calls":
                for call in value or ():
                    self._add_call(call)
            else:
                _join(message, key, value)

    def _add_call(self, piece: dict[str, Any]) -> None:
        call = self._calls.setdefault(
            self._places.place_of(0, piece),
            {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
        )
        for key, value in piece.items():
            if key == "function":
                for name, part in (value or {}).items():
                    _join(call["function"], name, arguments_text(part) if name == "arguments" else part)
            elif key != "index":
                _join(call, key, value)


class _Pieces(list[str]):
    """Text that is still growing: joined once, at the end."""


def _join(into: dict[str, Any], key: str, value: Any) -> None:
    """Joins `value` to what `into` has under `key`."""
    known = into.get(key)
    if value is None:
        into.setdefault(key, None)
    elif isinstance(value, str) and key not in _NAMES:
        if isinstance(known, _Pieces):
            known.append(value)
        else:
            into[key] = _Pieces([known, value] if isinstance(known, str) else [value])
    elif isinstance(value, list) and isinstance(known, list):
        known.extend(value)
    elif isinstance(value, dict) and isinstance(known, dict):
        for name, part in value.items():
            _join(known, name, part)
    elif value != "" or known is None:
        into[key] = value


def _closed(value: dict[str, Any]) -> dict[str, Any]:
    """Returns `value` with all growing text joined."""
    return {key: _closed_value(part) for key, part in value.items()}


def _closed_value(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return _closed(value)
    return value
