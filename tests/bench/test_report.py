"""The bench's figures: medians, sums, verdicts and the table."""

from bench.load import LoadResult
from bench.report import Report, Sample, render


def sample(way: str, kind: str, cpu_us: dict[str, float], p50_ms: float = 0.2) -> Sample:
    result = LoadResult(
        answers=10,
        tokens=100,
        token_p50_ms=p50_ms,
        token_p99_ms=p50_ms * 4,
        first_p50_ms=p50_ms,
        request_p50_ms=p50_ms,
        request_p99_ms=p50_ms,
        wall_s=1.0,
        problems=(),
    )
    return Sample(way, kind, cpu_us, result)


def report(*samples: Sample) -> Report:
    return Report(
        date="2026-01-02T03:04:05+00:00",
        machine={"processor": "P", "cores": 2, "load_average": [0.1, 0.1, 0.1], "system": "S"},
        versions={"python": "3"},
        settings={
            "rounds": 3,
            "streams": 1,
            "tokens": 100,
            "interval_ms": 10.0,
            "requests": 10,
            "connections": 1,
        },
        idle_share={},
        memory={
            "edge": {"pss_bytes": 2**20, "rss_bytes": 2**21},
            "node": {"pss_bytes": 2**21, "rss_bytes": 2**22},
        },
        samples=samples,
    )


WHOLE = report(
    sample("direct", "stream", {"engine": 100}, 0.2),
    sample("nginx", "stream", {"engine": 100, "nginx": 2_000}, 0.4),
    *(sample("iop", "stream", {"engine": 100, "edge": e, "node": 2 * e}, 0.7) for e in (2_400, 2_500, 9_000)),
    sample("iop", "short", {"engine": 100, "edge": 4_000, "node": 6_000}),
)  # fmt: skip


def test_medians_are_per_token_and_per_request() -> None:
    assert WHOLE.cpu_per_token_us("iop", "edge") == 25
    assert WHOLE.cpu_per_token_us("iop", "node") == 50
    assert WHOLE.cpu_per_request_ms("iop", "edge") == 0.4
    assert WHOLE.cpu_per_token_us("nginx", "nginx") == 20
    assert WHOLE.cpu_per_request_ms("nginx", "nginx") is None


def test_goals_are_judged_against_the_same_run() -> None:
    verdicts = {goal.name: (round(goal.value or 0, 3), goal.verdict) for goal in WHOLE.goals()}

    assert verdicts == {
        "edge + node, CPU per token over nginx's": (3.75, "missed"),
        "edge, CPU per short request": (0.4, "missed"),
        "added latency p50": (0.5, "reached"),
        "added latency p99": (2.0, "reached"),
    }


def test_what_was_not_run_is_not_called_reached() -> None:
    goals = report(sample("direct", "stream", {"engine": 100})).goals()

    assert {goal.verdict for goal in goals} == {"not measured"}


def test_table_and_json_agree() -> None:
    text, content = render(WHOLE), WHOLE.as_json()

    assert content["medians"]["all between: CPU per token, us"] == {"direct": None, "nginx": 20, "iop": 75}
    assert "all between: CPU per token, us                     -          20          75" in text
    assert "added latency p50                            0.50 ms   at most 1 ms: reached" in text
    assert content["goals"][0]["verdict"] == "missed"
    assert len(content["samples"]) == 6
