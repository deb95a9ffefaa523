"""/v1 over a real socket: what is ordered, what is answered, and every way to fail before the first byte."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from tests.edge.surfaces.conftest import Edge

from iop_edge.domain.views import RunOrder
from iop_shared.errors import Busy, Layer, NoRoute, Unavailable
from iop_shared.ids import AdapterName, NodeId, SessionId, TargetName
from iop_shared.runs import Operation
from iop_shared.runtime_events import (
    Cancelled,
    Closing,
    Embeddings,
    EngineJson,
    Failed,
    Gap,
    Interrupted,
    Started,
    Succeeded,
    Text,
    Usage,
)

pytestmark = pytest.mark.both_loops

CHAT = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}
STARTED = Started(AdapterName("mock"), TargetName("echo"), NodeId("gpu-1"))
DONE = Succeeded(Closing(usage=Usage(1, 2), finish_reason="stop"))


def openai_error(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert response.headers["content-type"] == "application/json"
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


async def test_chat_is_ordered_with_the_clients_own_bytes(edge: Edge) -> None:
    edge.service.script = (STARTED, Text("hello"), DONE)
    body = b'{ "model":"small", "messages":[{"role":"user","content":"hi"}], "top_k" : 3 }'
    headers = {
        "x-iop-session": "talk-1",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }

    response = await edge.client.post("/v1/chat/completions", content=body, headers=headers)

    run = edge.service.last_run
    assert response.status_code == 200, response.text
    assert run.order == RunOrder(
        adapter=AdapterName("mock"),
        target=TargetName("echo"),
        operation=Operation.CHAT,
        input=body,
        session=SessionId("talk-1"),
        source="openai",
        engine_json=True,
        stream=False,
        requested_model="small",
        options={"temperature": 0},
        traceparent=headers["traceparent"],
    )
    assert response.json()["choices"][0]["message"] == {"role": "assistant", "content": "hello"}
    assert response.json()["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert response.headers["x-iop-run-id"] == run.run_id
    assert response.headers["x-iop-node"] == "gpu-1"
    assert response.headers["x-request-id"] == run.run_id


async def test_engines_whole_answer_comes_through_byte_for_byte(edge: Edge) -> None:
    answer = b'{"id": "x",\n "choices": [ ], "odd": 1.0}'
    edge.service.script = (
        STARTED,
        EngineJson((answer[:9],), whole=True),
        EngineJson((answer[9:],), whole=True),
        DONE,
    )

    response = await edge.client.post("/v1/chat/completions", json=CHAT)

    assert response.content == answer


async def test_completions_and_embeddings(edge: Edge) -> None:
    edge.service.script = (STARTED, Text("b"), DONE)
    completion = await edge.client.post("/v1/completions", json={"model": "mock/org/echo", "prompt": "a"})
    edge.service.script = (STARTED, Embeddings(b"[[1.5,2]]"), DONE)
    embeddings = await edge.client.post("/v1/embeddings", json={"model": "mock/embed", "input": "a"})

    orders = [run.order for run in edge.service.scripted.values()]
    assert completion.json()["choices"][0]["text"] == "b"
    assert completion.json()["model"] == "mock/org/echo"
    assert embeddings.json()["data"] == [{"object": "embedding", "index": 0, "embedding": [1.5, 2]}]
    assert [(order.operation, order.target) for order in orders] == [
        (Operation.COMPLETION, "org/echo"),
        (Operation.EMBED, "embed"),
    ]


async def test_own_request_id_is_answered_unless_it_is_odd(edge: Edge) -> None:
    edge.service.script = (STARTED, DONE)

    good = await edge.client.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "abc-1"})
    odd = await edge.client.post("/v1/chat/completions", json=CHAT, headers=[(b"x-request-id", b"a b\xfc")])
    refused = await edge.client.post("/v1/chat/completions", json={}, headers={"x-request-id": "abc-2"})

    assert good.headers["x-request-id"] == "abc-1"
    assert odd.headers["x-request-id"] == odd.headers["x-iop-run-id"]
    assert refused.headers["x-request-id"] == "abc-2"


async def test_malformed_traceparent_is_ignored_and_session_refused(edge: Edge) -> None:
    edge.service.script = (STARTED, DONE)

    await edge.client.post("/v1/chat/completions", json=CHAT, headers={"traceparent": "yes"})
    refused = await edge.client.post("/v1/chat/completions", json=CHAT, headers={"x-iop-session": "s" * 129})

    assert edge.service.last_run.order.traceparent == ""
    assert refused.status_code == 400
    assert openai_error(refused) == {
        "message": f"session '{'s' * 40}' (129 characters) is not valid: use 1 to 128 printable characters",
        "type": "invalid_request_error",
        "param": "x-iop-session",
        "code": "invalid_value",
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (
            {"messages": CHAT["messages"]},
            400,
            {
                "message": "missing required parameter 'model': the name of a profile, or adapter/target",
                "type": "invalid_request_error",
                "param": "model",
                "code": "missing_required_parameter",
            },
        ),
        (
            {**CHAT, "model": "smal"},
            404,
            {
                "message": "unknown model 'smal': did you mean 'small'?",
                "type": "invalid_request_error",
                "param": "model",
                "code": "model_not_found",
            },
        ),
    ],
)
async def test_invalid_request_is_refused_in_openai_shape(
    edge: Edge, stream: bool, body: dict[str, Any], status: int, error: dict[str, Any]
) -> None:
    response = await edge.client.post("/v1/chat/completions", json={**body, "stream": stream})

    assert response.status_code == status
    assert openai_error(response) == error
    assert not edge.service.scripted


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "code", "type_", "headers"),
    [
        (NoRoute("no node offers it"), 503, "no_route", "server_error", {"retry-after": "5"}),
        (Busy("256 runs wait"), 429, "busy", "rate_limit_error", {"retry-after": "1"}),
        (
            Unavailable("the edge is stopping", code="edge_draining"),
            503,
            "edge_draining",
            "server_error",
            {"retry-after": "5"},
        ),
    ],
)
async def test_refused_run_is_answered_at_once(
    edge: Edge, stream: bool, refusal: Any, status: int, code: str, type_: str, headers: dict[str, str]
) -> None:
    edge.service.refusal = refusal

    response = await edge.client.post("/v1/chat/completions", json={**CHAT, "stream": stream})

    assert response.status_code == status
    assert openai_error(response) == {"message": str(refusal), "type": type_, "param": None, "code": code}
    assert headers.items() <= dict(response.headers).items()
    assert "x-should-retry" not in response.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("ending", "status", "code", "should_retry"),
    [
        (
            Failed("engine_unreachable", Layer.SERVING, "cannot connect", retryable=True),
            502,
            "engine_unreachable",
            None,
        ),
        (Failed("run_timeout_total", Layer.SERVING, "took too long"), 504, "run_timeout_total", "false"),
        (Failed("queue_timeout", Layer.EDGE, "no place", retryable=True), 503, "queue_timeout", None),
        (Failed("engine_rejected", Layer.TARGET, "no", engine_status=418), 418, "engine_rejected", None),
        (Cancelled("operator", True, 3), 409, "cancelled", "false"),
        (Interrupted("node_lost", "its link did not come back"), 502, "node_lost", None),
        (Gap(3, 9, "bound"), 502, "output_gap", None),
    ],
)
async def test_run_that_ends_before_output_has_its_status(
    edge: Edge, stream: bool, ending: Any, status: int, code: str, should_retry: str | None
) -> None:
    edge.service.script = (STARTED, Gap(2, 0, "no output is missing"), ending)

    response = await edge.client.post("/v1/chat/completions", json={**CHAT, "stream": stream})

    assert response.status_code == status
    assert openai_error(response)["code"] == code
    assert response.headers["x-iop-run-id"] == edge.service.last_run.run_id
    assert response.headers["x-iop-node"] == "gpu-1"
    assert response.headers.get("x-should-retry") == should_retry
    assert edge.service.last_run.cancel_reasons == (["output_gap"] if code == "output_gap" else [])


async def test_streamed_engine_json_for_a_whole_answer_is_our_bug(edge: Edge) -> None:
    edge.service.script = (STARTED, EngineJson((b"{}",)))

    response = await edge.client.post("/v1/chat/completions", json=CHAT)

    assert response.status_code == 500
    assert openai_error(response)["message"] == (
        "the adapter streamed its engine's JSON where one answer was asked for"
    )
    assert edge.service.last_run.cancel_reasons == ["internal"]


async def test_body_over_the_limit_is_refused_by_its_announced_length(edge: Edge) -> None:
    response = await edge.client.post("/v1/chat/completions", content=b"x" * 5000)

    assert response.status_code == 413
    assert openai_error(response) == {
        "message": (
            "request body of 5000 bytes is over the limit max_input_bytes=4096; "
            "send less, or raise [limits] max_input_bytes on the edge"
        ),
        "type": "invalid_request_error",
        "param": None,
        "code": "too_large",
    }


async def test_body_over_the_limit_is_refused_while_it_comes(edge: Edge) -> None:
    async def pieces() -> Any:
        for _ in range(3):
            yield b"x" * 3000
            await asyncio.sleep(0.02)

    response = await edge.client.post("/v1/chat/completions", content=pieces())

    assert response.status_code == 413
    assert openai_error(response)["message"] == (
        "request body of more than 6000 bytes is over the limit max_input_bytes=4096; "
        "send less, or raise [limits] max_input_bytes on the edge"
    )


async def test_body_that_pauses_is_refused(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iop_edge.surfaces.asgi.BODY_PAUSE_S", 0.05)
    reader, writer = await asyncio.open_connection(edge.address.host, edge.address.port)
    writer.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{")
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readuntil(b"}}")
    writer.close()
    await writer.wait_closed()

    assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert orjson.loads(body)["error"] == {
        "message": "the request's body paused for 0.05 s; send it without a break",
        "type": "invalid_request_error",
        "param": None,
        "code": "body_timeout",
    }


async def test_body_in_pieces_is_joined(edge: Edge) -> None:
    edge.service.script = (STARTED, Text("x"), DONE)
    whole = orjson.dumps(CHAT)

    async def pieces() -> Any:
        yield whole[:10]
        await asyncio.sleep(0.02)
        yield whole[10:]

    response = await edge.client.post("/v1/chat/completions", content=pieces())

    assert response.status_code == 200
    assert edge.service.last_run.order.input == whole


async def test_models_are_listed_and_found_by_ids_with_slashes(edge: Edge) -> None:
    listed = (await edge.client.get("/v1/models")).json()
    plain = await edge.client.get("/v1/models/mock/org/echo")
    quoted = await edge.client.get("/v1/models/mock%2Forg%2Fecho")
    unknown = await edge.client.get("/v1/models/mock/org/echoo")

    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["small", "mock/org/echo"]
    assert plain.json() == quoted.json() == listed["data"][1]
    assert {**plain.json(), "created": 0} == {
        "id": "mock/org/echo",
        "object": "model",
        "created": 0,
        "owned_by": "mock",
    }
    assert unknown.status_code == 404
    assert openai_error(unknown) == {
        "message": "unknown model 'mock/org/echoo': did you mean 'mock/org/echo'?",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


async def test_unknown_path_and_method(edge: Edge) -> None:
    path = await edge.client.post("/v1/chat/completion")
    method = await edge.client.get("/v1/chat/completions")
    far_off = await edge.client.post("/v1/audio/speech")

    assert openai_error(far_off)["message"] == (
        "there is no endpoint POST '/v1/audio/speech': known: /v1/chat/completions, /v1/completions, "
        "/v1/embeddings, /v1/models, /v1/models/{model...}"
    )
    assert path.status_code == 404
    assert openai_error(path) == {
        "message": "there is no endpoint POST '/v1/chat/completion': "
        "did you mean '/v1/chat/completions' or '/v1/completions'?",
        "type": "invalid_request_error",
        "param": None,
        "code": "unknown_url",
    }
    assert method.status_code == 405
    assert method.headers["allow"] == "POST"
    assert openai_error(method)["message"] == "'/v1/chat/completions' does not take GET: use POST"


async def test_web_page_may_not_drive_it(edge: Edge) -> None:
    rebound = await edge.client.post("/v1/chat/completions", json=CHAT, headers={"host": "evil.example:7480"})
    page = await edge.client.post("/v1/chat/completions", json=CHAT, headers={"origin": "https://evil.example"})

    assert (rebound.status_code, openai_error(rebound)["code"]) == (403, "host_not_allowed")
    assert (page.status_code, openai_error(page)["code"]) == (403, "origin_not_allowed")
    assert not edge.service.scripted


async def test_bug_is_a_plain_500(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: str) -> Any:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(edge.service, "resolve_model", broken)
    response = await edge.client.post("/v1/chat/completions", json=CHAT)

    assert response.status_code == 500
    assert openai_error(response) == {
        "message": "the edge failed to answer this request; its log says more",
        "type": "server_error",
        "param": None,
        "code": "internal",
    }


async def test_requests_are_counted(edge: Edge) -> None:
    edge.service.script = (STARTED, DONE)
    await edge.client.post("/v1/chat/completions", json=CHAT)
    await edge.client.get("/v1/nothing")

    page = edge.metrics.render()[0].decode()
    assert 'iop_edge_http_requests_total{method="POST",route="/v1/chat/completions",status="200"} 1.0' in page
    assert 'iop_edge_http_requests_total{method="other",route="none",status="404"} 1.0' in page
    assert "iop_edge_http_requests_in_flight 0.0" in page
