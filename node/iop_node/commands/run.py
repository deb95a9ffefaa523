"""`iop-node run`: the daemon."""

from typing import Annotated

import typer

from iop_node.app import run_node
from iop_node.commands.options import DEFAULT_FOLDER, FolderOption
from iop_node.config import CONFIG_FILE, TOKEN_FILE, load_node_settings, load_node_token
from iop_shared.aio.garbage import calm_garbage_collector
from iop_shared.aio.loop import run as run_loop
from iop_shared.logs import setup_logging


def run(
    folder: FolderOption = DEFAULT_FOLDER,
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level", envvar="IOP_LOG_LEVEL", metavar="LEVEL", help="debug, info, warning or error."
        ),
    ] = "info",
) -> None:
    """Run the node until Ctrl-C or SIGTERM; it dials the edge again whenever the link is lost.

    It runs when it logs node_started and run.json is in its folder, and is ready when /healthz says so. A second
    signal cuts short what runs are given to end. An edge that refuses this node for good ends it with exit code 4.
    """
    setup_logging("node", level=log_level)
    folder = folder.expanduser()
    settings = load_node_settings(folder / CONFIG_FILE)
    token = load_node_token(folder / TOKEN_FILE)
    calm_garbage_collector()
    raise typer.Exit(run_loop(lambda stop: run_node(settings, token, folder, stop)))
