"""What engines' errors mean: captured ones of two engines, and every shape that others use."""

import json

import pytest
from tests.support import captures

from iop_node.adapters.openai_errors import (
    MAX_ENGINE_BODY_BYTES,
    EngineAt,
    bad_response,
    engine_answered,
    read_error,
    stream_truncated,
    timed_out,
    unreachable,
)
from iop_shared.errors import Layer

ENGINE = EngineAt("local", "http://127.0.0.1:8000", "vLLM 0.32.0")
AT = "vLLM 0.32.0 at http://127.0.0.1:8000"

CAPTURED = {
    "llama-server/err_404.http": ("operation_unsupported", "File Not Found"),
    "llama-server/err_bad_json.http": (
        "engine_rejected",
        "[json.exception.parse_error.101] parse error at",
    ),
    "llama-server/err_bad_param.http": ("engine_rejected", "Field 'temperature': "),
    "llama-server/err_bad_range.http": ("engine_rejected", "Field 'max_tokens': Value must be between -1"),
    "llama-server/err_embeddings_off.http": ("operation_unsupported", "This server does not support embeddings"),
    "llama-server/err_missing_prompt.http": ("engine_rejected", "[json.exception.out_of_range.403] key 'prompt'"),
    "llama-server/err_no_key.http": ("engine_auth_failed", "Invalid API Key"),
    "llama-server/err_no_messages.http": ("engine_rejected", "'messages' is required"),
    "llama-server/err_too_long.http": ("context_exceeded", "request (6031 tokens) exceeds the available context"),
    "llama-server/err_too_long_stream.http": ("context_exceeded", "request (6031 tokens) exceeds the available"),
    "llama-server/health_loading.http": ("engine_loading", "Loading model"),
    "vllm/err_404.http": ("operation_unsupported", "Not Found"),
    "vllm/err_405.http": ("operation_unsupported", "Method Not Allowed"),
    "vllm/err_bad_json.http": ("engine_rejected", "1 validation error: {'type': 'json_invalid', 'loc': 'body.9'"),
    "vllm/err_bad_key.http": ("engine_auth_failed", "Unauthorized"),
    "vllm/err_bad_model.http": ("target_not_found", "The model `no-such-model` does not exist. Valid aliases:"),
    "vllm/err_bad_param.http": ("engine_rejected", "1 validation error: {'type': 'float_parsing'"),
    "vllm/err_bad_range.http": ("engine_rejected", "temperature must be non-negative, got -1.0"),
    "vllm/err_embeddings_off.http": ("operation_unsupported", "Not Found"),
    "vllm/err_max_tokens_too_big.http": (
        "engine_rejected",
        "max_tokens=99999 cannot be greater than",
    ),
    "vllm/err_missing_prompt.http": ("engine_rejected", "Either prompt or prompt_embeds must be provided"),
    "vllm/err_no_key.http": ("engine_auth_failed", "Unauthorized"),
    "vllm/err_no_messages.http": (
        "engine_rejected",
        "1 validation error: {'type': 'missing', 'loc':",
    ),
    "vllm/err_too_long.http": ("context_exceeded", "This model's maximum context length is 2048 tokens"),
    "vllm/err_too_long_stream.http": ("context_exceeded", "This model's maximum context length is 2048 tokens"),
    "vllm/err_tools_without_parser.http": (
        "engine_rejected",
        'tool_choice="required" requires --tool-call',
    ),
}
LAYERS = {
    "operation_unsupported": (Layer.TARGET, False),
    "engine_rejected": (Layer.TARGET, False),
    "context_exceeded": (Layer.TARGET, False),
    "target_not_found": (Layer.TARGET, False),
    "engine_auth_failed": (Layer.SERVING, False),
    "engine_loading": (Layer.SERVING, True),
    "engine_overloaded": (Layer.SERVING, True),
    "engine_error": (Layer.SERVING, True),
    "engine_bad_response": (Layer.SERVING, False),
}


