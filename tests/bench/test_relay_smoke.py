"""The relay bench runs and loses no token; its figures are not judged here."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench import relay
from bench.parties import BenchFailed, Child, Way, start_engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads Linux's books")

SMALL = [
    *("--streams", "4", "--tokens", "20", "--interval-ms", "2", "--rounds", "1"),
    *("--requests", "8", "--connections", "2", "--idle-s", "0.05"),
]


def test_direct_way_counts_every_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out" / "figures.json"

    code = relay.main([*SMALL, "--ways", "direct", "--json", str(path)])

    shown = capsys.readouterr()
    assert (code, shown.err) == (0, "")
    assert f"{'tokens checked':40}{144:12}" in shown.out
    content = json.loads(path.read_text())
    assert [(s["way"], s["kind"], s["result"]["tokens"]) for s in content["samples"]] == [
        ("direct", "stream", 80),
        ("direct", "short", 64),
    ]
    assert {"machine", "date", "versions", "settings", "goals"} <= content.keys()


@pytest.mark.e2e
def test_both_daemons_relay_every_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"

    code = relay.main([*SMALL, "--ways", "iop", "--json", str(path)])

    shown = capsys.readouterr()
    assert (code, shown.err) == (0, "")
    content = json.loads(path.read_text())
    through = [s for s in content["samples"] if s["way"] == "iop"]
    assert [(s["kind"], s["result"]["tokens"], s["result"]["answers"]) for s in through] == [
        ("stream", 80, 4),
        ("short", 64, 8),
    ]
    assert all(s["cpu_us"]["edge"] > 0 and s["cpu_us"]["node"] > 0 for s in through)


def test_process_that_does_not_start_fails_the_bench_with_its_words(tmp_path: Path) -> None:
    with ExitStack() as stack:
        child = Child(stack, "edge", [sys.executable, "-c", "raise SystemExit('no such port')"], tmp_path)

        with pytest.raises(BenchFailed) as caught:
            child.wait_for("run.json", lambda: None)

    assert str(caught.value) == "edge ended with code 1:\nno such port\n"


def test_load_that_loses_tokens_fails_the_bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way whose model does not exist answers 404: the bench must say so and end with 1."""
    started = start_engine

    def start_wrong(stack: ExitStack, folder: Path, interval_ms: float) -> Way:
        way = started(stack, folder, interval_ms)
        return Way(way.name, way.url, lambda model: f"no-{model}", way.watched)

    monkeypatch.setattr(relay, "start_engine", start_wrong)

    code = relay.main([*SMALL, "--ways", "direct", "--json", str(tmp_path / "figures.json")])

    assert code == 1
    assert "WRONG: direct: connection 0: status 404" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--streams", "0"], "--streams 0: give at least 1"),
        (["--interval-ms", "0"], "--interval-ms 0: give more than 0"),
        (["--ways", "squid"], "--ways squid: give direct, nginx, iop, or several with commas"),
    ],
)
def test_bad_arguments_are_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        relay.main(arguments)

    assert caught.value.code == 2
    assert message in capsys.readouterr().err
