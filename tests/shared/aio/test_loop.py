"""The runner in processes of its own: signals, exit codes, the choice of the loop."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from iop_shared.aio.loop import StopSignal, choose_loop_factory, run
from iop_shared.errors import InvalidConfig

PROGRAM = """
    import asyncio, sys
    from iop_shared.aio.loop import run

    async def main(stop):
        print("ready", type(asyncio.get_running_loop()).__module__, flush=True)
        reason = await stop.wait()
        print("stopping", reason, flush=True)
        {after}
        return {code}

    sys.exit(run(main))
"""
LOOPS = ["asyncio", "uvloop"]


class Program:
    """A process that runs PROGRAM; ended when the test is over."""

    def __init__(self, loop: str, after: str = "pass", code: int = 0) -> None:
        source = textwrap.dedent(PROGRAM).format(after=after, code=code)
        self.process = subprocess.Popen(
            [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"IOP_LOOP": loop},
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def signal(self, which: signal.Signals) -> None:
        self.process.send_signal(which)

    def wait(self) -> tuple[int, str]:
        """Returns the exit code and what stands on stderr."""
        _, err = self.process.communicate(timeout=20)
        return self.process.returncode, err


@pytest.fixture
def start() -> Iterator[type[Program]]:
    made: list[Program] = []

    class Kept(Program):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            made.append(self)

    yield Kept
    for program in made:
        program.process.kill()
        program.process.communicate()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("which", "code", "exit_code"),
    [(signal.SIGINT, 0, 130), (signal.SIGTERM, 0, 0), (signal.SIGTERM, 3, 3)],
    ids=["ctrl-c", "terminated", "own code"],
)
def test_first_signal_stops_in_order(
    start: type[Program], loop: str, which: signal.Signals, code: int, exit_code: int
) -> None:
    program = start(loop, code=code)
    assert program.line().startswith(f"ready {loop}")

    program.signal(which)

    assert program.line() == f"stopping {which.name}"
    assert program.wait() == (exit_code, "")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("which", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_second_signal_cuts_the_stop_short(
    start: type[Program], loop: str, which: signal.Signals, exit_code: int
) -> None:
    program = start(loop, after="await asyncio.sleep(100)")
    program.line()
    program.signal(which)
    assert program.line() == f"stopping {which.name}"

    program.signal(which)

    assert program.wait() == (exit_code, "")


@pytest.mark.parametrize("loop", LOOPS)
def test_third_signal_ends_a_process_that_does_not_give_in(start: type[Program], loop: str) -> None:
    stubborn = "\n            ".join(
        ["try:", "    await asyncio.sleep(100)", "except asyncio.CancelledError:", "    print('no', flush=True)",
         "await asyncio.sleep(100)"]
    )  # fmt: skip
    program = start(loop, after=stubborn.replace("\n            ", "\n    "))
    program.line()
    program.signal(signal.SIGINT)
    program.line()
    program.signal(signal.SIGINT)
    assert program.line() == "no"

    program.signal(signal.SIGINT)

    assert program.wait()[0] == 130


@pytest.mark.parametrize("use_uvloop", [False, True])
def test_code_and_errors_of_main_come_back(use_uvloop: bool) -> None:
    async def give_code(stop: StopSignal) -> int:
        return 5

    async def fail(stop: StopSignal) -> int:
        raise ValueError("broken")

    assert run(give_code, use_uvloop=use_uvloop) == 5
    with pytest.raises(ValueError, match="broken"):
        run(fail, use_uvloop=use_uvloop)


def test_loop_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOP_LOOP", "trio")

    with pytest.raises(InvalidConfig) as caught:
        choose_loop_factory()

    assert str(caught.value) == "environment: IOP_LOOP='trio' is not a loop: use asyncio or uvloop"


async def test_first_reason_to_stop_stays() -> None:
    stop = StopSignal()
    assert not stop.is_set

    stop.set("SIGTERM")
    stop.set("SIGINT")

    assert stop.is_set
    assert await stop.wait() == "SIGTERM"
