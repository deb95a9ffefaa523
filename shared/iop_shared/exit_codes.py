"""How a command ends: the exit codes all three programs share, and the error that carries one. Pure."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """What a shell sees. Stable: scripts depend on them (docs/exit-codes.md)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    REFUSED = 4
    CANCELLED = 5
    INTERRUPTED = 130


MEANINGS: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the run or the check failed",
    ExitCode.USAGE: "a wrong argument, name or configuration",
    ExitCode.UNAVAILABLE: "the edge cannot be reached, or something it needs is not there",
    ExitCode.REFUSED: "a credential was refused",
    ExitCode.CANCELLED: "the run was cancelled by somebody else",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}


def exit_codes_help() -> str:
    """Returns the codes as one paragraph for `--help`."""
    return "Exit codes: " + "; ".join(f"{code.value} {MEANINGS[code]}" for code in ExitCode) + "."


class CommandFailed(Exception):
    """A command cannot go on. `str()` is the whole sentence for the user; `hint` says what to do next."""

    def __init__(self, message: str, *, exit_code: ExitCode = ExitCode.FAILED, hint: str = "") -> None:
        super().__init__(message)
        self.exit_code, self.hint = exit_code, hint
