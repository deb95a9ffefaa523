"""The management API of an edge over HTTP: typed answers; whatever goes wrong becomes a sentence and an exit code.

Synchronous on purpose: a command does one thing at a time and Ctrl-C ends it wherever it is.
"""

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from iop_shared.client.address import is_loopback
from iop_shared.client.records import (
    BusEvent,
    ModelRecord,
    NodeRecord,
    RunEvent,
    RunRecord,
    UnexpectedAnswer,
    objects_under,
)
from iop_shared.client.sse import EventReader, ServerEvent, StreamBroken
from iop_shared.exit_codes import CommandFailed, ExitCode
from iop_shared.ids import is_run_id

ANSWER_TIMEOUT_S: Final = 30.0
"""For answers that come at once; the edge itself answers within milliseconds."""
CONNECT_TIMEOUT_S: Final = 5.0
SILENCE_TIMEOUT_S: Final = 90.0
"""A stream is never silent for longer than 30 s (docs/http-api.md): three times that, it is gone."""
RECENT_RUNS: Final = 500
"""Among how many of the newest runs a beginning of an id is looked for: the largest page."""
START_HINT: Final = "start one with `iop up`, or name another with --edge URL or IOP_EDGE_URL"

_EXIT_BY_STATUS: Final[Mapping[int, ExitCode]] = {
    401: ExitCode.REFUSED,
    403: ExitCode.REFUSED,
    429: ExitCode.UNAVAILABLE,
    503: ExitCode.UNAVAILABLE,
}


class EdgeRefused(CommandFailed):
    """The edge answered with an error of its own. `code`: stable (docs/errors.md); `layer`: of a failed run."""

    def __init__(self, message: str, *, status: int, code: str, layer: str = "", retryable: bool = False) -> None:
        exit_code = _EXIT_BY_STATUS.get(status, ExitCode.USAGE if 400 <= status < 500 else ExitCode.FAILED)
        hint = "trying again later can help" if retryable else ""
        super().__init__(f"{message} ({code})", exit_code=exit_code, hint=hint)
        self.message, self.status, self.code, self.layer = message, status, code, layer


