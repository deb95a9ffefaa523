"""One streamed chat or text completion in progress: an engine's events in, bodies of a run out. Pure.

Three renderings, one way of watching. `EngineJsonStream` passes the engine's JSON on (the model's name
replaced), `TypedStream` takes it apart, `openai_whole.WholeStream` joins it into the one answer of a plain
request. All note usage, finish reasons and errors, and judge alike whether the stream is complete: `[DONE]` is
no proof of that, because a dying vLLM sends an error event and then a normal `[DONE]`, and a dying llama.cpp
server just stops.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from iop_node.adapters.openai_errors import EngineAt, bad_response, error_event, stream_truncated
from iop_node.adapters.openai_json import ModelName, dump_json, parse_json, usage_of
from iop_shared.errors import RunFailed
from iop_shared.runtime_events import Body, EngineJson, Logprobs, Reasoning, Text, ToolCall, Usage

REASONING_KEYS: Final = ("reasoning", "reasoning_content")
"""How engines spell the model's thinking: vLLM the first, llama.cpp and others the second."""
_BROKEN_OFF: Final = frozenset({"abort", "error"})
"""Finish reasons of a choice that the engine gave up."""

Event = dict[str, Any]
Choices = list[dict[str, Any]]


class CompletionStream(ABC):
    """What every rendering shares. Give `take` the events of each read, look at `failure`, and `end` it once."""

    def __init__(self, engine: EngineAt, *, choices: int = 1) -> None:
        self._engine = engine
        self._choices_asked = choices
        self.failure: RunFailed | None = None
        self._usage: Usage | None = None
        self._told_usage: Usage | None = None
        self._finish_reasons: dict[int, str] = {}
        self._unfinished: set[int] = set()
        self._events = 0

    @property
    def finish_reason(self) -> str:
        """The engine's word for its first choice; "" if there is none yet."""
        return self._finish_reasons[min(self._finish_reasons)] if self._finish_reasons else ""

    @property
    @abstractmethod
    def has_output(self) -> bool:
        """Whether any output was given to the run."""

    def take(self, payloads: Sequence[bytes]) -> list[Body]:
        """Returns what the events of one read say, joined where that loses nothing.

        If one of them is an error, or no JSON object, `failure` is set (`engine_error_mid_stream`,
        `engine_bad_response` ...); what stood before it is in the result, what follows it is not looked at.
        """
        for payload in payloads:
            event = parse_json(payload)
            if type(event) is not dict:
                self.failure = self._not_json(payload)
                break
            if event.get("error"):
                self.failure = self._error(event, payload)
                break
            choices = event.get("choices") or []
            try:
                for choice in choices:
                    index = choice.get("index") or 0
                    if type(index) is not int:
                        raise TypeError("index")
                    reason = choice.get("finish_reason")
                    if reason:
                        self._finish_reasons[index] = str(reason)
                        self._unfinished.discard(index)
                    elif index not in self._finish_reasons:
                        self._unfinished.add(index)
                usage = event.get("usage")
                if usage:
                    self._usage = usage_of(usage)
                self._add(payload, event, choices)
                if self.failure is not None:
                    break
            except (AttributeError, TypeError, KeyError, ValueError):  # valid JSON of another shape
                self.failure = self._not_json(payload)
                break
            self._events += 1
        bodies = self._flush()
        if not self._unfinished and self._finish_reasons:
            # Engines that report at every token (continuous_usage_stats) are believed at the end only.
            bodies += self.untold_usage()
        return bodies

    def end(self, *, done: bool, cut: bool) -> list[Body]:
        """Judges the stream when it is over and returns what is left to say.

        `done`: `[DONE]` came. `cut`: the transport broke, instead of ending the body.

        Raises:
            RunFailed: `engine_stream_truncated`, `engine_error_mid_stream` or `engine_bad_response`.
        """
        for index, reason in sorted(self._finish_reasons.items()):
            if reason in _BROKEN_OFF:
                event = {"error": {"message": f"choice {index} ended with finish_reason {reason!r}"}}
                raise self._error(event, b"")
        enough = 1 if done else self._choices_asked  # one that never began can be missed without [DONE] only
        if not self._unfinished and len(self._finish_reasons) >= enough:
            return self._ending()
        if self._events == 0 and done:
            raise bad_response(self._engine, "sent [DONE] and nothing else")
        if self._events == 0:
            what = "broke the connection" if cut else "ended its answer"
            raise stream_truncated(self._engine, f"{what} before the first event", has_output=False)
        if done:
            what = f"sent [DONE] after {self._events} events, but no finish_reason for {self._missing()}"
        elif cut:
            what = f"broke the connection after {self._events} events, in the middle of its answer"
        else:
            what = f"ended its stream after {self._events} events without [DONE] and a finish_reason"
        raise stream_truncated(self._engine, what, has_output=self.has_output)

    def untold_usage(self) -> list[Body]:
        """Returns the last usage if the run has not been told of it: for runs that end early."""
        usage = self._usage
        if usage is None or usage == self._told_usage:
            return []
        self._told_usage = usage
        return [usage]

    def _missing(self) -> str:
        if not self._unfinished:
            return "any choice"
        return "choice " + ", ".join(str(index) for index in sorted(self._unfinished))

    def _error(self, event: Event, payload: bytes) -> RunFailed:
        has_output = self.has_output or self._holds_output()
        return error_event(self._engine, payload, event, events_before=self._events, has_output=has_output)

    def _not_json(self, payload: bytes) -> RunFailed:
        return bad_response(
            self._engine,
            f"sent an event that is no completion chunk (event {self._events + 1}, {len(payload)} bytes)",
            body=payload,
        )

    @abstractmethod
    def _add(self, payload: bytes, event: Event, choices: Choices) -> None:
        """Takes one good event up. May set `failure`, or raise what indexing into JSON of a wrong shape raises."""

    @abstractmethod
    def _holds_output(self) -> bool:
        """Whether output has been taken up that `_flush` will return."""

    @abstractmethod
    def _flush(self) -> list[Body]:
        """Returns what has been taken up since the last call."""

    def _ending(self) -> list[Body]:
        return []


