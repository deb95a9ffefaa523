"""From an error to an HTTP answer: one table of codes, and one shape for each dialect. Pure.

An error's code decides. Where an engine refused a request itself (4xx), its status and its sentence pass
through; a credential that an engine refused is not the client's, so that is a 502.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from iop_edge.surfaces.asgi import Headers
from iop_shared.errors import (
    BadRequest,
    Busy,
    IopError,
    NoRoute,
    NotAllowed,
    RunFailed,
    TooLarge,
    Unavailable,
    UnknownName,
)
from iop_shared.runtime_events import Cancelled, Failed, Gap, Interrupted

INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"
RATE: Final = "rate_limit_error"
TIMEOUT: Final = "timeout_error"
PERMISSION: Final = "permission_error"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How a code looks over HTTP. `openai_code`: where OpenAI's clients know the case by another word.

    `retry_after_s`: sent as Retry-After; 0: not sent. `passes_engine`: an engine's own 4xx goes through.
    """

    status: int
    type: str = INVALID
    openai_code: str = ""
    retry_after_s: int = 0
    passes_engine: bool = False


ERRORS: Final[Mapping[str, ErrorRow]] = {
    # what the client sent
    "bad_request": ErrorRow(400),
    "invalid_json": ErrorRow(400),
    "missing_required_parameter": ErrorRow(400),
    "invalid_type": ErrorRow(400),
    "invalid_value": ErrorRow(400),
    "empty_array": ErrorRow(400),
    "empty_string": ErrorRow(400),
    "unknown_parameter": ErrorRow(400),
    "invalid_name": ErrorRow(400),
    "bad_input": ErrorRow(400),
    "bad_cursor": ErrorRow(400),
    "bad_limit": ErrorRow(400),
    "body_timeout": ErrorRow(408),
    "too_large": ErrorRow(413),
    "unsupported_media_type": ErrorRow(415),
    "host_not_allowed": ErrorRow(403, PERMISSION),
    "origin_not_allowed": ErrorRow(403, PERMISSION),
    "not_allowed": ErrorRow(403, PERMISSION),
    "unknown_url": ErrorRow(404),
    "method_not_allowed": ErrorRow(405),
    "unknown_model": ErrorRow(404, openai_code="model_not_found"),
    "unknown_profile": ErrorRow(404, openai_code="model_not_found"),
    "unknown_adapter": ErrorRow(404, openai_code="model_not_found"),
    "unknown_target": ErrorRow(404, openai_code="model_not_found"),
    "unknown_node": ErrorRow(404),
    "unknown_run": ErrorRow(404),
    # no place for it now
    "no_route": ErrorRow(503, SERVER, retry_after_s=5),
    "queue_timeout": ErrorRow(503, SERVER, retry_after_s=5),
    "busy": ErrorRow(429, RATE, retry_after_s=1),
    "queue_full": ErrorRow(429, RATE, retry_after_s=1),
    "slow_consumer": ErrorRow(503, SERVER),
    "unavailable": ErrorRow(503, SERVER, retry_after_s=5),
    "store_unavailable": ErrorRow(503, SERVER, retry_after_s=5),
    "history_unavailable": ErrorRow(503, SERVER, retry_after_s=5),
    "edge_draining": ErrorRow(503, SERVER, retry_after_s=5),
    "edge_restarted": ErrorRow(503, SERVER, retry_after_s=1),
    # the engine
    "engine_unreachable": ErrorRow(502, SERVER),
    "engine_timeout_first_byte": ErrorRow(504, TIMEOUT),
    "engine_timeout_idle": ErrorRow(504, TIMEOUT),
    "run_timeout_total": ErrorRow(504, TIMEOUT),
    "engine_error": ErrorRow(502, SERVER),
    "engine_overloaded": ErrorRow(503, SERVER, retry_after_s=1),
    "engine_loading": ErrorRow(503, SERVER, retry_after_s=5),
    "engine_stream_truncated": ErrorRow(502, SERVER),
    "engine_bad_response": ErrorRow(502, SERVER),
    "engine_error_mid_stream": ErrorRow(502, SERVER),
    "engine_auth_failed": ErrorRow(502, SERVER),
    "target_not_found": ErrorRow(404, openai_code="model_not_found", passes_engine=True),
    "context_exceeded": ErrorRow(400, openai_code="context_length_exceeded", passes_engine=True),
    "operation_unsupported": ErrorRow(400, passes_engine=True),
    "engine_rejected": ErrorRow(400, passes_engine=True),
    "mock_failure": ErrorRow(502, SERVER),
    # the run and its node
    "output_limit": ErrorRow(502, SERVER),
    "output_gap": ErrorRow(502, SERVER),
    "adapter_error": ErrorRow(500, SERVER),
    "node_lost": ErrorRow(502, SERVER),
    "node_restarted": ErrorRow(502, SERVER),
    "node_stopping": ErrorRow(502, SERVER),
    "node_silent": ErrorRow(504, TIMEOUT),
    "interrupted": ErrorRow(502, SERVER),
    "cancelled": ErrorRow(409, SERVER),
    "internal": ErrorRow(500, SERVER),
}

# For a code that the table does not know: what the class of the error says.
_BY_CLASS: Final[tuple[tuple[type[IopError], ErrorRow], ...]] = (
    (UnknownName, ErrorRow(404)),
    (TooLarge, ErrorRow(413)),
    (BadRequest, ErrorRow(400)),
    (NotAllowed, ErrorRow(403, PERMISSION)),
    (NoRoute, ErrorRow(503, SERVER, retry_after_s=5)),
    (Busy, ErrorRow(429, RATE, retry_after_s=1)),
    (Unavailable, ErrorRow(503, SERVER, retry_after_s=5)),
    (RunFailed, ErrorRow(502, SERVER)),
)
_RETRIED_BY_CLIENTS: Final = frozenset({408, 409, 429})
"""With 5xx: what OpenAI's clients try again unless `x-should-retry: false` forbids it."""


