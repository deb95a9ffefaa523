"""`iop run`: one run, its answer on the terminal as it comes, its end in one line on stderr."""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from iop_shared.client import render
from iop_shared.client.answer import AnswerPrinter
from iop_shared.client.api import EdgeApi, EdgeRefused
from iop_shared.client.options import EdgeOption, JsonOption, edge_api, json_or_text, parse_pair, print_json
from iop_shared.client.records import RunEvent, RunRecord
from iop_shared.errors import nearest
from iop_shared.exit_codes import CommandFailed, ExitCode
from iop_shared.runs import Operation

CANCEL_WAIT_S: Final = 5.0
"""How long Ctrl-C waits for the run to say that it has ended. A second Ctrl-C does not wait."""
_RECORD_WAIT_S: Final = 1.0
_POLL_S: Final = 0.05

_EXIT_BY_STATE: Final[Mapping[str, ExitCode]] = {
    "succeeded": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "interrupted": ExitCode.FAILED,
    "cancelled": ExitCode.CANCELLED,
}
_NEXT_STEP_BY_LAYER: Final[Mapping[str, str]] = {
    "serving": "look at the engine on that node: is it up, and what does its own log say?",
    "target": "check the target's name and the request; `iop models` lists what can be asked for",
    "node": "`iop nodes` shows the node's state; its log has the rest",
    "edge": "`iop nodes` shows what is connected, `iop show RUN` why each candidate lost",
}
_MODELS_HINT: Final = "`iop models` lists what can be asked for"
_NEXT_STEP_BY_CODE: Final[Mapping[str, str]] = {
    "no_route": "`iop nodes` shows what is connected; trying again later can help",
    "unknown_node": "`iop nodes` lists them",
    "unknown_model": _MODELS_HINT,
    "unknown_adapter": _MODELS_HINT,
    "unknown_target": _MODELS_HINT,
}


def run(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; `-` or nothing reads it from stdin.", show_default=False)
    ] = None,
    adapter: Annotated[str | None, typer.Option(help="The adapter to run on, with --target.")] = None,
    target: Annotated[str | None, typer.Option(help="The model or command inside the adapter.")] = None,
    model: Annotated[
        str | None, typer.Option(help="A profile, or adapter/target, instead of --adapter and --target.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from this file.", show_default=False)] = None,
    body: Annotated[
        Path | None,
        typer.Option(help="Send this JSON file as the operation's own body, untouched.", show_default=False),
    ] = None,
    operation: Annotated[str, typer.Option(help="chat, completion, embed, generate, exec or http.")] = "chat",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="KEY=VALUE", help="For the adapter; a JSON value or text. Repeat it."
        ),
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that the whole run may take.")] = None,
    session: Annotated[str | None, typer.Option(help="Groups runs and keeps them on one node.")] = None,
    node: Annotated[str | None, typer.Option(help="Only this node may take it.")] = None,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print the answer once it is complete.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the run's id and leave; the run goes on.")
    ] = False,
    as_json: JsonOption = False,
    edge: EdgeOption = None,
) -> None:
    """Run something and print its answer while it is produced.

    The answer goes to stdout, everything else to stderr. Ctrl-C cancels the run on the edge.
    With --json each event is one JSON object on a line.
    """
    order = build_order(
        what=_what_to_run(adapter, target, model),
        operation=operation,
        input_=_read_input(prompt, file, body),
        options=option or [],
        timeout_s=timeout,
        session=session,
        node=node,
    )
    with edge_api(edge) as api:
        if detach:
            record = api.submit(order)
            if as_json:
                print_json(record.json)
            else:
                print(record.run_id)
            return
        code = stream_to_terminal(api, order, as_json=as_json, at_once=not no_stream)
    raise typer.Exit(code)


