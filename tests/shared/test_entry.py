"""The first moments of a program: Ctrl-C while it imports itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = "import sys; from iop_shared.entry import start; start('program_under_test')"


def run(folder: Path, source: str, *arguments: str, before: str = "") -> "subprocess.CompletedProcess[str]":
    (folder / "program_under_test.py").write_text(source)
    return subprocess.run(
        [sys.executable, "-c", before + START, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


INTERRUPTED = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except BaseException:
    pass  # as a module does that tries whether something can be imported
def run_command(arguments):
    print("it went on")
    return 0
"""


def test_ctrl_c_while_the_program_is_imported_ends_it_without_a_word(tmp_path: Path) -> None:
    done = run(tmp_path, INTERRUPTED)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_that_is_ignored_from_outside_stays_ignored(tmp_path: Path) -> None:
    before = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "

    done = run(tmp_path, INTERRUPTED.replace("time.sleep(5)", "time.sleep(0.01)"), before=before)

    assert (done.returncode, done.stdout, done.stderr) == (0, "it went on\n", "")


def test_the_program_gets_its_arguments_and_the_interrupts_back(tmp_path: Path) -> None:
    source = """
import signal
def run_command(arguments):
    print(arguments, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    return 3
"""
    done = run(tmp_path, source, "a", "b")

    assert (done.returncode, done.stdout, done.stderr) == (3, "['a', 'b'] True\n", "")


@pytest.mark.parametrize("package", ["iop_edge", "iop_node", "iop_shared.client"])
def test_the_entry_points_import_next_to_nothing(package: str) -> None:
    """What is imported before `start` is a time in which Ctrl-C would show a traceback."""
    code = (
        "import sys; before = set(sys.modules); "
        f"import {package}.__main__; "
        "names = set(sys.modules) - before; "
        "print(*sorted(name for name in names if name.split('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)

    ours = {package, f"{package}.__main__", "iop_shared", "iop_shared.entry"}
    assert set(done.stdout.split()) <= ours, done.stderr
