"""Every body of a RuntimeEvent has one JSON form, and docs/http-api.md names its fields."""

import re
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from iop_edge.domain.views import RunEventView
from iop_edge.surfaces.event_json import TYPE_NAMES, body_json, event_json, kept_event_json
from iop_shared.errors import Layer
from iop_shared.ids import AdapterName, NodeId, RunId, TargetName
from iop_shared.runtime_events import (
    Artifact,
    Body,
    Cancelled,
    Closing,
    Embeddings,
    EngineJson,
    Failed,
    Gap,
    Interrupted,
    Logprobs,
    Notice,
    Output,
    Reasoning,
    RuntimeEvent,
    Started,
    Step,
    Succeeded,
    Text,
    Timings,
    ToolCall,
    Usage,
)

RUN = RunId("01890a5d-ac96-774b-bcce-b302099a8057")
CLOSING = Closing(3, 5, bytes(range(4)), Timings(0.1, 0.2, 0.3), Usage(1, 2), "stop")
CLOSING_JSON = {
    "events": 3,
    "output_bytes": 5,
    "output_sha256": "00010203",
    "timings": {"accepted_to_start_s": 0.1, "first_token_s": 0.2, "total_s": 0.3},
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": None, "reasoning_tokens": None},
    "finish_reason": "stop",
}
CASES: list[tuple[Body, str, dict[str, Any]]] = [
    (
        Started(AdapterName("mock"), TargetName("echo"), NodeId("gpu-1"), "mock 1"),
        "started",
        {"adapter": "mock", "target": "echo", "node_id": "gpu-1", "engine": "mock 1"},
    ),
    (Text("hi", 1), "text", {"text": "hi", "index": 1}),
    (Reasoning("hm"), "reasoning", {"text": "hm", "index": 0}),
    (
        ToolCall(0, "c1", "add", '{"a"', 2),
        "tool_call",
        {"index": 0, "id": "c1", "name": "add", "arguments": '{"a"', "choice": 2},
    ),
    (Logprobs(b'{"content":[]}'), "logprobs", {"json": {"content": []}, "index": 0}),
    (Output("stdout", "ü".encode()), "output", {"stream": "stdout", "data": "ü", "encoding": "utf-8"}),
    (Output("stderr", b"\xff"), "output", {"stream": "stderr", "data": "/w==", "encoding": "base64"}),
    (Step("tool", b'{"x":1}'), "step", {"kind": "tool", "json": {"x": 1}}),
    (
        Artifact("a.txt", "text/plain", b"abc"),
        "artifact",
        {"name": "a.txt", "media_type": "text/plain", "data": "abc", "encoding": "utf-8"},
    ),
    (Embeddings(b"[[1.5]]"), "embeddings", {"json": [[1.5]]}),
    (Embeddings(b"[[1.5"), "embeddings", {"json": {"data": "[[1.5", "encoding": "utf-8"}}),
    (
        Usage(1, None, 3, None),
        "usage",
        {"prompt_tokens": 1, "completion_tokens": None, "cached_tokens": 3, "reasoning_tokens": None},
    ),
    (Notice("slow", "it is slow"), "notice", {"code": "slow", "message": "it is slow"}),
    (Gap(2, 30, "bound"), "gap", {"events": 2, "bytes": 30, "reason": "bound"}),
    (
        EngineJson((b'{"a":1}', b"{oops"), True),
        "engine_json",
        {"chunks": [{"a": 1}, {"data": "{oops", "encoding": "utf-8"}], "whole": True},
    ),
    (Succeeded(CLOSING), "succeeded", {"closing": CLOSING_JSON}),
    (
        Failed("engine_rejected", Layer.TARGET, "no", CLOSING, False, 400, b'{"error":"x"}'),
        "failed",
        {
            "code": "engine_rejected",
            "layer": "target",
            "message": "no",
            "retryable": False,
            "engine_status": 400,
            "engine_body": '{"error":"x"}',
            "engine_body_encoding": "utf-8",
            "closing": CLOSING_JSON,
        },
    ),
    (
        Cancelled("operator", True, 12, CLOSING),
        "cancelled",
        {"reason": "operator", "confirmed": True, "took_ms": 12, "closing": CLOSING_JSON},
    ),
    (
        Interrupted("node_lost", "lost", CLOSING),
        "interrupted",
        {"code": "node_lost", "message": "lost", "closing": CLOSING_JSON},
    ),
]


@pytest.mark.parametrize(("body", "name", "expected"), CASES)
def test_body_has_its_form(body: Body, name: str, expected: dict[str, Any]) -> None:
    value = event_json(RuntimeEvent(RUN, 1, 7, body))

    assert value == {"run_id": RUN, "attempt": 1, "seq": 7, "type": name, **expected}
    assert orjson.loads(orjson.dumps(value)) == value


def test_every_body_is_covered() -> None:
    kinds = {kind for member in get_args(Body) for kind in (get_args(member) or (member,))}

    assert set(TYPE_NAMES) == kinds
    assert {type(body) for body, _, _ in CASES} == kinds


def test_kept_event_tells_when_it_reached_the_edge() -> None:
    value = kept_event_json(RUN, RunEventView(2, 1, 1_700_000_000_000, Text("hi")))

    assert value == {
        "run_id": RUN,
        "attempt": 1,
        "seq": 2,
        "at_ms": 1_700_000_000_000,
        "type": "text",
        "text": "hi",
        "index": 0,
    }


def test_no_field_hides_one_of_the_event() -> None:
    for body, _, _ in CASES:
        assert not {"run_id", "attempt", "seq", "at_ms", "type"} & set(body_json(body))


def test_the_page_names_every_type_and_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
    page = page[page.index("| type | fields |") : page.index("`closing`: ")]

    for body, name, _ in CASES:
        rows = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]]
        assert len(rows) == 1, f"docs/http-api.md has {len(rows)} rows for {name}"
        named = set(re.findall(r"`(\w+)`", rows[0].split("|")[2]))
        assert set(body_json(body)) <= named, f"{name}: {rows[0]}"