def build_order(
    *,
    what: Mapping[str, str],
    operation: str,
    input_: Any,
    options: list[str],
    timeout_s: float | None,
    session: str | None,
    node: str | None,
) -> dict[str, Any]:
    """Returns the body of `POST /api/v1/runs`.

    Raises:
        CommandFailed: (usage) an operation, option or time that cannot be meant.
    """
    operations = [known.value for known in Operation]
    if operation not in operations:
        raise CommandFailed(
            f"unknown operation {operation!r}: {nearest(operation, operations)}", exit_code=ExitCode.USAGE
        )
    if timeout_s is not None and not timeout_s > 0:
        raise CommandFailed(f"--timeout {timeout_s:g} is not more than 0 seconds", exit_code=ExitCode.USAGE)
    order: dict[str, Any] = {**what, "operation": operation, "input": input_}
    if options:
        order["options"] = dict(parse_pair("--option", text, json_or_text) for text in options)
    if timeout_s is not None:
        order["limits"] = {"total_timeout_s": timeout_s}
    if session is not None:
        order["session"] = session
    if node is not None:
        order["node"] = node
    return order


def stream_to_terminal(api: EdgeApi, order: Mapping[str, Any], *, as_json: bool, at_once: bool = True) -> ExitCode:
    """Runs `order`, prints what it says and how it ended; returns the exit code. Ctrl-C cancels the run.

    `at_once` False: prints the answer when it is complete.
    """
    printer = AnswerPrinter(render.AnswerWriter(sys.stdout, sys.stderr), at_once=at_once)
    taken: list[str] = []
    last: RunEvent | None = None
    try:
        with closing(api.stream_run(order, on_taken=taken.append)) as events:
            for event in events:
                last = event
                if as_json:
                    print_json(event.json)
                else:
                    printer.show(event)
        printer.close()
    except KeyboardInterrupt:
        printer.close()
        run_id = last.run_id if last is not None else "".join(taken)
        _cancel_after_interrupt(api, run_id, last.seq if last is not None else 0, as_json=as_json)
        return ExitCode.INTERRUPTED
    except EdgeRefused as error:
        printer.close()
        raise _refused_run(error) from error
    except CommandFailed:
        printer.close()
        raise
    assert last is not None, "the stream of a run ends with its terminal event or an error"
    if not as_json:
        _print_ending(last, _final_record(api, last.run_id))
    return _EXIT_BY_STATE[last.type]


def status_line(record: RunRecord) -> str:
    """Returns a run's end in one line: state, id, node, tokens, first token, total."""
    parts = [record.state, record.run_id]
    if record.node_id:
        parts.append(f"on {record.node_id}")
    if record.usage is not None and record.usage.sentence():
        parts.append(record.usage.sentence())
    if record.first_token_s is not None:
        parts.append(f"first token {render.duration(record.first_token_s)}")
    if record.total_s is not None:
        parts.append(f"total {render.duration(record.total_s)}")
    return " · ".join(parts)


def failure_lines(code: str, layer: str, message: str) -> list[str]:
    """Returns why a run failed: code and layer, the sentence, the next step."""
    lines = [f"failed: {code}" + (f" (layer {layer})" if layer else ""), f"  {message}"]
    if layer in _NEXT_STEP_BY_LAYER:
        lines.append(f"  next: {_NEXT_STEP_BY_LAYER[layer]}")
    return lines


def _final_record(api: EdgeApi, run_id: str) -> RunRecord | None:
    """Returns the record once it has the run's end; history is written a moment after the last event."""
    deadline = time.monotonic() + _RECORD_WAIT_S
    while True:
        try:
            record = api.get_run(run_id)
        except CommandFailed:
            return None  # the answer is complete; that its record cannot be read is no failure of the run
        if record.is_ended or time.monotonic() > deadline:
            return record
        time.sleep(_POLL_S)


def _print_ending(ending: RunEvent, record: RunRecord | None) -> None:
    console = render.stderr()
    line = status_line(record) if record is not None else f"{ending.type} · {ending.run_id}"
    match ending.type:
        case "failed":
            for text in failure_lines(ending.text("code"), ending.text("layer"), ending.text("message")):
                console.print(render.printable(text), style="red" if text.startswith("failed") else None)
        case "interrupted":
            console.print("interrupted: the run was lost on its node", style="red")
            console.print(
                f"  {render.printable(ending.text('message'))} ({render.printable(ending.text('code'))})"
            )
            console.print(f"  next: {_NEXT_STEP_BY_LAYER['node']}")
        case "cancelled":
            console.print(f"cancelled: {render.printable(ending.text('reason'))}", style="yellow")
        case _:
            pass
    console.print(render.printable(line), style="dim")


