"""`iop-edge run`: the daemon."""

from typing import Annotated

import typer

from iop_edge.app import run_edge
from iop_edge.commands.options import DEFAULT_FOLDER, FolderOption, load_folder
from iop_shared.aio.garbage import calm_garbage_collector
from iop_shared.aio.loop import run as run_loop
from iop_shared.logs import setup_logging


def run(
    folder: FolderOption = DEFAULT_FOLDER,
    log_level: Annotated[
        str,
        typer.Option("--log-level", envvar="IOP_LOG_LEVEL", help="debug, info, warning or error."),
    ] = "info",
) -> None:
    """Run the edge until Ctrl-C or SIGTERM. Ready when it logs edge_started and run.json is in its folder."""
    setup_logging("edge", level=log_level)
    folder, settings = load_folder(folder)
    calm_garbage_collector()
    raise typer.Exit(run_loop(lambda stop: run_edge(settings, folder, stop)))