def test_every_captured_error_is_in_the_table() -> None:
    errors = {name for name in captures.names("*/err_*.http") if captures.load(name).status != 200}

    assert errors | {"llama-server/health_loading.http"} == set(CAPTURED)


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_errors(name: str) -> None:
    code, begin = CAPTURED[name]
    capture = captures.load(name)

    failure = engine_answered(ENGINE, capture.status, capture.body)

    assert failure.code == code
    assert (failure.layer, failure.may_retry) == LAYERS[code]
    assert (failure.engine_status, failure.engine_body) == (capture.status, capture.body)
    assert str(failure).startswith(f"{AT} answered {capture.status}: {begin}")


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (
            401,
            b'{"error":"Unauthorized"}',
            "engine_auth_failed",
            "answered 401: Unauthorized; set api_key or api_key_file of the adapter to the engine's key",
        ),
        (
            403,
            b"",
            "engine_auth_failed",
            "answered 403 without a message; set api_key or api_key_file of the adapter to the engine's key",
        ),
        (
            404,
            b'{"error":{"message":"The model `x` does not exist.","code":"model_not_found"}}',
            "target_not_found",
            "answered 404: The model `x` does not exist; use one of the models that the engine lists",
        ),
        (
            404,
            b'{"detail":"Not Found"}',
            "operation_unsupported",
            "answered 404: Not Found; use an engine that is started for this operation",
        ),
        (400, b'{"message":"bad"}', "engine_rejected", "answered 400: bad; correct the request"),
        (
            400,
            b'{"error":{"message":"m","code":"context_length_exceeded"}}',
            "context_exceeded",
            "answered 400: m; shorten the input, or serve the model with a larger context",
        ),
        (413, b"too big\n", "engine_rejected", "answered 413: too big; correct the request"),
        (
            422,
            b'{"detail":[{"loc":["body","n"],"msg":"must be a number","input":"secret"},{"msg":"second"}]}',
            "engine_rejected",
            "answered 422: body.n: must be a number; second; correct the request",
        ),
        (429, b'"slow down"', "engine_overloaded", "answered 429: slow down; try again later"),
        (503, b"Service Unavailable", "engine_overloaded", "answered 503: Service Unavailable; try again later"),
        (
            503,
            b'{"error":{"message":"Model is loading"}}',
            "engine_loading",
            "answered 503: Model is loading; try again when the model is loaded",
        ),
        (500, b"\xff\xfe", "engine_error", "answered 500: \ufffd\ufffd; look into the engine's log"),
        (
            502,
            b"<html><head><style>p {}</style></head><body><h1>502 Bad Gateway</h1>\n<hr>nginx</body></html>",
            "engine_error",
            "answered 502: 502 Bad Gateway nginx; look into the engine's log",
        ),
        (408, b"[]", "engine_error", "answered 408 without a message; look into the engine's log"),
        (
            501,
            b"{}",
            "operation_unsupported",
            "answered 501 without a message; use an engine that is started for this operation",
        ),
        (
            307,
            b"",
            "engine_bad_response",
            "answered 307 without a message; set base_url of the adapter to the engine's final address",
        ),
        (
            204,
            b"",
            "engine_bad_response",
            "answered 204 without a message; check that base_url of the adapter leads to an OpenAI-compatible "
            "engine",
        ),
    ],
)
def test_every_shape_and_status(status: int, body: bytes, code: str, message: str) -> None:
    failure = engine_answered(ENGINE, status, body)

    assert failure.code == code
    assert (failure.layer, failure.may_retry) == LAYERS[code]
    assert str(failure) == f"{AT} {message}"


@pytest.mark.parametrize(
    "message",
    [
        "1 validation error:\n  {'loc': 'body.messages', 'msg': 'bad', 'input': 'PROMPT it\\'s here'}",
        "1 validation error:\n  {'loc': 'body.messages', 'msg': 'bad', 'input': [{'content': 'PROMPT'}]}",
        '{"msg": "bad", "input": "PROMPT"}',
        "bad syntax; last read: '\"PROMPT'; expected end of input",
        "messages must be a list. (parameter=messages, value=PROMPT)",
    ],
)
def test_what_an_engine_quotes_of_the_input_is_not_repeated(message: str) -> None:
    body = json.dumps({"error": {"message": message}}).encode()

    failure = engine_answered(ENGINE, 400, body)

    assert "PROMPT" not in str(failure)
    assert "ba" in str(failure) or "must be a list" in str(failure)
    assert failure.engine_body == body  # the client's own


def test_long_messages_and_bodies_are_cut() -> None:
    failure = engine_answered(ENGINE, 500, json.dumps({"error": "x" * 100_000}).encode())

    assert str(failure) == f"{AT} answered 500: {'x' * 297}...; look into the engine's log"
    assert len(failure.engine_body) == MAX_ENGINE_BODY_BYTES


@pytest.mark.parametrize(
    "body",
    [b"null", b"7", b'{"error":null}', b'{"error":{"message":7}}', b'{"error":[]}', b'{"detail":{}}', b"[[["],
)
def test_strange_errors_are_read_without_an_exception(body: bytes) -> None:
    assert read_error(body).message in ("", "[[[")


def test_sentences_about_transport_trouble() -> None:
    refused = unreachable(ENGINE, "connection refused")
    cut = stream_truncated(ENGINE, "broke off", has_output=True)
    strange = bad_response(ENGINE, "sent noise", status=200, body=b"noise")

    assert str(refused) == (
        f"cannot reach {AT}: connection refused; start the engine, or correct base_url of adapter 'local'"
    )
    assert (refused.code, refused.layer, refused.may_retry) == ("engine_unreachable", Layer.SERVING, True)
    assert str(cut) == f"{AT} broke off; the answer is incomplete, look into the engine's log"
    assert (cut.code, cut.layer, cut.may_retry) == ("engine_stream_truncated", Layer.SERVING, False)
    assert str(strange) == (
        f"{AT} sent noise; check that base_url of the adapter leads to an OpenAI-compatible engine"
    )
    assert (strange.engine_status, strange.engine_body) == (200, b"noise")


def test_sentences_about_silence() -> None:
    first = timed_out(ENGINE, first_byte=True, limit_s=300.0, has_output=False)
    idle = timed_out(ENGINE, first_byte=False, limit_s=0.5, has_output=True)

    assert str(first) == (
        f"{AT} produced nothing within first_byte_timeout_s=300: it may be overloaded or still reading a long "
        "prompt; try again later or raise the limit"
    )
    assert (first.code, first.layer, first.may_retry) == ("engine_timeout_first_byte", Layer.SERVING, True)
    assert str(idle) == (
        f"{AT} fell silent for idle_timeout_s=0.5 in the middle of its answer; "
        "look into the engine's log or raise the limit"
    )
    assert (idle.code, idle.layer, idle.may_retry) == ("engine_timeout_idle", Layer.SERVING, False)