def _cancel_after_interrupt(api: EdgeApi, run_id: str, last_seq: int, *, as_json: bool) -> None:
    """Cancels the run and says what became of it. Leaving the stream cancels it too; this one is sure and seen."""
    console = render.stderr()
    if not run_id:
        console.print("interrupted before the edge had taken the run", style="yellow")
        return
    try:
        api.cancel(run_id, "interrupted by the user")
        deadline = time.monotonic() + CANCEL_WAIT_S
        record = api.get_run(run_id)
        while not record.is_ended and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            record = api.get_run(run_id)
        if as_json:
            for event in api.get_run_with_events(run_id)[1]:
                if event.seq > last_seq:
                    print_json(event.json)
            return
    except CommandFailed as error:
        console.print(f"run {run_id}: the cancel may not have arrived: {error}", style="red")
        return
    line = render.printable(status_line(record))
    if record.state == "cancelled" and record.cancel_took_ms is not None:
        how = "the engine confirmed it" if record.cancel_confirmed else "the engine did not confirm it"
        line += f" · stopped in {render.duration(record.cancel_took_ms / 1000)}, {how}"
    elif not record.is_ended:
        line += f" · not ended after {render.duration(CANCEL_WAIT_S)}; see: iop show {record.run_id}"
    console.print(line, style="yellow")


def _refused_run(error: EdgeRefused) -> CommandFailed:
    """Returns the same with what to do next: more than the API itself can know."""
    hint = _NEXT_STEP_BY_CODE.get(error.code, error.hint)
    return CommandFailed(str(error), exit_code=error.exit_code, hint=hint)


def _what_to_run(adapter: str | None, target: str | None, model: str | None) -> dict[str, str]:
    if model is not None:
        if adapter is not None or target is not None:
            raise CommandFailed(
                "--model stands for adapter and target: give either it or the other two", exit_code=ExitCode.USAGE
            )
        return {"model": model}
    if adapter is None or target is None:
        raise CommandFailed(
            "nothing says what to run",
            exit_code=ExitCode.USAGE,
            hint="give --model NAME, or --adapter and --target; `iop models` lists them",
        )
    return {"adapter": adapter, "target": target}


def _read_input(prompt: str | None, file: Path | None, body: Path | None) -> Any:
    """Returns the run's input: text from the argument, a file or stdin, or the JSON object of `--body`."""
    given = [name for name, value in (("PROMPT", prompt), ("--file", file), ("--body", body)) if value is not None]
    if len(given) > 1:
        raise CommandFailed(f"the input is given twice, by {' and by '.join(given)}", exit_code=ExitCode.USAGE)
    if body is not None:
        text = _read_file(body, "--body")
        try:
            value = json.loads(text)
        except ValueError as error:
            raise CommandFailed(f"--body {body} is not JSON: {error}", exit_code=ExitCode.USAGE) from error
        if not isinstance(value, dict):
            raise CommandFailed(f"--body {body} holds no JSON object", exit_code=ExitCode.USAGE)
        return value
    if file is not None:
        return _read_file(file, "--file")
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise CommandFailed(
            "there is no prompt",
            exit_code=ExitCode.USAGE,
            hint="give it as an argument, with --file, or pipe it in",
        )
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise CommandFailed(f"stdin is not UTF-8 text: {error}", exit_code=ExitCode.USAGE) from error


def _read_file(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{option} {path} is not UTF-8 text: {error}", exit_code=ExitCode.USAGE) from error
    except OSError as error:
        raise CommandFailed(
            f"{option} {path} cannot be read: {error.strerror}", exit_code=ExitCode.USAGE
        ) from error
