"""A real edge, a real node and an engine that misbehaves: what a client of /v1 and the record say of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.daemons import EdgeDaemon, NodeDaemon
from tests.support.engine import DONE, MODEL, Answer, Cut, Engine, Hang, chat_events, chunk, event, plain, stream

pytestmark = pytest.mark.e2e

ADAPTER = """
[adapters.vllm]
type = "vllm"
base_url = "{base_url}"

[profiles.hasty]
adapter = "vllm"
target = "tiny-model"
limits = {{ first_byte_timeout_s = 0.3, idle_timeout_s = 0.3 }}

[profiles.gone]
adapter = "vllm"
target = "another-model"
"""
HALF = chat_events("Hel", "lo", finish=None, usage=False, done=False)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine() as running:
        yield running


@pytest.fixture
async def edge(engine: Engine, tmp_path: Path) -> AsyncIterator[EdgeDaemon]:
    config = ADAPTER.format(base_url=engine.base_url)
    edge = await asyncio.to_thread(EdgeDaemon, tmp_path / "edge", config=config)
    node: NodeDaemon | None = None
    try:
        await asyncio.to_thread(edge.start)
        node = await asyncio.to_thread(
            lambda: NodeDaemon(
                tmp_path / "gpu-1", name="gpu-1", link=edge.run_file["link"], token=edge.first_token
            )
        )
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(edge.wait_connected, "gpu-1")
        yield edge
    finally:
        for daemon in (node, edge):
            if daemon is not None:
                daemon.end()


async def ask(edge: EdgeDaemon, *, streamed: bool = False, model: str = f"vllm/{MODEL}") -> httpx.Response:
    """Asks once over /v1 and returns the whole answer."""
    body = {"model": model, "stream": streamed, "messages": [{"role": "user", "content": "hi"}]}
    async with httpx.AsyncClient() as client:
        return await client.post(edge.url + "/v1/chat/completions", json=body, timeout=20)


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    """Status, code and sentence of an answer that is an error."""
    error: dict[str, Any] = response.json()["error"]
    return response.status_code, error["code"], error["message"]


def engine_error(message: str, status: int, code: object = None) -> Answer:
    return plain({"error": {"message": message, "type": "x", "code": code or status}}, status)


FAULTS: list[tuple[str, Answer, int, str, str]] = [
    (
        "400",
        engine_error("temperature must be non-negative", 400),
        400,
        "engine_rejected",
        "temperature must be non-negative",
    ),
    ("404", engine_error("The model does not exist.", 404), 404, "model_not_found", "The model does not exist."),
    (
        "401",
        engine_error("Unauthorized", 401),
        502,
        "engine_auth_failed",
        "{engine} answered 401: Unauthorized; set api_key or api_key_file of the adapter to the engine's key",
    ),
    (
        "429",
        engine_error("too many requests", 429),
        429,
        "engine_overloaded",
        "{engine} answered 429: too many requests; try again later",
    ),
    (
        "500",
        engine_error("boom", 500),
        502,
        "engine_error",
        "{engine} answered 500: boom; look into the engine's log",
    ),
    (
        "503",
        engine_error("Loading model", 503),
        503,
        "engine_loading",
        "{engine} answered 503: Loading model; try again when the model is loaded",
    ),
    (
        "HTML",
        plain(b"<html></html>", content_type="text/html"),
        502,
        "engine_bad_response",
        "{engine} answered a request for a stream with content type 'text/html'; check that base_url of the "
        "adapter leads to an OpenAI-compatible engine",
    ),
]
BREAKS: list[tuple[str, Answer, str, str]] = [
    (
        "ended early",
        stream(HALF),
        "engine_stream_truncated",
        "{engine} ended its stream after 3 events without [DONE] and a finish_reason; the answer is incomplete, "
        "look into the engine's log",
    ),
    (
        "cut",
        stream([*HALF, Cut()]),
        "engine_stream_truncated",
        "{engine} broke the connection after 3 events, in the middle of its answer; the answer is incomplete, "
        "look into the engine's log",
    ),
    (
        "broken JSON",
        stream([chunk({"content": "Hel"}), b"data: {not json\n\n", DONE]),
        "engine_bad_response",
        "{engine} sent an event that is no completion chunk (event 2, 9 bytes); check that base_url of the "
        "adapter leads to an OpenAI-compatible engine",
    ),
    (
        "error in mid-stream",
        stream([chunk({"content": "Hel"}), event({"error": {"message": "out of memory", "code": 500}}), DONE]),
        "engine_error_mid_stream",
        "{engine} reported an error after 1 events of its stream: out of memory; look into the engine's log",
    ),
]


async def test_each_fault_of_an_engine_has_its_status_code_and_sentence(edge: EdgeDaemon, engine: Engine) -> None:
    name = f"vLLM 0.32.0 at {engine.base_url}"
    for what, answer, status, code, message in FAULTS:
        for streamed in (False, True):
            engine.script(answer)
            response = await ask(edge, streamed=streamed)

            assert error_of(response) == (status, code, message.format(engine=name)), (what, streamed)


async def test_each_break_of_a_stream_is_told_and_is_no_complete_answer(edge: EdgeDaemon, engine: Engine) -> None:
    name = f"vLLM 0.32.0 at {engine.base_url}"
    for what, answer, code, message in BREAKS:
        engine.script(answer, answer)
        whole = await ask(edge)
        streamed = await ask(edge, streamed=True)

        assert error_of(whole) == (502, code, message.format(engine=name)), what
        assert streamed.status_code == 200, what
        assert "data: [DONE]" not in streamed.text, what
        assert "Hel" in streamed.text, what
        told = httpx.Response(502, content=streamed.text.rstrip().rpartition("data: ")[2])
        assert error_of(told) == error_of(whole), what
        record = await asyncio.to_thread(edge.wait_state, streamed.headers["x-iop-run-id"], "failed")
        assert (record["layer"], record["message"]) == ("serving", message.format(engine=name)), what


async def test_a_slow_engine_runs_into_the_limits_of_the_profile(edge: EdgeDaemon, engine: Engine) -> None:
    name = f"vLLM 0.32.0 at {engine.base_url}"
    engine.script(stream([Hang()]), stream([*HALF, Hang()]))

    silent, stuck = [await ask(edge, model="hasty") for _ in range(2)]

    assert error_of(silent) == (
        504,
        "engine_timeout_first_byte",
        f"{name} produced nothing within first_byte_timeout_s=0.3: it may be overloaded or still reading a long "
        "prompt; try again later or raise the limit",
    )
    assert error_of(stuck) == (
        504,
        "engine_timeout_idle",
        f"{name} fell silent for idle_timeout_s=0.3 in the middle of its answer; look into the engine's log or "
        "raise the limit",
    )
    await engine.wait(lambda: len(engine.left_early) == 2)


async def test_an_engine_that_is_down_and_a_target_that_is_not_there(edge: EdgeDaemon, engine: Engine) -> None:
    gone = await ask(edge, model="gone")
    misspelt = await ask(edge, model="vllm/tiny-modle")
    name = f"vLLM 0.32.0 at {engine.base_url}"
    engine.close_now()
    down = await ask(edge)

    assert error_of(gone) == (
        503,
        "no_route",
        "no node can take adapter=vllm target=another-model: gpu-1 lacks the target another-model",
    )
    assert error_of(misspelt) == (
        404,
        "model_not_found",
        "unknown target 'tiny-modle': did you mean 'tiny-model' or 'another-model'?",
    )
    assert error_of(down) == (
        502,
        "engine_unreachable",
        f"cannot reach {name}: connection refused; start the engine, or correct base_url of adapter 'vllm'",
    )