class EngineJsonStream(CompletionStream):
    """Passes events on as they are, under the requested model's name. One body for all events of a read.

    The extra usage event, which we always ask for, is kept from a client that did not ask for it (with what else
    stands in it: llama.cpp moves `timings` there).
    """

    def __init__(self, engine: EngineAt, requested_model: str, *, wants_usage: bool, choices: int = 1) -> None:
        super().__init__(engine, choices=choices)
        self._model = ModelName(requested_model)
        self._wants_usage = wants_usage
        self._chunks: list[bytes] = []
        self._has_output = False

    @property
    def has_output(self) -> bool:
        """Whether any event was passed on."""
        return self._has_output

    def _add(self, payload: bytes, event: Event, choices: Choices) -> None:
        if not choices and not self._wants_usage and event.get("usage"):
            return
        self._chunks.append(self._model.put_into(payload, event))

    def _holds_output(self) -> bool:
        return bool(self._chunks)

    def _flush(self) -> list[Body]:
        if not self._chunks:
            return []
        chunks, self._chunks = self._chunks, []
        self._has_output = True
        return [EngineJson(tuple(chunks))]


class TypedStream(CompletionStream):
    """Takes events apart into Text, Reasoning, ToolCall and Logprobs. Neighbouring texts of a read are joined."""

    def __init__(self, engine: EngineAt, *, choices: int = 1) -> None:
        super().__init__(engine, choices=choices)
        self._bodies: list[Body] = []
        self._run_of: type[Text] | type[Reasoning] = Text
        self._run_index = 0
        self._run: list[str] = []
        self._calls = ToolCallIndex()
        self._has_output = False

    @property
    def has_output(self) -> bool:
        """Whether any text, thinking, tool call or logprob was passed on."""
        return self._has_output

    def _add(self, payload: bytes, event: Event, choices: Choices) -> None:
        for choice in choices:
            index = choice.get("index") or 0
            delta = choice.get("delta")
            if delta is None:  # a text completion
                self._add_text(Text, index, choice.get("text"))
            else:
                for key in REASONING_KEYS:
                    if delta.get(key):
                        self._add_text(Reasoning, index, delta[key])
                        break  # an engine that renames the field sends both for a while
                self._add_text(Text, index, delta.get("content"))
                self._add_text(Text, index, delta.get("refusal"))
                for call in delta.get("tool_calls") or ():
                    self._add_call(index, call)
            logprobs = choice.get("logprobs")
            if logprobs:
                self._close_run()
                self._bodies.append(Logprobs(dump_json(logprobs), index))

    def _add_text(self, kind: type[Text] | type[Reasoning], index: int, text: str | None) -> None:
        if not text:
            return
        if type(text) is not str:
            raise TypeError("text")
        if kind is not self._run_of or index != self._run_index:
            self._close_run()
            self._run_of, self._run_index = kind, index
        self._run.append(text)

    def _add_call(self, choice: int, call: dict[str, Any]) -> None:
        self._close_run()
        function = call.get("function") or {}
        piece = ToolCall(
            self._calls.place_of(choice, call),
            id=str(call.get("id") or ""),
            name=str(function.get("name") or ""),
            arguments=arguments_text(function.get("arguments")),
            choice=choice,
        )
        last = self._bodies[-1] if self._bodies else None
        same = isinstance(last, ToolCall) and (last.index, last.choice) == (piece.index, piece.choice)
        if isinstance(last, ToolCall) and same and not piece.id and not piece.name:
            self._bodies[-1] = replace(last, arguments=last.arguments + piece.arguments)
        else:
            self._bodies.append(piece)

    def _close_run(self) -> None:
        if self._run:
            text = "".join(self._run)
            self._run.clear()
            self._bodies.append(self._run_of(text, self._run_index))

    def _holds_output(self) -> bool:
        return bool(self._bodies or self._run)

    def _flush(self) -> list[Body]:
        self._close_run()
        bodies, self._bodies = self._bodies, []
        self._has_output = self._has_output or bool(bodies)
        return bodies


class ToolCallIndex:
    """Which tool call a piece belongs to. Engines that send calls whole may leave `index` out."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, str]] = {}

    def place_of(self, choice: int, call: dict[str, Any]) -> int:
        """Returns the position of `call` among the calls of `choice`, from 0."""
        last, last_id = self._last.get(choice, (-1, ""))
        id_ = call.get("id") or ""
        place = call.get("index")
        if place is None:
            place = last + 1 if last < 0 or (id_ and id_ != last_id) else last
        self._last[choice] = (place, id_ or last_id)
        return int(place)


def arguments_text(arguments: object) -> str:
    """Returns a tool call's arguments as the JSON text that they should be; some engines send an object."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else dump_json(arguments).decode()
