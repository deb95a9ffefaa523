"""The edge's HTTP application: all routes, the guard before them, and the last word on errors."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from iop_edge.service import EdgeService
from iop_edge.surfaces.asgi import (
    ClientGone,
    Found,
    Headers,
    Receive,
    Request,
    Route,
    RouteTable,
    Scope,
    Send,
    send_bytes,
)
from iop_edge.surfaces.browser_guard import BrowserGuard
from iop_edge.surfaces.health import HealthApi
from iop_edge.surfaces.http_errors import HttpProblem, draining_problem, make_problem, problem_of_error
from iop_edge.surfaces.management import ManagementApi
from iop_edge.surfaces.management_runs import RunsApi
from iop_edge.surfaces.openai_api import OpenAiApi
from iop_edge.surfaces.openai_relay import CLIENT_GONE
from iop_edge.surfaces.sse import Pacing
from iop_shared.aio.tasks import TaskOwner
from iop_shared.clock import Clock
from iop_shared.errors import BadRequest, IopError, nearest
from iop_shared.logs import get_logger
from iop_shared.metrics import Metrics

UNGUARDED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Probes and scrapers come under names that nobody configures here; there is nothing in it for a web page."""
MAX_INPUT_BYTES: Final = 32 * 1024 * 1024

_log = get_logger("http")


def build_app(
    service: EdgeService,
    metrics: Metrics,
    tasks: TaskOwner,
    clock: Clock,
    *,
    guard: BrowserGuard,
    max_input_bytes: int = MAX_INPUT_BYTES,
    pacing: Pacing | None = None,
) -> "HttpApp":
    """Returns the ASGI application.

    `tasks` owns the small task that each answer has beside it; stop it after the HTTP server. `guard` names
    the hosts under which clients may come.
    """
    pacing = pacing or Pacing()
    openai = OpenAiApi(service, tasks, clock, max_input_bytes=max_input_bytes, pacing=pacing)
    management = ManagementApi(service, tasks, max_input_bytes=max_input_bytes, pacing=pacing)
    runs = RunsApi(service, tasks, max_input_bytes=max_input_bytes, pacing=pacing)
    health = HealthApi(service, metrics)
    routes = [
        Route("POST", "/v1/chat/completions", openai.chat_completions),
        Route("POST", "/v1/completions", openai.completions),
        Route("POST", "/v1/embeddings", openai.embeddings),
        Route("GET", "/v1/models", openai.list_models),
        Route("GET", "/v1/models/{model...}", openai.show_model),
        Route("GET", "/api/v1/nodes", management.list_nodes),
        Route("GET", "/api/v1/nodes/{node_id}", management.show_node),
        Route("POST", "/api/v1/nodes/{node_id}/commands", management.command_node),
        Route("POST", "/api/v1/runs", runs.submit),
        Route("GET", "/api/v1/runs", runs.list_runs),
        Route("GET", "/api/v1/runs/{run_id}", runs.show),
        Route("GET", "/api/v1/runs/{run_id}/events", runs.events),
        Route("POST", "/api/v1/runs/{run_id}/cancel", runs.cancel),
        Route("DELETE", "/api/v1/runs/{run_id}/cancel", runs.cancel),
        Route("GET", "/api/v1/events", management.follow_events),
        Route("GET", "/api/v1/models", management.list_models),
        Route("GET", "/api/v1/version", management.show_version),
        Route("GET", "/healthz", health.live),
        Route("HEAD", "/healthz", health.live),
        Route("GET", "/readyz", health.ready),
        Route("HEAD", "/readyz", health.ready),
        Route("GET", "/metrics", health.metrics),
    ]
    return HttpApp(RouteTable(routes), guard, metrics, management)


class HttpApp:
    """An ASGI application. Dispatches, counts, and answers what handlers raise in the dialect of the path."""

    def __init__(
        self, routes: RouteTable, guard: BrowserGuard, metrics: Metrics, management: ManagementApi
    ) -> None:
        self._routes, self._guard, self._management = routes, guard, management
        self._in_flight = 0
        self._requests = metrics.counter(
            "iop_edge_http_requests_total",
            "HTTP requests answered, by route, method and status (499: the client left before the answer).",
            ("route", "method", "status"),
        )
        metrics.gauge_from(
            "iop_edge_http_requests_in_flight", "HTTP requests being answered now.", lambda: self._in_flight
        )

    def end_event_streams(self) -> None:
        """Ends the streams that never end by themselves. To be called before the HTTP server stops."""
        self._management.end_event_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one HTTP request. Nothing but the server's cancel gets out."""
        assert scope["type"] == "http", f"the server runs us for HTTP only, not for {scope['type']}"
        request = Request(scope, receive)
        found = self._routes.find(request.path)
        self._in_flight += 1
        try:
            status = await self._answer(request, found, send)
        finally:
            self._in_flight -= 1
        route = "none" if found is None else found.path
        method = request.method if found is not None and request.method in found.by_method else "other"
        self._requests.labels(route, method, str(status)).inc()

    async def _answer(self, request: Request, found: Found | None, send: Send) -> int:
        try:
            if request.path not in UNGUARDED:
                self._guard.check(request.headers)
            if found is None:
                raise UnknownUrl(request.method, request.path, self._routes.paths)
            handler = found.by_method.get(request.method)
            if handler is None:
                raise MethodNotAllowed(request.method, request.path, found.by_method)
            request.params = found.params
            return await handler(request, send)
        except ClientGone:
            return CLIENT_GONE
        except MethodNotAllowed as error:
            return await _answer_problem(
                request, problem_of_error(error), send, [(b"allow", error.allow.encode())]
            )
        except IopError as error:
            return await _answer_problem(request, problem_of_error(error), send)
        except asyncio.CancelledError:
            # Only the server cancels a request, when its grace is over; this is the top of the request's task.
            return await _answer_problem(request, draining_problem(), send)
        except Exception as error:
            _log.error("request_failed", path=request.path, error=type(error).__name__, exc_info=True)
            problem = make_problem("internal", "the edge failed to answer this request; its log says more")
            return await _answer_problem(request, problem, send)


class UnknownUrl(BadRequest):
    """There is no such endpoint; the sentence names the nearest."""

    code = "unknown_url"

    def __init__(self, method: str, path: str, known: Sequence[str]) -> None:
        # Who speaks one dialect has no use for the other's endpoints.
        dialect = "/v1/" if path.startswith("/v1/") else "/"
        alike = [one for one in known if one.startswith(dialect)]
        super().__init__(f"there is no endpoint {method} {path[:100]!r}: {nearest(path, alike)}")


class MethodNotAllowed(BadRequest):
    """The endpoint exists, for other methods. `allow`: the value of the header that names them."""

    code = "method_not_allowed"

    def __init__(self, method: str, path: str, allowed: Iterable[str]) -> None:
        self.allow = ", ".join(sorted(allowed))
        super().__init__(f"{path[:100]!r} does not take {method}: use {self.allow}")


async def _answer_problem(request: Request, problem: HttpProblem, send: Send, headers: Headers = ()) -> int:
    """Answers in the dialect of the path."""
    _log.debug("request_refused", method=request.method, status=problem.status, error_code=problem.code)
    body = problem.openai_body() if request.path.startswith("/v1/") else problem.api_body()
    own = [(b"x-request-id", request.request_id.encode())] if request.request_id else []
    return await send_bytes(send, problem.status, body, [*problem.headers(), *own, *headers])
