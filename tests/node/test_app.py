"""The node as a whole, in one process: start, readiness, metrics, a folder of its own, stop."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.support.fake_edge import FakeEdge
from tests.support.inbox import wait_for

from iop_node.app import NodeApp, run_node
from iop_node.config import NodeSettings
from iop_node.store.sqlite import SqliteRunStore
from iop_shared.aio.loop import StopSignal
from iop_shared.clock import SystemClock
from iop_shared.errors import NotAllowed, Unavailable
from iop_shared.ids import AdapterName, TargetName, new_run_id
from iop_shared.link.auth import Token, new_token
from iop_shared.link.messages import AdapterConfig
from iop_shared.runs import Operation, RunRequest, RunState

pytestmark = pytest.mark.both_loops
MOCK = AdapterConfig(AdapterName("mock"), "mock", 8)


def settings_for(edge: FakeEdge, **sections: object) -> NodeSettings:
    return NodeSettings.model_validate(
        {
            "node_id": "n1",
            "edges": [str(edge.address)],
            "http": {"listen": "127.0.0.1:0"},
            "limits": {"drain_timeout_s": 0.05, "cancel_grace_s": 0.1},
            **sections,
        }
    )


@contextlib.asynccontextmanager
async def started(folder: Path) -> AsyncIterator[tuple[FakeEdge, NodeApp, str]]:
    token = new_token()
    async with FakeEdge.listening(token, adapters=(MOCK,)) as edge:
        app = NodeApp(settings_for(edge), token, folder)
        http = await app.start()
        try:
            yield edge, app, f"http://{http}"
        finally:
            await app.stop("the test is over")


def request(target: str) -> RunRequest:
    return RunRequest(
        new_run_id(), AdapterName("mock"), TargetName(target), Operation.GENERATE, b"hi", content_type="text/plain"
    )


async def test_it_is_ready_when_a_session_with_the_edge_stands(tmp_path: Path) -> None:
    token = new_token()
    async with FakeEdge.listening(token, adapters=(MOCK,)) as edge:
        edge.is_mute = True
        app = NodeApp(settings_for(edge), token, tmp_path)
        http = await app.start()
        async with httpx.AsyncClient(base_url=f"http://{http}") as client:
            listener = edge._listener
            assert listener is not None
            await wait_for(lambda: bool(listener.links), "the node has dialled")
            before = await client.get("/healthz")
            edge.is_mute = False
            await edge.aclose(cut=True)
            await edge.start(edge.address)
            await edge.wait_session()
            session = edge.sessions[0]
            await session.wait_adapters()
            after = await client.get("/healthz")
            await app.stop("the test is over")

        assert (before.status_code, before.json()["status"], before.json()["ready"]) == (
            503,
            "not_connected",
            False,
        )
        assert (after.status_code, after.json()["ready"]) == (200, True)
        assert after.json()["adapters"] == {"mock": {"type": "mock", "gate": "not_applicable", "reason": ""}}
        assert after.json()["link"]["last_end"]["code"] == "link_lost"


async def test_other_paths_and_methods_are_refused_with_a_sentence(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, _, url), httpx.AsyncClient(base_url=url) as client:
        missing = await client.get("/nothing")
        wrong = await client.post("/metrics")
        head = await client.head("/metrics")

    assert (missing.status_code, missing.json()) == (
        404,
        {"error": {"code": "not_found", "message": "there is no '/nothing' here, only /healthz and /metrics"}},
    )
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")
    assert wrong.json()["error"]["message"] == "/metrics takes GET, not POST"
    assert (head.status_code, head.content) == (200, b"")


async def test_metrics_count_runs_by_outcome(tmp_path: Path) -> None:
    async with started(tmp_path) as (edge, _, url), httpx.AsyncClient(base_url=url) as client:
        session = await edge.wait_session()
        await session.wait_config_result(1)
        good, bad, refused = request("echo"), request("fail"), request("ecko")
        for asked in (good, bad, refused):
            session.submit(asked)
        await session.wait_terminal(good.run_id)
        await session.wait_terminal(bad.run_id)

        lines = (await client.get("/metrics")).text.splitlines()

    assert 'iop_node_runs_total{adapter="mock",operation="generate",state="succeeded"} 1.0' in lines
    assert 'iop_node_run_failures_total{adapter="mock",code="mock_failure",layer="serving"} 1.0' in lines
    assert 'iop_node_runs_refused_total{code="unknown_target"} 1.0' in lines
    assert 'iop_node_adapter_runs{adapter="mock"} 0.0' in lines
    assert "iop_node_link_open 1.0" in lines
    assert not any(good.run_id in line for line in lines)


async def test_run_json_says_where_it_is_and_goes_with_it(tmp_path: Path) -> None:
    async with started(tmp_path) as (edge, _, url):
        said = json.loads((tmp_path / "run.json").read_text())
        assert said == {"pid": os.getpid(), "link": str(edge.address), "http": url.removeprefix("http://")}

    assert not (tmp_path / "run.json").exists()


async def test_a_second_node_in_the_same_folder_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    async with started(tmp_path) as (edge, _, _):
        second = NodeApp(settings_for(edge), new_token(), tmp_path)

        with pytest.raises(Unavailable) as caught:
            await second.start()

        assert str(caught.value) == (
            f"a node runs in {tmp_path} already (process {os.getpid()}): stop it, or use another --dir"
        )
        assert (tmp_path / "run.json").exists(), "the first one's is left alone"


async def test_a_port_in_use_is_told_and_lets_go_of_the_folder(tmp_path: Path) -> None:
    async with started(tmp_path / "first") as (edge, _, url):
        taken = url.removeprefix("http://")
        app = NodeApp(settings_for(edge, http={"listen": taken}), new_token(), tmp_path / "second")

        with pytest.raises(Unavailable) as caught:
            await app.start()

        assert str(caught.value).startswith(f"http: {taken} is already in use")
        again = NodeApp(settings_for(edge, http={"enabled": False}), new_token(), tmp_path / "second")
        assert await again.start() is None
        await again.stop("the test is over")


async def run_until(settings: NodeSettings, token: Token, folder: Path, stop: StopSignal) -> int:
    async with asyncio.timeout(10):
        return await run_node(settings, token, folder, stop)


async def test_a_stop_drains_interrupts_what_is_left_and_keeps_the_record(tmp_path: Path) -> None:
    token, stop = new_token(), StopSignal()
    async with FakeEdge.listening(token, adapters=(MOCK,)) as edge:
        running = asyncio.gather(run_until(settings_for(edge), token, tmp_path, stop))
        session = await edge.wait_session()
        await session.wait_config_result(1)
        asked = request("hang")
        session.submit(asked)
        await session.wait_answer(asked.run_id)

        stop.set("SIGTERM")
        terminal = (await session.wait_terminal(asked.run_id))[-1]
        assert (await running)[0] == 0

        assert type(terminal.body).__name__ == "Interrupted"
        end = await session.wait_closed()
        assert (end.code, "the node is stopping (SIGTERM)" in end.message) == ("node_stopping", True)
    store = await SqliteRunStore.open(tmp_path / "node.db", clock=SystemClock())
    row = await store.get(asked.run_id, 1)
    await store.aclose()
    assert row is not None
    assert (row.state, row.message) == (
        RunState.INTERRUPTED,
        "the node is stopping (SIGTERM); the run was not complete",
    )


async def test_a_fatal_refusal_ends_the_process_with_the_edges_sentence(tmp_path: Path) -> None:
    async with FakeEdge.listening(new_token()) as edge:
        with pytest.raises(NotAllowed) as caught:
            await run_until(settings_for(edge), new_token(), tmp_path, StopSignal())

    assert caught.value.code == "token_invalid"
    assert str(caught.value) == (
        f"{edge.address}: the edge refused this node (token_invalid): the token of node 'n1' is not valid on this "
        "edge: make one with `iop-edge token add n1` and give it to `iop-node join EDGE --token TOKEN`"
    )
    assert not (tmp_path / "run.json").exists()


async def test_runs_of_a_killed_process_are_interrupted_at_the_next_start(tmp_path: Path) -> None:
    async with started(tmp_path) as (edge, app, _):
        session = await edge.wait_session()
        await session.wait_config_result(1)
        asked = request("hang")
        session.submit(asked)
        await session.wait_answer(asked.run_id)
        # What a kill leaves: the file as it is now, with the write-ahead log beside it.
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("node.db", "node.db-wal"):
            if (tmp_path / name).exists():
                (copy / name).write_bytes((tmp_path / name).read_bytes())
        again = NodeApp(settings_for(edge, http={"enabled": False}), new_token(), copy)
        await again.start()
        await again.stop("the test is over")
        await wait_for(lambda: app.node.statistics().live_runs == 1, "the first is untouched")
    store = await SqliteRunStore.open(copy / "node.db", clock=SystemClock())
    row = await store.get(asked.run_id, 1)
    await store.aclose()
    assert row is not None
    assert (row.state, row.message) == (RunState.INTERRUPTED, "the node was restarted")
