"""The commands that list and show: what they print, and what they ask the edge."""

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console
from tests.shared.client.conftest import RUN_A, RUN_B, Iop, node_json, run_json
from tests.support.scripted_edge import Answer, ScriptedEdge, answer_json

from iop_shared import __version__
from iop_shared.client import render
from iop_shared.client.nodes import NODE_COLUMNS
from iop_shared.client.render import Column
from iop_shared.client.runs import RUN_COLUMNS
from iop_shared.exit_codes import ExitCode


def test_nodes(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/nodes", answer_json({"nodes": [node_json()]}))

    done = iop("nodes")

    assert done.code == 0
    titles, row = done.out.splitlines()
    assert titles.split() == [
        "node", "state", "adapters", "runs", "since", "heard", "config", "labels", "version", "address"
    ]  # fmt: skip
    assert row.startswith("gpu-1  connected  mock, vllm (closed)     1  ")
    assert "800 ms ago  applied  site=lab  0.1.0" in row


def test_nodes_as_json_is_what_the_edge_said_newer_fields_included(iop: Iop, edge: ScriptedEdge) -> None:
    answer = {"nodes": [node_json(newer_field=[1, {"x": None}])]}
    edge.on("GET", "/api/v1/nodes", answer_json(answer))

    assert json.loads(iop("nodes", "--json").out) == answer


def test_no_nodes(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/nodes", answer_json({"nodes": []}))

    done = iop("nodes")

    assert (done.code, done.out) == (0, "")
    assert done.err == "no node has ever connected; add one with `iop-edge token add NODE`\n"


def test_node(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/nodes/gpu-1", answer_json(node_json(config_reasons=["adapter x: not allowed"])))

    done = iop("node", "gpu-1")

    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "node gpu-1"
    assert "  state       connected" in lines
    assert "  last heard  800 ms ago" in lines
    assert "  round trip  0.9 ms" in lines
    assert "  config      applied (revision 2)" in lines
    assert "  rejected    adapter x: not allowed" in lines
    assert "  closed      vllm: engine_reachable: connection refused" in lines
    assert lines[-3:] == [
        "adapter  type  gate            runs  targets       operations   why",
        "mock     mock  not_applicable   1/4  echo, tokens  chat, embed  -",
        "vllm     vllm  closed           0/8  any           chat         engine_reachable: connection refused",
    ]


def test_a_lost_node_has_no_times(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on(
        "GET", "/api/v1/nodes/gpu-1", answer_json(node_json(state="lost", last_heard_s=None, round_trip_s=None))
    )

    done = iop("node", "gpu-1")

    assert "last heard" not in done.out
    assert "  state    lost" in done.out


def test_models(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on(
        "GET",
        "/api/v1/models",
        answer_json(
            {
                "models": [
                    {
                        "name": "small",
                        "adapter": "vllm",
                        "target": "qwen3:8b",
                        "nodes": ["a", "b"],
                        "is_profile": True,
                    },
                    {"name": "mock/echo", "adapter": "mock", "target": "echo", "nodes": [], "is_profile": False},
                ]
            }
        ),
    )

    assert iop("models").out.splitlines() == [
        "model      kind     runs as        nodes",
        "small      profile  vllm/qwen3:8b  a, b",
        "mock/echo  target   -              -",
    ]


def test_runs(iop: Iop, edge: ScriptedEdge) -> None:
    failed = run_json(RUN_B, state="failed", code="engine_unreachable", profile="small", usage=None, total_s=None)
    edge.on("GET", "/api/v1/runs", answer_json({"runs": [failed, run_json(RUN_A)], "next_cursor": "c2"}))

    done = iop(
        "runs", "--limit", "2", "--state", "failed", "--node", "gpu-1", "--adapter", "mock", "--cursor", "c1"
    )

    assert done.code == 0
    assert edge.asked[0].path == "/api/v1/runs?limit=2&cursor=c1&state=failed&node=gpu-1&adapter=mock"
    lines = done.out.splitlines()
    assert lines[1].startswith(f"{RUN_B}  failed     small      gpu-1  2023-11-")
    assert "engine_unreachable" in lines[1]
    assert lines[2].startswith(f"{RUN_A}  succeeded  mock/echo  gpu-1  2023-11-")
    assert "1.24 s       2        38 ms" in lines[2]
    assert done.err == "older ones: iop runs --limit 2 --cursor c2\n"


def on_terminal(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None, soft_wrap=True)
    render.print_table(console, columns, rows)
    return out.getvalue().splitlines()


def test_a_terminal_of_80_columns_shows_what_matters_on_one_line_each() -> None:
    model = "openai-compatible/Qwen/Qwen3-235B-A22B-Instruct"
    run = ["0192f0c4-1a2b-7c3d", "interrupted", model, "gpu-machine-17", "16:11:04", "12.4 s", "12345", "380 ms",
           "engine_stream_truncated", "", "cli"]  # fmt: skip
    node = ["gpu-machine-17", "connected", "mock, vllm, llama (closed)", "12", "3 h 07 min", "800 ms ago",
            "applied", "site=lab, gpu=rtx4090", "0.1.0", "10.0.0.7:51234"]  # fmt: skip

    titles, line = on_terminal(RUN_COLUMNS, [run], 80)
    assert titles.split() == ["run", "state", "what", "node", "asked", "total"]
    assert line == "0192f0c4-1a2b-7c3d  interrupted  openai-compa…  gpu-machine-17  16:11:04  12.4 s"
    titles, line = on_terminal(NODE_COLUMNS, [node], 80)
    assert len(line) <= 80
    assert line.startswith("gpu-machine-17  connected  mock, vllm, llama (closed)    12")


def test_runs_as_json(iop: Iop, edge: ScriptedEdge) -> None:
    page = {"runs": [run_json()], "next_cursor": None}
    edge.on("GET", "/api/v1/runs", answer_json(page))

    done = iop("runs", "--json")

    assert json.loads(done.out) == page
    assert done.err == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--limit", "501"], "--limit 501 is not between 1 and 500"),
        (["--state", "suceeded"], "unknown state 'suceeded': did you mean 'succeeded' or 'queued'?"),
    ],
)
def test_runs_refuses_what_cannot_be_meant(
    iop: Iop, edge: ScriptedEdge, arguments: list[str], sentence: str
) -> None:
    done = iop("runs", *arguments)

    assert (done.code, done.err) == (ExitCode.USAGE, f"iop: {sentence}\n")
    assert edge.asked == []


def test_no_runs_says_with_which_filters(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/runs", answer_json({"runs": [], "next_cursor": None}))

    assert iop("runs").err == "no runs yet\n"
    assert iop("runs", "--node", "gpu-1", "--state", "failed").err == "no runs with --state failed --node gpu-1\n"


def show_answer() -> Answer:
    run = run_json(
        state="cancelled",
        cancel_reason="operator",
        cancel_confirmed=True,
        cancel_took_ms=12,
        refusals=[{"node_id": "gpu-2", "code": "gate_closed", "message": "vllm: engine_reachable"}],
    )
    at_ms = run["created_at_ms"]
    head = {"run_id": RUN_A, "attempt": 1}
    events = [
        {**head, "seq": 1, "at_ms": at_ms + 2, "type": "started", "adapter": "mock", "target": "echo",
         "node_id": "gpu-1", "engine": "mock 1"},
        {**head, "seq": 2, "at_ms": at_ms + 40, "type": "text", "text": "hello ", "index": 0},
        {**head, "seq": 3, "at_ms": at_ms + 80, "type": "text", "text": "wor\x1bld", "index": 0},
        {**head, "seq": 4, "at_ms": at_ms + 1240, "type": "cancelled", "reason": "operator", "confirmed": True,
         "took_ms": 12, "closing": {}},
    ]  # fmt: skip
    return answer_json({"run": run, "events": events})


def test_show(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", f"/api/v1/runs/{RUN_A}", show_answer())

    done = iop("show", RUN_A)

    assert done.code == 0
    assert edge.asked[0].path == f"/api/v1/runs/{RUN_A}?events=1"
    lines = done.out.splitlines()
    assert lines[0] == f"run {RUN_A}"
    for expected in (
        "  state        cancelled",
        "  what         chat on mock/echo",
        "  node         gpu-1",
        "  queued       2 ms",
        "  first token  38 ms",
        "  total        1.24 s",
        "  tokens       3 + 2 tokens",
        "  bytes        11 B in, 2.0 KiB out",
        "  finish       stop",
        "  cancel       operator, confirmed by the engine, in 12 ms",
        "  not gpu-2    gate_closed: vllm: engine_reachable",
    ):
        assert expected in lines
    assert lines[-4:] == [
        "events",
        "  1    +0.002 s  started     mock/echo on gpu-1 (mock 1)",
        '  3    +0.040 s  text        "hello wor\\u001bld"',
        "  4    +1.240 s  cancelled   operator, in 12 ms, confirmed by the engine",
    ]


def test_show_reads_an_engines_own_pieces(iop: Iop, edge: ScriptedEdge) -> None:
    head = {"run_id": RUN_A, "attempt": 1, "type": "engine_json", "whole": False}
    chunks: list[Any] = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"content": "hello "}}]},
        {"choices": [{"delta": {"content": "world"}}]},
        {"choices": [], "usage": {}},
        {"data": "{", "encoding": "utf-8"},
    ]
    events = [{**head, "seq": seq, "chunks": [chunk]} for seq, chunk in enumerate(chunks, 1)]
    edge.on("GET", f"/api/v1/runs/{RUN_A}", answer_json({"run": run_json(), "events": events}))

    assert iop("show", RUN_A).out.splitlines()[-1].split(maxsplit=2) == [
        "5",
        "engine_json",
        '5 pieces: "hello world"',
    ]


