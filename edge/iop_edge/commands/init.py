"""`iop-edge init`: makes the edge's folder, its commented configuration, and the first node's token."""

from typing import Annotated

import typer

from iop_edge.commands.options import DEFAULT_FOLDER, FolderOption
from iop_edge.commands.token import make_token
from iop_edge.config import CONFIG_FILE, load_edge_settings
from iop_edge.config_template import TEMPLATE
from iop_shared.errors import InvalidConfig
from iop_shared.ids import NodeId, check_name
from iop_shared.private_files import write_private
from iop_shared.program import JsonOption, print_json


def init(
    folder: FolderOption = DEFAULT_FOLDER,
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="The first node's name.")] = "node-1",
    no_token: Annotated[bool, typer.Option("--no-token", help="Make no token.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented edge.toml and make the first node's token. Changes nothing that is there already."""
    folder = folder.expanduser()
    path = folder / CONFIG_FILE
    check_name("node", node)
    if path.exists():
        raise InvalidConfig(
            str(path),
            ["exists already and is left as it is; edit it, or make a token with: iop-edge token add NODE"],
        )
    write_private(path, TEMPLATE)
    settings = load_edge_settings(path)
    token_id, text = ("", "") if no_token else make_token(folder, NodeId(node), "made by init")
    if as_json:
        answer = {"dir": str(folder), "config": str(path)}
        print_json(answer if no_token else answer | {"node_id": node, "token_id": token_id, "token": text})
        return
    typer.echo(f"wrote {path}")
    where = "" if folder == DEFAULT_FOLDER.expanduser() else f" --dir {folder}"
    if not no_token:
        typer.echo(f"token for node {node}, shown this once:\n\n  {text}\n")
    typer.echo(f"start the edge:  iop-edge run{where}")
    if not no_token:
        typer.echo(f"join the node:   iop-node join {settings.link.listen} --token - --name {node}")
