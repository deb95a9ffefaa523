"""The adapters that the contract suite runs over. A new adapter: write a Subject and add it to SUBJECTS.

A subject knows how to make its engine behave in a certain way for the next run.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tests.support.engine import (
    DONE,
    MODEL,
    Engine,
    Hang,
    Pause,
    Step,
    chat_events,
    chunk,
    event,
    paced,
    stream,
)

from iop_node.adapters.mock import build as build_mock
from iop_node.adapters.vllm import build as build_vllm
from iop_node.core.ports import Adapter
from iop_node.core.spec import ExecutionSpec
from iop_shared.ids import AdapterName, TargetName, new_run_id
from iop_shared.runs import Operation

WORD_INTERVAL_S: Final = 0.003
"""Enough for an engine's words to arrive one by one, so that they are not joined."""


@dataclass(frozen=True, slots=True)
class Says:
    """The engine says `text`, in more than one piece if it has several words, and ends well."""

    text: str


@dataclass(frozen=True, slots=True)
class SaysThenHangs:
    """The engine says `words` words, then nothing more. 0: it never says anything."""

    words: int


@dataclass(frozen=True, slots=True)
class SaysThenFails:
    """The engine says `words` words, then fails."""

    words: int


@dataclass(frozen=True, slots=True)
class SaysForever:
    """The engine says at least `megabytes`, in pieces of a few hundred bytes, as fast as it can."""

    megabytes: int


Behaviour = Says | SaysThenHangs | SaysThenFails | SaysForever


class Subject(Protocol):
    """One adapter with its engine. Used as an asynchronous context manager around a test."""

    can_ignore_cancel: bool

    async def __aenter__(self) -> Adapter:
        """Starts the engine, if there is one, and returns the adapter."""

    async def __aexit__(self, *exc: object) -> None:
        """Closes the adapter and stops the engine."""

    def chat(self, behaviour: Behaviour) -> ExecutionSpec:
        """Makes the engine behave so for one more run, and returns what to execute for it."""

    def break_engine(self) -> None:
        """From now on the engine cannot be reached."""


def chat_spec(target: str, **body: object) -> ExecutionSpec:
    """Returns a typed chat with the prompt "hello"."""
    content = json.dumps({"messages": [{"role": "user", "content": "hello"}], **body}).encode()
    return ExecutionSpec(new_run_id(), AdapterName("under-test"), TargetName(target), Operation.CHAT, content)


class MockSubject:
    """The mock adapter: the script travels in the request."""

    can_ignore_cancel = True

    async def __aenter__(self) -> Adapter:
        self._adapter = build_mock(AdapterName("under-test"), 8, {})
        return self._adapter

    async def __aexit__(self, *exc: object) -> None:
        await self._adapter.aclose()

    def chat(self, behaviour: Behaviour) -> ExecutionSpec:
        """See Subject."""
        match behaviour:
            case Says(text):
                script: dict[str, object] = {"text": text}
            case SaysThenHangs(words):
                script = {"tokens": words + 5, "hang_at": words}
            case SaysThenFails(words):
                script = {"tokens": words + 5, "fail_at": words}
            case SaysForever(megabytes):
                script = {"tokens": megabytes * 1024 * 4, "token_bytes": 256}
        return chat_spec("tokens", mock=script)

    def break_engine(self) -> None:
        """There is no engine to break."""


class VllmSubject:
    """The vllm adapter, with a scripted engine on a real socket."""

    can_ignore_cancel = False

    async def __aenter__(self) -> Adapter:
        self._engine = Engine()
        await self._engine.start()
        self._adapter = build_vllm(AdapterName("under-test"), 8, {"base_url": self._engine.base_url})
        return self._adapter

    async def __aexit__(self, *exc: object) -> None:
        await self._adapter.aclose()
        await self._engine.aclose()

    def chat(self, behaviour: Behaviour) -> ExecutionSpec:
        """See Subject."""
        match behaviour:
            case Says(text):
                answer = paced(chat_events(*re.findall(r"\S+\s*|\s+", text)), WORD_INTERVAL_S)
            case SaysThenHangs(words):
                answer = stream([*self._words(words), Hang()])
            case SaysThenFails(words):
                answer = stream([*self._words(words), event({"error": {"message": "broken", "code": 500}}), DONE])
            case SaysForever(megabytes):
                piece = chunk({"content": "x" * 256})
                answer = stream([piece] * (megabytes * 1024 * 4) + chat_events("end"))
        self._engine.script(answer)
        return chat_spec(MODEL)

    def break_engine(self) -> None:
        """Nothing answers any more."""
        self._engine.close_now()

    @staticmethod
    def _words(words: int) -> list[Step]:
        return [step for n in range(words) for step in (chunk({"content": f"w{n} "}), Pause(WORD_INTERVAL_S))]


SUBJECTS: dict[str, Callable[[], Subject]] = {"mock": MockSubject, "vllm": VllmSubject}
