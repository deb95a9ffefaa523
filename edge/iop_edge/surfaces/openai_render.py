"""Typed bodies as the chunks of an OpenAI stream, for adapters that speak no OpenAI themselves. Pure.

What OpenAI's API has no place for (steps, artifacts, notices, stderr; reasoning and tool calls in
/v1/completions) is left out: it stands in the run's events. An engine's own JSON never comes here.
"""

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from iop_edge.surfaces.event_json import parsed_json
from iop_shared.ids import RunId
from iop_shared.runs import Operation
from iop_shared.runtime_events import (
    Body,
    Closing,
    Logprobs,
    Output,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every object of one answer says. `created_s`: seconds since 1970."""

    run_id: RunId
    model: str
    created_s: int
    include_usage: bool = False
    as_base64: bool = False


class StreamRenderer(Protocol):
    """Renders the bodies of one streamed run."""

    def render(self, body: Body) -> bytes:
        """Returns the JSON of one chunk, or b"" if the body has no place in the stream."""

    def render_end(self, closing: Closing) -> list[bytes]:
        """Returns the chunks that end a complete answer: finish reasons, and usage if it was asked for."""


class Choices:
    """What both shapes need to know of the choices: which there are, and who called tools."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.with_tools: set[int] = set()
        self.usage: Usage | None = None
        self._stdout = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def text_of(self, body: Body) -> str:
        """Returns the text that a body adds to an answer; of a command's output, stdout only."""
        match body:
            case Text(text=text):
                return text
            case Output(stream="stdout", data=data):
                return self._stdout.decode(data)
            case _:
                return ""

    def finish_reason(self, index: int, closing: Closing) -> str:
        """Returns the adapter's word, or what it must have been."""
        return closing.finish_reason or ("tool_calls" if index in self.with_tools else "stop")

    def all(self) -> list[int]:
        """Returns every choice in order; an answer without output has one, which is empty."""
        return sorted(self.seen or {0})


class ChatStream:
    """Chunks of `chat.completion.chunk`."""

    def __init__(self, head: AnswerHead) -> None:
        self._choices = Choices()
        self._include_usage = head.include_usage
        self._start = _chunk_start(f"chatcmpl-{head.run_id}", "chat.completion.chunk", head)
        # By OpenAI's rule every chunk says "usage": null when the last one is going to say more.
        self._end = b"}]" + (b',"usage":null}' if head.include_usage else b"}")

    def render(self, body: Body) -> bytes:
        """Returns the JSON of one chunk, or b""."""
        match body:
            case Text(text=text, index=index):
                return self._chunk(index, b'"content":' + orjson.dumps(text))
            case Reasoning(text=text, index=index):
                return self._chunk(index, b'"reasoning_content":' + orjson.dumps(text))
            case ToolCall():
                self._choices.with_tools.add(body.choice)
                return self._chunk(body.choice, b'"tool_calls":[' + orjson.dumps(_tool_piece(body)) + b"]")
            case Logprobs(index=index):
                return self._chunk(index, b'"content":""', _compact_json(body.json))
            case Output():
                text = self._choices.text_of(body)
                return self._chunk(0, b'"content":' + orjson.dumps(text)) if text else b""
            case Usage():
                self._choices.usage = body
                return b""
            case _:
                return b""

    def render_end(self, closing: Closing) -> list[bytes]:
        """Returns the finish of each choice, then usage if it was asked for and is known."""
        chunks = [
            self._chunk(index, b"", finish=orjson.dumps(self._choices.finish_reason(index, closing)))
            for index in self._choices.all()
        ]
        usage = openai_usage(closing.usage or self._choices.usage)
        if self._include_usage and usage is not None:
            chunks.append(self._start + b'],"usage":' + orjson.dumps(usage) + b"}")
        return chunks

    def _chunk(self, index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        if index not in self._choices.seen:
            self._choices.seen.add(index)
            delta = b'"role":"assistant"' + (b"," + delta if delta else b"")
        return (
            b'%b{"index":%d,"delta":{%b},"logprobs":%b,"finish_reason":%b%b'  # a template is the fastest way
            % (self._start, index, delta, logprobs, finish, self._end)
        )


class CompletionStream:
    """Chunks of `text_completion`."""

    def __init__(self, head: AnswerHead) -> None:
        self._choices = Choices()
        self._include_usage = head.include_usage
        self._start = _chunk_start(f"cmpl-{head.run_id}", "text_completion", head)
        self._end = b"}]" + (b',"usage":null}' if head.include_usage else b"}")

    def render(self, body: Body) -> bytes:
        """Returns the JSON of one chunk, or b""."""
        match body:
            case Text(text=text, index=index):
                return self._chunk(index, text)
            case Logprobs(index=index):
                return self._chunk(index, "", _compact_json(body.json))
            case Output():
                text = self._choices.text_of(body)
                return self._chunk(0, text) if text else b""
            case Usage():
                self._choices.usage = body
                return b""
            case _:
                return b""

    def render_end(self, closing: Closing) -> list[bytes]:
        """Returns the finish of each choice, then usage if it was asked for and is known."""
        chunks = [
            self._chunk(index, "", finish=orjson.dumps(self._choices.finish_reason(index, closing)))
            for index in self._choices.all()
        ]
        usage = openai_usage(closing.usage or self._choices.usage)
        if self._include_usage and usage is not None:
            chunks.append(self._start + b'],"usage":' + orjson.dumps(usage) + b"}")
        return chunks

    def _chunk(self, index: int, text: str, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        self._choices.seen.add(index)
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b%b' % (
            self._start,
            index,
            orjson.dumps(text),
            logprobs,
            finish,
            self._end,
        )


STREAMS: Final[Mapping[Operation, Callable[[AnswerHead], StreamRenderer]]] = {
    Operation.CHAT: ChatStream,
    Operation.COMPLETION: CompletionStream,
}


def openai_usage(usage: Usage | None) -> dict[str, Any] | None:
    """Returns usage as OpenAI has it: null where the engine did not say, None if it said nothing at all."""
    if usage is None or (usage.prompt_tokens is None and usage.completion_tokens is None):
        return None
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    value: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": None if prompt is None or completion is None else prompt + completion,
    }
    if usage.cached_tokens is not None:
        value["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens is not None:
        value["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return value


def _chunk_start(answer_id: str, kind: str, head: AnswerHead) -> bytes:
    fields = {"id": answer_id, "object": kind, "created": head.created_s, "model": head.model}
    return orjson.dumps(fields)[:-1] + b',"choices":['


def _compact_json(json: bytes) -> bytes:
    return orjson.dumps(parsed_json(json))


def _tool_piece(call: ToolCall) -> dict[str, Any]:
    function: dict[str, Any] = {"name": call.name} if call.name else {}
    function["arguments"] = call.arguments
    piece: dict[str, Any] = {"index": call.index, "function": function}
    if call.id or call.name:  # the first piece
        piece.update({"id": call.id, "type": "function"})
    return piece
