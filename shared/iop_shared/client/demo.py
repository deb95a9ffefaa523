"""`iop demo`: the whole platform in a few seconds on one machine, every claim checked.

Nothing is left behind: a temporary folder, free loopback ports, every process stopped.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final

from rich.console import Console

from iop_shared.client import local_daemons as daemons
from iop_shared.client import render
from iop_shared.client.answer import AnswerPrinter
from iop_shared.client.api import EdgeApi
from iop_shared.client.children import Child, StopRequest, stop_in_order
from iop_shared.client.records import RunEvent, RunRecord
from iop_shared.client.runs import print_run
from iop_shared.exit_codes import CommandFailed

_ADAPTER_OF: Final[Mapping[str, str]] = {"demo-a": "day", "demo-b": "night"}
"""Each node and the one adapter that it offers, so that routing has something to decide."""
_ADAPTERS: Final = """
[adapters.day]
type = "mock"

[adapters.night]
type = "mock"

[nodes.demo-a]
adapters = ["day"]
labels = { site = "lab" }

[nodes.demo-b]
adapters = ["night"]
labels = { site = "cellar" }
"""
_FREE: Final = "127.0.0.1:0"
_PROMPT: Final = "The edge hands this sentence to a node and the words come back one by one."
_DELAY_S: Final = 0.04
_LONG_TOKENS: Final = 400
_CANCEL_AFTER: Final = 12
_SETTLE_S: Final = 5.0


class Steps:
    """Numbers what the demo does and stops it at the first claim that does not hold."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._count = 0

    def begin(self, title: str) -> None:
        """Starts a step."""
        self._count += 1
        self._console.print()
        self._console.print(f"{self._count}. {title}", style="bold")

    def check(self, holds: bool, claim: str, otherwise: str = "") -> None:
        """Prints a claim that holds.

        Raises:
            CommandFailed: it does not; `otherwise` says what was seen instead.
        """
        if not holds:
            seen = f": {otherwise}" if otherwise else ""
            raise CommandFailed(f"step {self._count}: it does not hold that {claim}{seen}")
        self._console.print(f"   ok: {claim}", style="green")

    def say(self, text: str) -> None:
        """Prints something worth knowing."""
        self._console.print(f"   {text}")


