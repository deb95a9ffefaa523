"""Programs in their own groups: their logs, and that nothing of them stays."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from iop_shared.client.address import is_alive
from iop_shared.client.children import Child, StopRequest, stop_in_order

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
DRAINING = """
import signal, sys, time
def hard(*_): sys.exit(7)
def soft(*_): signal.signal(signal.SIGTERM, hard)
signal.signal(signal.SIGTERM, soft)
print("up", flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
Start = Callable[[str], Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Child] = []

    def run(code: str) -> Child:
        child = Child(
            f"child {len(started)}", [sys.executable, "-c", code], log=tmp_path / "logs" / f"{len(started)}"
        )
        child.start()
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()


def wait_log(child: Child) -> str:
    deadline = time.monotonic() + 20
    while not child.log.read_text().endswith("\n"):
        assert time.monotonic() < deadline, "it never wrote a line"
        time.sleep(0.01)
    return child.log.read_text()


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_alive(pid) and Path(f"/proc/{pid}/status").read_text().find("State:\tZ") < 0:
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def test_its_output_is_in_its_log_readable_by_its_owner_alone(start: Start) -> None:
    child = start("import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)")

    while child.exit_status() is None:
        time.sleep(0.01)

    assert child.exit_status() == 3
    assert child.log_tail() == "  out\n  err"
    assert child.log.stat().st_mode & 0o777 == 0o600


def test_the_tail_of_a_log_is_of_this_start_alone(start: Start, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "0").write_text("an earlier time\n")
    child = start("print('now')")

    while child.exit_status() is None:
        time.sleep(0.01)

    assert child.log_tail() == "  now"
    assert child.log.read_text() == "an earlier time\nnow\n"


def test_a_child_that_wrote_nothing(start: Start) -> None:
    child = start("pass")
    while child.exit_status() is None:
        time.sleep(0.01)

    assert child.log_tail() == "  (it wrote nothing)"


def test_those_that_end_on_term_are_not_killed(start: Start) -> None:
    children = [start("print('up', flush=True); import time; time.sleep(60)") for _ in range(2)]
    for child in children:
        wait_log(child)

    assert stop_in_order(children) == []
    assert [child.exit_status() for child in children] == [-signal.SIGTERM, -signal.SIGTERM]


def test_one_that_ignores_term_is_killed_at_the_deadline(start: Start) -> None:
    child = start(STUBBORN)
    wait_log(child)

    assert stop_in_order([child], drain_s=0.05, hard_stop_s=0.05) == ["child 0"]
    assert child.exit_status() == -signal.SIGKILL


def test_one_that_waits_for_its_runs_is_told_again_and_each_has_its_own_time(start: Start) -> None:
    children = [start(DRAINING), start(DRAINING)]
    for child in children:
        wait_log(child)

    assert stop_in_order(children, drain_s=0.1, hard_stop_s=10) == []
    assert [child.exit_status() for child in children] == [7, 7]


def test_what_it_started_itself_is_gone_too(start: Start) -> None:
    child = start(PARENT)
    grandchild = int(wait_log(child))
    os.kill(child.pid, signal.SIGKILL)  # it dies without a word to its own child
    while child.exit_status() is None:
        time.sleep(0.01)

    stop_in_order([child])

    wait_gone(grandchild)


def test_stopping_what_has_ended_or_never_began_is_harmless(start: Start, tmp_path: Path) -> None:
    ended = start("pass")
    while ended.exit_status() is None:
        time.sleep(0.01)

    assert stop_in_order([ended, Child("never", ["true"], log=tmp_path / "x")]) == []


def test_more_signals_mean_less_patience(start: Start) -> None:
    children = [start(DRAINING), start(STUBBORN)]
    for child in children:
        wait_log(child)
    handler = signal.getsignal(signal.SIGINT)

    with StopRequest() as stop:
        assert not stop.is_set
        signal.raise_signal(signal.SIGINT)
        assert stop.wait(0)
        assert (stop.is_set, stop.count) == (True, 1)
        began = time.monotonic()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert stop_in_order(children[:1], drain_s=60, hard_stop_s=60, stop=stop) == []
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert stop_in_order(children[1:], drain_s=60, hard_stop_s=60, stop=stop) == ["child 1"]

        assert stop.count == 3
        assert time.monotonic() - began < 20
    assert signal.getsignal(signal.SIGINT) is handler
