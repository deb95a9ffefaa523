"""What the commands share: the folder, and how they print for programs."""

from pathlib import Path
from typing import Annotated, Final

import typer

DEFAULT_FOLDER: Final = Path("~/.iop/node")

FolderOption = Annotated[
    Path,
    typer.Option(
        "--dir",
        envvar="IOP_NODE_DIR",
        metavar="FOLDER",
        help="The node's folder: node.toml, token, node.db, run.json.",
    ),
]


def dir_argument(folder: Path) -> str:
    """Returns what to add to a command line shown to the user so that it means `folder`."""
    return "" if folder == DEFAULT_FOLDER.expanduser() else f" --dir {folder}"
