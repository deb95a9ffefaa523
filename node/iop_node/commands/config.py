"""`iop-node config check`: says whether node.toml and the token can be used."""

from typing import Any

import typer

from iop_node.commands.options import DEFAULT_FOLDER, FolderOption
from iop_node.config import CONFIG_FILE, TOKEN_FILE, load_node_settings, load_node_token
from iop_shared.errors import InvalidConfig
from iop_shared.exit_codes import ExitCode
from iop_shared.program import JsonOption, print_json

app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Look at the configuration."""


@app.command()
def check(folder: FolderOption = DEFAULT_FOLDER, as_json: JsonOption = False) -> None:
    """Read node.toml, the IOP_NODE__ variables and the token file, and tell every problem. Dials nobody."""
    folder = folder.expanduser()
    path = folder / CONFIG_FILE
    problems: list[str] = []
    summary: dict[str, Any] = {}
    try:
        settings = load_node_settings(path)
        summary = {
            "node_id": settings.node_id,
            "edges": [str(edge) for edge in settings.edges],
            "http": str(settings.http.listen) if settings.http.enabled else "",
            "labels": settings.labels,
            "allow_adapters": settings.allow.adapters,
            "allow_base_urls": settings.allow.base_urls,
        }
    except InvalidConfig as error:
        problems += str(error).splitlines()
    try:
        summary["token_id"] = load_node_token(folder / TOKEN_FILE).token_id
    except InvalidConfig as error:
        problems += str(error).splitlines()
    if as_json:
        print_json({"ok": not problems, "config": str(path), "problems": problems, **summary})
        raise typer.Exit(ExitCode.USAGE if problems else ExitCode.OK)
    if problems:
        raise InvalidConfig("", problems)
    typer.echo(f"{path}: good")
    for key, value in summary.items():
        typer.echo(f"  {key:16} {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{key}={text}" for key, text in value.items()]
    return (", ".join(value) or "-") if isinstance(value, list) else str(value) or "-"
