"""`iop chat`, piped and on a terminal."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.shared.client.conftest import Iop
from tests.support.scripted_edge import Answer, Asked, ScriptedEdge, answer_error, answer_json, chat_chunks

from iop_shared.client.chat import choose_model
from iop_shared.client.records import ModelRecord
from iop_shared.exit_codes import CommandFailed, ExitCode

PATH = "/v1/chat/completions"


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def model(name: str, *, profile: bool = False, nodes: tuple[str, ...] = ("gpu-1",)) -> ModelRecord:
    adapter, _, target = name.partition("/")
    return ModelRecord(name, adapter, target, nodes, profile, {})


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_each_line_is_asked_after_everything_said_before(
    iop: Iop, edge: ScriptedEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["four", "five"])

    def answer(asked: Asked) -> Answer:
        head = chunk(role="assistant", content=None)
        return chat_chunks(head, chunk(content=next(answers)), chunk("stop"), {"choices": [], "usage": {}})

    edge.on("POST", PATH, answer)
    pipe(monkeypatch, "two and two?\n\nand one more?\n")

    done = iop("chat", "--model", "small", "--system", "Be brief.")

    assert (done.code, done.out, done.err) == (0, "four\nfive\n", "")
    first, second = edge.bodies("POST", PATH)
    assert first["model"] == "small"
    assert first["stream"] is True
    assert second["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "two and two?"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "and one more?"},
    ]


def test_chat_as_json(iop: Iop, edge: ScriptedEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    edge.on(
        "POST",
        PATH,
        chat_chunks(chunk(reasoning_content="hm"), chunk(content="fo"), chunk("stop", content="ur"),
                    {"choices": [], "usage": {"prompt_tokens": 9}}),
    )  # fmt: skip
    pipe(monkeypatch, "two and two?\n")

    assert json.loads(iop("chat", "--model", "m", "--json").out) == {
        "model": "m",
        "message": {"role": "assistant", "content": "four"},
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 9},
    }


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (answer_error(404, "model_not_found", "unknown model 'm': did you mean 'n'?"),
         "failed: unknown model 'm': did you mean 'n'? (model_not_found)\n"),
        (chat_chunks(chunk(content="par"), {"error": {"message": "the engine is gone", "code": "engine_error"}},
                     done=False),
         "failed: the engine is gone (engine_error)\n"),
    ],
)  # fmt: skip
def test_a_failed_answer_ends_a_script(
    iop: Iop, edge: ScriptedEdge, monkeypatch: pytest.MonkeyPatch, answer: Answer, message: str
) -> None:
    edge.on("POST", PATH, answer)
    pipe(monkeypatch, "one\ntwo\n")

    done = iop("chat", "--model", "m")

    assert (done.code, done.err) == (ExitCode.FAILED, message)
    assert len(edge.bodies("POST", PATH)) == 1


def test_an_answer_without_its_end_is_not_taken_for_whole(
    iop: Iop, edge: ScriptedEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge.on("POST", PATH, chat_chunks(chunk(content="par"), done=False))
    pipe(monkeypatch, "one\n")

    done = iop("chat", "--model", "m")

    assert done.code == ExitCode.FAILED
    assert done.out == "par\n"
    assert done.err == (
        f"failed: the answer ended before it was complete: {edge.url} closed the stream\n"
        "  what is shown above is a part of it\n"
    )


def test_the_model_is_chosen_if_none_is_named() -> None:
    echo, engine, profile = model("mock/echo"), model("vllm/qwen"), model("small", profile=True)
    away = model("away", profile=True, nodes=())

    assert choose_model([away, model("mock/embed"), echo, engine, profile]) == "small"
    assert choose_model([away, model("mock/embed"), echo, engine]) == "vllm/qwen"
    assert choose_model([model("mock/embed"), echo]) == "mock/echo"
    with pytest.raises(CommandFailed, match=r"^no connected node offers a model$"):
        choose_model([away])


def test_no_model_to_talk_with(iop: Iop, edge: ScriptedEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    edge.on("GET", "/api/v1/models", answer_json({"models": []}))
    pipe(monkeypatch, "hello\n")

    done = iop("chat")

    assert done.code == ExitCode.UNAVAILABLE
    assert done.err == "iop: no connected node offers a model\n  `iop nodes` shows what is connected\n"


class Terminal:
    """`iop chat` on a pseudo-terminal: what a person types and sees."""

    def __init__(self, edge: ScriptedEdge, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        self._fd = ours
        self.seen = ""
        self._waited = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "iop_shared.client", "chat", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "IOP_EDGE_URL": edge.url, "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> None:
        """Waits for `text` after what was waited for before."""
        deadline = time.monotonic() + 20
        while text not in self.seen[self._waited :]:
            assert time.monotonic() < deadline, f"{text!r} did not come; seen: {self.seen!r}"
            self._read(0.1)
        self._waited = self.seen.index(text, self._waited) + len(text)

    def interrupt_until_it_ends(self) -> None:
        """Presses Ctrl-C, and again if it came in the moment between the prompt and the interpreter's waiting."""
        deadline = time.monotonic() + 20
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            self.process.send_signal(signal.SIGINT)
            self._read(0.5)

    def end(self) -> int:
        while self._read(5):
            pass
        return self.process.wait(20)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False  # Linux says EIO when the other side is gone
        self.seen += data.decode()
        return bool(data)


