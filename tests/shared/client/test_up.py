"""`iop up`: its parts, and the whole with real daemons."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.scripted_edge import answer_json, scripted_edge

from iop_shared.client.address import is_alive
from iop_shared.client.engines import USUAL_PORTS
from iop_shared.client.program import run_command
from iop_shared.client.up import (
    check_port_free,
    curl_line,
    edges_environment,
    node_name,
    plan_listening,
    python_line,
    read_node_id,
)
from iop_shared.exit_codes import CommandFailed, ExitCode
from iop_shared.http_listen import ListenAddress


@pytest.fixture
def edge_file(tmp_path: Path) -> Path:
    path = tmp_path / "edge.toml"
    path.write_text('[http]\nlisten = "127.0.0.1:9000"\n')
    return path


def test_addresses_come_from_the_file_where_no_option_says_otherwise(edge_file: Path) -> None:
    plan = plan_listening(edge_file, None, None)

    assert (str(plan.http), str(plan.link)) == ("127.0.0.1:9000", "127.0.0.1:7443")
    assert (plan.edge_environment, plan.node_environment) == ({}, {})


def test_options_win_and_reach_both_daemons(edge_file: Path) -> None:
    plan = plan_listening(edge_file, 1, 2)

    assert (str(plan.http), str(plan.link)) == ("127.0.0.1:1", "127.0.0.1:2")
    assert plan.edge_environment == {
        "IOP_EDGE__HTTP__LISTEN": "127.0.0.1:1",
        "IOP_EDGE__LINK__LISTEN": "127.0.0.1:2",
    }
    assert plan.node_environment == {"IOP_NODE__HTTP__LISTEN": "127.0.0.1:0"}


def test_an_address_in_the_file_that_is_none(edge_file: Path) -> None:
    edge_file.write_text('[http]\nlisten = "nowhere"\n')

    with pytest.raises(CommandFailed) as failure:
        plan_listening(edge_file, None, None)

    assert str(failure.value).startswith(f"{edge_file}: [http] listen: ")
    assert failure.value.exit_code == ExitCode.USAGE


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ListenAddress("127.0.0.1", taken.getsockname()[1])

        with pytest.raises(CommandFailed) as failure:
            check_port_free(address)

    assert str(failure.value) == f"{address} cannot be listened on: address already in use"
    assert failure.value.hint == "stop what listens there, or choose others with --port and --link-port"
    assert failure.value.exit_code == ExitCode.UNAVAILABLE
    check_port_free(address)
    check_port_free(ListenAddress("127.0.0.1", 0))


@pytest.mark.parametrize(
    ("host", "name"),
    [("gpu-1", "gpu-1"), ("My Mac.local", "my-mac.local"), ("-_-", "node"), ("", "node"), ("ü" * 80, "node")],
)
def test_a_node_is_named_after_its_machine(host: str, name: str) -> None:
    assert node_name(host) == name


def test_a_node_file_without_a_name(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("edges = []\n")

    with pytest.raises(CommandFailed) as failure:
        read_node_id(tmp_path / "node.toml")

    assert str(failure.value) == f"{tmp_path / 'node.toml'}: there is no node_id"


@pytest.mark.parametrize(
    ("edges", "told"),
    [
        ('["127.0.0.1:7443"]', {}),
        ('["10.8.0.1:7443", "127.0.0.1:7443"]', {}),
        ('["127.0.0.1:1", "10.8.0.1:7443"]', {"IOP_NODE__EDGES": '["127.0.0.1:7443", "10.8.0.1:7443"]'}),
        ('"no list"', {}),
    ],
)
def test_a_node_is_told_of_the_edge_only_where_its_file_does_not_name_it(
    tmp_path: Path, edges: str, told: dict[str, str]
) -> None:
    (tmp_path / "node.toml").write_text(f"edges = {edges}\n")

    assert edges_environment(tmp_path / "node.toml", "127.0.0.1:7443") == told


def test_lines_to_copy_are_what_a_shell_and_python_take() -> None:
    assert curl_line("http://h:1", "mock/echo") == (
        "curl -N http://h:1/v1/chat/completions -H 'content-type: application/json' "
        """-d '{"model": "mock/echo", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'"""
    )
    compile(python_line("http://h:1", "mock/echo"), "line", "eval")


def test_a_second_edge_of_the_same_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "edge").mkdir()
    run_file = {"pid": os.getpid(), "http": "127.0.0.1:7480", "link": "127.0.0.1:7443"}
    (tmp_path / "edge" / "run.json").write_text(json.dumps(run_file))

    code = run_command(["up", "--dir", str(tmp_path)])

    assert code == ExitCode.UNAVAILABLE
    pid = os.getpid()
    assert capsys.readouterr().err == (
        f"iop: the edge of {tmp_path / 'edge'} is running already at http://127.0.0.1:7480 (process {pid})\n"
        f"  use it as it is, or stop it with: kill {pid}\n"
    )


class Up:
    """`iop up` as a process, what it has printed so far, and the daemons that it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed = folder.parent / "printed"
        with self.printed.open("wb") as printed:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "iop_shared.client", "up", "--dir", str(folder), "--port", "0",
                 "--link-port", "0"],
                stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while "ready; Ctrl-C stops both" not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)

    def text(self) -> str:
        return self.printed.read_text()

    def run_file(self, daemon: str) -> dict[str, Any]:
        content = json.loads((self.folder / daemon / "run.json").read_text())
        assert isinstance(content, dict)
        return content

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(40)


