"""What the commands share: the folder, and how they print for programs."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def print_json(value: Any) -> None:
    """Prints one JSON value on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def dir_argument(folder: Path) -> str:
    """Returns what to add to a command line shown to the user so that it means `folder`."""
    return "" if folder == DEFAULT_FOLDER.expanduser() else f" --dir {folder}"
