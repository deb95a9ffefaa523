"""`iop-node run`: the daemon."""

from typing import Annotated

import typer

from iop_node.app import run_node
from iop_node.commands.options import DEFAULT_FOLDER, FolderOption
from iop_node.config import CONFIG_FILE, TOKEN_FILE, load_node_settings
from iop_shared.aio.garbage import calm_garbage_collector
from iop_shared.aio.loop import run as run_loop
from iop_shared.errors import BadRequest, InvalidConfig
from iop_shared.link.auth import parse_token
from iop_shared.logs import setup_logging
from iop_shared.private_files import read_secret


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
    token_path = folder / TOKEN_FILE
    try:
        token = parse_token(read_secret(token_path))
    except InvalidConfig:
        raise
    except BadRequest as error:
        raise InvalidConfig(str(token_path), [str(error)]) from None
    calm_garbage_collector()
    raise typer.Exit(run_loop(lambda stop: run_node(settings, token, folder, stop)))
