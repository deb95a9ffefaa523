"""Everything that can be wrong between the client and an edge, each with its whole message."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.shared.client.conftest import RUN_A, RUN_B, Iop, run_json
from tests.support.scripted_edge import Answer, ScriptedEdge, answer_error, answer_json

from iop_shared.client.address import DEFAULT_URL, check_url, find_edge_url
from iop_shared.client.api import EdgeApi
from iop_shared.exit_codes import CommandFailed, ExitCode

HINT = "  start one with `iop up`, or name another with --edge URL or IOP_EDGE_URL\n"


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as holder:  # bound and not listening: nobody else gets it, nobody answers
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def test_no_edge_there(iop: Iop, closed_port: int) -> None:
    done = iop("nodes", "--edge", f"http://127.0.0.1:{closed_port}")

    assert done.code == ExitCode.UNAVAILABLE
    assert done.err == f"iop: no edge at http://127.0.0.1:{closed_port}: connection refused\n{HINT}"


def test_a_host_that_does_not_exist(iop: Iop) -> None:
    done = iop("nodes", "--edge", "http://no-such-host.invalid:7480")

    assert done.code == ExitCode.UNAVAILABLE
    assert done.err.startswith("iop: no edge at http://no-such-host.invalid:7480: ")
    assert done.err.endswith(HINT)


@pytest.mark.parametrize("address", ["ftp://host", "http://", "http://host:port", "http://h/?q=1", "http://[::1"])
def test_an_address_that_is_none(iop: Iop, address: str) -> None:
    done = iop("nodes", "--edge", address)

    assert done.code == ExitCode.USAGE
    assert done.err == (
        f"iop: the edge's address '{address}' is not a URL that iop can use\n"
        "  give it as http://HOST:PORT, with --edge or in IOP_EDGE_URL\n"
    )


@pytest.mark.parametrize("given", ["127.0.0.1:7480", "http://127.0.0.1:7480/", "http://127.0.0.1:7480/v1/"])
def test_an_address_may_be_written_as_people_do(given: str) -> None:
    assert check_url(given) == "http://127.0.0.1:7480"


NOT_AN_EDGE = (
    "  is it the edge's HTTP address, and of a version that this client knows? "
    "Name another with --edge URL or IOP_EDGE_URL\n"
)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer([b"<html>hello"], content_type="text/html"), "11 bytes that are not JSON"),
        (answer_json([1, 2]), "the answer is no JSON object"),
        (answer_json({"data": []}), "the answer has no 'nodes'"),
        (answer_json({"nodes": [{"id": "x"}]}), "a node has no 'node_id'"),
        (Answer([b"nope"], status=404), "status 404 without an error of the edge's form"),
        (answer_json({"error": {"code": 404, "message": "File Not Found"}}, 404),
         "status 404 without an error of the edge's form"),
        (answer_json({"error": "Unauthorized"}, 401), "status 401 without an error of the edge's form"),
    ],
)  # fmt: skip
def test_something_that_is_no_edge(iop: Iop, edge: ScriptedEdge, answer: Answer, why: str) -> None:
    edge.on("GET", "/api/v1/nodes", answer)

    done = iop("nodes")

    assert done.code == ExitCode.UNAVAILABLE
    assert done.err == f"iop: {edge.url} answers, but not as an IOP edge: /api/v1/nodes: {why}\n{NOT_AN_EDGE}"


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "bad_request", ExitCode.USAGE),
        (403, "host_not_allowed", ExitCode.REFUSED),
        (404, "unknown_node", ExitCode.USAGE),
        (500, "internal", ExitCode.FAILED),
        (503, "no_route", ExitCode.UNAVAILABLE),
    ],
)
def test_an_error_of_the_edge_is_told_as_it_says_it(
    iop: Iop, edge: ScriptedEdge, status: int, code: str, exit_code: ExitCode
) -> None:
    edge.on(
        "GET", "/api/v1/nodes/gpu-9", answer_error(status, code, "unknown node 'gpu-9': did you mean 'gpu-1'?")
    )

    done = iop("node", "gpu-9")

    assert done.code == exit_code
    assert done.err == f"iop: unknown node 'gpu-9': did you mean 'gpu-1'? ({code})\n"


def test_an_error_that_may_pass_says_so(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/nodes", answer_error(503, "store_unavailable", "the disk is full", retryable=True))

    assert iop("nodes").err == "iop: the disk is full (store_unavailable)\n  trying again later can help\n"


def test_an_answer_that_is_cut(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/nodes", Answer([b'{"nodes": ['], cut=True))

    done = iop("nodes")

    assert done.code == ExitCode.UNAVAILABLE
    assert done.err.startswith(f"iop: the connection to {edge.url} broke: ")
    assert done.err.endswith("  see the edge's log; a run that was under way is in `iop runs`\n")


def test_beginning_of_a_run_id_is_enough_if_only_one_begins_so(edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/runs", answer_json({"runs": [run_json(RUN_B), run_json(RUN_A)], "next_cursor": None}))

    with EdgeApi(edge.url) as api:
        assert api.resolve_run_id("0192F0C4-1a2b-7c") == RUN_A
        assert api.resolve_run_id(RUN_B) == RUN_B
    assert len(edge.asked) == 1  # a whole id needs no looking up


def test_beginning_of_several_run_ids(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/runs", answer_json({"runs": [run_json(RUN_B), run_json(RUN_A)], "next_cursor": None}))

    done = iop("show", "0192")

    assert done.code == ExitCode.USAGE
    assert done.err == f"iop: 2 runs begin with '0192': {RUN_B}, {RUN_A}\n  give more of the id\n"


def test_unknown_run_names_the_nearest(iop: Iop, edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/runs", answer_json({"runs": [run_json(RUN_A)], "next_cursor": None}))
    mistyped = RUN_A.replace("8e4f", "8e4e")[:-1]

    done = iop("cancel", mistyped)
    far_off = iop("show", "zzz")

    assert done.code == ExitCode.USAGE
    assert done.err == (
        f"iop: no run begins with '{mistyped}' among the newest 500: did you mean '{RUN_A}'?\n"
        "  `iop runs` lists them\n"
    )
    assert far_off.err == "iop: no run begins with 'zzz' among the newest 500\n  `iop runs` lists them\n"


def test_the_address_of_a_running_local_edge_is_found(tmp_path: Path) -> None:
    assert find_edge_url(None) == DEFAULT_URL

    folder = tmp_path / ".iop" / "edge"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"pid": os.getpid(), "http": "127.0.0.1:9999", "link": "127.0.0.1:1"})
    )

    assert find_edge_url(None) == "http://127.0.0.1:9999"
    assert find_edge_url("http://other:1") == "http://other:1"


@pytest.mark.parametrize(
    "content", ["", "[]", '{"pid": 0, "http": "127.0.0.1:9"}', '{"pid": 4194305, "http": "127.0.0.1:9"}']
)
def test_what_a_dead_edge_left_behind_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)

    assert find_edge_url(None, tmp_path) == DEFAULT_URL


def test_a_proxy_of_the_environment_is_not_asked_for_the_loopback(
    edge: ScriptedEdge, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port}")
    edge.on("GET", "/api/v1/nodes", answer_json({"nodes": []}))

    with EdgeApi(edge.url) as api:
        assert api.list_nodes() == []


def test_ready_is_asked_and_answered(edge: ScriptedEdge, closed_port: int) -> None:
    with EdgeApi(edge.url) as api:
        edge.on("GET", "/readyz", answer_json({"status": "ready"}))
        assert api.is_ready() == (True, "")
        edge.on("GET", "/readyz", answer_json({"status": "not_ready", "reason": "stopping"}, 503))
        assert api.is_ready() == (False, "stopping")
    with EdgeApi(f"http://127.0.0.1:{closed_port}") as api:
        assert api.is_ready()[0] is False


def test_a_stream_of_another_kind_is_no_edge(edge: ScriptedEdge) -> None:
    edge.on("GET", "/api/v1/events", answer_json({}))

    with EdgeApi(edge.url) as api, pytest.raises(CommandFailed) as failure:
        list(api.follow_events())

    assert "it sent application/json and not a stream of events" in str(failure.value)
