"""What the three command-line programs have in common: how they are made, and how each error ends one.

A command raises an IopError or a CommandFailed; `run_program` turns it into a sentence on stderr and an
exit code. No traceback reaches the user; with IOP_DEBUG set, an error that is our bug shows where it arose.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from iop_shared.errors import BadRequest, IopError, NotAllowed, Unavailable
from iop_shared.exit_codes import CommandFailed, ExitCode, exit_codes_help

Say = Callable[[str], None]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
"""Of the daemons' commands."""

# In this order: the first kind that fits.
EXIT_CODES: Final[tuple[tuple[type[IopError], ExitCode], ...]] = (
    (BadRequest, ExitCode.USAGE),
    (NotAllowed, ExitCode.REFUSED),
    (Unavailable, ExitCode.UNAVAILABLE),
    (IopError, ExitCode.FAILED),
)


def make_program(name: str, help_text: str) -> typer.Typer:
    """Returns an empty program; commands are added to it."""
    return typer.Typer(
        name=name,
        help=help_text,
        epilog=exit_codes_help(),
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def print_json(value: Any) -> None:
    """Prints one JSON value on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def _to_stderr(line: str) -> None:
    typer.echo(line, err=True)


def run_program(program: typer.Typer, name: str, arguments: Sequence[str], say: Say = _to_stderr) -> int:
    """Runs one command line and returns its exit code. Never raises. `say`: prints one line of an error."""
    try:
        # Our own handling instead of typer's: it ends with 1 on Ctrl-C, and knows nothing of our errors.
        code = program(list(arguments), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return int(code) if isinstance(code, int) else ExitCode.OK
    except CommandFailed as error:
        say(f"{name}: {error}")  # one text, which may quote a log: not a list of problems
        if error.hint:
            say(f"  {error.hint}")
        return error.exit_code
    except IopError as error:
        for line in str(error).splitlines():
            say(f"{name}: {line}")
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # `iop runs | head`: the reader has what it wanted. Nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception as error:
        show = getattr(error, "show", None)
        if callable(show):  # typer's own error about the command line
            show()
            return int(getattr(error, "exit_code", ExitCode.USAGE))
        if os.environ.get("IOP_DEBUG"):
            traceback.print_exc()
        say(f"{name}: internal error: {type(error).__name__}: {error}")
        say(f"  this is a bug in {name}; with IOP_DEBUG=1 it shows where")
        return ExitCode.FAILED
