"""One table from codes to answers, and the three shapes in which engines put their errors."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from iop_edge.surfaces.http_errors import (
    ERRORS,
    EngineError,
    HttpProblem,
    parse_engine_error,
    problem_of_error,
    problem_of_gap,
    problem_of_terminal,
)
from iop_shared.errors import (
    BadRequest,
    Busy,
    IopError,
    Layer,
    NoRoute,
    NotAllowed,
    RunFailed,
    TooLarge,
    Unavailable,
    UnknownName,
)
from iop_shared.runtime_events import Cancelled, Failed, Gap, Interrupted


def failed(code: str, *, status: int = 0, body: bytes = b"", layer: Layer = Layer.SERVING) -> HttpProblem:
    return problem_of_terminal(Failed(code, layer, "our sentence", engine_status=status, engine_body=body))


def test_unknown_model_is_what_openai_clients_expect() -> None:
    problem = problem_of_error(UnknownName("model", "smal", ["small"], param="model"))

    assert problem.status == 404
    assert orjson.loads(problem.openai_body()) == {
        "error": {
            "message": "unknown model 'smal': did you mean 'small'?",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    assert orjson.loads(problem.api_body()) == {
        "error": {
            "code": "unknown_model",
            "message": "unknown model 'smal': did you mean 'small'?",
            "param": "model",
            "layer": "",
            "retryable": False,
        }
    }


@pytest.mark.parametrize(
    ("error", "status", "type_", "headers"),
    [
        (BadRequest("x"), 400, "invalid_request_error", {}),
        (BadRequest("x", code="new_code"), 400, "invalid_request_error", {}),
        (TooLarge("x"), 413, "invalid_request_error", {}),
        (UnknownName("planet", "x", []), 404, "invalid_request_error", {}),
        (NotAllowed("x"), 403, "permission_error", {}),
        (NoRoute("x"), 503, "server_error", {b"retry-after": b"5"}),
        (Busy("x"), 429, "rate_limit_error", {b"retry-after": b"1"}),
        (Unavailable("x", code="new_code"), 503, "server_error", {b"retry-after": b"5"}),
        (
            RunFailed("x", code="new_code", layer=Layer.NODE),
            502,
            "server_error",
            {b"x-should-retry": b"false", b"x-iop-layer": b"node"},
        ),
        (IopError("x"), 500, "server_error", {b"x-should-retry": b"false"}),
    ],
)
def test_each_class_of_error_has_its_answer(
    error: IopError, status: int, type_: str, headers: dict[bytes, bytes]
) -> None:
    problem = problem_of_error(error)

    assert (problem.status, problem.type) == (status, type_)
    assert dict(problem.headers()) == {b"content-type": b"application/json", **headers}


def test_every_failure_code_of_a_run_has_a_row() -> None:
    codes = """engine_unreachable engine_timeout_first_byte engine_timeout_idle run_timeout_total engine_error
        engine_overloaded engine_loading engine_stream_truncated engine_bad_response engine_error_mid_stream
        engine_auth_failed target_not_found context_exceeded operation_unsupported engine_rejected output_limit
        adapter_error node_lost node_restarted no_route queue_timeout edge_restarted mock_failure"""

    assert not set(codes.split()) - set(ERRORS)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("engine_unreachable", 502),
        ("engine_timeout_first_byte", 504),
        ("engine_timeout_idle", 504),
        ("run_timeout_total", 504),
        ("engine_loading", 503),
        ("engine_auth_failed", 502),
        ("queue_timeout", 503),
        ("adapter_error", 500),
        ("a_code_of_tomorrow", 502),
    ],
)
def test_failed_run_is_answered_by_its_code(code: str, status: int) -> None:
    problem = failed(code)

    assert (problem.status, problem.code, problem.message) == (status, code, "our sentence")
    assert (b"x-iop-layer", b"serving") in problem.headers()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            b'{"error":{"message":"bad temperature","type":"Bad Request","param":"body.temperature","code":400}}',
            EngineError("bad temperature", "body.temperature"),
        ),
        (b'{"error":{"message":"no","code":"a_word"}}', EngineError("no", None, "a_word")),
        (b'{"error":"Unauthorized"}', EngineError("Unauthorized")),
        (b'{"detail":"Not Found"}', EngineError("Not Found")),
        (
            b'{"detail":[{"loc":["body","n"],"msg":"must be positive","input":-1},"odd"]}',
            EngineError("body.n: must be positive; odd"),
        ),
        (b"<html>", EngineError()),
        (b"", EngineError()),
        (b"[1]", EngineError()),
        (b'{"error":{"message":3}}', EngineError()),
    ],
)
def test_engine_error_is_read_in_every_shape(body: bytes, expected: EngineError) -> None:
    assert parse_engine_error(body) == expected


def test_engine_refusal_passes_through() -> None:
    body = b'{"error":{"message":"top_p must be in (0, 1]","type":"BadRequestError","param":"top_p","code":400}}'
    problem = failed("engine_rejected", status=422, body=body, layer=Layer.TARGET)

    assert problem.status == 422
    assert orjson.loads(problem.openai_body()) == {
        "error": {
            "message": "top_p must be in (0, 1]",
            "type": "invalid_request_error",
            "param": "top_p",
            "code": "engine_rejected",
        }
    }


def test_context_exceeded_has_the_code_that_clients_know() -> None:
    problem = failed("context_exceeded", status=400, body=b'{"error":{"message":"too long","code":"x"}}')

    assert (problem.status, problem.openai_code, problem.message) == (400, "context_length_exceeded", "too long")


def test_refused_credential_of_the_node_is_not_the_clients() -> None:
    problem = failed("engine_auth_failed", status=401, body=b'{"error":"Unauthorized"}')

    assert (problem.status, problem.message) == (502, "our sentence")


@pytest.mark.parametrize(("engine_status", "status"), [(429, 429), (503, 503), (0, 503)])
def test_overload_keeps_the_engines_word(engine_status: int, status: int) -> None:
    assert failed("engine_overloaded", status=engine_status).status == status


def test_other_endings() -> None:
    cancelled = problem_of_terminal(Cancelled("operator", True, 3))
    lost = problem_of_terminal(Interrupted("node_lost", "its link did not come back"))
    odd = problem_of_terminal(Interrupted("cable_cut", "somebody cut the cable"))

    assert (cancelled.status, cancelled.code) == (409, "cancelled")
    assert cancelled.message == "the run was cancelled: operator"
    assert (b"x-should-retry", b"false") in cancelled.headers()
    stopping = problem_of_terminal(Cancelled("edge_draining", True, 3))
    assert (stopping.status, stopping.code, stopping.retryable) == (503, "edge_draining", True)
    assert stopping.message == "the edge is stopping; try again when it is back"
    assert (lost.status, lost.code, lost.retryable) == (502, "node_lost", True)
    assert (
        lost.message
        == "the run was interrupted before it was complete: its link did not come back; it can be tried again"
    )
    assert odd.code == "interrupted"


def test_gap_says_how_much_is_missing() -> None:
    problem = problem_of_gap(Gap(3, 120, "buffer_full"))

    assert problem.message == (
        "3 events (120 bytes) of the answer were lost on their way (buffer_full); "
        "what follows would not be the answer, so it ends here"
    )


def test_the_page_lists_every_code_with_its_status() -> None:
    page = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
    listed: dict[str, Any] = {
        code: int(status) for code, status in re.findall(r"^\| `(\w+)` \| (\d{3})", page, re.MULTILINE)
    }

    assert listed == {code: row.status for code, row in ERRORS.items()}
