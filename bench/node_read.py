"""What a node pays to read an engine's stream: CPU microseconds a token of the vllm adapter alone.

    .venv/bin/python bench/node_read.py [--streams 64] [--tokens 200] [--interval-ms 10] [--rounds 3]

The adapter runs in this process against the paced engine in another one, and a sink only counts. So the figure
holds sockets, HTTP, SSE, JSON and the model's name put in, and neither the node's core nor its link.
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


class CheckingSink:
    """Takes what a run says and looks at its tokens only."""

    def __init__(self, check: TokenCheck) -> None:
        self._check = check

    def emit(self, body: Body) -> None:
        """Takes a body."""
        if type(body) is EngineJson:
            self._check.feed(b"".join(body.chunks) + b"\n\n", time.monotonic_ns())

    def set_engine(self, engine: str) -> None:
        """Not looked at."""

    async def wait_ready(self) -> None:
        """Always ready."""

    def confirm_cancel(self) -> None:
        """Not looked at."""


async def read_streams(adapter: VllmAdapter, streams: int, tokens: int) -> list[str]:
    """Reads `streams` streams at once to their ends; returns what was wrong."""
    checks = [TokenCheck(f"stream {number}", tokens, streamed=True) for number in range(streams)]
    async with asyncio.TaskGroup() as group:
        for check in checks:
            spec = ExecutionSpec(
                run_id=new_run_id(),
                adapter=adapter.name,
                target=TargetName("paced"),
                operation=Operation.CHAT,
                input=b'{"model":"m","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"x"}]}'
                % tokens,
                engine_json=True,
                requested_model="bench",
            )
            group.create_task(adapter.execute(spec, CheckingSink(check)))
    for check in checks:
        check.feed(b"data: [DONE]\n\n", time.monotonic_ns())  # the adapter keeps it to itself
        check.finish(time.monotonic_ns())
    return [problem for check in checks for problem in check.problems]


async def measure(url: str, streams: int, tokens: int, rounds: int) -> tuple[list[float], list[str]]:
    """Returns CPU microseconds a token for each round, and what was wrong."""
    adapter = build(AdapterName("engine"), streams, {"base_url": url})
    figures, problems = [], await read_streams(adapter, streams, min(20, tokens))
    for _ in range(rounds):
        before = time.process_time_ns()
        problems += await read_streams(adapter, streams, tokens)
        figures.append((time.process_time_ns() - before) / 1000 / (streams * tokens))
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
