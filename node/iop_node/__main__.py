"""The `iop-node` program: its commands, and how each error becomes a sentence and an exit code."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from iop_node.commands import config
from iop_node.commands.join import join
from iop_node.commands.run import run
from iop_shared import __version__
from iop_shared.client.exit_codes import ExitCode, exit_codes_help
from iop_shared.errors import BadRequest, IopError, NotAllowed, Unavailable

_HELP: Final = "The node: dials an edge, and executes on this machine what the edge asks and its own file allows."
# In this order: the first kind that fits.
EXIT_CODES: Final[tuple[tuple[type[IopError], ExitCode], ...]] = (
    (BadRequest, ExitCode.USAGE),
    (NotAllowed, ExitCode.REFUSED),
    (Unavailable, ExitCode.UNAVAILABLE),
    (IopError, ExitCode.FAILED),
)

app = typer.Typer(
    name="iop-node",
    help=_HELP,
    epilog=exit_codes_help(),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=exit_codes_help())(join)
app.command(epilog=exit_codes_help())(run)
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"iop-node {__version__}")
        raise typer.Exit


@app.callback(help=_HELP)
def node(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The options before a command."""


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Never raises; no traceback reaches the user.

    With IOP_DEBUG set, an error that is our bug shows where it arose.
    """
    try:
        code = app(list(arguments), prog_name="iop-node", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else ExitCode.OK
    except IopError as error:
        return _say(str(error), next(code for kind, code in EXIT_CODES if isinstance(error, kind)))
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # `iop-node config check | head`: the reader has what it wanted, and the flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception as error:
        show = getattr(error, "show", None)
        if callable(show):  # typer's own error about the command line
            show()
            return int(getattr(error, "exit_code", ExitCode.USAGE))
        if os.environ.get("IOP_DEBUG"):
            traceback.print_exc()
        what = f"internal error: {type(error).__name__}: {error}; with IOP_DEBUG=1 it shows where"
        return _say(what, ExitCode.FAILED)


def main() -> None:
    """Entry point of `iop-node`."""
    sys.exit(run_command(sys.argv[1:]))


def _say(message: str, code: ExitCode) -> int:
    for line in message.splitlines():
        typer.echo(f"iop-node: {line}", err=True)
    return code


if __name__ == "__main__":
    main()
