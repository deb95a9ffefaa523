"""An edge and nodes on this machine, made and started as programs: what `iop up` and `iop demo` share.

Everything goes through the daemons' own commands; this module knows their words, not their code.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from iop_shared.client.address import RunFile, read_run_file
from iop_shared.client.api import EdgeApi
from iop_shared.client.children import Child, StopRequest
from iop_shared.client.records import NodeRecord
from iop_shared.exit_codes import CommandFailed, ExitCode

T = TypeVar("T")

READY_TIMEOUT_S: Final = 30.0
"""A daemon is ready within a second on a quiet machine; the rest is room for a busy one."""
COMMAND_TIMEOUT_S: Final = 30.0
MAX_LOG_BYTES: Final = 10 * 1024 * 1024
"""A log larger than this is moved aside (one older one is kept) before a daemon starts."""
_POLL_S: Final = 0.05
_EXIT_BY_STATUS: Final = {code.value: code for code in (ExitCode.USAGE, ExitCode.UNAVAILABLE, ExitCode.REFUSED)}
"""A daemon that ends with one of these says the same of the command that started it."""


def edge_command(*arguments: str) -> list[str]:
    """Returns the command line of `iop-edge` with this same Python."""
    return [sys.executable, "-m", "iop_edge", *arguments]


def node_command(*arguments: str) -> list[str]:
    """Returns the command line of `iop-node` with this same Python."""
    return [sys.executable, "-m", "iop_node", *arguments]


def run_to_end(what: str, command: Sequence[str], *, input_: str = "") -> str:
    """Runs a short command, gives it `input_` on stdin, and returns what it printed.

    Raises:
        CommandFailed: it failed or took longer than `COMMAND_TIMEOUT_S`; with what it said.
    """
    try:
        done = subprocess.run(
            command,
            input=input_.encode(),
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{what} took longer than {COMMAND_TIMEOUT_S:g} s and was stopped") from None
    except OSError as error:
        raise CommandFailed(f"{what} could not be started: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise CommandFailed(
            f"{what} failed with exit code {done.returncode}:\n{_indented(said)}",
            exit_code=ExitCode.USAGE if done.returncode == ExitCode.USAGE else ExitCode.FAILED,
        )
    return done.stdout.decode(errors="replace")


def init_edge(folder: Path) -> None:
    """Makes an edge's folder with its configuration."""
    run_to_end("making the edge's folder", edge_command("init", "--dir", str(folder), "--no-token"))


def add_node_token(edge_folder: Path, node: str) -> str:
    """Returns a fresh token for `node`. Only its hash stays with the edge."""
    printed = run_to_end(
        f"making a token for node {node}",
        edge_command("token", "add", node, "--dir", str(edge_folder), "--json"),
    )
    try:
        answer: Any = json.loads(printed)
    except ValueError:
        answer = None
    token = answer.get("token") if isinstance(answer, dict) else None
    if not isinstance(token, str):
        raise CommandFailed(f"making a token for node {node}: iop-edge printed no token")
    return token


def join_node(folder: Path, *, edge_address: str, token: str, name: str) -> None:
    """Makes a node's folder with its configuration and its token."""
    run_to_end(
        "making the node's folder",
        node_command("join", edge_address, "--token", "-", "--name", name, "--dir", str(folder)),
        input_=f"{token}\n",  # every user of the machine can read a command line
    )


def open_log(path: Path) -> Path:
    """Returns `path`, with a log that has grown too large moved to `.1`."""
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    except FileNotFoundError:
        pass  # the first start
    return path


def start_edge(folder: Path, *, environment: Mapping[str, str]) -> Child:
    """Starts `iop-edge run` for `folder`, with its log beside its configuration."""
    child = Child(
        "edge",
        edge_command("run", "--dir", str(folder)),
        log=open_log(folder / "edge.log"),
        environment=environment,
    )
    child.start()
    return child


def start_node(folder: Path, *, name: str, environment: Mapping[str, str]) -> Child:
    """Starts `iop-node run` for `folder`, with its log beside its configuration."""
    child = Child(
        f"node {name}",
        node_command("run", "--dir", str(folder)),
        log=open_log(folder / "node.log"),
        environment=environment,
    )
    child.start()
    return child


def wait_edge_ready(child: Child, folder: Path, stop: StopRequest) -> RunFile:
    """Returns the edge's addresses once it takes runs.

    Raises:
        CommandFailed: it ended or was not ready within `READY_TIMEOUT_S`; with the end of its log.
        KeyboardInterrupt: `stop` was asked for.
    """

    def addresses() -> RunFile | None:
        run_file = read_run_file(folder)
        if run_file is None or run_file.pid != child.pid:
            return None  # of an earlier process
        with EdgeApi(f"http://{run_file.http}") as api:
            return run_file if api.is_ready()[0] else None

    return _wait_for("the edge to be ready", addresses, child, stop)


def wait_node_connected(child: Child, api: EdgeApi, node_id: str, stop: StopRequest) -> NodeRecord:
    """Returns the node once the edge has it connected, with its configuration applied and its adapters told.

    Raises:
        CommandFailed: it ended, its configuration was rejected, or it was not there within `READY_TIMEOUT_S`.
        KeyboardInterrupt: `stop` was asked for.
    """

    def node() -> NodeRecord | None:
        found = next((node for node in api.list_nodes() if node.node_id == node_id), None)
        if found is None:
            return None
        if found.config_state == "rejected":
            raise CommandFailed(
                f"node {node_id} rejects what the edge wants it to run: {'; '.join(found.config_reasons)}",
                exit_code=ExitCode.USAGE,
                hint="mend the adapters in edge.toml, or what node.toml allows",
            )
        is_there = found.state == "connected" and found.config_state == "applied" and bool(found.adapters)
        return found if is_there else None

    return _wait_for(f"node {node_id} to connect", node, child, stop)


def check_alive(child: Child) -> None:
    """Raises CommandFailed with the end of its log if the daemon has ended."""
    status = child.exit_status()
    if status is None:
        return
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
    raise CommandFailed(
        f"the {child.name} {how}; the end of its log ({child.log}):\n{child.log_tail()}",
        exit_code=_EXIT_BY_STATUS.get(status, ExitCode.FAILED),
    )


@contextmanager
def telling_who_died(children: Sequence[Child]) -> Iterator[None]:
    """Where something fails because a daemon has ended, raises what the daemon said instead of how that looked."""
    try:
        yield
    except CommandFailed:
        for child in children:
            check_alive(child)
        raise


def _wait_for(what: str, probe: Callable[[], T | None], child: Child, stop: StopRequest) -> T:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        check_alive(child)
        found = probe()
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise CommandFailed(
                f"waited {READY_TIMEOUT_S:g} s for {what}, in vain; the end of the log ({child.log}):\n"
                f"{child.log_tail()}",
                exit_code=ExitCode.FAILED,
            )
        if stop.wait(_POLL_S):
            raise KeyboardInterrupt


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines()) or "  (it said nothing)"
