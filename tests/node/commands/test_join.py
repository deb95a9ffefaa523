"""`iop-node join` against an edge on a real socket: what it writes, and that it writes nothing else."""

import asyncio
import json
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.fake_edge import FakeEdge

from iop_node.commands.join import parse_edge, read_token
from iop_node.config import load_node_settings
from iop_node.program import run_command
from iop_shared.errors import BadRequest
from iop_shared.http_listen import ListenAddress
from iop_shared.ids import AdapterName
from iop_shared.link.auth import new_token
from iop_shared.link.messages import AdapterConfig, Reject, RejectClass

MOCK = AdapterConfig(AdapterName("mock"), "mock", 8)


async def iop_node(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command: Sequence[str] = [sys.executable, "-m", "iop_node", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, input=stdin, capture_output=True, text=True, timeout=30, check=False
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_join_asks_the_edge_then_writes_both_files_for_the_owner_alone(tmp_path: Path) -> None:
    token, folder = new_token(), tmp_path / "node"
    async with FakeEdge.listening(token, adapters=(MOCK,)) as edge:
        done = await iop_node(
            "join",
            str(edge.address),
            "--token",
            "-",
            "--name",
            "gpu-1",
            "--dir",
            str(folder),
            stdin=token.text + "\n",
        )

        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            f"the edge {edge.address} takes node gpu-1; adapters for it: mock",
            f"wrote {folder / 'node.toml'}",
            f"wrote {folder / 'token'}",
            f"start the node:  iop-node run --dir {folder}",
        ]
        assert load_node_settings(folder / "node.toml", {}).edge == edge.address
        assert (folder / "token").read_text() == token.text + "\n"
        assert mode(folder / "token") == mode(folder / "node.toml") == 0o600
        assert mode(folder) == 0o700
        assert edge.sessions == [], "it leaves before the link would be open"

        checked = await iop_node("config", "check", "--dir", str(folder), "--json")
        assert checked.returncode == 0
        assert json.loads(checked.stdout)["token_id"] == token.token_id


async def test_a_second_join_of_the_same_edge_replaces_the_token_alone(tmp_path: Path) -> None:
    old, new = new_token(), new_token()
    async with FakeEdge.listening(old) as edge:
        arguments = ("join", str(edge.address), "--token", "-", "--dir", str(tmp_path), "--json")
        await iop_node(*arguments, "--name", "gpu-1", stdin=old.text)
        (tmp_path / "node.toml").write_text((tmp_path / "node.toml").read_text() + "# mine\n")
        edge.token = new

        done = await iop_node(*arguments, stdin=new.text)

        assert json.loads(done.stdout) == {
            "node_id": "gpu-1",
            "edge": str(edge.address),
            "dir": str(tmp_path),
            "token_id": new.token_id,
            "checked": True,
            "adapters": [],
        }
        assert (tmp_path / "token").read_text() == new.text + "\n"
        assert (tmp_path / "node.toml").read_text().endswith("# mine\n")

        other = await iop_node(*arguments, "--name", "gpu-2", stdin=new.text)
        assert (other.returncode, other.stderr) == (
            2,
            f"iop-node: {tmp_path / 'node.toml'}: exists already, for node gpu-1 and edge {edge.address}, and is "
            "left as it is: edit it, or use another --dir\n",
        )


async def test_a_refused_token_writes_nothing_and_exits_4(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    async with FakeEdge.listening(new_token()) as edge:
        done = await iop_node(
            "join", str(edge.address), "--token", new_token().text, "--name", "n1", "--dir", str(folder)
        )

        assert (done.returncode, done.stdout) == (4, "")
        assert done.stderr == (
            f"iop-node: {edge.address}: the edge refused this node (token_invalid): the token of node 'n1' is not "
            "valid on this edge: make one with `iop-edge token add n1` and give it to `iop-node join EDGE --token "
            "TOKEN`\n"
        )
        assert not folder.exists()


async def test_an_edge_that_is_not_there_writes_nothing_unless_told_not_to_ask(tmp_path: Path) -> None:
    token, folder = new_token(), tmp_path / "node"
    async with FakeEdge.listening(token) as edge:
        gone = edge.address
    arguments = ("join", str(gone), "--token", token.text, "--name", "n1", "--dir", str(folder))

    done = await iop_node(*arguments)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"iop-node: cannot reach the edge {gone} (127.0.0.1: Connection refused): check that `iop-edge run` runs "
        "there and that this is its [link] port. Nothing was written; --no-check joins without asking\n"
    )
    assert not folder.exists()

    unchecked = await iop_node(*arguments, "--no-check")
    assert unchecked.returncode == 0
    assert (folder / "node.toml").exists()


async def test_ctrl_c_ends_the_wait_for_an_edge_that_says_nothing(tmp_path: Path) -> None:
    came = asyncio.Event()

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        came.set()

    accepted: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        arguments = ("join", address, "--token", new_token().text, "--name", "n1", "--dir", str(tmp_path / "n"))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "iop_node",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            await came.wait()
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            said = await process.communicate()
        for writer in accepted:
            writer.close()

    assert (process.returncode, *said) == (130, b"", b"")
    assert time.monotonic() - began < 4, "not by the deadline of the handshake, which is 5 s"
    assert not (tmp_path / "n").exists()


async def test_an_edge_that_is_busy_is_a_matter_of_trying_again(tmp_path: Path) -> None:
    async with FakeEdge.listening(new_token()) as edge:
        edge.reject = Reject("edge_busy", RejectClass.RETRY, "too many handshakes at once")

        done = await iop_node(
            "join", str(edge.address), "--token", new_token().text, "--name", "n1", "--dir", str(tmp_path)
        )

    assert done.returncode == 3
    assert "too many handshakes at once" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("join", "127.0.0.1:1"),
            "give the token once: --token - reads it from standard input, --token-file FILE from a file; "
            "`iop-edge token add NODE` makes one",
        ),
        (
            ("join", "127.0.0.1:x", "--token", "t"),
            "EDGE '127.0.0.1:x': port 'x' is not a number from 0 to 65535; use HOST:PORT, for example "
            '"127.0.0.1:7480" or "[::1]:7480"',
        ),
        (
            ("join", "127.0.0.1:1", "--token", "t"),
            "the token (1 characters) does not begin with iopn_: a token is iopn_, 12 characters, _, 43 "
            "characters, as `iop-edge token add NODE` prints it",
        ),
        (
            ("join", "127.0.0.1:0", "--token", "t"),
            "EDGE '127.0.0.1:0': port 0 cannot be dialled; run.json of the edge has its port",
        ),
        (
            ("join", "10.0.0.1:1", "--name", "n", "--token", new_token().text),
            "10.0.0.1:1 is on another machine, and links are not encrypted yet: add --allow-plaintext if the "
            "network in between is trusted (a VPN, for example)",
        ),
        (
            ("run",),
            "FOLDER/node.toml: there is no such file; make it with: iop-node join EDGE --token TOKEN",
        ),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_command([*arguments, "--dir", str(tmp_path)])

    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err == f"iop-node: {message.replace('FOLDER', str(tmp_path))}\n"
    assert list(tmp_path.iterdir()) == []


