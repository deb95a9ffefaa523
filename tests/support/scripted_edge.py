"""An HTTP server on a real socket that answers as a test tells it: an edge for the client's tests."""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Step = bytes | Callable[[], None]


@dataclass(frozen=True)
class Asked:
    """One request that came."""

    method: str
    path: str
    body: Any
    headers: Mapping[str, str]


@dataclass
class Answer:
    """What to send: a status, headers, and pieces of the body (a callable among them is called in between)."""

    steps: Sequence[Step]
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False  # drop the connection after the last piece instead of ending the body


def answer_json(value: Any, status: int = 200, **headers: str) -> Answer:
    """An answer with one JSON value."""
    return Answer([json.dumps(value).encode()], status, headers=headers)


def answer_error(status: int, code: str, message: str, *, layer: str = "", retryable: bool = False) -> Answer:
    """An error in the form of the management API."""
    error = {"code": code, "message": message, "param": None, "layer": layer, "retryable": retryable}
    return answer_json({"error": error}, status)


def run_events(*events: Mapping[str, Any] | Callable[[], None], run_id: str, cut: bool = False) -> Answer:
    """A stream of a run's events, numbered as they come."""
    steps: list[Step] = []
    seq = 0
    for event in events:
        if callable(event):
            steps.append(event)
            continue
        seq += 1
        full = {"run_id": run_id, "attempt": 1, "seq": seq, **event}
        steps.append(f"id: 1.{seq}\nevent: {full['type']}\ndata: {json.dumps(full)}\n\n".encode())
    return Answer(steps, content_type="text/event-stream", headers={"x-iop-run-id": run_id}, cut=cut)


def chat_chunks(*chunks: Any, done: bool = True) -> Answer:
    """A stream in the OpenAI dialect."""
    steps: list[Step] = [
        chunk if callable(chunk) else f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks
    ]
    if done:
        steps.append(b"data: [DONE]\n\n")
    return Answer(steps, content_type="text/event-stream")


class ScriptedEdge:
    """Answers by method and path (without its query). Routes may be set while it serves."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Answer | Callable[[Asked], Answer]] = {}
        self.asked: list[Asked] = []
        self.left = threading.Event()  # set when a client left in the middle of an answer
        self.url = ""

    def on(self, method: str, path: str, answer: Answer | Callable[[Asked], Answer]) -> None:
        """Sets what to answer."""
        self.routes[method, path] = answer

    def bodies(self, method: str, path: str) -> list[Any]:
        """Returns the bodies of the requests that came for a route."""
        return [
            asked.body for asked in self.asked if (asked.method, asked.path.partition("?")[0]) == (method, path)
        ]


@contextmanager
def scripted_edge(port: int = 0) -> Iterator[ScriptedEdge]:
    """Serves on 127.0.0.1, on a free port unless one is named."""
    edge = ScriptedEdge()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            asked = Asked(self.command, self.path, body, {k.lower(): v for k, v in self.headers.items()})
            edge.asked.append(asked)
            route = edge.routes.get((self.command, self.path.partition("?")[0]))
            if route is None:
                answer = answer_error(404, "not_found", f"no route {self.command} {self.path}")
            else:
                answer = route if isinstance(route, Answer) else route(asked)
            self.send_response(answer.status)
            self.send_header("content-type", answer.content_type)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            try:
                for step in answer.steps:
                    if callable(step):
                        step()
                    else:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(step), step))
                        self.wfile.flush()
                if answer.cut:
                    self.close_connection = True
                else:
                    self.wfile.write(b"0\r\n\r\n")
            except (BrokenPipeError, ConnectionResetError):
                edge.left.set()
                self.close_connection = True

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 # the names that http.server looks for

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], ConnectionError):  # a client may leave at any time
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", port), Handler)
    server.daemon_threads = False
    edge.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="scripted edge")
    thread.start()
    try:
        yield edge
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
