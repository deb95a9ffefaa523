"""The `iop` program and its commands."""

import platform
from collections.abc import Sequence
from typing import Any, Final

from iop_shared import __version__
from iop_shared.client import chat, demo, events, nodes, render, run, runs, up
from iop_shared.client.options import EdgeOption, JsonOption, edge_api, print_json
from iop_shared.exit_codes import CommandFailed, exit_codes_help
from iop_shared.program import make_program, run_program

NAME: Final = "iop"

app = make_program(NAME, "Run inference and command-line agents on machines you own, through an edge.")
for _command in (
    run.run,
    chat.chat,
    nodes.models,
    nodes.nodes,
    nodes.node,
    runs.runs,
    runs.show,
    runs.cancel,
    events.events,
    up.up,
    demo.demo,
):
    app.command(epilog=exit_codes_help())(_command)


@app.command()
def version(as_json: JsonOption = False, edge: EdgeOption = None) -> None:
    """Show the version of this program and of the edge, if one answers."""
    answer: dict[str, Any] = {"version": __version__, "python": platform.python_version(), "edge": None}
    why = ""
    with edge_api(edge) as api:
        answer["edge_url"] = api.url
        try:
            answer["edge"] = dict(api.version())
        except CommandFailed as error:
            # Asking for one's own version must work without an edge.
            why = str(error)
    if as_json:
        print_json(answer)
        return
    print(f"iop {__version__} (Python {answer['python']})")
    if answer["edge"] is not None:
        protocols = {answer["edge"].get("protocol_min"), answer["edge"].get("protocol_max")}
        spoken = " to ".join(str(protocol) for protocol in sorted(p for p in protocols if p is not None))
        print(f"edge {render.printable(answer['edge']['version'])} at {answer['edge_url']}, protocol {spoken}")
    else:
        render.stderr().print(why, style="dim")


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; see `iop_shared.program`."""
    return run_program(app, NAME, arguments, say=_say)


def _say(line: str) -> None:
    # What an edge answered may be in it.
    render.stderr().print(render.printable(line))
