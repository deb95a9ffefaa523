"""What a run says, event by event, as people read it."""

import base64
import json
from collections.abc import Sequence
from typing import Any, Final

from iop_shared.client.records import RunEvent
from iop_shared.client.render import AnswerWriter, one_line, printable, size

_COUNTS: Final = (
    ("prompt_tokens", "prompt"),
    ("completion_tokens", "answer"),
    ("cached_tokens", "cached"),
    ("reasoning_tokens", "reasoning"),
)


class AnswerPrinter:
    """Prints the events of one run. The first choice is printed as it comes, others after it.

    `at_once` False: nothing of the answer before `close`.
    """

    def __init__(self, writer: AnswerWriter, *, at_once: bool = True) -> None:
        self._writer = writer
        self._at_once = at_once
        self._kept: list[str] = []
        self._kept_reasoning: list[str] = []
        self._choices: dict[int, list[str]] = {}
        self._tool_calls: dict[tuple[int, int], list[str]] = {}
        self._closed = False

    def show(self, event: RunEvent) -> None:
        """Prints one event; terminal ones are the caller's."""
        match event.type:
            case "text":
                self._answer(event.text("text"), event.number("index"))
            case "reasoning":
                self._reasoning(event.text("text"), event.number("index"))
            case "tool_call":
                call = self._tool_calls.setdefault((event.number("choice"), event.number("index")), ["", ""])
                call[0] += event.text("name")
                call[1] += event.text("arguments")
            case "output":
                self._output(event)
            case "embeddings":
                self._answer(_embeddings_of(event.json.get("json")), 0)
            case "engine_json":
                for chunk in event.json.get("chunks", []):
                    self._answer(json.dumps(chunk, ensure_ascii=False) + "\n", 0)
            case "step":
                self._writer.line(f"step {event.text('kind')}", style="dim")
            case "artifact":
                data = _bytes_of(event.json)
                self._writer.line(f"file {one_line(event.text('name'))} ({size(len(data))})", style="dim")
            case "notice":
                self._writer.line(f"note: {event.text('message')} ({event.text('code')})", style="yellow")
            case "gap":
                self._writer.line(
                    f"{event.number('events')} events ({size(event.number('bytes'))}) are missing here: "
                    f"{event.text('reason')}",
                    style="yellow",
                )
            case _:
                pass  # started, usage and logprobs are in the record or for --json

    def close(self) -> None:
        """Prints what was kept back and ends the last line. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._writer.reasoning("".join(self._kept_reasoning))
        self._writer.text("".join(self._kept))
        for choice, pieces in sorted(self._choices.items()):
            self._writer.end_line()
            self._writer.text(f"\n--- choice {choice} ---\n" + "".join(pieces))
        for (_, _), (name, arguments) in sorted(self._tool_calls.items()):
            self._writer.end_line()
            self._writer.text(f"tool call: {name}({arguments})\n")
        self._writer.close()

    def _answer(self, piece: str, choice: int) -> None:
        if choice:
            self._choices.setdefault(choice, []).append(piece)
        elif self._at_once:
            self._writer.text(piece)
        else:
            self._kept.append(piece)

    def _reasoning(self, piece: str, choice: int) -> None:
        if choice:
            return  # thoughts on other choices are in --json; among the answer they would be mistaken for it
        if self._at_once:
            self._writer.reasoning(piece)
        else:
            self._kept_reasoning.append(piece)

    def _output(self, event: RunEvent) -> None:
        text = _bytes_of(event.json).decode(errors="replace")
        if event.text("stream") == "stderr":
            self._writer.line(text.rstrip("\n"), style="dim")
        else:
            self._answer(text, 0)


def event_summary(event: RunEvent) -> str:
    """Returns what one event says in a phrase, for `iop show`."""
    value = event.json
    match event.type:
        case "started":
            engine = f" ({value['engine']})" if value.get("engine") else ""
            return f"{event.text('adapter')}/{event.text('target')} on {event.text('node_id')}{engine}"
        case "text" | "reasoning":
            return json.dumps(event.text("text"), ensure_ascii=False)
        case "tool_call":
            return f"{event.text('name')} {event.text('arguments')}".strip()
        case "output":
            return f"{event.text('stream')}: {size(len(_bytes_of(value)))}"
        case "usage":
            return ", ".join(f"{name} {count}" for name, count in _counts(value))
        case "engine_json":
            chunks = value.get("chunks", [])
            text = "".join(_text_of(chunk) for chunk in chunks)
            pieces = f"{len(chunks)} pieces" if len(chunks) != 1 else "1 piece"
            return f"{pieces}: {json.dumps(text, ensure_ascii=False)}" if text else pieces
        case "step" | "logprobs" | "embeddings":
            return f"{event.text('kind')} {size(len(json.dumps(value)))} of JSON".strip()
        case "artifact":
            return f"{event.text('name')} {size(len(_bytes_of(value)))}"
        case "notice":
            return f"{event.text('code')}: {event.text('message')}"
        case "gap":
            return (
                f"{event.number('events')} events, {size(event.number('bytes'))} missing: {event.text('reason')}"
            )
        case "failed":
            return f"{event.text('code')} (layer {event.text('layer')}): {event.text('message')}"
        case "cancelled":
            how = "confirmed by the engine" if value.get("confirmed") is True else "not confirmed by the engine"
            return f"{event.text('reason')}, in {event.number('took_ms')} ms, {how}"
        case "interrupted":
            return f"{event.text('code')}: {event.text('message')}"
        case "succeeded":
            closing = value.get("closing")
            return str(closing.get("finish_reason", "")) if isinstance(closing, dict) else ""
        case _:
            return printable(json.dumps(dict(value), ensure_ascii=False))


def _counts(value: Any) -> list[tuple[str, int]]:
    return [(word, value[name]) for name, word in _COUNTS if isinstance(value.get(name), int)]


def joined(events: Sequence[RunEvent]) -> list[RunEvent]:
    """Returns the events with neighbouring pieces of an answer made one: 100 tokens are not 100 lines."""
    found: list[RunEvent] = []
    for event in events:
        before = found[-1] if found else None
        merged = None if before is None else _merged(before, event)
        if before is None or merged is None:
            found.append(event)
        else:
            # The time of the first, the number of the last.
            head = (before.type, event.seq, before.attempt, before.run_id, before.at_ms)
            found[-1] = RunEvent(*head, merged)
    return found


def _merged(before: RunEvent, event: RunEvent) -> dict[str, Any] | None:
    if event.type != before.type or event.attempt != before.attempt:
        return None
    if event.type in {"text", "reasoning"} and event.number("index") == before.number("index"):
        return {**before.json, "text": before.text("text") + event.text("text")}
    if event.type == "engine_json":
        return {**before.json, "chunks": [*before.json.get("chunks", []), *event.json.get("chunks", [])]}
    return None


def _text_of(chunk: Any) -> str:
    """Returns what an engine's own JSON says in its first choice, be it a delta, a message or a completion."""
    try:
        choice = chunk["choices"][0]
        said = choice.get("delta") or choice.get("message") or {}
        text = said.get("content") or choice.get("text")
    except (KeyError, IndexError, TypeError, AttributeError):
        return ""  # the engine's usage, or a part of a large answer
    return text if isinstance(text, str) else ""


def _embeddings_of(value: Any) -> str:
    """A large answer comes in parts that are no JSON each; joined as they are, they are."""
    if isinstance(value, dict) and "encoding" in value:
        return _bytes_of(value).decode(errors="replace")
    return json.dumps(value, ensure_ascii=False)


def _bytes_of(value: Any) -> bytes:
    data = value.get("data")
    if not isinstance(data, str):
        return b""
    return base64.b64decode(data) if value.get("encoding") == "base64" else data.encode()