def test_check_tells_every_problem_of_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node.toml").write_text('node_id = "N 1"\nedges = []\n')
    (tmp_path / "token").write_text("iopn_x")
    (tmp_path / "token").chmod(0o644)

    assert run_command(["config", "check", "--dir", str(tmp_path)]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "node_id: node 'N 1' is not a valid name" in lines[0]
    assert "edges is empty" in lines[1]
    assert lines[2].endswith(f"may be read by others (mode 0644); run: chmod 600 {tmp_path / 'token'}")


def test_a_node_without_a_token_or_with_none_that_is_one_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    (tmp_path / "node.toml").write_text('node_id = "n1"\nedges = ["127.0.0.1:1"]\n')

    for command in (["run"], ["config", "check"]):
        assert run_command([*command, "--dir", str(tmp_path)]) == 2
        assert capsys.readouterr().err == (
            f"iop-node: {path}: there is no such file; make it with: iop-node join EDGE --token TOKEN\n"
        )

    path.write_text("secret")
    path.chmod(0o600)
    for command in (["run"], ["config", "check"]):
        assert run_command([*command, "--dir", str(tmp_path)]) == 2
        assert capsys.readouterr().err == (
            f"iop-node: {path}: the token (6 characters) does not begin with iopn_: a token is iopn_, 12 "
            "characters, _, 43 characters, as `iop-edge token add NODE` prints it\n"
        )


def test_an_edge_without_a_port_is_dialled_at_the_usual_one() -> None:
    assert parse_edge("gateway.lab") == ListenAddress("gateway.lab", 7443)
    assert parse_edge("[::1]") == ListenAddress("::1", 7443)
    assert parse_edge("10.0.0.1:99") == ListenAddress("10.0.0.1", 99)


def test_a_token_comes_from_a_file_that_only_the_owner_reads(tmp_path: Path) -> None:
    token, path = new_token(), tmp_path / "t"
    path.write_text(token.text + "\n")
    path.chmod(0o600)

    assert read_token("", path) == token
    with pytest.raises(BadRequest, match="give the token once"):
        read_token(token.text, path)
