"""The OpenAI dialect's endpoints: what a request asks for becomes a RunOrder, and its stream an answer."""

import re
from typing import Final

from iop_edge.domain.views import ModelView, ResolvedModel, RunOrder
from iop_edge.service import EdgeService
from iop_edge.surfaces.asgi import Request, Send, send_json
from iop_edge.surfaces.openai_relay import RunAnswer
from iop_edge.surfaces.openai_render import STREAMS, AnswerHead
from iop_edge.surfaces.openai_requests import PARSERS, OpenAiRequest
from iop_edge.surfaces.openai_whole import WHOLES
from iop_edge.surfaces.sse import Pacing
from iop_shared.aio.tasks import TaskOwner
from iop_shared.clock import Clock
from iop_shared.errors import BadRequest, UnknownName
from iop_shared.ids import SessionId
from iop_shared.runs import Operation

MAX_SESSION_CHARS: Final = 128
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class OpenAiApi:
    """The handlers under /v1. `tasks` owns one task per answer, which notices that the client left."""

    def __init__(
        self, service: EdgeService, tasks: TaskOwner, clock: Clock, *, max_input_bytes: int, pacing: Pacing
    ) -> None:
        self._service, self._tasks, self._clock = service, tasks, clock
        self._max_input_bytes, self._pacing = max_input_bytes, pacing
        self._started_s = clock.wall_ms() // 1000

    async def chat_completions(self, request: Request, send: Send) -> int:
        """POST /v1/chat/completions."""
        return await self._run(request, send, Operation.CHAT)

    async def completions(self, request: Request, send: Send) -> int:
        """POST /v1/completions."""
        return await self._run(request, send, Operation.COMPLETION)

    async def embeddings(self, request: Request, send: Send) -> int:
        """POST /v1/embeddings."""
        return await self._run(request, send, Operation.EMBED)

    async def list_models(self, _request: Request, send: Send) -> int:
        """GET /v1/models."""
        models = [self._model_json(model) for model in self._service.list_models()]
        return await send_json(send, 200, {"object": "list", "data": models})

    async def show_model(self, request: Request, send: Send) -> int:
        """GET /v1/models/{id}; the id may have slashes."""
        name = request.params["model"]
        models = {model.name: model for model in self._service.list_models()}
        if name not in models:
            raise UnknownName("model", name, list(models), param="model")
        return await send_json(send, 200, self._model_json(models[name]))

    def _model_json(self, model: ModelView) -> dict[str, str | int]:
        # A name in a configuration has no birthday; clients want a number that does not change.
        return {"id": model.name, "object": "model", "created": self._started_s, "owned_by": model.adapter}

    async def _run(self, request: Request, send: Send, operation: Operation) -> int:
        body = await request.read_body(self._max_input_bytes)
        asked = PARSERS[operation](body)
        resolved = self._service.resolve_model(asked.model)
        stream = self._service.submit(make_order(request, asked, resolved, body))
        run_id = stream.run_id.encode()
        headers = [(b"x-iop-run-id", run_id), (b"x-request-id", request.request_id.encode() or run_id)]
        head = AnswerHead(
            stream.run_id, asked.model, self._clock.wall_ms() // 1000, asked.include_usage, asked.as_base64
        )
        answer = RunAnswer(self._service, stream, request, send, self._tasks, headers)
        if asked.stream:
            return await answer.answer_stream(STREAMS[operation](head), self._pacing)
        return await answer.answer_whole(WHOLES[operation](head))


def make_order(request: Request, asked: OpenAiRequest, resolved: ResolvedModel, body: bytes) -> RunOrder:
    """Returns the order for a request; `body`, the client's own bytes, goes on untouched.

    Raises:
        BadRequest: the header `x-iop-session` cannot be a session.
    """
    traceparent = request.header(b"traceparent")
    return RunOrder(
        adapter=resolved.adapter,
        target=resolved.target,
        operation=asked.operation,
        input=body,
        limits=resolved.limits,
        session=read_session(request.header(b"x-iop-session"), "x-iop-session"),
        source="openai",
        profile=resolved.profile,
        engine_json=True,
        stream=asked.stream,
        requested_model=asked.model,
        options=resolved.options,
        # W3C Trace Context: a malformed one is ignored.
        traceparent=traceparent if _TRACEPARENT.fullmatch(traceparent) else "",
        node_labels=resolved.node_labels,
    )


def read_session(text: str, param: str) -> SessionId | None:
    """Returns the session that a client named, or None if it named none.

    Raises:
        BadRequest: too long, or not printable.
    """
    if not text:
        return None
    if len(text) > MAX_SESSION_CHARS or not text.isprintable():
        raise BadRequest(
            f"session {text[:40]!r} ({len(text)} characters) is not valid: "
            f"use 1 to {MAX_SESSION_CHARS} printable characters",
            param=param,
            code="invalid_value",
        )
    return SessionId(text)
