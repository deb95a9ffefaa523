"""Edge and node as real processes on loopback: the main job, and what happens when one of them goes."""

import json
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.conftest import MOCK, StartNode
from tests.support.daemons import EdgeDaemon, NodeDaemon, run_command, wait_for

from iop_shared.link.auth import new_token

pytestmark = pytest.mark.e2e

SLOW = {"mock": {"tokens": 400, "delay_s": 0.05}}


def events_of(edge: EdgeDaemon, run_id: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = edge.get(f"/api/v1/runs/{run_id}?events=1")["events"]
    return events


def terminals(events: list[dict[str, Any]]) -> list[str]:
    return [e["type"] for e in events if e["type"] in ("succeeded", "failed", "cancelled", "interrupted")]


def journal_rows(node: NodeDaemon) -> dict[str, str]:
    """State by run id, as another process reads the node's journal."""
    with sqlite3.connect(f"file:{node.folder / 'node.db'}?mode=ro", uri=True) as database:
        return dict(database.execute("SELECT run_id, state FROM runs").fetchall())


def test_a_streamed_run_goes_from_client_to_node_and_back(
    edge: EdgeDaemon, start_node: StartNode, loop: str
) -> None:
    node = start_node(loop=loop)

    lines: list[dict[str, Any]] = []
    with httpx.stream(
        "POST",
        edge.url + "/v1/chat/completions",
        json={"model": "mock/echo", "stream": True, "messages": [{"role": "user", "content": "one two three"}]},
        timeout=10,
    ) as response:
        assert response.status_code == 200
        run_id = response.headers["x-iop-run-id"]
        raw = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert raw[-1] == "[DONE]"
    lines = [json.loads(line) for line in raw[:-1]]

    text = "".join(choice["delta"].get("content") or "" for line in lines for choice in line["choices"])
    assert text == "one two three"
    assert {line["model"] for line in lines} == {"mock/echo"}
    record = edge.wait_state(run_id, "succeeded")
    assert record["node_id"] == "gpu-1"
    assert record["usage"]["completion_tokens"] == 3
    assert 0 <= record["first_token_s"] <= record["total_s"]
    assert terminals(events_of(edge, run_id)) == ["succeeded"]
    wait_for("the node's journal is complete", lambda: journal_rows(node).get(run_id) == "succeeded")
    # A set-up without a fault, the join's own check of the token included, warns of nothing.
    assert '"event":"node_join_checked"' in edge.log()
    for daemon in (edge, node):
        assert '"level":"warning"' not in daemon.log()


def test_two_nodes_with_different_targets_get_their_own_runs(tmp_path: Path) -> None:
    config = (
        MOCK
        + '[adapters.other]\ntype = "mock"\n'
        + '[nodes.gpu-1]\nadapters = ["mock"]\n[nodes.gpu-2]\nadapters = ["other"]\nlabels = { site = "lab" }\n'
        + '[profiles.small]\nversion = 1\nadapter = "other"\ntarget = "echo"\nnodes = { site = "lab" }\n'
    )
    edge = EdgeDaemon(tmp_path / "edge", config=config)
    nodes: list[NodeDaemon] = []
    try:
        edge.start()
        for name, token in (("gpu-1", edge.first_token), ("gpu-2", edge.add_token("gpu-2"))):
            node = NodeDaemon(tmp_path / name, name=name, link=edge.run_file["link"], token=token)
            nodes.append(node)
            node.start()
        edge.wait_connected("gpu-1", "gpu-2")

        took = {
            model: edge.wait_state(edge.submit(model=model, input="hello"), "succeeded")["node_id"]
            for model in ("mock/echo", "other/echo", "small")
        }

        assert took == {"mock/echo": "gpu-1", "other/echo": "gpu-2", "small": "gpu-2"}
        names = {model["id"] for model in edge.get("/v1/models")["data"]}
        assert {"small", "mock/echo", "other/echo"} <= names
    finally:
        for daemon in (*nodes, edge):
            daemon.end()


def test_a_run_is_cancelled_in_its_middle_and_the_node_stops(
    edge: EdgeDaemon, start_node: StartNode, loop: str
) -> None:
    node = start_node()
    run_id = edge.submit(adapter="mock", target="tokens", input="x", options=SLOW)
    edge.wait_state(run_id, "running")

    response = httpx.post(
        edge.url + f"/api/v1/runs/{run_id}/cancel", json={"reason": "changed my mind"}, timeout=10
    )

    assert response.status_code == 202
    record = edge.wait_state(run_id, "cancelled")
    assert record["cancel_reason"] == "changed my mind"
    assert record["cancel_confirmed"] is True
    assert terminals(events_of(edge, run_id)) == ["cancelled"]
    wait_for("the node's journal says so too", lambda: journal_rows(node).get(run_id) == "cancelled")


def test_a_client_that_leaves_cancels_its_run(edge: EdgeDaemon, start_node: StartNode) -> None:
    start_node()
    body = {"model": "mock/tokens", "stream": True, "messages": [{"role": "user", "content": "x"}], **SLOW}
    with httpx.stream("POST", edge.url + "/v1/chat/completions", json=body, timeout=10) as response:
        run_id = response.headers["x-iop-run-id"]
        next(response.iter_lines())

    record = edge.wait_state(run_id, "cancelled")

    assert record["cancel_reason"] == "client_disconnected"


def test_a_killed_node_interrupts_its_run_exactly_once_and_comes_back(
    edge: EdgeDaemon, start_node: StartNode
) -> None:
    node = start_node()
    run_id = edge.submit(adapter="mock", target="tokens", input="x", options=SLOW)
    wait_for("output has come", lambda: any(e["type"] == "text" for e in events_of(edge, run_id)))

    node.kill()
    assert journal_rows(node)[run_id] == "running"
    node.start()

    record = edge.wait_state(run_id, "interrupted")
    assert record["code"] in ("node_restarted", "node_lost")
    assert terminals(events_of(edge, run_id)) == ["interrupted"]
    edge.wait_connected("gpu-1")
    assert journal_rows(node)[run_id] == "interrupted"
    again = edge.submit(adapter="mock", target="echo", input="back again")
    assert edge.wait_state(again, "succeeded")["node_id"] == "gpu-1"


def test_a_restarted_edge_gets_its_nodes_and_keeps_its_history(edge: EdgeDaemon, start_node: StartNode) -> None:
    edge.keep_ports()
    node = start_node()
    done = edge.submit(adapter="mock", target="echo", input="before")
    edge.wait_state(done, "succeeded")
    open_run = edge.submit(adapter="mock", target="tokens", input="x", options=SLOW)
    wait_for("output has come", lambda: any(e["type"] == "text" for e in events_of(edge, open_run)))

    edge.kill()
    edge.start()
    edge.wait_connected("gpu-1")

    assert edge.run(done)["state"] == "succeeded"
    record = edge.wait_state(open_run, "interrupted")
    assert (record["code"], record["layer"]) == ("edge_restarted", "edge")
    wait_for("the node has stopped the run", lambda: journal_rows(node).get(open_run) == "cancelled")
    again = edge.submit(adapter="mock", target="echo", input="after")
    edge.wait_state(again, "succeeded")


def test_a_short_break_of_the_edge_process_loses_no_piece(edge: EdgeDaemon, start_node: StartNode) -> None:
    """A stopped edge (SIGSTOP) is a network that swallows: the run goes on and everything arrives later."""
    start_node()
    run_id = edge.submit(
        adapter="mock", target="tokens", input="x", options={"mock": {"tokens": 60, "delay_s": 0.02}}
    )
    wait_for("output has come", lambda: any(e["type"] == "text" for e in events_of(edge, run_id)))
    assert edge.process is not None

    edge.process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    edge.process.send_signal(signal.SIGCONT)

    edge.wait_state(run_id, "succeeded")
    events = events_of(edge, run_id)
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
    assert sum(e["type"] == "text" for e in events) == 60


def test_a_changed_configuration_is_pushed_and_applied_at_the_next_start(
    edge: EdgeDaemon, start_node: StartNode
) -> None:
    edge.keep_ports()
    start_node()
    before = edge.get("/api/v1/nodes/gpu-1")
    assert (before["config_state"], [a["name"] for a in before["adapters"]]) == ("applied", ["mock"])

    path = edge.folder / "edge.toml"
    path.write_text(path.read_text() + '[adapters.second]\ntype = "mock"\n')
    assert edge.stop() == 0
    edge.start()
    edge.wait_connected("gpu-1")

    after = edge.get("/api/v1/nodes/gpu-1")
    assert after["config_state"] == "applied"
    assert after["config_revision"] > before["config_revision"]
    assert sorted(a["name"] for a in after["adapters"]) == ["mock", "second"]
    run_id = edge.submit(adapter="second", target="echo", input="hello")
    edge.wait_state(run_id, "succeeded")


def test_a_configuration_that_the_node_does_not_allow_is_rejected_with_the_reason(tmp_path: Path) -> None:
    config = '[adapters.far]\ntype = "vllm"\nbase_url = "http://203.0.113.9:8000"\n'
    edge = EdgeDaemon(tmp_path / "edge", config=config)
    node: NodeDaemon | None = None
    try:
        edge.start()
        node = NodeDaemon(tmp_path / "gpu-1", name="gpu-1", link=edge.run_file["link"], token=edge.first_token)
        node.start()

        def rejected() -> dict[str, Any] | None:
            view: dict[str, Any] = edge.get("/api/v1/nodes/gpu-1")
            return view if view["config_state"] == "rejected" else None

        view = wait_for("the node has rejected the configuration", rejected)

        assert view["state"] == "rejected_config"
        assert len(view["config_reasons"]) == 1
        assert "http://203.0.113.9:8000" in view["config_reasons"][0]
        assert "base_urls" in view["config_reasons"][0]
    finally:
        for daemon in (node, edge):
            if daemon is not None:
                daemon.end()


def test_a_wrong_token_is_refused_by_join_and_by_run(
    edge: EdgeDaemon, start_node: StartNode, tmp_path: Path
) -> None:
    # Well formed, and with the public half of a token that the edge knows: only the secret is wrong.
    wrong = "_".join(edge.first_token.split("_")[:2]) + "_" + new_token().text.split("_", 2)[2]
    link = edge.run_file["link"]
    joined = run_command(
        "iop_node", "join", link, "--token", "-", "--name", "gpu-1", "--dir", str(tmp_path / "n"), stdin=wrong
    )
    assert joined.returncode == 4, joined.stderr
    assert "Traceback" not in joined.stderr
    assert wrong not in joined.stderr + joined.stdout
    assert wrong[-20:] not in edge.log()

    node = start_node(run=False)
    (node.folder / "token").write_text(wrong + "\n")
    node.spawn()
    assert node.wait() == 4
    assert "Traceback" not in node.log()
    assert wrong not in node.log()


def test_a_revoked_token_ends_the_link_and_the_node(edge: EdgeDaemon, start_node: StartNode) -> None:
    node = start_node()
    token_id = edge.first_token.split("_")[1]

    done = run_command("iop_edge", "token", "revoke", token_id, "--dir", str(edge.folder))

    assert done.returncode == 0, done.stderr
    assert node.wait(10) == 4
    assert "revoked" in node.log()
    assert "Traceback" not in node.log()
    state = wait_for("the edge shows it as lost", lambda: edge.get("/api/v1/nodes/gpu-1")["state"] == "lost")
    assert state


def test_a_node_that_is_asked_to_stop_finishes_its_run_first(edge: EdgeDaemon, start_node: StartNode) -> None:
    node = start_node()
    short = {"mock": {"tokens": 30, "delay_s": 0.05}}
    run_id = edge.submit(adapter="mock", target="tokens", input="x", options=short)
    edge.wait_state(run_id, "running")

    assert node.stop() == 0
    assert edge.wait_state(run_id, "succeeded")["usage"]["completion_tokens"] == 30
    assert edge.stop() == 0
    for daemon in (node, edge):
        assert "Traceback" not in daemon.log()
        assert not (daemon.folder / "run.json").exists()


def test_a_second_signal_ends_the_run_too(edge: EdgeDaemon, start_node: StartNode) -> None:
    node = start_node()
    assert node.process is not None
    run_id = edge.submit(adapter="mock", target="tokens", input="x", options=SLOW)
    edge.wait_state(run_id, "running")

    node.process.send_signal(signal.SIGTERM)
    wait_for("the node drains", lambda: edge.get("/api/v1/nodes/gpu-1")["state"] == "draining")
    node.stop()

    edge.wait_state(run_id, "interrupted", "cancelled")
    assert len(terminals(events_of(edge, run_id))) == 1
    assert "Traceback" not in node.log()


@pytest.mark.parametrize("module", ["iop_edge", "iop_node"])
def test_ctrl_c_ends_a_daemon_with_130(edge: EdgeDaemon, start_node: StartNode, module: str) -> None:
    node = start_node()
    daemon = edge if module == "iop_edge" else node

    assert daemon.stop(signal.SIGINT) == 130
    assert "Traceback" not in daemon.log()


def test_many_runs_at_once_lose_nothing(edge: EdgeDaemon, start_node: StartNode) -> None:
    """More runs than places: the rest waits in the queue, and every one is complete in the end."""
    start_node()
    prompt = " ".join(f"w{i}" for i in range(50))
    answers: dict[int, str] = {}

    def ask(i: int) -> None:
        response = httpx.post(
            edge.url + "/v1/chat/completions",
            json={"model": "mock/echo", "messages": [{"role": "user", "content": f"{i} {prompt}"}]},
            timeout=30,
        )
        answers[i] = response.json()["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)

    assert answers == {i: f"{i} {prompt}" for i in range(24)}
    states = [run["state"] for run in edge.get("/api/v1/runs?limit=100")["runs"]]
    assert states == ["succeeded"] * 24
    assert edge.get("/api/v1/nodes/gpu-1")["in_flight"] in ({}, {"mock": 0})


def test_no_prompt_output_or_secret_reaches_a_log(edge: EdgeDaemon, start_node: StartNode) -> None:
    node = start_node()
    run_id = edge.submit(adapter="mock", target="echo", input="xyzzy-secret-prompt-plugh")
    edge.wait_state(run_id, "succeeded")
    failed = edge.submit(adapter="mock", target="fail", input="xyzzy-secret-prompt-plugh")
    edge.wait_state(failed, "failed")

    secret = edge.first_token.split("_", 2)[2]
    for daemon in (edge, node):
        for planted in ("xyzzy", "plugh", secret):
            assert planted not in daemon.log()
    assert secret.encode() not in (edge.folder / "edge.db").read_bytes()