@contextmanager
def on_terminal(edge: ScriptedEdge, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(edge, *arguments)
    try:
        yield terminal
    finally:
        terminal.close()


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(edge: ScriptedEdge) -> None:
    gone = threading.Event()

    def wait_until_left() -> None:
        gone.wait(20)

    def answer(asked: Asked) -> Answer:
        if len(asked.body["messages"]) == 1:
            return chat_chunks(chunk(content="half an ans"), wait_until_left, *[chunk(content="x" * 9999)] * 999)
        return chat_chunks(chunk("stop", content="whole"))

    edge.on("POST", PATH, answer)
    with on_terminal(edge, "--model", "m") as terminal:
        terminal.wait_for("> ")
        terminal.type("first\n")
        terminal.wait_for("half an ans")
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for("stopped")
        gone.set()
        assert edge.left.wait(10)  # the connection was closed, which cancels the run

        terminal.type("second\n")
        terminal.wait_for("whole")
        terminal.wait_for("> ")
        terminal.type("\x04")  # Ctrl-D

        assert terminal.end() == 0
    assert edge.bodies("POST", PATH)[1]["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "half an ans"},
        {"role": "user", "content": "second"},
    ]
    assert "Traceback" not in terminal.seen


def test_commands_in_a_conversation(edge: ScriptedEdge) -> None:
    edge.on("POST", PATH, lambda asked: chat_chunks(chunk("stop", content=f"by {asked.body['model']}")))
    with on_terminal(edge, "--model", "m") as terminal:
        terminal.wait_for("> ")
        terminal.type("one\n")
        terminal.wait_for("by m")
        terminal.type("/model n\n")
        terminal.wait_for("model n")
        terminal.type("/new\n")
        terminal.wait_for("a new conversation")
        terminal.type("/what\n")
        terminal.type("two\n")
        terminal.wait_for("by n")
        terminal.type("/quit\n")

        assert terminal.end() == 0
    assert [len(body["messages"]) for body in edge.bodies("POST", PATH)] == [1, 1]


def test_ctrl_c_at_the_prompt_leaves(edge: ScriptedEdge) -> None:
    with on_terminal(edge, "--model", "m") as terminal:
        terminal.wait_for("> ")
        terminal.interrupt_until_it_ends()

        assert terminal.end() == ExitCode.INTERRUPTED
    assert "Traceback" not in terminal.seen
