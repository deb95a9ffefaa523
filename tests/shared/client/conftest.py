"""What the client's tests share: a scripted edge, and a way to run one command line."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted_edge import ScriptedEdge, scripted_edge

from iop_shared.client.program import run_command

RUN_A = "0192f0c4-1a2b-7c3d-8e4f-0123456789ab"
RUN_B = "0192f0c4-1a2b-7fff-8e4f-0123456789ab"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Iop = Callable[..., Done]


@pytest.fixture
def edge() -> Iterator[ScriptedEdge]:
    with scripted_edge() as serving:
        yield serving


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the machine's owner reach a test."""
    for name in (
        "IOP_EDGE_URL",
        "IOP_EDGE_DIR",
        "IOP_DEBUG",
        "HTTP_PROXY",
        "http_proxy",
        "FORCE_COLOR",
        "COLUMNS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def iop(edge: ScriptedEdge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iop:
    """Runs a command line against the scripted edge and returns what it printed."""
    monkeypatch.setenv("IOP_EDGE_URL", edge.url)

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        code = run_command(arguments)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


def run_json(run_id: str = RUN_A, **changes: Any) -> dict[str, Any]:
    """A run as the edge shows it: succeeded on node gpu-1."""
    return {
        "run_id": run_id,
        "attempt": 1,
        "state": "succeeded",
        "adapter": "mock",
        "target": "echo",
        "operation": "chat",
        "created_at_ms": 1_700_000_000_000,
        "node_id": "gpu-1",
        "profile": None,
        "session": None,
        "source": "http",
        "ended_at_ms": 1_700_000_001_240,
        "code": "",
        "layer": "",
        "message": "",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": None, "reasoning_tokens": None},
        "queued_s": 0.002,
        "first_token_s": 0.038,
        "total_s": 1.24,
        "input_bytes": 11,
        "output_bytes": 2048,
        "events": 5,
        "cancel_reason": "",
        "cancel_confirmed": None,
        "cancel_took_ms": None,
        "refusals": [],
        **changes,
    }


def node_json(node_id: str = "gpu-1", **changes: Any) -> dict[str, Any]:
    """A connected node with one open and one closed adapter."""
    return {
        "node_id": node_id,
        "state": "connected",
        "epoch": 4,
        "boot_id": "0" * 32,
        "software_version": "0.1.0",
        "address": "10.0.0.7:51234",
        "labels": {"site": "lab"},
        "connected_at_ms": 1_700_000_000_000,
        "last_heard_s": 0.8,
        "config_revision": 2,
        "config_state": "applied",
        "config_reasons": [],
        "adapters": [
            {
                "name": "mock",
                "type": "mock",
                "gate": {"state": "not_applicable", "check": "", "reason": ""},
                "max_concurrent": 4,
                "operations": ["chat", "embed"],
                "targets": ["echo", "tokens"],
                "any_target": False,
            },
            {
                "name": "vllm",
                "type": "vllm",
                "gate": {"state": "closed", "check": "engine_reachable", "reason": "connection refused"},
                "max_concurrent": 8,
                "operations": ["chat"],
                "targets": [],
                "any_target": True,
            },
        ],
        "in_flight": {"mock": 1},
        "round_trip_s": 0.0009,
        **changes,
    }
