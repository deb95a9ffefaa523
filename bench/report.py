"""The figures of a relay bench: medians over rounds, ratios, the targets, a table for people. Pure."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from bench.load import LoadResult


@dataclass(frozen=True, slots=True)
class Sample:
    """One load on one way. `cpu_us`: microseconds of CPU by process, without its idle share.

    `kind`: stream or short.
    """

    way: str
    kind: str
    cpu_us: Mapping[str, float]
    result: LoadResult


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure to reach: `value` at most `limit`; None where this run could not tell."""

    name: str
    value: float | None
    limit: float
    unit: str

    @property
    def verdict(self) -> str:
        """Whether it was reached: reached, missed or not measured."""
        if self.value is None:
            return "not measured"
        return "reached" if self.value <= self.limit else "missed"


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the bench."""

    date: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    idle_share: Mapping[str, float]
    memory: Mapping[str, Mapping[str, int]]
    samples: Sequence[Sample]

    def median_of(self, way: str, kind: str, figure: Callable[[Sample], float | None]) -> float | None:
        """Returns the median over rounds of `figure`, or None if there is no such sample."""
        found = [figure(s) for s in self.samples if s.way == way and s.kind == kind]
        values = [value for value in found if value is not None]
        return median(values) if values else None

    def cpu_per_token_us(self, way: str, process: str) -> float | None:
        """Returns CPU microseconds a token of `process` while streams ran on `way`."""
        return self.median_of(way, "stream", lambda s: s.cpu_us[process] / max(1, s.result.tokens))

    def cpu_per_request_ms(self, way: str, process: str) -> float | None:
        """Returns CPU milliseconds a short request of `process`."""
        return self.median_of(way, "short", lambda s: s.cpu_us[process] / 1000 / max(1, s.result.answers))

    def goals(self) -> tuple[Goal, ...]:
        """Returns the targets that this bench can judge."""
        edge, node = self.cpu_per_token_us("iop", "edge"), self.cpu_per_token_us("iop", "node")
        nginx = self.cpu_per_token_us("nginx", "nginx")
        ratio = None if edge is None or node is None or nginx is None else (edge + node) / nginx
        return (
            Goal("edge + node, CPU per token over nginx's", ratio, 3.0, "x"),
            Goal("edge, CPU per short request", self.cpu_per_request_ms("iop", "edge"), 0.3, "ms"),
            Goal("added latency p50", self._added(lambda s: s.result.token_p50_ms), 1.0, "ms"),
            Goal("added latency p99", self._added(lambda s: s.result.token_p99_ms), 5.0, "ms"),
        )

    def as_json(self) -> dict[str, Any]:
        """Returns everything as JSON values: samples, medians and the verdicts."""
        content = dataclasses.asdict(self)
        content["medians"] = {label: dict(zip(self.ways(), row, strict=True)) for label, row in _rows(self)}
        content["goals"] = [dataclasses.asdict(goal) | {"verdict": goal.verdict} for goal in self.goals()]
        return content

    def ways(self) -> tuple[str, ...]:
        """Returns the ways that were measured, direct first."""
        return tuple(w for w in ("direct", "nginx", "iop") if any(s.way == w for s in self.samples))

    def _added(self, figure: Callable[[Sample], float | None]) -> float | None:
        through, direct = self.median_of("iop", "stream", figure), self.median_of("direct", "stream", figure)
        return None if through is None or direct is None else through - direct


_PROXIES: Final = {"nginx": ("nginx",), "iop": ("edge", "node")}
_LATENCIES: Final[Sequence[tuple[str, str, Callable[[Sample], float | None]]]] = (
    ("token latency p50, ms", "stream", lambda s: s.result.token_p50_ms),
    ("token latency p99, ms", "stream", lambda s: s.result.token_p99_ms),
    ("first token latency p50, ms", "stream", lambda s: s.result.first_p50_ms),
    ("short request p50, ms", "short", lambda s: s.result.request_p50_ms),
    ("short request p99, ms", "short", lambda s: s.result.request_p99_ms),
)


def _rows(report: Report) -> list[tuple[str, list[float | None]]]:
    """Returns a labelled row of medians per figure, one value per way; None where it does not apply."""
    ways = report.ways()
    rows: list[tuple[str, list[float | None]]] = []
    for unit, figure in (
        ("CPU per token, us", report.cpu_per_token_us),
        ("CPU per short request, ms", report.cpu_per_request_ms),
    ):
        for process in ("edge", "node"):
            rows.append((f"{process}: {unit}", [figure(w, process) if w == "iop" else None for w in ways]))
        totals = [[figure(w, p) for p in _PROXIES.get(w, ())] for w in ways]
        rows.append((f"all between: {unit}", [_sum(parts) for parts in totals]))
        rows.append((f"engine: {unit}", [figure(w, "engine") for w in ways]))
    for label, kind, latency in _LATENCIES:
        rows.append((label, [report.median_of(w, kind, latency) for w in ways]))
    mib = {name: m["pss_bytes"] / 2**20 for name, m in report.memory.items()}
    for process in ("edge", "node"):
        rows.append((f"{process}: memory (PSS), MiB", [mib.get(process) if w == "iop" else None for w in ways]))
    rows.append(
        ("all between: memory (PSS), MiB", [_sum([mib.get(p) for p in _PROXIES.get(w, ())]) for w in ways])
    )
    counted = [sum(s.result.tokens for s in report.samples if s.way == w) for w in ways]
    rows.append(("tokens checked", [float(count) for count in counted]))
    return [(label, row) for label, row in rows if any(value is not None for value in row)]


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def render(report: Report) -> str:
    """Returns the table and the verdicts as text."""
    ways, settings = report.ways(), report.settings
    lines = [
        f"{settings['streams']} streams x {settings['tokens']} tokens, {settings['interval_ms']:g} ms apart; "
        f"{settings['requests']} short requests over {settings['connections']} connections; "
        f"medians of {settings['rounds']} round(s)",
        f"{report.machine['processor']}, {report.machine['cores']} cores, {report.machine['system']}, "
        f"{report.date}, load {report.machine['load_average'][0]}",
        ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        "",
        f"{'':40}" + "".join(f"{way:>12}" for way in ways),
    ]
    for label, row in _rows(report):
        lines.append(f"{label:40}" + "".join(f"{_number(value):>12}" for value in row))
    lines.append("")
    for goal in report.goals():
        value = "-" if goal.value is None else f"{goal.value:.2f} {goal.unit}"
        lines.append(f"{goal.name:40}{value:>12}   at most {goal.limit:g} {goal.unit}: {goal.verdict}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value.is_integer():
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"
