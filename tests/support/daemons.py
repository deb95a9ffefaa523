"""Real daemons as child processes, set up with the very commands a user types, on free loopback ports.

Each process leads its own session and is killed by group on the way out, whatever happened.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

T = TypeVar("T")
READY_WITHIN_S = 60.0
"""Only a failure waits that long; a loaded machine may need a few seconds to start a process."""


def wait_for(what: str, probe: Callable[[], T | None], within_s: float = READY_WITHIN_S) -> T:
    """Returns the first answer of `probe` that is neither None nor False; fails with `what` after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        answer = probe()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(0.02)


def run_command(module: str, *arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Runs `python -m module arguments` to its end and returns what it said and its exit code."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=READY_WITHIN_S,
        check=False,
    )


class Daemon:
    """One daemon process and its folder."""

    def __init__(self, module: str, folder: Path, loop: str = "uvloop") -> None:
        self.module, self.folder, self.loop = module, folder, loop
        self.process: subprocess.Popen[bytes] | None = None
        self.log_path = folder / "daemon.log"

    def start(self) -> "Daemon":
        """Starts the process and waits until it says that it is ready."""
        self.spawn()
        wait_for(f"{self.module} wrote run.json\n{self.log_tail()}", self._run_file_of_this_process)
        return self

    def spawn(self, *arguments: str) -> None:
        """Starts the process without waiting."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, "run", "--dir", str(self.folder), *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "IOP_LOOP": self.loop},
            )

    def _run_file_of_this_process(self) -> dict[str, Any] | None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"{self.module} ended with {self.process.returncode}:\n{self.log_tail()}")
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            run: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
            if run["pid"] == self.process.pid:
                return run
        return None

    @property
    def run_file(self) -> dict[str, Any]:
        """What the running daemon wrote about itself: pid, link, http."""
        run: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        return run

    def kill(self) -> None:
        """SIGKILL, as a power cut for the process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self, with_signal: int = signal.SIGTERM, within_s: float = READY_WITHIN_S) -> int:
        """Asks the process to stop and returns its exit code."""
        assert self.process is not None
        self.process.send_signal(with_signal)
        return self.process.wait(within_s)

    def wait(self, within_s: float = READY_WITHIN_S) -> int:
        """Waits for the process to end by itself and returns its exit code."""
        assert self.process is not None
        return self.process.wait(within_s)

    def log(self) -> str:
        """Everything the daemon has logged."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        """The last lines of the log."""
        return "\n".join(self.log().splitlines()[-30:])

    def end(self) -> None:
        """Ends what is left of the process and its group. Safe to call twice."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


class EdgeDaemon(Daemon):
    """A real edge in `folder`; `config` is put behind what `iop-edge init` wrote."""

    def __init__(self, folder: Path, *, config: str = "", loop: str = "uvloop") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__("iop_edge", folder, loop)
        done = run_command("iop_edge", "init", "--dir", str(folder), "--node", "gpu-1", "--json")
        assert done.returncode == 0, done.stderr
        self.first_token: str = json.loads(done.stdout)["token"]
        self.write_config(config)

    def write_config(self, config: str) -> None:
        """Replaces the configuration by free ports and `config`."""
        text = '[link]\nlisten = "127.0.0.1:0"\n[http]\nlisten = "127.0.0.1:0"\n' + config
        (self.folder / "edge.toml").write_text(text)

    def keep_ports(self) -> None:
        """Writes the ports of the running edge into its configuration, so that a restart gets them again."""
        path = self.folder / "edge.toml"
        text = path.read_text()
        text = text.replace('[link]\nlisten = "127.0.0.1:0"', f'[link]\nlisten = "{self.run_file["link"]}"')
        text = text.replace('[http]\nlisten = "127.0.0.1:0"', f'[http]\nlisten = "{self.run_file["http"]}"')
        path.write_text(text)

    def add_token(self, node: str) -> str:
        """Makes a token for `node` as a user would and returns it."""
        done = run_command("iop_edge", "token", "add", node, "--dir", str(self.folder), "--json")
        assert done.returncode == 0, done.stderr
        token: str = json.loads(done.stdout)["token"]
        return token

    @property
    def url(self) -> str:
        """The base URL of its HTTP port."""
        return f"http://{self.run_file['http']}"

    def get(self, path: str) -> Any:
        """Returns the JSON of a GET."""
        response = httpx.get(self.url + path, timeout=10)
        assert response.status_code == 200, response.text
        return response.json()

    def submit(self, **fields: Any) -> str:
        """Submits a run and returns its id."""
        response = httpx.post(self.url + "/api/v1/runs", json=fields, timeout=10)
        assert response.status_code == 202, response.text
        run_id: str = response.json()["run_id"]
        return run_id

    def run(self, run_id: str) -> dict[str, Any]:
        """Returns the record of a run."""
        record: dict[str, Any] = self.get(f"/api/v1/runs/{run_id}")
        return record

    def wait_state(self, run_id: str, *states: str, within_s: float = READY_WITHIN_S) -> dict[str, Any]:
        """Waits until the run is in one of `states` and returns its record."""

        def probe() -> dict[str, Any] | None:
            record = self.run(run_id)
            return record if record["state"] in states else None

        return wait_for(f"run {run_id} is {' or '.join(states)}", probe, within_s)

    def wait_connected(self, *nodes: str, within_s: float = READY_WITHIN_S) -> None:
        """Waits until these nodes are connected and have their configuration applied."""

        def probe() -> bool:
            views = {view["node_id"]: view for view in self.get("/api/v1/nodes")["nodes"]}
            return all(
                views.get(node, {}).get("state") == "connected"
                and views[node]["config_state"] == "applied"
                and views[node]["adapters"]
                for node in nodes
            )

        wait_for(f"{', '.join(nodes)} connected\n{self.log_tail()}", probe, within_s)


class NodeDaemon(Daemon):
    """A real node in `folder`, joined to the edge at `link` with `token`."""

    def __init__(
        self, folder: Path, *, name: str, link: str, token: str, loop: str = "uvloop", extra: Sequence[str] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__("iop_node", folder, loop)
        self.name = name
        self.joined = run_command(
            "iop_node",
            "join",
            link,
            "--token",
            "-",
            "--name",
            name,
            "--dir",
            str(folder),
            *extra,
            stdin=token + "\n",
        )
        assert self.joined.returncode == 0, self.joined.stderr + self.joined.stdout
        path = folder / "node.toml"
        # Tests run side by side: the node's own HTTP port must be free too.
        path.write_text(path.read_text().replace('"127.0.0.1:7481"', '"127.0.0.1:0"'))
