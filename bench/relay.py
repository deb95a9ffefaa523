"""What a token and a request cost on their way through an edge and a node, beside going direct.

    .venv/bin/python bench/relay.py [--rounds 3] [--streams 64] [--tokens 200] [--interval-ms 10] [--json PATH]

Prints a table and writes JSON. Fails (exit 1) only if a token was lost, doubled or reordered, or if something
did not run; figures never fail it. See bench/README.md for the method.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.load import LoadResult
from bench.machine import describe_machine, describe_versions
from bench.parties import BenchFailed, Way, start_engine, start_iop, start_nginx
from bench.process_cpu import CpuMark, WatchedProcess, idle_share, used_between
from bench.report import Report, Sample, render

_HERE: Final = Path(__file__).resolve().parent
_SETTLE_S: Final = 0.3  # what a process still does after the last byte (records, acks) is charged to the load
_SHORT_TOKENS: Final = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """What to measure. `requests`: short requests a round, over `connections` at once; 0: none."""

    rounds: int
    streams: int
    tokens: int
    interval_ms: float
    requests: int
    connections: int
    idle_s: float
    ways: tuple[str, ...]


def measure(settings: Settings, folder: Path) -> Report:
    """Starts everything in `folder`, measures and ends it all again.

    Raises:
        BenchFailed: something did not start or ended before its time.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with ExitStack() as stack:
        direct = start_engine(stack, folder, settings.interval_ms)
        ways = [direct]
        if "nginx" in settings.ways:
            nginx = start_nginx(stack, folder, direct.url)
            if nginx is None:
                print("nginx is not installed: its column is left out", file=sys.stderr)
            else:
                ways.append(nginx)
        if "iop" in settings.ways:
            ways.append(start_iop(stack, folder, direct.url, settings.streams))
        everything: dict[str, WatchedProcess] = {}
        for way in ways:
            everything |= way.watched
        for way in ways:
            _put_on(way, "warm-up", settings, everything, {})
        idle = _measure_idle(everything, settings.idle_s)
        samples: list[Sample] = []
        for number in range(settings.rounds):
            # The other way round every second time, so that a drift of the machine hits all alike.
            for way in ways if number % 2 == 0 else reversed(ways):
                samples.append(_put_on(way, "stream", settings, everything, idle))
                if settings.requests:
                    samples.append(_put_on(way, "short", settings, everything, idle))
        memory = {name: watched.memory() for name, watched in everything.items()}
    return Report(
        date=started_at,
        machine=describe_machine(),
        versions=describe_versions(),
        settings=dataclasses.asdict(settings),
        idle_share=idle,
        memory={name: dataclasses.asdict(m) for name, m in memory.items()},
        samples=tuple(samples),
    )


def _put_on(
    way: Way, kind: str, settings: Settings, everything: Mapping[str, WatchedProcess], idle: Mapping[str, float]
) -> Sample:
    """Puts one load on one way; CPU is what the way's processes and the engine used from just before to after."""
    is_short = kind == "short"
    model, tokens = {
        "short": ("instant", _SHORT_TOKENS),
        "stream": ("paced", settings.tokens),
        "warm-up": ("paced", min(20, settings.tokens)),
    }[kind]
    command = [sys.executable, str(_HERE / "load.py"), "--url", way.url, "--model", way.model(model)]
    command += ["--streams", str(settings.connections if is_short else settings.streams), "--tokens", str(tokens)]
    command += ["--interval-ms", str(settings.interval_ms), "--requests", str(settings.requests * is_short)]
    command += ["--timeout-s", str(60 + 3 * tokens * settings.interval_ms / 1000)]
    watched = {"engine": everything["engine"], **way.watched}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdin is not None
        assert load.stdout is not None
        if load.stdout.readline() != "ready\n":
            raise BenchFailed("the load generator did not start")
        before = _mark_all(watched)
        load.stdin.write("go\n")
        load.stdin.flush()
        line = load.stdout.readline()
        time.sleep(_SETTLE_S)
        after = _mark_all(watched)
    if not line:
        raise BenchFailed(f"the load generator ended with code {load.returncode} and no result")
    content = json.loads(line)
    result = LoadResult(**(content | {"problems": tuple(content["problems"])}))
    used_us = {name: used_between(before[name], after[name], idle.get(name, 0.0)) / 1000 for name in watched}
    return Sample(way.name, kind, used_us, result)


def _mark_all(watched: Mapping[str, WatchedProcess]) -> dict[str, CpuMark]:
    try:
        return {name: process.mark() for name, process in watched.items()}
    except ProcessLookupError as error:
        raise BenchFailed(str(error)) from error


def _measure_idle(watched: Mapping[str, WatchedProcess], idle_s: float) -> dict[str, float]:
    """Returns what share of one core each process uses when nothing is asked of it."""
    time.sleep(_SETTLE_S)
    before = _mark_all(watched)
    time.sleep(idle_s)
    after = _mark_all(watched)
    return {name: idle_share(before[name], after[name]) for name in watched}


def parse_arguments(arguments: list[str] | None = None) -> tuple[Settings, Path]:
    """Returns the settings and where to write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64, help="at once")
    parser.add_argument("--tokens", type=int, default=200, help="a stream")
    parser.add_argument("--interval-ms", type=float, default=10.0, help="between two tokens of a stream")
    parser.add_argument("--requests", type=int, default=400, help="short requests a round; 0: none")
    parser.add_argument("--connections", type=int, default=4, help="for short requests")
    parser.add_argument("--idle-s", type=float, default=3.0, help="how long to watch the idle processes")
    parser.add_argument("--ways", default="nginx,iop", help="beside direct; nginx where it is installed")
    default = _HERE / "out" / f"relay-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    parser.add_argument("--json", type=Path, default=default, help="where to write the figures")
    given = parser.parse_args(arguments)
    for name in ("rounds", "streams", "tokens", "connections"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} {getattr(given, name)}: give at least 1")
    if given.interval_ms <= 0:
        parser.error(f"--interval-ms {given.interval_ms:g}: give more than 0")
    ways = tuple(given.ways.split(","))
    if set(ways) - {"nginx", "iop", "direct"}:
        parser.error(f"--ways {given.ways}: give direct, nginx, iop, or several with commas")
    settings = Settings(
        rounds=given.rounds,
        streams=given.streams,
        tokens=given.tokens,
        interval_ms=given.interval_ms,
        requests=given.requests,
        connections=given.connections,
        idle_s=given.idle_s,
        ways=ways,
    )
    return settings, given.json


def main(arguments: list[str] | None = None) -> int:
    """Runs the bench; returns the exit code."""
    settings, path = parse_arguments(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="iop-bench-") as folder:
            report = measure(settings, Path(folder))
    except BenchFailed as error:
        print(f"bench failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    print(render(report))
    print(f"\nfigures: {path}")
    problems = [f"{s.way}: {problem}" for s in report.samples for problem in s.result.problems]
    for problem in problems:
        print(f"WRONG: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
