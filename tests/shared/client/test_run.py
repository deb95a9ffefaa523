"""`iop run`: what is asked, what is printed, how it ends."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.shared.client.conftest import RUN_A, Iop, run_json
from tests.support.scripted_edge import ScriptedEdge, answer_error, answer_json, run_events

from iop_shared.exit_codes import ExitCode

STARTED = {"type": "started", "adapter": "mock", "target": "echo", "node_id": "gpu-1", "engine": ""}
SUCCEEDED = {"type": "succeeded", "closing": {"finish_reason": "stop"}}
STATUS = f"succeeded · {RUN_A} · on gpu-1 · 3 + 2 tokens · first token 38 ms · total 1.24 s\n"
ECHO = ("--adapter", "mock", "--target", "echo")


def text(piece: str, index: int = 0) -> dict[str, Any]:
    return {"type": "text", "text": piece, "index": index}


@pytest.fixture
def echo(edge: ScriptedEdge) -> ScriptedEdge:
    """An edge on which everything answers "hello world"."""
    answer = run_events(STARTED, text("hello"), text(" world"), SUCCEEDED, run_id=RUN_A)
    edge.on("POST", "/api/v1/runs", answer)
    edge.on("GET", f"/api/v1/runs/{RUN_A}", answer_json(run_json()))
    return edge


def test_the_answer_goes_to_stdout_and_the_end_to_stderr(iop: Iop, echo: ScriptedEdge) -> None:
    done = iop("run", *ECHO, "hello")

    assert (done.code, done.out, done.err) == (0, "hello world\n", STATUS)
    assert echo.bodies("POST", "/api/v1/runs") == [
        {"adapter": "mock", "target": "echo", "operation": "chat", "input": "hello", "stream": True}
    ]


def test_everything_that_can_be_said_of_a_run(iop: Iop, echo: ScriptedEdge) -> None:
    iop(
        "run", "--model", "small", "--operation", "completion", "-o", "max_tokens=5", "-o", "stop=[\"a\"]",
        "-o", "name=x=y", "--timeout", "2.5", "--session", "s1", "--node", "gpu-1", "hi",
    )  # fmt: skip

    assert echo.bodies("POST", "/api/v1/runs") == [
        {
            "model": "small",
            "operation": "completion",
            "input": "hi",
            "options": {"max_tokens": 5, "stop": ["a"], "name": "x=y"},
            "limits": {"total_timeout_s": 2.5},
            "session": "s1",
            "node": "gpu-1",
            "stream": True,
        }
    ]


def test_the_prompt_comes_from_stdin_a_file_or_a_whole_body(
    iop: Iop, echo: ScriptedEdge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("aus der Datei ß")
    (tmp_path / "body.json").write_text('{"messages": [{"role": "user", "content": "x"}], "n": 2}')

    monkeypatch.setattr("sys.stdin", io.StringIO("piped"))
    iop("run", *ECHO)
    monkeypatch.setattr("sys.stdin", io.StringIO("dash"))
    iop("run", *ECHO, "-")
    iop("run", *ECHO, "--file", str(tmp_path / "prompt.txt"))
    iop("run", *ECHO, "--body", str(tmp_path / "body.json"))

    assert [body["input"] for body in echo.bodies("POST", "/api/v1/runs")] == [
        "piped",
        "dash",
        "aus der Datei ß",
        {"messages": [{"role": "user", "content": "x"}], "n": 2},
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x"], "nothing says what to run\n"
                "  give --model NAME, or --adapter and --target; `iop models` lists them\n"),
        (["--model", "m", "--adapter", "mock", "x"],
         "--model stands for adapter and target: give either it or the other two\n"),
        ([*ECHO, "--operation", "chatt", "x"], "unknown operation 'chatt': did you mean 'chat' or 'http'?\n"),
        ([*ECHO, "--timeout", "0", "x"], "--timeout 0 is not more than 0 seconds\n"),
        ([*ECHO, "-o", "tokens", "x"],
         "--option 'tokens' is not of the form KEY=VALUE\n  for example --option max_tokens=20\n"),
        ([*ECHO, "--file", "no/such", "x"], "the input is given twice, by PROMPT and by --file\n"),
        ([*ECHO, "--file", "no/such"], "--file no/such cannot be read: No such file or directory\n"),
        ([*ECHO, "--body", "/dev/null"], "--body /dev/null is not JSON: "
                                         "Expecting value: line 1 column 1 (char 0)\n"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_the_edge_hears_of_it(
    iop: Iop, edge: ScriptedEdge, arguments: list[str], message: str
) -> None:
    done = iop("run", *arguments)

    assert (done.code, done.out, done.err) == (ExitCode.USAGE, "", f"iop: {message}")
    assert edge.asked == []


def test_json_prints_one_event_a_line_and_nothing_else(iop: Iop, echo: ScriptedEdge) -> None:
    done = iop("run", *ECHO, "hello", "--json")

    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["type"] for event in events] == ["started", "text", "text", "succeeded"]
    assert events[1] == {"run_id": RUN_A, "attempt": 1, "seq": 2, "type": "text", "text": "hello", "index": 0}
    assert done.err == ""


def test_text_is_printed_before_the_run_has_ended(
    iop: Iop, edge: ScriptedEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = io.StringIO()
    monkeypatch.setattr("sys.stdout", printed)
    seen = threading.Event()

    def wait_until_printed() -> None:
        for _ in range(500):
            if printed.getvalue() == "hello":
                seen.set()
                return
            threading.Event().wait(0.01)

    edge.on(
        "POST",
        "/api/v1/runs",
        run_events(STARTED, text("hello"), wait_until_printed, text(" world"), SUCCEEDED, run_id=RUN_A),
    )
    edge.on("GET", f"/api/v1/runs/{RUN_A}", answer_json(run_json()))

    iop("run", *ECHO, "hello")

    assert seen.is_set()
    assert printed.getvalue() == "hello world\n"


def test_no_stream_prints_the_answer_once_it_is_complete(
    iop: Iop, edge: ScriptedEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = io.StringIO()
    monkeypatch.setattr("sys.stdout", printed)
    before_the_end = []
    edge.on(
        "POST",
        "/api/v1/runs",
        run_events(
            text("a"), text("b"), lambda: before_the_end.append(printed.getvalue()), SUCCEEDED, run_id=RUN_A
        ),
    )
    edge.on("GET", f"/api/v1/runs/{RUN_A}", answer_json(run_json()))

    iop("run", *ECHO, "x", "--no-stream")

    assert before_the_end == [""]
    assert printed.getvalue() == "ab\n"


def test_detach_prints_the_id_and_leaves(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("POST", "/api/v1/runs", answer_json(run_json(state="queued"), 202))

    done = iop("run", *ECHO, "x", "--detach")

    assert (done.code, done.out, done.err) == (0, f"{RUN_A}\n", "")
    assert edge.bodies("POST", "/api/v1/runs")[0]["stream"] is False


def test_a_failed_run_says_code_layer_message_and_next_step(iop: Iop, edge: ScriptedEdge) -> None:
    failed = {"type": "failed", "code": "engine_unreachable", "layer": "serving", "message": "vllm is down",
              "retryable": True, "engine_status": 0, "engine_body": "", "closing": {}}  # fmt: skip
    edge.on("POST", "/api/v1/runs", run_events(STARTED, text("par"), failed, run_id=RUN_A))
    record = run_json(state="failed", usage=None, first_token_s=None, total_s=0.5)
    edge.on("GET", f"/api/v1/runs/{RUN_A}", answer_json(record))

    done = iop("run", *ECHO, "x")

    assert done.code == ExitCode.FAILED
    assert done.out == "par\n"
    assert done.err == (
        "failed: engine_unreachable (layer serving)\n"
        "  vllm is down\n"
        "  next: look at the engine on that node: is it up, and what does its own log say?\n"
        f"failed · {RUN_A} · on gpu-1 · total 500 ms\n"
    )


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        ({"type": "cancelled", "reason": "operator", "confirmed": True, "took_ms": 3}, ExitCode.CANCELLED,
         "cancelled: operator\n"),
        ({"type": "interrupted", "code": "node_restarted", "message": "the node was restarted"}, ExitCode.FAILED,
         "interrupted: the run was lost on its node\n  the node was restarted (node_restarted)\n"
         "  next: `iop nodes` shows the node's state; its log has the rest\n"),
    ],
)  # fmt: skip
def test_other_ends(iop: Iop, edge: ScriptedEdge, ending: dict[str, Any], code: ExitCode, message: str) -> None:
    edge.on("POST", "/api/v1/runs", run_events(STARTED, ending, run_id=RUN_A))
    edge.on("GET", f"/api/v1/runs/{RUN_A}", answer_json(run_json(state=ending["type"])))

    done = iop("run", *ECHO, "x")

    assert done.code == code
    assert done.err.startswith(message)


def test_a_refused_run_says_why_and_what_to_do(iop: Iop, edge: ScriptedEdge) -> None:
    why = "no node offers adapter=mock target=echo: no node connected"
    edge.on("POST", "/api/v1/runs", answer_error(503, "no_route", why, retryable=True))

    done = iop("run", *ECHO, "x")

    assert done.code == ExitCode.UNAVAILABLE
    assert done.err == (
        f"iop: {why} (no_route)\n  `iop nodes` shows what is connected; trying again later can help\n"
    )


def test_an_unknown_model_points_to_the_list(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on(
        "POST", "/api/v1/runs", answer_error(404, "unknown_model", "unknown model 'smal': did you mean 'small'?")
    )

    done = iop("run", "--model", "smal", "x")

    assert done.code == ExitCode.USAGE
    assert done.err == (
        "iop: unknown model 'smal': did you mean 'small'? (unknown_model)\n"
        "  `iop models` lists what can be asked for\n"
    )


@pytest.mark.parametrize("cut", [True, False])
def test_an_edge_that_goes_away_in_the_middle(iop: Iop, edge: ScriptedEdge, cut: bool) -> None:
    edge.on("POST", "/api/v1/runs", run_events(STARTED, text("par"), run_id=RUN_A, cut=cut))

    done = iop("run", *ECHO, "x")

    assert done.code == ExitCode.UNAVAILABLE
    assert done.out == "par\n"
    why = "the connection to" if cut else "the stream ended before the run did:"
    assert done.err.startswith(f"iop: {why} {edge.url}")
    assert "`iop runs`" in done.err


def test_whatever_else_a_run_says_is_shown(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on(
        "POST",
        "/api/v1/runs",
        run_events(
            {"type": "reasoning", "text": "hm", "index": 0},
            text("first"),
            text("second ", 1),
            text("choice", 1),
            {"type": "tool_call", "index": 0, "id": "c1", "name": "look", "arguments": '{"a"', "choice": 0},
            {"type": "tool_call", "index": 0, "id": "", "name": "", "arguments": ": 1}", "choice": 0},
            {"type": "output", "stream": "stderr", "data": "warned\n", "encoding": "utf-8"},
            {"type": "output", "stream": "stdout", "data": "w7w=", "encoding": "base64"},
            {"type": "step", "kind": "file_change", "json": {}},
            {"type": "artifact", "name": "a.txt", "media_type": "text/plain", "data": "abc", "encoding": "utf-8"},
            {"type": "notice", "code": "rerouted", "message": "gpu-2 was busy"},
            {"type": "gap", "events": 3, "bytes": 2048, "reason": "buffer_full"},
            {"type": "usage", "prompt_tokens": 3},
            {"type": "something_newer", "x": 1},
            SUCCEEDED,
            run_id=RUN_A,
        ),
    )
    edge.on("GET", f"/api/v1/runs/{RUN_A}", answer_json(run_json()))

    done = iop("run", *ECHO, "x")

    assert done.out == 'firstü\n--- choice 1 ---\nsecond choicetool call: look({"a": 1})\n'
    assert done.err == (
        "hm\nwarned\nstep file_change\nfile a.txt (3 B)\nnote: gpu-2 was busy (rerouted)\n"
        f"3 events (2.0 KiB) are missing here: buffer_full\n{STATUS}"
    )


def test_embeddings_are_printed_as_json_also_in_parts(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", f"/api/v1/runs/{RUN_A}", answer_json(run_json()))
    edge.on(
        "POST", "/api/v1/runs", run_events({"type": "embeddings", "json": [[0.5, 1]]}, SUCCEEDED, run_id=RUN_A)
    )
    assert iop("run", *ECHO, "--operation", "embed", "x").out == "[[0.5, 1]]\n"

    parts = [{"type": "embeddings", "json": {"data": part, "encoding": "utf-8"}} for part in ("[[0.5,", " 1]]")]
    edge.on("POST", "/api/v1/runs", run_events(*parts, SUCCEEDED, run_id=RUN_A))
    assert iop("run", *ECHO, "--operation", "embed", "x").out == "[[0.5, 1]]\n"


def test_a_record_that_cannot_be_read_does_not_fail_the_run(iop: Iop, echo: ScriptedEdge) -> None:
    echo.on("GET", f"/api/v1/runs/{RUN_A}", answer_error(503, "store_unavailable", "the disk is full"))

    done = iop("run", *ECHO, "x")

    assert (done.code, done.out, done.err) == (0, "hello world\n", f"succeeded · {RUN_A}\n")


class Program:
    """`iop` as a process of its own, for signals and closed pipes."""

    def __init__(self, edge: ScriptedEdge, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "iop_shared.client", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "IOP_EDGE_URL": edge.url},
        )

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_cancels_the_run_on_the_edge(edge: ScriptedEdge, as_json: bool) -> None:
    let_go = threading.Event()
    started = threading.Event()
    cancelled = run_json(
        state="cancelled", cancel_confirmed=True, cancel_took_ms=7, usage=None, first_token_s=None
    )
    ending = {"run_id": RUN_A, "attempt": 1, "seq": 3, "type": "cancelled"}

    def stream_until_cancelled() -> None:
        started.set()
        let_go.wait(20)

    def take_cancel(asked: Any) -> Any:
        let_go.set()
        return answer_json({"run_id": RUN_A, "cancelling": True}, 202)

    def show(asked: Any) -> Any:
        return answer_json({"run": cancelled, "events": [ending]} if "events" in asked.path else cancelled)

    edge.on("POST", "/api/v1/runs", run_events(STARTED, text("par"), stream_until_cancelled, run_id=RUN_A))
    edge.on("POST", f"/api/v1/runs/{RUN_A}/cancel", take_cancel)
    edge.on("GET", f"/api/v1/runs/{RUN_A}", show)
    program = Program(edge, "run", *ECHO, "x", *(["--json"] if as_json else []))
    assert started.wait(20)
    assert program.process.stdout is not None
    first = program.process.stdout.readline() if as_json else program.process.stdout.read(3)

    program.interrupt()
    code, out, err = program.end()

    assert code == ExitCode.INTERRUPTED
    assert edge.bodies("POST", f"/api/v1/runs/{RUN_A}/cancel") == [{"reason": "interrupted by the user"}]
    if as_json:
        assert json.loads(first)["type"] == "started"
        assert json.loads(out.splitlines()[-1]) == ending
        assert err == ""
    else:
        assert (first, out) == (b"par", "\n")
        assert err == (
            f"cancelled · {RUN_A} · on gpu-1 · total 1.24 s · stopped in 7 ms, the engine confirmed it\n"
        )


def test_ctrl_c_before_there_is_an_answer_leaves_no_traceback(edge: ScriptedEdge) -> None:
    asked, let_go = threading.Event(), threading.Event()

    def hang(request: Any) -> Any:
        asked.set()
        let_go.wait(20)
        return answer_json({})

    edge.on("POST", "/api/v1/runs", hang)
    program = Program(edge, "run", *ECHO, "x")
    assert asked.wait(20)

    program.interrupt()
    code, out, err = program.end()
    let_go.set()

    assert (code, out) == (ExitCode.INTERRUPTED, "")
    assert err == "interrupted before the edge had taken the run\n"


def test_a_reader_that_leaves_ends_the_run(edge: ScriptedEdge) -> None:
    gone = threading.Event()

    def wait_until_gone() -> None:
        gone.wait(20)

    pieces = [text("word " * 200) for _ in range(300)]  # more than a pipe holds
    edge.on("POST", "/api/v1/runs", run_events(STARTED, *pieces, wait_until_gone, *pieces, run_id=RUN_A))
    program = Program(edge, "run", *ECHO, "x")
    assert program.process.stdout is not None

    program.process.stdout.read(10)
    program.process.stdout.close()
    assert program.process.stderr is not None
    err = program.process.stderr.read()
    program.process.stderr.close()

    assert program.process.wait(20) == ExitCode.FAILED
    assert err == b""
    gone.set()
    assert edge.left.wait(5)
