"""`iop-edge token add|list|revoke`: works beside a running edge, which sees changes within seconds."""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from iop_edge.commands.options import DEFAULT_FOLDER, FolderOption, require_config
from iop_edge.config import DATABASE_FILE
from iop_edge.domain.ports import NodeToken
from iop_edge.stores.schema import MIGRATIONS
from iop_edge.stores.tokens import SqliteTokenStore
from iop_shared.aio.loop import StopSignal
from iop_shared.aio.loop import run as run_loop
from iop_shared.aio.sqlite import Database
from iop_shared.ids import NodeId, TokenId, check_name
from iop_shared.link.auth import new_token, stored_key
from iop_shared.program import JsonOption, print_json

T = TypeVar("T")

app = typer.Typer(help="Make, list and revoke the tokens of nodes.", no_args_is_help=True)


@app.command()
def add(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name; the token is good for it alone.")],
    label: Annotated[str, typer.Option("--label", help="A word for yourself, shown by `token list`.")] = "",
    folder: FolderOption = DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Make a token for NODE and show it once. Older tokens of the node stay valid until they are revoked."""
    token_id, text = make_token(require_config(folder), NodeId(check_name("node", node)), label)
    if as_json:
        print_json({"token_id": token_id, "node_id": node, "token": text})
        return
    typer.echo(f"token for node {node}, shown this once:\n\n  {text}\n\non the node:\n")
    typer.echo(f"  iop-node join EDGE_HOST:PORT --token - --name {node}")


@app.command("list")
def list_tokens(folder: FolderOption = DEFAULT_FOLDER, as_json: JsonOption = False) -> None:
    """List all tokens, revoked ones too. Their secrets are kept nowhere."""
    tokens = _with_store(require_config(folder), lambda store: store.list_all())
    if as_json:
        print_json({"tokens": [_token_json(token) for token in tokens]})
        return
    if not tokens:
        typer.echo("no tokens yet; make one with: iop-edge token add NODE")
        return
    rows = [("TOKEN", "NODE", "STATE", "CREATED", "LAST USED", "LABEL")]
    rows += [
        (
            token.token_id,
            token.node_id,
            "revoked" if token.is_revoked else "valid",
            _when(token.created_at_ms),
            _when(token.last_used_at_ms),
            token.label,
        )
        for token in tokens
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN_ID", help="As `token list` shows it.")],
    folder: FolderOption = DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Revoke a token. A running edge closes its link within 5 seconds."""
    now_ms = _now_ms()
    token = _with_store(require_config(folder), lambda store: store.revoke(TokenId(token_id), now_ms))
    if as_json:
        print_json(_token_json(token))
        return
    assert token.revoked_at_ms is not None, "it has just been revoked"
    was = "" if token.revoked_at_ms == now_ms else f" (it has been since {_when(token.revoked_at_ms)})"
    typer.echo(f"token {token.token_id} of node {token.node_id} is revoked{was}")


def make_token(folder: Path, node_id: NodeId, label: str) -> tuple[TokenId, str]:
    """Keeps a new token of `node_id` in the folder's database; returns its id and its text."""
    token = new_token()
    kept = NodeToken(token.token_id, node_id, stored_key(token.secret), _now_ms(), label)
    _with_store(folder, lambda store: store.add(kept))
    return token.token_id, token.text


def _with_store(folder: Path, work: Callable[[SqliteTokenStore], Awaitable[T]]) -> T:
    results: list[T] = []

    async def main(stop: StopSignal) -> int:
        database = await Database.open(folder / DATABASE_FILE, MIGRATIONS, name="edge")
        try:
            results.append(await work(SqliteTokenStore(database)))
        finally:
            await database.aclose()
        return 0

    run_loop(main)
    if not results:
        raise KeyboardInterrupt
    return results[0]


def _token_json(token: NodeToken) -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "node_id": token.node_id,
        "label": token.label,
        "created_at_ms": token.created_at_ms,
        "last_used_at_ms": token.last_used_at_ms,
        "revoked_at_ms": token.revoked_at_ms,
    }


def _when(at_ms: int | None) -> str:
    return "never" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
