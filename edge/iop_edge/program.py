"""The `iop-edge` program and its commands."""

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from iop_edge.commands import config, token
from iop_edge.commands.init import init
from iop_edge.commands.run import run
from iop_shared import __version__
from iop_shared.exit_codes import exit_codes_help
from iop_shared.program import make_program, run_program

NAME: Final = "iop-edge"
_HELP: Final = (
    "The edge: takes nodes in, gives them their configuration, routes runs to them and relays what they say."
)

app = make_program(NAME, _HELP)
app.command(epilog=exit_codes_help())(init)
app.command(epilog=exit_codes_help())(run)
app.add_typer(token.app, name="token")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback(help=_HELP)
def edge(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The options before a command."""


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; see `iop_shared.program`."""
    return run_program(app, NAME, arguments)
