"""Programs that a command starts and must not leave behind: one process group each, its output in a file."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Final, Self

DRAIN_S: Final = 5.0
"""How long after TERM open runs may still end by themselves. Chosen; change freely."""
HARD_STOP_S: Final = 5.0
"""How long after a second TERM, which ends runs at once, a daemon has for its records. Then it is killed."""
_POLL_S: Final = 0.05


class StopRequest:
    """The wish to stop, from Ctrl-C, TERM or a closed terminal. Use as a context manager in the main thread.

    Inside it no signal interrupts a step half way; the code asks `is_set` or waits. `count`: a second signal
    means not to wait for runs, a third not to wait for anything.
    """

    _SIGNALS: Final = tuple(
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
    )

    def __init__(self) -> None:
        self.count = 0
        self._event = threading.Event()
        self._before: dict[int, signal.Handlers | int | object] = {}

    def __enter__(self) -> Self:
        for number in self._SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # what signal.signal gave us before

    @property
    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self.count > 0

    def wait(self, timeout_s: float) -> bool:
        """Waits at most `timeout_s`; returns whether a signal has come."""
        return self._event.wait(timeout_s)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._event.set()


class Child:
    """One program in its own process group. Its stdout and stderr are appended to `log`.

    The own group keeps a terminal's Ctrl-C away from it (the parent stops it in order) and lets `kill` reach
    what it started itself.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.command, self.log = name, tuple(command), log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self) -> None:
        """Starts the program.

        Raises:
            OSError: the program or its log cannot be opened.
        """
        assert self._process is None, f"{self.name} has been started already"
        with self._open_log() as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(self._environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is the id of its group too."""
        assert self._process is not None, f"{self.name} has not been started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def exit_status(self) -> int | None:
        """Returns how it ended (negative: by that signal), or None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    def log_tail(self, lines: int = 12) -> str:
        """Returns the last lines that this start has written, indented by two spaces."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_start)
                text = log.read().decode(errors="replace")
        except OSError as error:
            return f"  (the log cannot be read: {error.strerror})"
        kept = text.splitlines()[-lines:]
        return "\n".join(f"  {line}" for line in kept) if kept else "  (it wrote nothing)"

    def ask_to_stop(self) -> None:
        """Sends TERM to the group. Safe after its end."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Kills whatever is left of the group and reaps the program. Safe to call twice."""
        if self._process is None:
            return
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _signal_group(self, number: int) -> None:
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass  # nothing of the group is left
        except PermissionError:
            pass  # macOS says this of a group whose only member is a zombie

    def _open_log(self) -> IO[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        log = os.fdopen(descriptor, "ab")
        log.seek(0, os.SEEK_END)
        return log


def stop_in_order(
    children: Iterable[Child],
    *,
    drain_s: float = DRAIN_S,
    hard_stop_s: float = HARD_STOP_S,
    stop: StopRequest | None = None,
) -> list[str]:
    """Stops `children` one after the other, first to last, each within `drain_s + hard_stop_s`.

    TERM; TERM again when `drain_s` is over or a second signal comes; KILL of the group when `hard_stop_s` is
    over too or a third comes. Returns the names of those that had to be killed.
    """
    killed = []
    for child in children:
        child.ask_to_stop()
        if not _wait_end(child, drain_s, lambda: stop is not None and stop.count >= 2):
            child.ask_to_stop()
            if not _wait_end(child, hard_stop_s, lambda: stop is not None and stop.count >= 3):
                killed.append(child.name)
        child.kill()
    return killed


def _wait_end(child: Child, timeout_s: float, is_hurried: Callable[[], bool]) -> bool:
    """Waits until the program has ended; returns False if it had not in time."""
    deadline = time.monotonic() + timeout_s
    while child.is_running:
        if time.monotonic() > deadline or is_hurried():
            return False
        time.sleep(_POLL_S)
    return True
