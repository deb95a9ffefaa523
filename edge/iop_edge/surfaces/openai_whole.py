"""Typed bodies as one whole OpenAI answer, for adapters that speak no OpenAI themselves. Pure.

What is left out is the same as in a stream (`openai_render`).
"""

import base64
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from iop_edge.surfaces.event_json import parsed_json
from iop_edge.surfaces.openai_render import AnswerHead, Choices, openai_usage
from iop_shared.errors import Layer, RunFailed
from iop_shared.runs import Operation
from iop_shared.runtime_events import Body, Closing, Embeddings, Logprobs, Output, Reasoning, Text, ToolCall, Usage


class WholeRenderer(Protocol):
    """Collects the bodies of one run for one answer."""

    def add(self, body: Body) -> None:
        """Takes one body."""

    def render(self, closing: Closing) -> bytes:
        """Returns the JSON of the answer.

        Raises:
            RunFailed: code `engine_bad_response`: what the adapter gave makes no such answer.
        """


@dataclass(slots=True)
class _Parts:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tools: dict[int, dict[str, Any]] = field(default_factory=dict)
    logprobs: list[Any] = field(default_factory=list)


class ChatWhole:
    """One `chat.completion`."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._choices = Choices()
        self._parts: dict[int, _Parts] = {}

    def add(self, body: Body) -> None:
        """Takes one body."""
        match body:
            case Text(index=index):
                self._at(index).text.append(body.text)
            case Reasoning(index=index):
                self._at(index).reasoning.append(body.text)
            case Logprobs(index=index):
                self._at(index).logprobs.append(parsed_json(body.json))
            case ToolCall(choice=index):
                self._choices.with_tools.add(index)
                _add_tool_piece(self._at(index).tools, body)
            case Output():
                self._at(0).text.append(self._choices.text_of(body))
            case Usage():
                self._choices.usage = body
            case _:
                pass

    def render(self, closing: Closing) -> bytes:
        """Returns the JSON of the answer."""
        return orjson.dumps(
            {
                "id": f"chatcmpl-{self._head.run_id}",
                "object": "chat.completion",
                "created": self._head.created_s,
                "model": self._head.model,
                "choices": [self._choice(index, closing) for index in self._choices.all()],
                "usage": openai_usage(closing.usage or self._choices.usage),
            }
        )

    def _choice(self, index: int, closing: Closing) -> dict[str, Any]:
        parts = self._parts.get(index, _Parts())
        text = "".join(parts.text)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if parts.reasoning:
            message["reasoning_content"] = "".join(parts.reasoning)
        if parts.tools:
            message["content"] = text or None  # as OpenAI's API has it where only tools are called
            message["tool_calls"] = [parts.tools[position] for position in sorted(parts.tools)]
        return {
            "index": index,
            "message": message,
            "logprobs": join_logprobs(parts.logprobs),
            "finish_reason": self._choices.finish_reason(index, closing),
        }

    def _at(self, index: int) -> _Parts:
        self._choices.seen.add(index)
        return self._parts.setdefault(index, _Parts())


class CompletionWhole:
    """One `text_completion`."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._choices = Choices()
        self._parts: dict[int, _Parts] = {}

    def add(self, body: Body) -> None:
        """Takes one body."""
        match body:
            case Text(index=index):
                self._at(index).text.append(body.text)
            case Logprobs(index=index):
                self._at(index).logprobs.append(parsed_json(body.json))
            case Output():
                self._at(0).text.append(self._choices.text_of(body))
            case Usage():
                self._choices.usage = body
            case _:
                pass

    def render(self, closing: Closing) -> bytes:
        """Returns the JSON of the answer."""
        choices = []
        for index in self._choices.all():
            parts = self._parts.get(index, _Parts())
            choices.append(
                {
                    "index": index,
                    "text": "".join(parts.text),
                    "logprobs": join_logprobs(parts.logprobs),
                    "finish_reason": self._choices.finish_reason(index, closing),
                }
            )
        return orjson.dumps(
            {
                "id": f"cmpl-{self._head.run_id}",
                "object": "text_completion",
                "created": self._head.created_s,
                "model": self._head.model,
                "choices": choices,
                "usage": openai_usage(closing.usage or self._choices.usage),
            }
        )

    def _at(self, index: int) -> _Parts:
        self._choices.seen.add(index)
        return self._parts.setdefault(index, _Parts())


class EmbeddingsWhole:
    """One list of embeddings."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._pieces: list[bytes] = []
        self._usage: Usage | None = None

    def add(self, body: Body) -> None:
        """Takes one body; a large answer comes in several pieces of JSON."""
        match body:
            case Embeddings(json=json):
                self._pieces.append(json)
            case Usage():
                self._usage = body
            case _:
                pass

    def render(self, closing: Closing) -> bytes:
        """Returns the JSON of the answer."""
        usage = closing.usage or self._usage
        vectors = self._vectors()
        return orjson.dumps(
            {
                "object": "list",
                "data": [
                    {
                        "object": "embedding",
                        "index": index,
                        "embedding": _as_base64(vector) if self._head.as_base64 else vector,
                    }
                    for index, vector in enumerate(vectors)
                ],
                "model": self._head.model,
                "usage": None
                if usage is None
                else {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens},
            }
        )

    def _vectors(self) -> list[list[float]]:
        try:
            vectors = orjson.loads(b"".join(self._pieces))
        except orjson.JSONDecodeError:
            vectors = None
        if not isinstance(vectors, list) or not all(_is_vector(vector) for vector in vectors):
            raise _no_vectors()
        return vectors


WHOLES: Final[Mapping[Operation, Callable[[AnswerHead], WholeRenderer]]] = {
    Operation.CHAT: ChatWhole,
    Operation.COMPLETION: CompletionWhole,
    Operation.EMBED: EmbeddingsWhole,
}


def join_logprobs(pieces: list[Any]) -> Any:
    """Returns the logprobs of a whole answer from those of its pieces: lists under the same key add up."""
    if len(pieces) <= 1:
        return pieces[0] if pieces else None
    joined: dict[str, Any] = {}
    for piece in pieces:
        for key, value in piece.items() if isinstance(piece, dict) else ():
            if isinstance(value, list):
                joined[key] = [*(joined.get(key) or []), *value]
            else:
                joined.setdefault(key, value)
    return joined


def _add_tool_piece(tools: dict[int, dict[str, Any]], call: ToolCall) -> None:
    tool = tools.setdefault(call.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    tool["id"] = tool["id"] or call.id
    tool["function"]["name"] = tool["function"]["name"] or call.name
    tool["function"]["arguments"] += call.arguments


def _is_vector(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) in (int, float) for number in value)


def _as_base64(vector: list[float]) -> str:
    """Returns the vector as OpenAI's clients ask for it: little-endian float32 in base64."""
    try:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    except OverflowError:
        raise _no_vectors() from None


def _no_vectors() -> RunFailed:
    return RunFailed(
        "the adapter did not give a JSON list of vectors of numbers as its embeddings",
        code="engine_bad_response",
        layer=Layer.SERVING,
    )
