"""`iop-edge config check`: says whether edge.toml can be used, and what follows from it."""

import typer

from iop_edge.commands.options import DEFAULT_FOLDER, FolderOption, load_folder
from iop_edge.config import CONFIG_FILE
from iop_shared.errors import InvalidConfig
from iop_shared.exit_codes import ExitCode
from iop_shared.program import JsonOption, print_json

app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Look at the configuration."""


@app.command()
def check(folder: FolderOption = DEFAULT_FOLDER, as_json: JsonOption = False) -> None:
    """Read edge.toml and the IOP_EDGE__ variables, and tell every problem. Starts nothing."""
    path = folder.expanduser() / CONFIG_FILE
    try:
        _, settings = load_folder(folder)
    except InvalidConfig as error:
        if not as_json:
            raise
        print_json({"ok": False, "config": str(path), "problems": error.problems})
        raise typer.Exit(ExitCode.USAGE) from None
    summary = {
        "ok": True,
        "config": str(path),
        "link": str(settings.link.listen),
        "http": str(settings.http.listen),
        "adapters": sorted(settings.adapters),
        "nodes": sorted(settings.nodes),
        "profiles": sorted(settings.profiles),
    }
    if as_json:
        print_json(summary)
        return
    typer.echo(f"{path}: good")
    for key in ("link", "http", "adapters", "nodes", "profiles"):
        value = summary[key]
        typer.echo(f"  {key:9} {value if isinstance(value, str) else ', '.join(settings_names(value)) or '-'}")
    if settings.adapters:
        # Only a node has the code of an adapter.
        typer.echo("types and own keys of adapters are checked by each node: `iop node NODE` shows what it says")


def settings_names(value: object) -> list[str]:
    """Returns the names in one list of the summary."""
    assert isinstance(value, list), "lists of names are lists"
    return [str(name) for name in value]
