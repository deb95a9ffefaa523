"""Reading another process's CPU and memory from the kernel's books."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from bench.process_cpu import CpuMark, WatchedProcess, idle_share, used_between

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's books are Linux's")

PROGRAM = "import sys\nfor line in sys.stdin:\n    sum(range(3_000_000))\n    print('did', flush=True)\n"


@pytest.fixture
def worker() -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def work(worker: "subprocess.Popen[str]") -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    assert worker.stdout.readline() == "did\n"


def test_work_is_seen_and_waiting_is_not(worker: "subprocess.Popen[str]") -> None:
    work(worker)
    watched = WatchedProcess(worker.pid)

    begin = watched.mark()
    work(worker)
    worked = watched.mark()
    time.sleep(0.1)
    waited = watched.mark()

    # Compared with each other, not with the clock: the machine may be busy.
    assert worked.used_ns - begin.used_ns > 5 * (waited.used_ns - worked.used_ns)
    assert waited.at_ns - worked.at_ns >= 100_000_000


def test_children_count_where_asked() -> None:
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-u', '-c', {PROGRAM!r}])"
    command = [sys.executable, "-c", inner]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        work(parent)
        alone, whole = WatchedProcess(parent.pid), WatchedProcess(parent.pid, with_children=True)

        alone_ns, whole_ns = alone.mark().used_ns, whole.mark().used_ns
        memory_alone, memory_whole = alone.memory(), whole.memory()
        assert parent.stdin is not None
        parent.stdin.close()

    assert whole_ns > alone_ns
    assert memory_whole.rss_bytes > memory_alone.rss_bytes > memory_alone.pss_bytes > 0


def test_ended_process_is_said_to_have_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    watched = WatchedProcess(process.pid)

    with pytest.raises(ProcessLookupError, match=f"process {process.pid} has ended"):
        watched.mark()
    with pytest.raises(ProcessLookupError, match=f"process {process.pid} has ended"):
        watched.memory()


def test_idle_share_is_taken_off() -> None:
    idle = idle_share(CpuMark(0, 0), CpuMark(1_000, 100))

    assert used_between(CpuMark(5_000, 700), CpuMark(7_000, 1_900), idle) == 1_000
    assert used_between(CpuMark(5_000, 700), CpuMark(7_000, 710), idle) == 0
