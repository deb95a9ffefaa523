"""Runs a daemon's main coroutine: picks the loop and turns signals into an orderly stop.

The first SIGINT or SIGTERM sets the StopSignal: the main coroutine drains and returns. The second cancels
the main coroutine. The third ends the process at once, without clean-up.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from iop_shared.errors import InvalidConfig

EXIT_INTERRUPTED: Final = 130
"""128 + SIGINT, what a shell shows for a program that Ctrl-C ended."""
EXIT_TERMINATED: Final = 143
"""128 + SIGTERM, where a second signal had to cut the stop short."""


class StopSignal:
    """Set once, with the reason of the first who asked. For use on the loop only."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""

    @property
    def is_set(self) -> bool:
        """Whether somebody asked to stop."""
        return self._event.is_set()

    def set(self, reason: str) -> None:
        """Asks to stop. Later calls change nothing: the first reason stays."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    async def wait(self) -> str:
        """Waits until somebody asks to stop, and returns the reason."""
        await self._event.wait()
        return self.reason


Main = Callable[[StopSignal], Coroutine[Any, Any, int]]


def run(main: Main, *, use_uvloop: bool | None = None) -> int:
    """Runs `main(stop)` on a fresh loop and returns the process's exit code.

    The code is `main`'s own, or 130 when SIGINT was the first signal, or 143 when SIGTERM had to be sent
    twice. `use_uvloop`: None takes uvloop where it is installed; `IOP_LOOP=asyncio|uvloop` overrides that.

    Raises:
        InvalidConfig: IOP_LOOP has another value, or asks for uvloop where it is not installed.
        Whatever `main` raises.
    """
    factory = choose_loop_factory(use_uvloop)
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(_supervise(main))
    except KeyboardInterrupt:
        # Ctrl-C before our handlers stood, or after they were removed.
        return EXIT_INTERRUPTED


def choose_loop_factory(use_uvloop: bool | None = None) -> Callable[[], asyncio.AbstractEventLoop]:
    """Returns what makes the loop; see `run`."""
    wanted = os.environ.get("IOP_LOOP", "")
    if wanted not in ("", "asyncio", "uvloop"):
        raise InvalidConfig("environment", [f"IOP_LOOP={wanted!r} is not a loop: use asyncio or uvloop"])
    if wanted:
        use_uvloop = wanted == "uvloop"
    if use_uvloop is False:
        return asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        if use_uvloop:
            problem = "uvloop was asked for and is not installed: install it, or set IOP_LOOP=asyncio"
            raise InvalidConfig("environment", [problem]) from None
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _supervise(main: Main) -> int:
    stop = StopSignal()
    task = asyncio.current_task()
    assert task is not None, "a coroutine that a Runner runs is a task"
    signals_seen: list[signal.Signals] = []

    def on_signal(which: signal.Signals) -> None:
        signals_seen.append(which)
        if len(signals_seen) == 1:
            stop.set(which.name)
        elif len(signals_seen) == 2:
            task.cancel()
        else:
            os._exit(_exit_code(signals_seen[0]))

    with _signal_handlers(on_signal):
        try:
            code = await main(stop)
        except asyncio.CancelledError:
            if not signals_seen:
                raise
            return _exit_code(signals_seen[0])
    return EXIT_INTERRUPTED if signals_seen[:1] == [signal.SIGINT] else code


def _exit_code(first: signal.Signals) -> int:
    return EXIT_INTERRUPTED if first is signal.SIGINT else EXIT_TERMINATED


@contextlib.contextmanager
def _signal_handlers(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    which = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        yield  # a test's or an embedder's thread: the signals are not ours to take
        return
    try:
        for one in which:
            loop.add_signal_handler(one, on_signal, one)
    except NotImplementedError:
        # Windows loops have no signal handlers; the interpreter's own run between two byte codes.
        before = {one: signal.getsignal(one) for one in which}
        for one in which:
            signal.signal(one, lambda number, _: loop.call_soon_threadsafe(on_signal, signal.Signals(number)))
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
        return
    try:
        yield
    finally:
        for one in which:
            loop.remove_signal_handler(one)
