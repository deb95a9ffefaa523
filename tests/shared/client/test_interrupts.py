"""Ctrl-C in commands that follow or show something. `run`, `chat` and `up` have theirs in their own files."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.scripted_edge import Answer, ScriptedEdge

from iop_shared.exit_codes import ExitCode

WITHIN_S = 60.0


def start(*arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
    """`iop` as a process of its own, in a session of its own: the signal reaches it alone, not its children."""
    return subprocess.Popen(
        [sys.executable, "-m", "iop_shared.client", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def test_ctrl_c_ends_the_following_of_events(edge: ScriptedEdge) -> None:
    let_go = threading.Event()

    def stay_silent() -> None:
        let_go.wait(WITHIN_S)

    event = b'id: 7\nevent: x\ndata: {"event_id": 7, "at_ms": 1, "kind": "node_lost", "detail": {}}\n\n'
    edge.on("GET", "/api/v1/events", Answer([event, stay_silent], content_type="text/event-stream"))
    program = start("events", "--json", IOP_EDGE_URL=edge.url)
    assert program.stdout is not None
    assert b"node_lost" in program.stdout.readline()

    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=WITHIN_S)
    let_go.set()

    assert (program.returncode, out, err) == (ExitCode.INTERRUPTED, b"", b"")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("at", [b"1. Start an edge", b"2. Start two nodes", b"3. Run something"])
def test_ctrl_c_ends_the_demo_with_all_that_it_started(tmp_path: Path, at: bytes) -> None:
    program = start("demo", TMPDIR=str(tmp_path))
    assert program.stdout is not None
    while at not in (line := program.stdout.readline()):
        assert line, "the demo ended by itself"

    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=WITHIN_S)

    assert (program.returncode, err) == (ExitCode.INTERRUPTED, b"")
    assert b"complete" not in out
    assert list(tmp_path.iterdir()) == []
    wait_until(lambda: not processes_in(tmp_path))


def processes_in(folder: Path) -> list[str]:
    """The command lines of processes that name `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if str(folder) in line:
            found.append(line)
    return found


def wait_until(holds: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