@contextmanager
def running(folder: Path) -> Iterator[Up]:
    up = Up(folder)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.process.terminate()
            up.process.wait(40)


def free_usual_port() -> int:
    for port in USUAL_PORTS:
        try:
            check_port_free(ListenAddress("127.0.0.1", port))
        except CommandFailed:
            continue
        return port
    pytest.fail("engines listen on every usual port of this machine")


@pytest.mark.e2e
@pytest.mark.slow
def test_up_offers_mock_and_the_engine_it_finds_and_ctrl_c_stops_everything(tmp_path: Path) -> None:
    port = free_usual_port()
    with scripted_edge(port) as engine:
        models = {"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "me"}]}
        engine.on("GET", "/v1/models", answer_json(models))
        with running(tmp_path / "iop") as up:
            up.wait_ready()
            edge, node = up.run_file("edge"), up.run_file("node")
            url = f"http://{edge['http']}"
            listed = [model["id"] for model in httpx.get(f"{url}/v1/models", trust_env=False).json()["data"]]

            assert "mock/echo" in listed
            assert f"{USUAL_PORTS[port]}/tiny" in listed
            assert f"http://127.0.0.1:{port} (1 model)" in up.text()
            assert curl_line(url, f"{USUAL_PORTS[port]}/tiny") in up.text()
            asked = {"model": "mock/echo", "messages": [{"role": "user", "content": "are you there"}]}
            answer = httpx.post(f"{url}/v1/chat/completions", json=asked, trust_env=False).json()
            assert "are you there" in answer["choices"][0]["message"]["content"]

            assert up.stop(signal.SIGINT) == ExitCode.INTERRUPTED
        assert not is_alive(edge["pid"])
        assert not is_alive(node["pid"])
        assert "Traceback" not in up.text()
        assert {asked.path for asked in engine.asked} <= {"/v1/models", "/health", "/props", "/version"}

    # A second time: the same folder, the engine away, nothing of the user's changed.
    before = (tmp_path / "iop" / "edge" / "edge.toml").read_text()
    with running(tmp_path / "iop") as up:
        up.wait_ready()
        assert up.stop(signal.SIGTERM) == ExitCode.INTERRUPTED
    after = (tmp_path / "iop" / "edge" / "edge.toml").read_text()
    assert after == before
    assert USUAL_PORTS[port] in tomllib.loads(after)["adapters"]


@pytest.mark.e2e
@pytest.mark.slow
def test_a_daemon_that_dies_is_reported_and_the_other_is_stopped(tmp_path: Path) -> None:
    with running(tmp_path / "iop") as up:
        up.wait_ready()
        edge, node = up.run_file("edge"), up.run_file("node")

        os.kill(edge["pid"], signal.SIGKILL)

        assert up.process.wait(40) == ExitCode.FAILED
    assert not is_alive(node["pid"])
    log = tmp_path / "iop" / "edge" / "edge.log"
    assert f"iop: the edge was killed by signal 9; the end of its log ({log}):\n  " in up.text()


@pytest.mark.e2e
@pytest.mark.slow
def test_an_edge_that_cannot_start_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "iop"
    (folder / "edge").mkdir(parents=True)
    (folder / "edge" / "edge.toml").write_text('[adapters.x]\ntype = "mock"\n[limits]\nmax_queued = -5\n')

    with running(folder) as up:
        assert up.process.wait(60) == ExitCode.USAGE

    assert "iop: the edge ended with exit code 2; the end of its log" in up.text()
    assert "max_queued" in up.text()
    assert "Traceback" not in up.text()


@pytest.mark.e2e
@pytest.mark.slow
def test_the_demo_holds_every_claim_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "iop_shared.client", "demo"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "The demo is complete" in done.stdout
    assert done.stdout.count("   ok: ") >= 10
    assert list(tmp_path.iterdir()) == []
