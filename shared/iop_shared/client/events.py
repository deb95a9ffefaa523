"""`iop events`: follows what happens in the edge."""

import json
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.text import Text

from iop_shared.client import render
from iop_shared.client.options import EdgeOption, JsonOption, edge_api, print_json
from iop_shared.client.records import BusEvent
from iop_shared.exit_codes import CommandFailed, ExitCode


def events(
    after: Annotated[
        int | None, typer.Option(help="First the kept events after this number.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    edge: EdgeOption = None,
) -> None:
    """Follow what happens to nodes, runs and the edge, until Ctrl-C."""
    console = render.stdout()
    with edge_api(edge) as api, closing(api.follow_events(after)) as stream:
        for event in stream:
            if isinstance(event, int):
                if as_json:
                    print_json({"kind": "gap", "dropped": event})
                else:
                    console.print(f"{event} events are missing here", style="yellow")
            elif as_json:
                print_json(event.json)
            else:
                console.print(Text(event_line(event, full=not console.is_terminal)))
    raise CommandFailed("the edge has closed the stream of events", exit_code=ExitCode.UNAVAILABLE)


def event_line(event: BusEvent, *, full: bool = False) -> str:
    """Returns one event as one line. `full`: with the day and milliseconds."""
    at = render.full_moment(event.at_ms) if full else render.moment(event.at_ms)
    named = [("node", event.node_id), ("run", event.run_id), *event.detail.items()]
    parts = [render.one_line(f"{name}={_shown(value)}") for name, value in named if value not in (None, "")]
    return "  ".join([at, f"{render.one_line(event.kind):<18}", *parts]).rstrip()


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")  # a duration: microseconds are more than anybody reads
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
