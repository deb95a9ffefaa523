"""The `iop-edge` program: its commands, and how each error becomes a sentence and an exit code."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from iop_edge.commands import config, token
from iop_edge.commands.init import init
from iop_edge.commands.run import run
from iop_shared import __version__
from iop_shared.client.exit_codes import ExitCode, exit_codes_help
from iop_shared.errors import BadRequest, IopError, NotAllowed, Unavailable

EXIT_CODES: Final[tuple[tuple[type[IopError], ExitCode], ...]] = (
    (BadRequest, ExitCode.USAGE),
    (NotAllowed, ExitCode.REFUSED),
    (Unavailable, ExitCode.UNAVAILABLE),
    (IopError, ExitCode.FAILED),
)

app = typer.Typer(
    name="iop-edge",
    help="The edge: takes nodes in, gives them their configuration, routes runs to them and relays what they say.",
    epilog=exit_codes_help(),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=exit_codes_help())(init)
app.command(epilog=exit_codes_help())(run)
app.add_typer(token.app, name="token")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"iop-edge {__version__}")
        raise typer.Exit


@app.callback()
def edge(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The edge: takes nodes in, gives them their configuration, routes runs to them and relays what they say."""


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Never raises; no traceback reaches the user.

    With IOP_DEBUG set, an error that is our bug shows where it arose.
    """
    try:
        code = app(list(arguments), prog_name="iop-edge", standalone_mode=False)
        sys.stdout.flush()
        return int(code) if isinstance(code, int) else ExitCode.OK
    except IopError as error:
        code = next(code for kind, code in EXIT_CODES if isinstance(error, kind))
        return _say(str(error), code)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # `iop-edge token list | head`: the reader has what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception as error:
        show = getattr(error, "show", None)
        if callable(show):  # typer's own error about the command line
            show()
            return int(getattr(error, "exit_code", ExitCode.USAGE))
        if os.environ.get("IOP_DEBUG"):
            traceback.print_exc()
        name = type(error).__name__
        return _say(f"internal error: {name}: {error}; with IOP_DEBUG=1 it shows where", ExitCode.FAILED)


def main() -> None:
    """Entry point of `iop-edge`."""
    sys.exit(run_command(sys.argv[1:]))


def _say(message: str, code: ExitCode) -> int:
    for line in message.splitlines():
        typer.echo(f"iop-edge: {line}", err=True)
    return code


if __name__ == "__main__":
    main()
