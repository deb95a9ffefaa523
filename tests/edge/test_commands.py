"""The commands of iop-edge: what they print, what they leave, and how they fail."""

import json
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.daemons import wait_for

from iop_edge.program import run_command
from iop_shared.link.auth import parse_token

Output = pytest.CaptureFixture[str]
FREE_PORTS = {"IOP_EDGE__LINK__LISTEN": "127.0.0.1:0", "IOP_EDGE__HTTP__LISTEN": "127.0.0.1:0"}


def command(*arguments: str, folder: Path, output: Output) -> tuple[int, str, str]:
    """Runs one command on `folder`; returns its exit code and what it printed."""
    code = run_command([*arguments, "--dir", str(folder)])
    out, err = output.readouterr()
    return code, out, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "edge"


@pytest.fixture
def made(folder: Path, capsys: Output) -> Path:
    assert command("init", "--no-token", folder=folder, output=capsys)[0] == 0
    return folder


def test_init_writes_a_private_folder_and_the_first_token(folder: Path, capsys: Output) -> None:
    code, out, err = command("init", "--node", "gpu-1", folder=folder, output=capsys)

    assert (code, err) == (0, "")
    token = parse_token(next(line for line in out.splitlines() if "iopn_" in line))
    assert out == (
        f"wrote {folder}/edge.toml\n"
        f"token for node gpu-1, shown this once:\n\n  {token.text}\n\n"
        f"start the edge:  iop-edge run --dir {folder}\n"
        "join the node:   iop-node join 127.0.0.1:7443 --token - --name gpu-1\n"
    )
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("edge.toml", "edge.db"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert token.secret not in (folder / "edge.db").read_bytes()
    assert token.text[18:].encode() not in (folder / "edge.db").read_bytes()


def test_init_prints_json_for_programs(folder: Path, capsys: Output) -> None:
    code, out, _ = command("init", "--node", "gpu-1", "--json", folder=folder, output=capsys)

    answer = json.loads(out)
    assert code == 0
    assert set(answer) == {"dir", "config", "node_id", "token_id", "token"}
    assert parse_token(answer["token"]).token_id == answer["token_id"]


def test_init_changes_nothing_that_is_there(made: Path, capsys: Output) -> None:
    (made / "edge.toml").write_text("# mine\n")

    code, out, err = command("init", folder=made, output=capsys)

    assert (code, out) == (2, "")
    assert err == (
        f"iop-edge: {made}/edge.toml: exists already and is left as it is; "
        "edit it, or make a token with: iop-edge token add NODE\n"
    )
    assert (made / "edge.toml").read_text() == "# mine\n"


def test_tokens_are_added_listed_and_revoked(made: Path, capsys: Output) -> None:
    assert command("token", "list", folder=made, output=capsys)[1] == (
        "no tokens yet; make one with: iop-edge token add NODE\n"
    )
    code, out, _ = command("token", "add", "gpu-1", "--label", "lab", "--json", folder=made, output=capsys)
    added = json.loads(out)
    assert code == 0
    assert set(added) == {"token_id", "node_id", "token"}

    _, out, _ = command("token", "list", folder=made, output=capsys)
    head, row = out.splitlines()
    assert head.split() == ["TOKEN", "NODE", "STATE", "CREATED", "LAST", "USED", "LABEL"]
    assert row.split()[:3] == [added["token_id"], "gpu-1", "valid"]
    assert row.endswith("  never      lab") or row.endswith("never                 lab")
    assert added["token"] not in out

    code, out, _ = command("token", "revoke", added["token_id"], folder=made, output=capsys)
    assert (code, out) == (0, f"token {added['token_id']} of node gpu-1 is revoked\n")
    code, out, _ = command("token", "revoke", added["token_id"], folder=made, output=capsys)
    assert code == 0
    assert "is revoked (it has been since " in out
    _, out, _ = command("token", "list", "--json", folder=made, output=capsys)
    (listed,) = json.loads(out)["tokens"]
    assert listed["revoked_at_ms"] is not None
    assert "stored_key" not in listed


def test_wrong_names_and_tokens_end_with_2(made: Path, capsys: Output) -> None:
    code, _, err = command("token", "add", "GPU 1", folder=made, output=capsys)
    assert (code, err) == (
        2,
        "iop-edge: node 'GPU 1' is not a valid name: use 1 to 63 of a-z 0-9 . _ - "
        "and begin and end with a letter or digit\n",
    )

    code, _, err = command("token", "revoke", "nope", folder=made, output=capsys)
    assert (code, err) == (2, "iop-edge: unknown token 'nope': none is known\n")


@pytest.mark.parametrize("arguments", [("run",), ("token", "list"), ("token", "add", "n"), ("config", "check")])
def test_without_a_folder_each_command_says_what_to_do(
    folder: Path, capsys: Output, arguments: tuple[str, ...]
) -> None:
    code, out, err = command(*arguments, folder=folder, output=capsys)

    assert (code, out) == (2, "")
    assert err == f"iop-edge: {folder}/edge.toml: there is no such file; make it with: iop-edge init\n"
    assert not folder.exists()


def test_config_check_says_what_follows(made: Path, capsys: Output) -> None:
    code, out, _ = command("config", "check", folder=made, output=capsys)

    assert code == 0
    assert out == (
        f"{made}/edge.toml: good\n"
        "  link      127.0.0.1:7443\n"
        "  http      127.0.0.1:7480\n"
        "  adapters  mock\n"
        "  nodes     -\n"
        "  profiles  -\n"
        "types and own keys of adapters are checked by each node: `iop node NODE` shows what it says\n"
    )


def test_config_check_tells_every_problem(made: Path, capsys: Output) -> None:
    (made / "edge.toml").write_text("[limits]\nmax_queue = 1\n[http]\nlisten = 7\n[bogus]\n")

    code, out, err = command("config", "check", folder=made, output=capsys)
    lines = err.splitlines()
    assert (code, out, len(lines)) == (2, "", 3)
    assert all(line.startswith(f"iop-edge: {made}/edge.toml: ") for line in lines)
    assert any("max_queue" in line and "max_queued" in line for line in lines)

    code, out, err = command("config", "check", "--json", folder=made, output=capsys)
    answer = json.loads(out)
    assert (code, err, answer["ok"], len(answer["problems"])) == (2, "", False, 3)


def test_a_wrong_command_line_ends_with_2_and_no_traceback(made: Path, capsys: Output) -> None:
    code, _, err = command("token", "add", folder=made, output=capsys)

    assert code == 2
    assert "NODE" in err
    assert "Traceback" not in err


def test_version_and_help_end_with_0(capsys: Output) -> None:
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.startswith("iop-edge ")
    for arguments in (["--help"], ["init", "--help"], ["run", "-h"], ["token", "--help"], ["token", "add", "-h"]):
        assert run_command(arguments) == 0
        assert "Usage: iop-edge" in capsys.readouterr().out


# --- the daemon as a process ------------------------------------------------------------------------------


def start(folder: Path, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "iop_edge", "run", "--dir", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", **FREE_PORTS, **environment},
    )


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(("which", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_daemon_cleanly(made: Path, which: signal.Signals, code: int, loop: str) -> None:
    with start(made, IOP_LOOP=loop) as process:
        run_file = made / "run.json"
        wait_for("run.json is there", lambda: run_file.exists() and run_file.read_text())
        run = json.loads(run_file.read_text())
        assert run["pid"] == process.pid
        with socket.create_connection(("127.0.0.1", int(run["http"].rpartition(":")[2])), timeout=5):
            pass

        process.send_signal(which)
        out, err = process.communicate(timeout=15)

    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert [json.loads(line)["event"] for line in err.splitlines()] == [
        "edge_started",
        "edge_stop_requested",
        "edge_stopping",
        "edge_stopped",
    ]
    assert not run_file.exists()


@pytest.mark.parametrize("section", ["link", "http"])
def test_a_port_in_use_ends_with_3_and_a_sentence(made: Path, section: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with start(made, **{f"IOP_EDGE__{section.upper()}__LISTEN": address}) as process:
            _, err = process.communicate(timeout=15)

    assert process.returncode == 3
    assert err == (
        f"iop-edge: {section}: {address} is already in use; "
        "stop the program that listens there, or choose another address\n"
    )
    assert not (made / "run.json").exists()


def test_a_second_edge_in_the_folder_ends_with_3_and_leaves_the_first_alone(made: Path) -> None:
    with start(made) as first:
        run_file = made / "run.json"
        wait_for("run.json is there", lambda: run_file.exists() and run_file.read_text())
        with start(made) as second:
            _, err = second.communicate(timeout=15)

        assert second.returncode == 3
        assert err == (
            f"iop-edge: an edge runs in {made} already (process {first.pid}): stop it, or use another --dir\n"
        )
        assert json.loads(run_file.read_text())["pid"] == first.pid
        first.terminate()
        first.communicate(timeout=15)
        assert first.returncode == 0
