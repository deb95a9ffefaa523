"""What a node pays to read an engine's stream: CPU microseconds a token of the vllm adapter alone.

    .venv/bin/python bench/node_read.py [--streams 64] [--tokens 200] [--interval-ms 10] [--rounds 3]

The adapter runs in this process against the paced engine in another one, and a sink only keeps what comes. So
the figure holds sockets, HTTP, SSE, JSON and the model name put in, and neither the core of a node nor its link.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import describe_machine, describe_versions
from bench.parties import BenchFailed, start_engine
from bench.token_check import TokenCheck

from iop_node.adapters.vllm import VllmAdapter, build
from iop_node.core.spec import ExecutionSpec
from iop_shared.ids import AdapterName, TargetName, new_run_id
from iop_shared.runs import Operation
from iop_shared.runtime_events import Body, EngineJson


class KeepingSink:
    """Keeps the engine's JSON of one run, to be checked when the CPU time has been taken."""

    def __init__(self, name: str, tokens: int) -> None:
        self._name, self._tokens = name, tokens
        self._chunks: list[bytes] = []

    def emit(self, body: Body) -> None:
        """Takes a body."""
        if type(body) is EngineJson:
            self._chunks += body.chunks

    def find_problems(self) -> list[str]:
        """Returns what is wrong with what came."""
        check = TokenCheck(self._name, self._tokens, streamed=True)
        # The adapter keeps [DONE] to itself: a run ends with the return of `execute`.
        check.feed(b"\n".join((*self._chunks, b"data: [DONE]\n\n")), time.monotonic_ns())
        check.finish(time.monotonic_ns())
        return check.problems

    def set_engine(self, engine: str) -> None:
        """Not looked at."""

    async def wait_ready(self) -> None:
        """Always ready."""

    def confirm_cancel(self) -> None:
        """Not looked at."""


async def read_streams(adapter: VllmAdapter, streams: int, tokens: int) -> tuple[float, list[str]]:
    """Reads `streams` streams at once to their ends; returns CPU microseconds a token, and what was wrong."""
    sinks = [KeepingSink(f"stream {number}", tokens) for number in range(streams)]
    body = f'{{"model":"m","stream":true,"max_tokens":{tokens},"messages":[{{"role":"user","content":"x"}}]}}'
    before = time.process_time_ns()
    async with asyncio.TaskGroup() as group:
        for sink in sinks:
            spec = ExecutionSpec(
                run_id=new_run_id(),
                adapter=adapter.name,
                target=TargetName("paced"),
                operation=Operation.CHAT,
                input=body.encode(),
                engine_json=True,
                requested_model="bench",
            )
            group.create_task(adapter.execute(spec, sink))
    used_us = (time.process_time_ns() - before) / 1000
    return used_us / (streams * tokens), [problem for sink in sinks for problem in sink.find_problems()]


async def measure(url: str, streams: int, tokens: int, rounds: int) -> tuple[list[float], list[str]]:
    """Returns CPU microseconds a token for each round, and what was wrong."""
    adapter = build(AdapterName("engine"), streams, {"base_url": url})
    await read_streams(adapter, streams, min(20, tokens))
    figures: list[float] = []
    problems: list[str] = []
    for _ in range(rounds):
        figure, found = await read_streams(adapter, streams, tokens)
        figures.append(figure)
        problems += found
    await adapter.aclose()
    return figures, problems


def main(arguments: list[str] | None = None) -> int:
    """Runs the bench; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--interval-ms", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="iop-bench-") as folder, ExitStack() as stack:
            engine = start_engine(stack, Path(folder), given.interval_ms)
            figures, problems = uvloop.run(measure(engine.url, given.streams, given.tokens, given.rounds))
    except BenchFailed as error:
        print(f"bench failed: {error}", file=sys.stderr)
        return 1
    machine, versions = describe_machine(), describe_versions()
    print(
        f"{machine['processor']}, {machine['system']}, python {versions['python']}, aiohttp {versions['aiohttp']}"
    )
    print(f"{given.streams} streams x {given.tokens} tokens, {given.interval_ms:g} ms apart")
    print(f"us of CPU a token: {', '.join(f'{figure:.1f}' for figure in figures)}; median {median(figures):.1f}")
    for problem in problems:
        print(f"WRONG: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
