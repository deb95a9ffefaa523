"""The management endpoints under /api/v1/runs: submit, list, show, follow and cancel."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from iop_edge.domain.views import RunEventView
from iop_edge.relay import RunStream
from iop_edge.service import EdgeService
from iop_edge.surfaces.asgi import Request, Send, parse_json, send_empty, send_json
from iop_edge.surfaces.event_json import TYPE_NAMES, event_json, kept_event_json
from iop_edge.surfaces.http_errors import HttpProblem, draining_problem, make_problem, problem_of_error
from iop_edge.surfaces.management import read_json_body
from iop_edge.surfaces.management_requests import MAX_PAGE, parse_count, parse_object, parse_run, parse_state
from iop_edge.surfaces.sse import ClientWatch, Pacing, SseAnswer, sse_event
from iop_edge.surfaces.view_json import run_json
from iop_shared.aio.tasks import TaskOwner
from iop_shared.errors import BadRequest, IopError, UnknownName
from iop_shared.ids import NodeId, RunId, is_run_id
from iop_shared.logs import get_logger
from iop_shared.runtime_events import TERMINAL_TYPES, RuntimeEvent

MAX_SEQ: Final = 2**53
MAX_REASON_CHARS: Final = 200
_RETRY: Final = b"retry: 1000\n\n"
"""How soon an EventSource comes back, in ms."""

_log = get_logger("http")


class RunsApi:
    """The handlers under /api/v1/runs. `tasks` owns one task per event stream."""

    def __init__(self, service: EdgeService, tasks: TaskOwner, *, max_input_bytes: int, pacing: Pacing) -> None:
        self._service, self._tasks = service, tasks
        self._max_input_bytes, self._pacing = max_input_bytes, pacing

    async def submit(self, request: Request, send: Send) -> int:
        """POST /api/v1/runs."""
        value = parse_json(await read_json_body(request, self._max_input_bytes))
        order, stream_asked = parse_run(value, self._service)
        stream = self._service.submit(order)
        if stream_asked or _wants_sse(request, default=False):
            return await self._follow(request, send, stream, cancels=True)
        stream.close()
        run = await self._service.get_run(stream.run_id)
        headers = [(b"location", f"/api/v1/runs/{stream.run_id}".encode()), *_run_headers(request, stream.run_id)]
        return await send_json(send, 202, run_json(run), headers)

    async def list_runs(self, request: Request, send: Send) -> int:
        """GET /api/v1/runs."""
        query = request.query(("limit", "cursor", "state", "node", "adapter"))
        page = await self._service.list_runs(
            limit=parse_count(query["limit"], "limit", MAX_PAGE) if "limit" in query else 50,
            cursor=query.get("cursor"),
            state=parse_state(query["state"]) if "state" in query else None,
            node_id=NodeId(query["node"]) if "node" in query else None,
            adapter=query.get("adapter"),
        )
        runs = [run_json(run) for run in page.runs]
        return await send_json(send, 200, {"runs": runs, "next_cursor": page.next_cursor})

    async def show(self, request: Request, send: Send) -> int:
        """GET /api/v1/runs/{run_id}."""
        query = request.query(("events",))
        run_id = _run_id(request)
        run = run_json(await self._service.get_run(run_id))
        if query.get("events", "0") in ("", "0", "false"):
            return await send_json(send, 200, run)
        events = await self._service.run_events(run_id)
        return await send_json(send, 200, {"run": run, "events": [kept_event_json(run_id, e) for e in events]})

    async def events(self, request: Request, send: Send) -> int:
        """GET /api/v1/runs/{run_id}/events: server-sent events to the run's end, or a page of JSON."""
        query = request.query(("after", "limit"))
        run_id = _run_id(request)
        run = await self._service.get_run(run_id)
        after = parse_count(query["after"], "after", MAX_SEQ) if "after" in query else 0
        if not _wants_sse(request, default=True):
            limit = parse_count(query["limit"], "limit", 1000) if "limit" in query else 1000
            events = await self._service.run_events(run_id, after, limit)
            return await send_json(
                send, 200, {"run_id": run_id, "events": [kept_event_json(run_id, e) for e in events]}
            )
        last_id = request.header(b"last-event-id")
        if last_id:
            attempt, after = _parse_event_id(last_id)
            if attempt < run.attempt:
                after = 0  # a later attempt counts from 1 again; nothing had been produced before it
        if run.state.is_terminal and not await self._service.run_events(run_id, after, 1):
            return await send_empty(send, 204, _run_headers(request, run_id))
        try:
            stream = self._service.attach(run_id, after)
        except UnknownName:  # it ended some time ago: tell what is kept
            kept = await self._service.run_events(run_id, after)
            return await self._tell_kept(request, send, run_id, kept)
        return await self._follow(request, send, stream, cancels=False)

    async def cancel(self, request: Request, send: Send) -> int:
        """POST or DELETE /api/v1/runs/{run_id}/cancel."""
        body = await read_json_body(request, self._max_input_bytes, optional=True)
        reason = _read_reason(body)
        run_id = _run_id(request)
        try:
            cancelling = self._service.cancel(run_id, reason)
        except UnknownName:
            await self._service.get_run(run_id)  # raises if there never was such a run
            cancelling = False
        return await send_json(send, 202 if cancelling else 200, {"run_id": run_id, "cancelling": cancelling})

    async def _tell_kept(self, request: Request, send: Send, run_id: RunId, kept: Sequence[RunEventView]) -> int:
        sse = SseAnswer(send, self._pacing, _run_headers(request, run_id))
        pieces = [
            sse_event(TYPE_NAMES[type(e.body)], kept_event_json(run_id, e), f"{e.attempt}.{e.seq}") for e in kept
        ]
        await sse.end(_RETRY + b"".join(pieces))
        return 200

    async def _follow(self, request: Request, send: Send, stream: RunStream, *, cancels: bool) -> int:
        """Sends a run's events as they come. `cancels`: the run does not outlive the client."""
        run_id = stream.run_id
        sse = SseAnswer(send, self._pacing, _run_headers(request, run_id))
        leave = self._leave(stream) if cancels else stream.close
        watch = ClientWatch(request.receive, leave, on_tick=sse.tick, tick_s=self._pacing.tick_s)
        watching = self._tasks.spawn(watch.run(), name=f"client of {run_id}")
        problem: HttpProblem | None = None
        try:
            await sse.write(_RETRY)  # at once: the run is taken, and the client learns its id
            while batch := await stream.next_batch():
                await sse.write(b"".join(map(_sse_of, batch)))
                if isinstance(batch[-1].body, TERMINAL_TYPES):
                    break
        except IopError as error:
            problem = problem_of_error(error)
        except asyncio.CancelledError:
            # As in openai_relay: only the server cancels, when its grace is over.
            problem = draining_problem()
        except Exception as error:
            _log.error("request_failed", run_id=run_id, error=type(error).__name__, exc_info=True)
            problem = make_problem("internal", "the edge failed while it relayed the run; its log says more")
        finally:
            watching.cancel()
            stream.close()
        if problem is not None and cancels:
            self._cancel_quietly(run_id, problem.code)
        await sse.end(b"" if problem is None else b"event: error\ndata: " + problem.api_body() + b"\n\n")
        return 200

    def _leave(self, stream: RunStream) -> Callable[[], None]:
        def leave() -> None:
            self._cancel_quietly(stream.run_id, "client_disconnected")
            stream.close()

        return leave

    def _cancel_quietly(self, run_id: RunId, reason: str) -> None:
        try:
            self._service.cancel(run_id, reason)
        except UnknownName:
            pass  # it has ended long since


