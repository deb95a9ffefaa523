"""`iop runs`, `iop show` and `iop cancel`: what was run, and what became of it."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from iop_shared.client import render
from iop_shared.client.answer import event_summary, joined
from iop_shared.client.options import EdgeOption, JsonOption, edge_api, print_json
from iop_shared.client.records import RunEvent, RunRecord
from iop_shared.client.render import Column
from iop_shared.errors import nearest
from iop_shared.exit_codes import CommandFailed, ExitCode
from iop_shared.runs import RunState

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or enough of its beginning.")]

RUN_COLUMNS = (
    Column("run"),
    Column("state"),
    Column("what", shrinks=True, least=12),
    Column("node", priority=2, shrinks=True, least=6),
    Column("asked"),
    Column("total", right=True, priority=1),
    Column("tokens", right=True, priority=4),
    Column("first token", right=True, priority=5),
    Column("code", priority=3, shrinks=True, least=8),
    Column("session", priority=6, shrinks=True, least=6),
    Column("source", priority=7, shrinks=True, least=6),
)


def runs(
    limit: Annotated[int, typer.Option(help="How many, 1 to 500.")] = 20,
    state: Annotated[str | None, typer.Option(help="Only runs in this state.")] = None,
    node: Annotated[str | None, typer.Option(help="Only runs of this node.")] = None,
    adapter: Annotated[str | None, typer.Option(help="Only runs on this adapter.")] = None,
    cursor: Annotated[str | None, typer.Option(help="Go on where the page before ended.")] = None,
    as_json: JsonOption = False,
    edge: EdgeOption = None,
) -> None:
    """List runs, newest first."""
    if not 1 <= limit <= 500:
        raise CommandFailed(f"--limit {limit} is not between 1 and 500", exit_code=ExitCode.USAGE)
    states = [known.value for known in RunState]
    if state is not None and state not in states:
        raise CommandFailed(f"unknown state {state!r}: {nearest(state, states)}", exit_code=ExitCode.USAGE)
    with edge_api(edge) as api:
        page, next_cursor = api.list_runs(limit=limit, state=state, node=node, adapter=adapter, cursor=cursor)
    if as_json:
        print_json({"runs": [run.json for run in page], "next_cursor": next_cursor})
        return
    if not page:
        filters = (("--state", state), ("--node", node), ("--adapter", adapter), ("--cursor", cursor))
        chosen = " ".join(f"{name} {value}" for name, value in filters if value is not None)
        render.stderr().print(f"no runs{f' with {chosen}' if chosen else ' yet'}")
        return
    console = render.stdout()
    render.print_table(console, RUN_COLUMNS, [_row(run, console) for run in page])
    if next_cursor is not None:
        render.stderr().print(f"older ones: iop runs --limit {limit} --cursor {next_cursor}", style="dim")


def show(run: RunArgument, as_json: JsonOption = False, edge: EdgeOption = None) -> None:
    """Show a run's record and what is kept of its events."""
    with edge_api(edge) as api:
        record, events = api.get_run_with_events(api.resolve_run_id(run))
    if as_json:
        print_json({"run": record.json, "events": [event.json for event in events]})
    else:
        print_run(render.stdout(), record, events)


def cancel(
    run: RunArgument,
    reason: Annotated[str, typer.Option(help="Why; it is kept with the run.")] = "operator",
    as_json: JsonOption = False,
    edge: EdgeOption = None,
) -> None:
    """Ask a run to stop. Asking twice is no error, nor is asking a run that has ended."""
    with edge_api(edge) as api:
        run_id = api.resolve_run_id(run)
        cancelling = api.cancel(run_id, reason)
    if as_json:
        print_json({"run_id": run_id, "cancelling": cancelling})
    elif cancelling:
        print(f"{run_id} is being cancelled")
    else:
        print(f"{run_id} had ended already")


def print_run(console: Console, run: RunRecord, events: Sequence[RunEvent]) -> None:
    """Prints a run's record and its events, as `iop show` does."""
    console.print(Text.assemble(("run ", "bold"), (run.run_id, "bold")))
    render.print_facts(console, _facts(run))
    if not events:
        return
    console.print("events", style="bold")
    start_ms = run.created_at_ms
    width = max(len(str(event.seq)) for event in events)
    for event in joined(events):
        at = "" if event.at_ms is None else f"+{max(0, event.at_ms - start_ms) / 1000:.3f} s"
        head = f"  {event.seq:>{width}}  {at:>10}  {event.type:<11} "
        room = max(20, console.width - len(head))
        summary = render.one_line(event_summary(event))
        if len(summary) > room:
            summary = summary[: room - 1] + "…"
        console.print(Text(head + summary, style=render.STATE_STYLES.get(event.type, "")))


def _row(run: RunRecord, console: Console) -> list[str]:
    return [
        render.short_id(run.run_id, console),
        run.state,
        run.profile or f"{run.adapter}/{run.target}",
        run.node_id or "",
        render.moment(run.created_at_ms) if console.is_terminal else render.full_moment(run.created_at_ms),
        render.duration(run.total_s),
        render.number(run.usage.completion_tokens if run.usage is not None else None),
        render.duration(run.first_token_s),
        run.code,
        run.session or "",
        run.source,
    ]


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    """Returns what there is to say of a run, in the order in which one asks."""
    facts = [("state", run.state + (f" (attempt {run.attempt})" if run.attempt > 1 else ""))]
    if run.code:
        facts.append(("failure", f"{run.code}" + (f" (layer {run.layer})" if run.layer else "")))
    if run.message:
        facts.append(("message", run.message))
    facts.append(("what", f"{run.operation} on {run.adapter}/{run.target}"))
    optional = (
        ("profile", run.profile),
        ("node", run.node_id),
        ("session", run.session),
        ("source", run.source),
        ("asked", render.full_moment(run.created_at_ms)),
        ("ended", render.full_moment(run.ended_at_ms) if run.ended_at_ms else None),
    )
    facts += [(name, value) for name, value in optional if value]
    times = (("queued", run.queued_s), ("first token", run.first_token_s), ("total", run.total_s))
    facts += [(name, render.duration(seconds)) for name, seconds in times if seconds is not None]
    if run.usage is not None and run.usage.sentence():
        facts.append(("tokens", run.usage.sentence()))
    facts.append(("bytes", f"{render.size(run.input_bytes)} in, {render.size(run.output_bytes)} out"))
    if run.finish_reason:
        facts.append(("finish", run.finish_reason))
    if run.cancel_reason:
        facts.append(("cancel", _cancel_phrase(run)))
    facts += [(f"not {refusal.node_id}", f"{refusal.code}: {refusal.message}") for refusal in run.refusals]
    return facts


def _cancel_phrase(run: RunRecord) -> str:
    phrase = run.cancel_reason
    if run.cancel_confirmed is not None:
        phrase += ", confirmed by the engine" if run.cancel_confirmed else ", not confirmed by the engine"
    if run.cancel_took_ms is not None:
        phrase += f", in {render.duration(run.cancel_took_ms / 1000)}"
    return phrase
