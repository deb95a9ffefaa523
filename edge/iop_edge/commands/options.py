"""What the commands share: options, and how they print."""

from pathlib import Path
from typing import Annotated, Final

import typer

from iop_edge.config import CONFIG_FILE, EdgeSettings, load_edge_settings
from iop_shared.errors import InvalidConfig

DEFAULT_FOLDER: Final = Path("~/.iop/edge")

FolderOption = Annotated[
    Path,
    typer.Option(
        "--dir",
        envvar="IOP_EDGE_DIR",
        metavar="FOLDER",
        help="The edge's folder: edge.toml, edge.db, run.json.",
    ),
]


def load_folder(folder: Path) -> tuple[Path, EdgeSettings]:
    """Returns the folder with `~` filled in, and the settings in it.

    Raises:
        InvalidConfig: there is no edge.toml (the sentence says how to make one), or it cannot be used.
    """
    folder = folder.expanduser()
    return folder, load_edge_settings(folder / CONFIG_FILE)


def require_config(folder: Path) -> Path:
    """Returns the folder with `~` filled in, if an edge.toml is in it. It is not read: a token needs no good one.

    Raises:
        InvalidConfig: there is none.
    """
    folder = folder.expanduser()
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise InvalidConfig(str(path), ["there is no such file; make it with: iop-edge init"])
    return folder
