"""The `iop-node` program and its commands."""

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from iop_node.commands import config
from iop_node.commands.join import join
from iop_node.commands.run import run
from iop_shared import __version__
from iop_shared.exit_codes import exit_codes_help
from iop_shared.program import make_program, run_program

NAME: Final = "iop-node"
_HELP: Final = "The node: dials an edge, and executes on this machine what the edge asks and its own file allows."

app = make_program(NAME, _HELP)
app.command(epilog=exit_codes_help())(join)
app.command(epilog=exit_codes_help())(run)
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback(help=_HELP)
def node(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The options before a command."""


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; see `iop_shared.program`."""
    return run_program(app, NAME, arguments)