def test_show_as_json_is_exact(iop: Iop, edge: ScriptedEdge) -> None:
    answer = show_answer()
    edge.on("GET", f"/api/v1/runs/{RUN_A}", answer)
    sent = answer.steps[0]
    assert isinstance(sent, bytes)

    assert json.loads(iop("show", RUN_A, "--json").out) == json.loads(sent)


def test_cancel(iop: Iop, edge: ScriptedEdge) -> None:
    path = f"/api/v1/runs/{RUN_A}/cancel"
    edge.on("POST", path, answer_json({"run_id": RUN_A, "cancelling": True}, 202))

    done = iop("cancel", RUN_A, "--reason", "wrong prompt")

    assert (done.code, done.out) == (0, f"{RUN_A} is being cancelled\n")
    assert edge.bodies("POST", path) == [{"reason": "wrong prompt"}]

    edge.on("POST", path, answer_json({"run_id": RUN_A, "cancelling": False}))
    assert iop("cancel", RUN_A).out == f"{RUN_A} had ended already\n"
    assert json.loads(iop("cancel", RUN_A, "--json").out) == {"run_id": RUN_A, "cancelling": False}


def test_events_follows_until_the_edge_ends(iop: Iop, edge: ScriptedEdge) -> None:
    event = {"event_id": 7, "at_ms": 1_700_000_000_000, "kind": "node_connected", "node_id": "gpu-1",
             "run_id": None,
             "detail": {"epoch": 4, "address": "10.0.0.7", "total_s": 0.007889167000030284}}  # fmt: skip
    stream = Answer(
        [f"id: 7\nevent: node_connected\ndata: {json.dumps(event)}\n\n".encode(),
         b'event: gap\ndata: {"dropped": 12}\n\n'],
        content_type="text/event-stream",
    )  # fmt: skip
    edge.on("GET", "/api/v1/events", stream)

    done = iop("events", "--after", "6")

    assert edge.asked[0].path == "/api/v1/events?after=6"
    first, second = done.out.splitlines()
    assert first.endswith(".000  node_connected      node=gpu-1  epoch=4  address=10.0.0.7  total_s=0.007889")
    assert second == "12 events are missing here"
    assert (done.code, done.err) == (ExitCode.UNAVAILABLE, "iop: the edge has closed the stream of events\n")

    lines = iop("events", "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [event, {"kind": "gap", "dropped": 12}]


def test_version_with_and_without_an_edge(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/version", answer_json({"version": "0.1.0", "protocol_min": 1, "protocol_max": 2}))

    done = iop("version")

    assert done.code == 0
    assert done.out.splitlines()[0].startswith(f"iop {__version__} (Python 3.")
    assert done.out.splitlines()[1] == f"edge 0.1.0 at {edge.url}, protocol 1 to 2"

    done = iop("version", "--json", "--edge", "http://127.0.0.1:1")
    assert done.code == 0
    assert json.loads(done.out)["edge"] is None


def test_help_names_every_exit_code(iop: Iop) -> None:
    done = iop("--help")

    assert done.code == 0
    words = " ".join(done.out.split())
    for code in ExitCode:
        assert f"{code.value} " in words
    assert "130 interrupted by Ctrl-C" in words


def test_a_wrong_option_is_a_usage_error(iop: Iop) -> None:
    done = iop("runs", "--limt", "5")

    assert done.code == ExitCode.USAGE
    assert "No such option: --limt" in done.err