class EdgeApi:
    """One edge. Use as a context manager. Every method raises CommandFailed with the whole sentence.

    `transport`: for tests that need none of the network; the product leaves it out.
    """

    def __init__(self, url: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url
        self._client = httpx.Client(
            base_url=url,
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            # A proxy of the environment would send the loopback address to another machine.
            trust_env=not is_loopback(url),
            # Without TLS there is nothing to verify, and reading the machine's certificates takes 20 ms.
            verify=url.startswith("https:"),
            transport=transport,
            headers={"user-agent": "iop"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    # --- nodes, models -------------------------------------------------------------------------------

    def list_nodes(self) -> list[NodeRecord]:
        """Returns all nodes, sorted by id."""
        with self._reading("/api/v1/nodes") as path:
            return [NodeRecord.from_json(node) for node in objects_under(self._get(path), "nodes")]

    def get_node(self, node_id: str) -> NodeRecord:
        """Returns one node."""
        with self._reading(f"/api/v1/nodes/{quote(node_id, safe='')}") as path:
            return NodeRecord.from_json(self._get(path))

    def list_models(self) -> list[ModelRecord]:
        """Returns profiles, then what connected nodes offer."""
        with self._reading("/api/v1/models") as path:
            return [ModelRecord.from_json(model) for model in objects_under(self._get(path), "models")]

    def version(self) -> Mapping[str, Any]:
        """Returns the edge's version and the protocols that it speaks."""
        with self._reading("/api/v1/version") as path:
            answer = self._get(path)
            if not isinstance(answer, dict) or not isinstance(answer.get("version"), str):
                raise UnexpectedAnswer("the answer has no 'version'")
            return answer

    # --- runs ----------------------------------------------------------------------------------------

    def submit(self, order: Mapping[str, Any]) -> RunRecord:
        """Gives the edge a run that goes on by itself; returns its record."""
        with self._reading("/api/v1/runs") as path:
            return RunRecord.from_json(self._send("POST", path, body={**order, "stream": False}))

    def stream_run(
        self, order: Mapping[str, Any], on_taken: Callable[[str], None] | None = None
    ) -> Generator[RunEvent, None, None]:
        """Gives the edge a run and yields its events as they come, to the terminal one.

        `on_taken` hears the run's id before there is an event. Closing the generator early cancels the run.
        """
        yield from self._run_events("POST", "/api/v1/runs", body={**order, "stream": True}, on_taken=on_taken)

    def follow_run(self, run_id: str) -> Generator[RunEvent, None, None]:
        """Yields the events of a run that the edge has live, from the first on. Leaving early changes nothing."""
        yield from self._run_events("GET", f"/api/v1/runs/{quote(run_id, safe='')}/events")

    def list_runs(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        state: str | None = None,
        node: str | None = None,
        adapter: str | None = None,
    ) -> tuple[list[RunRecord], str | None]:
        """Returns a page of runs, newest first, and the cursor of the next page (None at the end)."""
        wanted = {"limit": str(limit), "cursor": cursor, "state": state, "node": node, "adapter": adapter}
        query = {name: value for name, value in wanted.items() if value is not None}
        with self._reading("/api/v1/runs") as path:
            answer = self._get(path, query)
            runs = [RunRecord.from_json(run) for run in objects_under(answer, "runs")]
            cursor = answer.get("next_cursor")
            return runs, cursor if isinstance(cursor, str) else None

    def get_run(self, run_id: str) -> RunRecord:
        """Returns one run, live or from history."""
        with self._reading(f"/api/v1/runs/{quote(run_id, safe='')}") as path:
            return RunRecord.from_json(self._get(path))

    def get_run_with_events(self, run_id: str) -> tuple[RunRecord, list[RunEvent]]:
        """Returns one run and what is kept of its events, in order."""
        with self._reading(f"/api/v1/runs/{quote(run_id, safe='')}") as path:
            answer = self._get(path, {"events": "1"})
            events = [RunEvent.from_json(event) for event in objects_under(answer, "events")]
            return RunRecord.from_json(answer.get("run")), events

    def cancel(self, run_id: str, reason: str) -> bool:
        """Asks a run to stop. Returns False if it had already ended."""
        with self._reading(f"/api/v1/runs/{quote(run_id, safe='')}/cancel") as path:
            answer = self._send("POST", path, body={"reason": reason})
            if not isinstance(answer, dict) or not isinstance(answer.get("cancelling"), bool):
                raise UnexpectedAnswer("the answer has no 'cancelling'")
            return bool(answer["cancelling"])

    def resolve_run_id(self, text: str) -> str:
        """Returns the whole id for its beginning, looked for among the `RECENT_RUNS` newest runs.

        Raises:
            CommandFailed: (usage) no run or several begin so.
        """
        wanted = text.strip().lower()
        if is_run_id(wanted):
            return wanted
        recent = [run.run_id for run in self.list_runs(limit=RECENT_RUNS)[0]]
        matches = [run_id for run_id in recent if wanted and run_id.startswith(wanted)]
        if len(matches) == 1:
            return matches[0]
        if not matches:
            # Without a similar one nothing more is said: other ids help nobody.
            similar = get_close_matches(wanted, recent, n=1, cutoff=0.5)
            perhaps = f": did you mean {similar[0]!r}?" if similar else ""
            raise CommandFailed(
                f"no run begins with {text!r} among the newest {RECENT_RUNS}{perhaps}",
                exit_code=ExitCode.USAGE,
                hint="`iop runs` lists them",
            )
        shown = ", ".join(matches[:5]) + (f" and {len(matches) - 5} more" if len(matches) > 5 else "")
        raise CommandFailed(
            f"{len(matches)} runs begin with {text!r}: {shown}",
            exit_code=ExitCode.USAGE,
            hint="give more of the id",
        )

    # --- events, health, the OpenAI dialect ------------------------------------------------------------

    def follow_events(self, after: int | None = None) -> Generator[BusEvent | int, None, None]:
        """Yields what happens in the edge until it stops; a number stands for so many events that are missing."""
        path = "/api/v1/events"
        query = {} if after is None else {"after": str(after)}
        with self._reading(path):
            for event in self._stream("GET", path, query=query):
                content = self._parse(event.data, path)
                if event.name == "gap":
                    yield int(content.get("dropped", 0)) if isinstance(content, dict) else 0
                else:
                    yield BusEvent.from_json(content)

    def is_ready(self) -> tuple[bool, str]:
        """Whether the edge can take runs; if not, why. Not being reachable is a reason, not an error."""
        try:
            response = self._client.get("/readyz", timeout=CONNECT_TIMEOUT_S)
            answer = response.json()
        except (httpx.HTTPError, ValueError) as error:
            return False, str(error)
        status = answer.get("status") if isinstance(answer, dict) else None
        if response.status_code == httpx.codes.OK and status == "ready":
            return True, ""
        return False, str(answer.get("reason", "")) if isinstance(answer, dict) else "not an edge"

    def stream_chat(self, body: Mapping[str, Any]) -> Generator[Mapping[str, Any], None, None]:
        """Yields the chunks of a streamed chat completion. Leaving early cancels the run.

        Raises:
            CommandFailed: (failed) the stream ended without `[DONE]` or with an error.
        """
        path = "/v1/chat/completions"
        is_done = False
        with self._reading(path):
            for event in self._stream("POST", path, body={**body, "stream": True}):
                if is_done or event.data == b"[DONE]":
                    is_done = True  # and on to the end of the body, as above
                    continue
                chunk = self._parse(event.data, path)
                if not isinstance(chunk, dict):
                    raise UnexpectedAnswer("a chunk is no JSON object")
                error = chunk.get("error")
                if isinstance(error, dict):
                    raise CommandFailed(f"{error.get('message', 'the answer failed')} ({error.get('code', '')})")
                yield chunk
        if is_done:
            return
        raise CommandFailed(
            f"the answer ended before it was complete: {self.url} closed the stream",
            exit_code=ExitCode.UNAVAILABLE,
            hint="what is shown above is a part of it",
        )

    # --- the wire --------------------------------------------------------------------------------------

    def _run_events(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        on_taken: Callable[[str], None] | None = None,
    ) -> Generator[RunEvent, None, None]:
        is_ended = False
        with self._reading(path):
            try:
                for event in self._stream(method, path, body=body, on_taken=on_taken):
                    if is_ended:
                        continue  # to the end of the body: the edge must not take us for a client that left
                    run_event = RunEvent.from_json(self._parse(event.data, path))
                    is_ended = run_event.is_terminal
                    yield run_event
            except httpx.HTTPError:
                if not is_ended:
                    raise
        if is_ended:
            return
        raise CommandFailed(
            f"the stream ended before the run did: {self.url} closed it",
            exit_code=ExitCode.UNAVAILABLE,
            hint="`iop runs` shows what became of the run once the edge is back",
        )

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return self._send("GET", path, query=query)

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        response = self._client.request(method, path, json=body, params=query)
        if response.is_success:
            return self._parse(response.content, path)
        raise self._refusal(response)

    def _stream(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        on_taken: Callable[[str], None] | None = None,
    ) -> Iterator[ServerEvent]:
        timeout = httpx.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        headers = {"accept": "text/event-stream"}
        with self._client.stream(
            method, path, json=body, params=query, headers=headers, timeout=timeout
        ) as response:
            if not response.is_success:
                response.read()
                raise self._refusal(response)
            media_type = response.headers.get("content-type", "")
            if not media_type.startswith("text/event-stream"):
                raise UnexpectedAnswer(f"it sent {media_type or 'no content type'} and not a stream of events")
            run_id = response.headers.get("x-iop-run-id", "")
            if on_taken is not None and run_id:
                on_taken(run_id)
            reader = EventReader()
            for data in response.iter_bytes():
                yield from reader.feed(data)

    def _parse(self, data: bytes, path: str) -> Any:
        try:
            return json.loads(data)
        except ValueError:
            raise UnexpectedAnswer(f"{len(data)} bytes that are not JSON") from None

    def _refusal(self, response: httpx.Response) -> CommandFailed:
        """Returns the edge's own error as it says it, or says that this was no edge."""
        try:
            error = response.json()["error"]
            code, message = error["code"], error["message"]
        except (ValueError, KeyError, TypeError):
            code, message = None, None
        if not isinstance(code, str) or not isinstance(message, str):
            raise UnexpectedAnswer(f"status {response.status_code} without an error of the edge's form")
        return EdgeRefused(
            message,
            status=response.status_code,
            code=code,
            layer=str(error.get("layer") or response.headers.get("x-iop-layer", "")),
            retryable=error.get("retryable") is True,
        )

    @contextmanager
    def _reading(self, path: str) -> Iterator[str]:
        """Turns what can go wrong on the way into a CommandFailed."""
        try:
            yield path
        except httpx.ConnectTimeout as error:
            raise self._unreachable(f"no answer to the connection within {CONNECT_TIMEOUT_S:g} s") from error
        except httpx.ConnectError as error:
            raise self._unreachable(_reason_of(error)) from error
        except httpx.TimeoutException as error:
            raise CommandFailed(
                f"{self.url} did not answer {path} in time", exit_code=ExitCode.UNAVAILABLE, hint="see its log"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CommandFailed(
                f"the connection to {self.url} broke: {error}",
                exit_code=ExitCode.UNAVAILABLE,
                hint="see the edge's log; a run that was under way is in `iop runs`",
            ) from error
        except (UnexpectedAnswer, StreamBroken) as error:
            raise CommandFailed(
                f"{self.url} answers, but not as an IOP edge: {path}: {error}",
                exit_code=ExitCode.UNAVAILABLE,
                hint="is it the edge's HTTP address, and of a version that this client knows? "
                "Name another with --edge URL or IOP_EDGE_URL",
            ) from error

    def _unreachable(self, reason: str) -> CommandFailed:
        return CommandFailed(f"no edge at {self.url}: {reason}", exit_code=ExitCode.UNAVAILABLE, hint=START_HINT)


def _reason_of(error: httpx.ConnectError) -> str:
    """Returns the system's own words: httpx wraps them in its own, some of them twice."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return str(error) or "the connection failed"
