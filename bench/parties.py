"""What stands between a load and its engine: each way as processes that can be watched, begun and ended.

    direct   load -> engine
    nginx    load -> nginx -> engine              (where nginx is installed)
    iop      load -> edge -> link -> node -> engine

The daemons are started as a user starts them: the commands, a folder each, free ports.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.process_cpu import WatchedProcess

_HERE: Final = Path(__file__).resolve().parent
_START_S: Final = 20.0
_STOP_S: Final = 15.0

T = TypeVar("T")


class BenchFailed(Exception):
    """The bench cannot go on; the sentence says why, with the end of the log of the process at fault."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way from the load to the engine. `watched`: what its parts use, by name.

    `model` is given with the name of one of the engine's models: paced, instant.
    """

    name: str
    url: str
    model: Callable[[str], str]
    watched: Mapping[str, WatchedProcess] = field(default_factory=dict)


class Child:
    """A process we started: its output goes to a file, and it is ended when the stack closes."""

    def __init__(
        self,
        stack: ExitStack,
        name: str,
        command: Sequence[str],
        folder: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            # A group of its own: Ctrl-C in the terminal reaches us alone, and we end the rest in order.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(variables or {})},
            )
        self.pid = self._process.pid
        stack.callback(self._end)

    def wait_for(self, what: str, probe: Callable[[], T | None]) -> T:
        """Returns what `probe` returns once that is not None.

        Raises:
            BenchFailed: the process ended, or nothing came within 20 s.
        """
        deadline = time.monotonic() + _START_S
        while True:
            found = probe()
            if found is not None:
                return found
            if self._process.poll() is not None:
                raise BenchFailed(f"{self.name} ended with code {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise BenchFailed(f"{self.name}: no {what} within {_START_S:g} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def log_tail(self) -> str:
        """Returns the end of what it wrote."""
        return self._log.read_text(errors="replace")[-3000:]

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                print(f"{self.name} did not end within {_STOP_S:g} s of SIGTERM; killed", file=sys.stderr)
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()


def start_engine(stack: ExitStack, folder: Path, interval_ms: float) -> Way:
    """Starts the paced engine and returns the direct way to it."""
    command = [sys.executable, str(_HERE / "engine.py"), "--interval-ms", str(interval_ms)]
    child = Child(stack, "engine", command, folder)
    port = child.wait_for("port", lambda: _json_line(child.log_tail()))["port"]
    return Way("direct", f"http://127.0.0.1:{port}", lambda model: model, {"engine": WatchedProcess(child.pid)})


def start_nginx(stack: ExitStack, folder: Path, engine_url: str) -> Way | None:
    """Starts nginx with buffering off before the engine; returns None where nginx is not installed."""
    program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if program is None:
        return None
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(f"""
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    keepalive_requests 1000000;
    upstream engine {{ server {engine_url.removeprefix("http://")}; keepalive 1024; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 300s;
        }}
    }}
}}
""")
    command = [program, "-c", str(config), "-p", str(folder), "-g", "daemon off;"]
    child = Child(stack, "nginx", command, folder)
    url = f"http://127.0.0.1:{port}"
    child.wait_for("answer", lambda: get_json(f"{url}/v1/models"))
    return Way("nginx", url, lambda model: model, {"nginx": WatchedProcess(child.pid, with_children=True)})


def start_iop(stack: ExitStack, folder: Path, engine_url: str, streams: int) -> Way:
    """Starts an edge and a node that offers the engine, and returns the way through both."""
    max_runs = max(64, 2 * streams)
    edge_dir, node_dir = folder / "edge", folder / "node"
    iop_edge, iop_node = [sys.executable, "-m", "iop_edge"], [sys.executable, "-m", "iop_node"]
    run_command([*iop_edge, "init", "--dir", str(edge_dir)])
    (edge_dir / "edge.toml").write_text(f"""
[link]
listen = "127.0.0.1:0"
[http]
listen = "127.0.0.1:0"
[limits]
max_live_runs = {max_runs}
[adapters.engine]
type = "vllm"
max_concurrent = {max_runs}
base_url = "{engine_url}"
""")
    answer = run_command([*iop_edge, "token", "add", "bench", "--dir", str(edge_dir), "--json"])
    token = json.loads(answer)["token"]
    edge = Child(stack, "edge", [*iop_edge, "run", "--dir", str(edge_dir)], folder)
    addresses = edge.wait_for("run.json", lambda: _read_json(edge_dir / "run.json"))
    join = [*iop_node, "join", addresses["link"], "--token", "-", "--name", "bench", "--dir", str(node_dir)]
    run_command(join, stdin=token)
    # A node of the user's own may have the usual port.
    variables = {"IOP_NODE__HTTP__LISTEN": "127.0.0.1:0", "IOP_NODE__LIMITS__MAX_RUNS": str(max_runs)}
    node = Child(stack, "node", [*iop_node, "run", "--dir", str(node_dir)], folder, variables)
    url = f"http://{addresses['http']}"

    def find_model() -> bool | None:
        models = get_json(f"{url}/v1/models")
        return True if models and any(m["id"] == "engine/paced" for m in models["data"]) else None

    node.wait_for("model engine/paced at the edge", find_model)
    watched = {"edge": WatchedProcess(edge.pid), "node": WatchedProcess(node.pid)}
    return Way("iop", url, lambda model: f"engine/{model}", watched)


def run_command(command: Sequence[str], stdin: str = "") -> str:
    """Runs a command to its end and returns its stdout.

    Raises:
        BenchFailed: with its name and what it said, if its exit code is not 0.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=_START_S, input=stdin)
    if done.returncode != 0:
        said = (done.stderr or done.stdout)[-2000:]
        raise BenchFailed(f"{' '.join(command[1:4])} ended with code {done.returncode}:\n{said}")
    return done.stdout


def free_port() -> int:
    """Returns a port of 127.0.0.1 that was free a moment ago, for programs that cannot pick one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get_json(url: str) -> Any | None:
    """Returns the JSON behind `url`, or None if it does not answer with 200 yet."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError, TimeoutError, ValueError):
        return None


def _json_line(text: str) -> dict[str, Any] | None:
    return json.loads(text) if text.endswith("\n") else None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found
