"""The `mock` adapter: an engine made of a script. Part of the product: it needs no GPU and no engine.

The same request, script and seed give the same bodies. It sends typed bodies only, whatever the client asked
(`engine_json`); the edge renders them.
"""

import asyncio
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from iop_node.adapters.mock_script import (
    TARGETS,
    MockSettings,
    Script,
    ScriptedUsage,
    read_body,
    read_script,
    read_settings,
)
from iop_node.core.ports import EventSink, ProbeResult
from iop_node.core.spec import Capabilities, Completion, ExecutionSpec
from iop_shared.errors import Layer, RunFailed
from iop_shared.ids import AdapterName, TargetName
from iop_shared.link.messages import Gate
from iop_shared.runs import Operation
from iop_shared.runtime_events import Embeddings, Logprobs, Notice, Reasoning, Text, ToolCall, Usage

_TEXT_OPERATIONS: Final = (Operation.CHAT, Operation.COMPLETION, Operation.GENERATE)
_DEFAULT_TOKENS: Final = 20
_ARGUMENT_CHARS: Final = 8
"""How much of a tool call's arguments comes in one piece."""
_LOREM: Final = ("lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed", "do")
# A word with the white space before it; joined, the tokens are the text.
_TOKEN: Final = re.compile(r"\s*\S+|\s+$")


def build(name: AdapterName, max_concurrent: int, settings: dict[str, Any]) -> "MockAdapter":
    """Returns the adapter.

    Raises:
        InvalidConfig: every problem of `settings` in a sentence.
    """
    return MockAdapter(name, read_settings(name, settings))


class MockAdapter:
    """A scripted engine. Any number of runs at once; it holds nothing between them."""

    type: Final = "mock"
    capabilities: Final = Capabilities(operations=(*_TEXT_OPERATIONS, Operation.EMBED))

    def __init__(self, name: AdapterName, settings: MockSettings) -> None:
        self._name, self._settings = name, settings

    @property
    def name(self) -> AdapterName:
        """The configured name."""
        return self._name

    async def probe(self) -> ProbeResult:
        """Returns the targets and the gate that the settings say."""
        gate = Gate(self._settings.gate_state, "mock_script" if self._settings.gate_reason else "")
        if self._settings.gate_reason:
            gate = Gate(gate.state, gate.check, self._settings.gate_reason)
        return ProbeResult(gate, tuple(TargetName(target) for target in TARGETS), "mock")

    async def aclose(self) -> None:
        """Nothing to let go of."""

    async def execute(self, spec: ExecutionSpec, sink: EventSink) -> Completion:
        """Plays the run's script.

        Raises:
            RunFailed: as scripted (`mock_failure`); a timeout of the run while the script hangs; a request or
                script that makes no sense (`engine_rejected`, `target_not_found`, `operation_unsupported`).
        """
        body = read_body(spec)
        script = read_script(spec, body, self._settings)
        if (spec.operation is Operation.EMBED) != (spec.target == "embed"):
            raise RunFailed(
                f"target {spec.target!r} of the mock does not support operation {spec.operation.value!r}; "
                "embed goes with the target 'embed', every other operation with the others",
                code="operation_unsupported",
                layer=Layer.TARGET,
            )
        play = _Play(spec, script, sink)
        try:
            if spec.operation is Operation.EMBED:
                return await play.embed(_texts_to_embed(body))
            return await play.speak(_prompt_of(spec.operation, body), _max_tokens_of(body))
        except asyncio.CancelledError:
            if script.cancel_delay_s:
                await asyncio.sleep(script.cancel_delay_s)
            if script.confirm_cancel:
                sink.confirm_cancel()
            raise


