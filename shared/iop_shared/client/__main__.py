"""The `iop` program: its commands, and how each error becomes a sentence and an exit code."""

import os
import platform
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from iop_shared import __version__
from iop_shared.client import chat, demo, events, nodes, render, run, runs, up
from iop_shared.client.exit_codes import CommandFailed, ExitCode, exit_codes_help
from iop_shared.client.options import EdgeOption, JsonOption, edge_api, print_json

app = typer.Typer(
    name="iop",
    help="Run inference and command-line agents on machines you own, through an edge.",
    epilog=exit_codes_help(),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
    """Runs one command line and returns its exit code. Never raises; no traceback reaches the user.

    With IOP_DEBUG set, an error that is our bug shows where it arose.
    """
    try:
        # Our own handling instead of typer's: it ends with 1 on Ctrl-C, and knows nothing of CommandFailed.
        code = app(list(arguments), prog_name="iop", standalone_mode=False)
        sys.stdout.flush()
        return int(code) if isinstance(code, int) else ExitCode.OK
    except CommandFailed as error:
        return _say(str(error), error.exit_code, error.hint)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # `iop runs | head`: the reader has what it wanted. Nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception as error:
        show = getattr(error, "show", None)
        if callable(show):  # typer's own error about the command line
            show()
            return int(getattr(error, "exit_code", ExitCode.USAGE))
        if os.environ.get("IOP_DEBUG"):
            traceback.print_exc()
        return _say(
            f"internal error: {type(error).__name__}: {error}",
            ExitCode.FAILED,
            "this is a bug in iop; with IOP_DEBUG=1 it shows where",
        )


def main() -> None:
    """Entry point of `iop`."""
    sys.exit(run_command(sys.argv[1:]))


def _say(message: str, code: ExitCode, hint: str = "") -> int:
    console = render.stderr()
    console.print(f"iop: {render.printable(message)}")
    if hint:
        console.print(f"  {render.printable(hint)}")
    return code


if __name__ == "__main__":
    main()