def demo() -> None:
    """Show an edge and two nodes at work: a streamed run, a cancelled one, their records.

    Uses a temporary folder and free loopback ports, and stops everything that it started.
    """
    console = render.stdout()
    steps = Steps(console)
    folder = Path(tempfile.mkdtemp(prefix="iop-demo-"))
    children: list[Child] = []
    started = time.monotonic()
    try:
        with StopRequest() as stop:
            try:
                with daemons.telling_who_died(children):
                    _show(console, steps, folder, children, stop)
            finally:
                killed = stop_in_order(reversed(children), stop=stop)
            if stop.is_set:
                raise KeyboardInterrupt
        steps.begin("Everything is stopped")
        steps.check(not killed, "each daemon stopped when it was asked to", f"killed: {', '.join(killed)}")
        codes = [child.exit_status() for child in children]
        steps.check(not any(codes), "each ended with exit code 0", f"exit codes {codes}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    steps.check(not folder.exists(), f"the folder {folder} is gone")
    console.print()
    console.print(f"The demo is complete: {time.monotonic() - started:.1f} s.", style="bold")


def _show(console: Console, steps: Steps, folder: Path, children: list[Child], stop: StopRequest) -> None:
    environment = {
        "IOP_EDGE__HTTP__LISTEN": _FREE,
        "IOP_EDGE__LINK__LISTEN": _FREE,
        "IOP_NODE__HTTP__LISTEN": _FREE,
    }
    steps.begin("Start an edge")
    edge = folder / "edge"
    daemons.init_edge(edge)
    (edge / "edge.toml").write_text(_ADAPTERS, encoding="utf-8")
    children.append(daemons.start_edge(edge, environment=environment))
    run_file = daemons.wait_edge_ready(children[0], edge, stop)
    steps.say(f"state in {folder}, clients at http://{run_file.http}, nodes at {run_file.link}")

    with EdgeApi(f"http://{run_file.http}") as api:
        steps.begin("Start two nodes; each dials the edge and is told what to run")

        def join(name: str) -> None:
            token = daemons.add_node_token(edge, name)
            daemons.join_node(folder / name, edge_address=run_file.link, token=token, name=name)

        # Each takes two short programs, whose start is nearly all of their time.
        with ThreadPoolExecutor(len(_ADAPTER_OF)) as pool:
            list(pool.map(join, _ADAPTER_OF))
        for name in _ADAPTER_OF:
            children.append(daemons.start_node(folder / name, name=name, environment=environment))
        for child, (name, adapter) in zip(children[1:], _ADAPTER_OF.items(), strict=True):
            node = daemons.wait_node_connected(child, api, name, stop)
            offered = [offer.name for offer in node.adapters]
            steps.check(offered == [adapter], f"{name} is connected and offers {adapter}", f"it offers {offered}")

        steps.begin("Run something on the adapter that only demo-a has, and watch it come")
        streamed = _streamed_run(console, steps, api)
        steps.begin("Run something long on demo-b, and cancel it in its middle")
        cancelled = _cancelled_run(console, steps, api)
        for run_id in (streamed, cancelled):
            steps.begin(f"What the edge has kept: iop show {run_id[:18]}")
            console.print()
            print_run(console, *api.get_run_with_events(run_id))


def _streamed_run(console: Console, steps: Steps, api: EdgeApi) -> str:
    order = {
        "adapter": "day",
        "target": "echo",
        "input": _PROMPT,
        "options": {"mock": {"delay_s": _DELAY_S}},
    }
    seen = _Watched(console)
    with closing(api.stream_run(order)) as events:
        for event in events:
            seen.take(event)
    seen.end()
    record = wait_record(api, seen.run_id)
    steps.check(seen.text.split() == _PROMPT.split(), "every word came back, in order", repr(seen.text))
    steps.check(
        len(seen.arrivals) > 3 and seen.arrivals[-1] - seen.arrivals[0] > _DELAY_S * 3,
        f"it came while it was produced: {len(seen.arrivals)} pieces over "
        f"{render.duration(seen.arrivals[-1] - seen.arrivals[0])}",
        f"{len(seen.arrivals)} pieces",
    )
    steps.check(
        record.state == "succeeded" and record.node_id == "demo-a",
        "it succeeded on demo-a",
        f"{record.state} on {record.node_id}",
    )
    return record.run_id


def _cancelled_run(console: Console, steps: Steps, api: EdgeApi) -> str:
    order = {
        "adapter": "night",
        "target": "tokens",
        "input": "count",
        "options": {"mock": {"tokens": _LONG_TOKENS, "delay_s": _DELAY_S}},
    }
    seen = _Watched(console)
    asked_at = 0.0
    with closing(api.stream_run(order)) as events:
        for event in events:
            seen.take(event)
            if not asked_at and len(seen.arrivals) >= _CANCEL_AFTER:
                asked_at = time.monotonic()
                api.cancel(seen.run_id, "the demo has seen enough")
    ended_after = time.monotonic() - asked_at
    seen.end()
    record = wait_record(api, seen.run_id)
    steps.check(
        seen.last_type == "cancelled", f"its stream ended {render.duration(ended_after)} later", seen.last_type
    )
    steps.check(
        len(seen.arrivals) < _LONG_TOKENS / 2,
        f"it had produced {len(seen.arrivals)} of {_LONG_TOKENS} pieces",
        f"{len(seen.arrivals)} pieces came",
    )
    steps.check(
        record.state == "cancelled" and record.node_id == "demo-b" and record.cancel_confirmed is True,
        "the record says cancelled on demo-b, and that the adapter confirmed the stop",
        f"{record.state} on {record.node_id}, confirmed: {record.cancel_confirmed}",
    )
    node = api.get_node("demo-b")
    steps.check(not any(node.in_flight.values()), "demo-b is free again", f"in flight: {dict(node.in_flight)}")
    return record.run_id


class _Watched:
    """Prints a run as it comes and remembers what there is to check."""

    def __init__(self, console: Console) -> None:
        self.run_id = ""
        self.last_type = ""
        self.text = ""
        self.arrivals: list[float] = []
        self._printer = AnswerPrinter(render.AnswerWriter(sys.stdout, sys.stderr))
        console.print()

    def take(self, event: RunEvent) -> None:
        """Takes one event."""
        self.run_id, self.last_type = event.run_id, event.type
        if event.type == "text":
            self.text += event.text("text")
            self.arrivals.append(time.monotonic())
        self._printer.show(event)

    def end(self) -> None:
        """Ends the printed answer."""
        self._printer.close()
        sys.stdout.write(os.linesep)


def wait_record(api: EdgeApi, run_id: str) -> RunRecord:
    """Returns the record once it says how the run ended."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        record = api.get_run(run_id)
        if record.is_ended or time.monotonic() > deadline:
            return record
        time.sleep(0.02)