class _Play:
    """One performance of a script."""

    def __init__(self, spec: ExecutionSpec, script: Script, sink: EventSink) -> None:
        self._spec, self._script, self._sink = spec, script, sink
        self._random = random.Random(f"{script.seed}")
        self._loop = asyncio.get_running_loop()
        self._said = 0
        self._next_at = self._loop.time()
        self._has_ignored = False
        self._ignore_until = self._next_at + script.ignore_cancel_s if script.ignore_cancel else 0.0

    async def speak(self, prompt: str, max_tokens: int | None) -> Completion:
        """Says the text, token by token."""
        script, sink = self._script, self._sink
        tokens = self._tokens_of(prompt)
        clipped = max_tokens is not None and len(tokens) > max_tokens
        if clipped:
            tokens = tokens[:max_tokens]
        if script.notice:
            sink.emit(Notice("mock_notice", script.notice))
        await self._pause(script.first_delay_s or 0.0)
        if script.reasoning:
            for piece in _TOKEN.findall(script.reasoning):
                await self._step()
                sink.emit(Reasoning(piece))
        for token in tokens:
            await self._step()
            sink.emit(Text(token))
            if script.logprobs:
                sink.emit(Logprobs(orjson.dumps([{"token": token, "logprob": -0.5}])))
            self._said += 1
        await self._reach_marks()
        if script.tool_call is not None:
            for call in self._tool_call_pieces():
                await self._step(marks=False)
                sink.emit(call)
        self._tell_usage(_count(prompt), len(tokens))
        reason = "tool_calls" if script.tool_call is not None else "length" if clipped else "stop"
        return Completion(script.finish_reason if script.finish_reason is not None else reason)

    async def embed(self, texts: Sequence[str]) -> Completion:
        """Gives each text a vector that depends on nothing but the text and the seed."""
        await self._pause(self._script.first_delay_s or 0.0)
        await self._step()
        vectors = [_vector_of(text, self._script.dimensions, self._script.seed or 0) for text in texts]
        self._sink.emit(Embeddings(orjson.dumps(vectors)))
        self._tell_usage(sum(map(_count, texts)), None)
        return Completion()

    def _tokens_of(self, prompt: str) -> list[str]:
        script, target = self._script, self._spec.target
        if script.text is not None or target == "echo":
            tokens = _TOKEN.findall(script.text if script.text is not None else prompt)
            if script.tokens is not None:
                tokens = [tokens[n % len(tokens)] for n in range(script.tokens)] if tokens else []
        else:
            count = script.tokens if script.tokens is not None else _DEFAULT_TOKENS
            words = (self._random.choice(_LOREM) if target == "lorem" else f"t{n}" for n in range(count))
            tokens = [word if n == 0 else f" {word}" for n, word in enumerate(words)]
        if script.token_bytes:
            tokens = [token.ljust(script.token_bytes, ".") for token in tokens]
        return tokens

    def _tool_call_pieces(self) -> Iterator[ToolCall]:
        call = self._script.tool_call
        assert call is not None, "asked only where the script has one"
        yield ToolCall(0, id=call.id, name=call.name)
        for at in range(0, len(call.arguments), _ARGUMENT_CHARS):
            yield ToolCall(0, arguments=call.arguments[at : at + _ARGUMENT_CHARS])

    async def _step(self, *, marks: bool = True) -> None:
        """What comes before each piece: the marks of the script, back-pressure, the pace."""
        if marks:
            await self._reach_marks()
        if self._script.wait_ready:
            await self._sink.wait_ready()
        delay_s = self._script.delay_s or 0.0
        if self._script.jitter_s:
            delay_s += self._random.uniform(0, self._script.jitter_s)
        await self._pause(delay_s)

    async def _reach_marks(self) -> None:
        script, said = self._script, self._said
        if script.crash_at == said:
            raise ZeroDivisionError("the script of this run says that the adapter has a bug here")
        if script.fail_at == said:
            raise RunFailed(
                script.fail_message,
                code=script.fail_code,
                layer=Layer(script.fail_layer),
                retryable=script.fail_retryable,
                engine_status=script.fail_status,
            )
        if script.hang_at == said:
            await self._hang()

    async def _hang(self) -> None:
        limits = self._spec.limits
        limit_s, what = limits.idle_timeout_s, "idle"
        if self._said == 0:
            limit_s, what = limits.first_byte_timeout_s, "first_byte"
        await self._pause(limit_s or float("inf"))
        raise RunFailed(
            f"the mock said nothing for {limit_s:g} s ({what}_timeout_s)",
            code=f"engine_timeout_{what}",
            layer=Layer.SERVING,
        )

    async def _pause(self, seconds: float) -> None:
        """Waits on an absolute schedule, so that the pace holds whatever a step costs."""
        self._next_at = max(self._next_at, self._loop.time() - 1.0) + seconds
        while True:
            # Nothing to wait for still gives other runs their turn. A far end is looked at again each hour.
            left_s = min(max(0.0, self._next_at - self._loop.time()), 3600.0)
            try:
                await asyncio.sleep(left_s)
            except asyncio.CancelledError:
                if self._loop.time() >= self._ignore_until:
                    raise
                # As scripted: an engine that cannot be stopped. An endless wait ends with the patience.
                self._has_ignored = True
                self._next_at = min(self._next_at, self._ignore_until)
                continue
            if self._has_ignored and self._loop.time() >= self._ignore_until:
                raise asyncio.CancelledError
            if self._loop.time() >= self._next_at - 0.000_1:
                return

    def _tell_usage(self, prompt_tokens: int, completion_tokens: int | None) -> None:
        usage = self._script.usage
        if isinstance(usage, ScriptedUsage):
            self._sink.emit(Usage(**usage.model_dump()))
        elif usage:
            self._sink.emit(Usage(prompt_tokens, completion_tokens))


def _prompt_of(operation: Operation, body: dict[str, Any]) -> str:
    if operation is Operation.CHAT:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
            raise _bad_body("chat needs messages: a list of objects with role and content")
        return _text_of(messages[-1].get("content"))
    prompt = body.get("prompt", "")
    if isinstance(prompt, list) and prompt:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise _bad_body(f"prompt is a {type(prompt).__name__}; the mock takes text")
    return prompt


def _text_of(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text", "") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(part for part in parts if isinstance(part, str))
    raise _bad_body(f"content is a {type(content).__name__}; use text or a list of parts")


def _texts_to_embed(body: dict[str, Any]) -> list[str]:
    texts = body.get("input")
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return texts
    raise _bad_body("embed needs input: a text or a list of texts")


def _max_tokens_of(body: dict[str, Any]) -> int | None:
    for key in ("max_completion_tokens", "max_tokens"):
        value = body.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _bad_body(f"{key} is {value!r:.40}; use a whole number from 1")
        return value
    return None


def _bad_body(message: str) -> RunFailed:
    return RunFailed(message, code="engine_rejected", layer=Layer.TARGET, engine_status=400)


def _count(text: str) -> int:
    return len(_TOKEN.findall(text))


def _vector_of(text: str, dimensions: int, seed: int) -> list[float]:
    digest = hashlib.shake_256(f"{seed}\0{text}".encode()).digest(2 * dimensions)
    values = [int.from_bytes(digest[at : at + 2], "big") / 32767.5 - 1.0 for at in range(0, 2 * dimensions, 2)]
    length = sum(value * value for value in values) ** 0.5 or 1.0
    return [round(value / length, 6) for value in values]