def _sse_of(event: RuntimeEvent) -> bytes:
    return sse_event(TYPE_NAMES[type(event.body)], event_json(event), f"{event.attempt}.{event.seq}")


def _run_headers(request: Request, run_id: RunId) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-iop-run-id", run_id.encode()),
        (b"x-request-id", (request.request_id or run_id).encode()),
    ]


def _wants_sse(request: Request, *, default: bool) -> bool:
    accept = request.header(b"accept")
    if "text/event-stream" in accept:
        return True
    return default and "application/json" not in accept


def _run_id(request: Request) -> RunId:
    text = request.params["run_id"]
    if not is_run_id(text):
        raise BadRequest(
            f"{text[:60]!r} is not a run id: it is a UUID such as 01890a5d-ac96-774b-bcce-b302099a8057",
            param="run_id",
            code="invalid_value",
        )
    return RunId(text)


def _parse_event_id(text: str) -> tuple[int, int]:
    attempt, dot, seq = text.partition(".")
    if not (dot and attempt.isascii() and attempt.isdigit() and seq.isascii() and seq.isdigit()) or len(text) > 40:
        raise BadRequest(
            f"last-event-id {text[:40]!r} is not one of a run: it is <attempt>.<seq>, such as 1.17",
            param="last-event-id",
            code="invalid_value",
        )
    return int(attempt), int(seq)


def _read_reason(body: bytes) -> str:
    reason = parse_object(parse_json(body), ("reason",)).get("reason") if body else None
    if reason is None:
        return "operator"
    if not isinstance(reason, str) or not 1 <= len(reason) <= MAX_REASON_CHARS or not reason.isprintable():
        raise BadRequest(
            f"parameter 'reason' must be 1 to {MAX_REASON_CHARS} printable characters",
            param="reason",
            code="invalid_value",
        )
    return reason