@dataclass(frozen=True, slots=True)
class HttpProblem:
    """An error as it is answered. `code` is ours, `openai_code` what the OpenAI dialect calls it."""

    status: int
    code: str
    openai_code: str
    type: str
    message: str
    param: str | None = None
    layer: str = ""
    retryable: bool = False
    retry_after_s: int = 0

    def headers(self) -> Headers:
        """Returns the headers that go with it, `content-type` included."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_s:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        if not self.retryable and (self.status >= 500 or self.status in _RETRIED_BY_CLIENTS):
            headers.append((b"x-should-retry", b"false"))
        if self.layer:
            headers.append((b"x-iop-layer", self.layer.encode()))
        return headers

    def openai_body(self) -> bytes:
        """Returns the error as OpenAI's API has it."""
        # What we call adapter and target came in as the model.
        param = "model" if self.openai_code == "model_not_found" else self.param
        return orjson.dumps(
            {
                "error": {
                    "message": self.message,
                    "type": self.type,
                    "param": param,
                    "code": self.openai_code,
                }
            }
        )

    def api_body(self) -> bytes:
        """Returns the error as the management API has it."""
        return orjson.dumps(
            {
                "error": {
                    "code": self.code,
                    "message": self.message,
                    "param": self.param,
                    "layer": self.layer,
                    "retryable": self.retryable,
                }
            }
        )


def make_problem(
    code: str,
    message: str,
    *,
    row: ErrorRow | None = None,
    param: str | None = None,
    layer: str = "",
    retryable: bool = False,
) -> HttpProblem:
    """Returns the problem for `code` by the table (or by `row`)."""
    row = row or ERRORS.get(code) or ErrorRow(500, SERVER)
    return HttpProblem(
        row.status, code, row.openai_code or code, row.type, message, param, layer, retryable, row.retry_after_s
    )


def problem_of_error(error: IopError) -> HttpProblem:
    """Returns how an error that a call raised is answered."""
    row = ERRORS.get(error.code)
    if row is None:
        row = next((row for kind, row in _BY_CLASS if isinstance(error, kind)), None)
    layer = error.layer.value if isinstance(error, RunFailed) else ""
    retryable = error.may_retry if isinstance(error, RunFailed) else error.retryable
    param = error.param if isinstance(error, BadRequest) else None
    return make_problem(error.code, str(error), row=row, param=param, layer=layer, retryable=retryable)


def problem_of_terminal(body: Failed | Cancelled | Interrupted) -> HttpProblem:
    """Returns how a run that did not succeed is answered."""
    match body:
        case Failed():
            return _problem_of_failed(body)
        case Cancelled(reason="edge_draining"):
            return draining_problem()
        case Cancelled():
            return make_problem("cancelled", f"the run was cancelled: {body.reason or 'no reason given'}")
        case Interrupted():
            code = body.code if body.code in ERRORS else "interrupted"
            return make_problem(
                code,
                f"the run was interrupted before it was complete: {body.message or body.code}; "
                "it can be tried again",
                layer="node",
                retryable=True,
            )


def draining_problem() -> HttpProblem:
    """Returns how a request is answered whose run ends because the edge stops."""
    return make_problem("edge_draining", "the edge is stopping; try again when it is back", retryable=True)


def problem_of_gap(gap: Gap) -> HttpProblem:
    """Returns how lost output is answered where the client's protocol has no word for it."""
    return make_problem(
        "output_gap",
        f"{gap.events} events ({gap.bytes} bytes) of the answer were lost on their way ({gap.reason}); "
        "what follows would not be the answer, so it ends here",
        layer="edge",
        retryable=True,
    )


def _problem_of_failed(failed: Failed) -> HttpProblem:
    row = ERRORS.get(failed.code)
    if row is None:
        row = ErrorRow(502, SERVER)
    problem = make_problem(
        failed.code, failed.message, row=row, layer=failed.layer.value, retryable=failed.retryable
    )
    if failed.code == "engine_overloaded" and failed.engine_status == 429:
        return replace(problem, status=429, type=RATE)
    if not row.passes_engine or not 400 <= failed.engine_status < 500:
        return problem
    said = parse_engine_error(failed.engine_body)
    return replace(
        problem,
        status=failed.engine_status,
        openai_code=said.code if said.code and not row.openai_code else problem.openai_code,
        message=said.message or problem.message,
        param=said.param,
    )


@dataclass(frozen=True, slots=True)
class EngineError:
    """What an engine's error body says; "" and None where it does not."""

    message: str = ""
    param: str | None = None
    code: str = ""


def parse_engine_error(body: bytes) -> EngineError:
    """Returns what an engine said, in whichever of the three shapes that engines use.

    `{"error": {"message", "param", "code"}}`, `{"error": "text"}`, `{"detail": "text" or [{"loc", "msg"}]}`.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return EngineError()
    match value:
        case {"error": {"message": str(message), **rest}}:
            param, code = rest.get("param"), rest.get("code")
            # Some engines give the HTTP status as the code; only words are codes here.
            return EngineError(
                message, param if isinstance(param, str) else None, code if isinstance(code, str) else ""
            )
        case {"error": str(message)} | {"detail": str(message)}:
            return EngineError(message)
        case {"detail": list(problems)}:
            return EngineError("; ".join(_validation_sentence(problem) for problem in problems))
        case _:
            return EngineError()


def _validation_sentence(problem: Any) -> str:
    match problem:
        case {"loc": list(place), "msg": str(message)}:
            return f"{'.'.join(str(part) for part in place)}: {message}"
        case _:
            return str(problem)[:200]
