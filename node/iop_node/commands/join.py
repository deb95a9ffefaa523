"""`iop-node join`: makes the node's folder for an edge, after the edge has said that it takes this node."""

import asyncio
import re
import socket
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from iop_node.commands.options import DEFAULT_FOLDER, FolderOption, dir_argument
from iop_node.config import CONFIG_FILE, TOKEN_FILE, load_node_settings
from iop_node.config_template import node_toml
from iop_node.transport.check import check_edge
from iop_shared import __version__
from iop_shared.aio.loop import StopSignal
from iop_shared.aio.loop import run as run_loop
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import BadRequest, InvalidConfig, InvalidName, Unavailable
from iop_shared.exit_codes import ExitCode
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import NodeId, check_name, new_boot_id
from iop_shared.link.auth import Token, parse_token
from iop_shared.link.messages import Welcome
from iop_shared.link.node_side import NodeIdentity
from iop_shared.private_files import read_secret, write_private
from iop_shared.program import JsonOption, print_json

MAX_STDIN_CHARS: Final = 1024
DEFAULT_LINK_PORT: Final = 7443


def join(
    edge: Annotated[str, typer.Argument(metavar="EDGE", help="Where the edge takes nodes: HOST or HOST:PORT.")],
    token: Annotated[
        str,
        typer.Option(
            metavar="TOKEN",
            help="From `iop-edge token add`. `-` reads standard input: other users can see arguments.",
        ),
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the token from this file, which only you may read.")
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The node's name, as the token was made for. [default: host name]")
    ] = "",
    folder: FolderOption = DEFAULT_FOLDER,
    allow_plaintext: Annotated[
        bool,
        typer.Option(
            "--allow-plaintext", help="Dial an edge on another machine although links are not encrypted."
        ),
    ] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not ask the edge first.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask the edge whether it takes this node, then write node.toml and the token; on a failure write nothing.

    In a folder that has joined this edge before, the token alone is replaced.
    """
    folder = folder.expanduser()
    address = parse_edge(edge)
    secret = read_token(token, token_file)
    path = folder / CONFIG_FILE
    is_new = not path.exists()
    if is_new:
        node_id = NodeId(check_name("node", name)) if name else host_name()
        if not address.is_loopback and not allow_plaintext:
            raise BadRequest(
                f"{address} is on another machine, and links are not encrypted yet: add --allow-plaintext "
                "if the network in between is trusted (a VPN, for example)",
                param="edge",
            )
    else:
        node_id = _joined_before(path, address, name)
    welcome = None if no_check else ask_edge(address, secret, node_id, may_be_connected=not is_new)
    write_private(folder / TOKEN_FILE, secret.text + "\n")
    if is_new:
        write_private(path, node_toml(node_id, address, allow_plaintext=allow_plaintext))
    if as_json:
        print_json(
            {
                "node_id": node_id,
                "edge": str(address),
                "dir": str(folder),
                "token_id": secret.token_id,
                "checked": welcome is not None,
                "adapters": [a.name for a in welcome.config.adapters] if welcome is not None else [],
            }
        )
        return
    if welcome is not None:
        adapters = ", ".join(a.name for a in welcome.config.adapters) or "none yet"
        typer.echo(f"the edge {address} takes node {node_id}; adapters for it: {adapters}")
    typer.echo(f"wrote {path}" if is_new else f"{path} stays as it is")
    typer.echo(f"wrote {folder / TOKEN_FILE}")
    typer.echo(f"start the node:  iop-node run{dir_argument(folder)}")


def parse_edge(text: str) -> ListenAddress:
    """Returns the address; without a port the usual one.

    Raises:
        BadRequest: with the value and the form.
    """
    is_bare = re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]", text) is not None
    try:
        address = ListenAddress.parse(f"{text}:{DEFAULT_LINK_PORT}" if is_bare else text)
    except ValueError as error:
        raise BadRequest(f"EDGE {error}", param="edge") from None
    if address.port == 0:
        raise BadRequest(
            f"EDGE {text!r}: port 0 cannot be dialled; run.json of the edge has its port", param="edge"
        )
    return address


def read_token(token: str, token_file: Path | None) -> Token:
    """Returns the token from where the options say.

    Raises:
        BadRequest: none or two are given, or it is none. InvalidConfig: the file cannot be used.
    """
    if bool(token) == (token_file is not None):
        raise BadRequest(
            "give the token once: --token - reads it from standard input, --token-file FILE from a file; "
            "`iop-edge token add NODE` makes one",
            param="token",
        )
    if token_file is not None:
        token = read_secret(token_file.expanduser())
    elif token == "-":
        if sys.stdin.isatty():
            typer.echo("token: ", nl=False, err=True)
        token = sys.stdin.readline(MAX_STDIN_CHARS)
    return parse_token(token)


def ask_edge(
    address: ListenAddress, token: Token, node_id: NodeId, *, may_be_connected: bool = False
) -> Welcome | None:
    """Returns the edge's Welcome. `may_be_connected`: None if the token is good but the node is connected already.

    Raises:
        NotAllowed, Unavailable, LinkError: as `check_edge`. KeyboardInterrupt: by Ctrl-C.
    """
    answers: list[Welcome] = []

    async def main(stop: StopSignal) -> int:
        identity = NodeIdentity(node_id, new_boot_id(), token, __version__)
        tasks = TaskOwner("join", lambda *_: None)  # its failure is raised below
        check = tasks.spawn(check_edge(address, identity), name="check")
        asked_to_stop = tasks.spawn(stop.wait(), name="stop")
        try:
            await asyncio.wait({check, asked_to_stop}, return_when=asyncio.FIRST_COMPLETED)
            if check.done():
                answers.append(check.result())
        finally:
            await tasks.cancel_all()
        return ExitCode.OK

    try:
        run_loop(main)
    except Unavailable as error:
        if error.code == "duplicate_node" and may_be_connected:
            # A new token for a node that runs: the edge says this only to who holds a good one.
            return None
        if error.code in ("edge_unreachable", "name_unresolved"):
            raise Unavailable(
                f"{error}. Nothing was written; --no-check joins without asking", code=error.code
            ) from error
        raise
    if not answers:
        raise KeyboardInterrupt
    return answers[0]


def host_name() -> NodeId:
    """Returns a node name made from this machine's.

    Raises:
        BadRequest: nothing usable is left of it.
    """
    host = socket.gethostname()
    usable = re.sub(r"[^a-z0-9._-]+", "-", host.lower())[:63].strip("-._")
    try:
        return NodeId(check_name("node", usable))
    except InvalidName:
        raise BadRequest(
            f"this machine's name {host!r} gives no name for a node: use --name", param="name"
        ) from None


def _joined_before(path: Path, address: ListenAddress, name: str) -> NodeId:
    """Returns the name in an existing file, if this join changes nothing but the token."""
    settings = load_node_settings(path, environ={})
    same_edge = settings.edges == [address]
    if same_edge and name in ("", settings.node_id):
        return settings.name
    edges = ", ".join(str(edge) for edge in settings.edges)
    raise InvalidConfig(
        str(path),
        [
            f"exists already, for node {settings.node_id} and edge {edges}, and is left as it is: "
            "edit it, or use another --dir"
        ],
    )
