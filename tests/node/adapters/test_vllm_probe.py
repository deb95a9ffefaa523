"""Probing an engine: gate, targets and flavour, never a completion."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support import captures
from tests.support.engine import Answer, Engine, plain
from tests.support.recording_sink import RecordingSink

from iop_node.adapters import vllm
from iop_node.core.ports import ProbeResult
from iop_node.core.spec import ExecutionSpec
from iop_shared.ids import AdapterName, TargetName, new_run_id
from iop_shared.link.messages import Gate, GateState
from iop_shared.runs import Operation

pytestmark = pytest.mark.both_loops


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine() as running:
        yield running


async def probe(engine: Engine, times: int = 1, **settings: Any) -> ProbeResult:
    """Probes with a fresh adapter and returns the last result."""
    adapter = vllm.build(AdapterName("local"), 1, {"base_url": engine.base_url, **settings})
    try:
        for _ in range(times - 1):
            await adapter.probe()
        return await adapter.probe()
    finally:
        await adapter.aclose()
        assert not engine.posts


def models(*names: str, owner: str = "vllm") -> Answer:
    """Returns a list of models."""
    return plain({"object": "list", "data": [{"id": name, "owned_by": owner} for name in names]})


def of_capture(name: str, **more: Any) -> Answer:
    """Returns a captured answer."""
    capture = captures.load(name)
    return plain(capture.body, capture.status, **more)


async def test_a_vllm_that_is_ready(engine: Engine) -> None:
    engine.routes["/v1/models"] = of_capture("vllm/v1_models.http")
    engine.routes["/version"] = of_capture("vllm/version.http")

    result = await probe(engine)

    assert result == ProbeResult(
        Gate(GateState.OPEN, "engine_models", "targets: 1"), (TargetName("smollm2-135m"),), "vLLM 0.32.0"
    )
    assert [request.path for request in engine.requests] == ["/health", "/v1/models", "/version"]


async def test_the_version_is_asked_for_once(engine: Engine) -> None:
    await probe(engine, times=3)

    assert [request.path for request in engine.requests].count("/version") == 1


async def test_a_llama_cpp_that_is_ready(engine: Engine) -> None:
    server = {"server": "llama.cpp"}
    engine.routes["/health"] = of_capture("llama-server/health.http", headers=server)
    engine.routes["/v1/models"] = of_capture("llama-server/v1_models.http", headers=server)
    engine.routes["/props"] = plain({"build_info": "b11434-1a2b3c4"})

    assert (await probe(engine)).engine == "llama.cpp b11434-1a2b3c4"
    engine.routes["/props"] = plain({"build_info": "b0-unknown"})
    assert (await probe(engine)).engine == "llama.cpp"
    engine.routes["/props"] = plain({"error": "Unauthorized"}, 401)
    assert (await probe(engine)).engine == "llama.cpp"


async def test_an_engine_of_a_flavour_that_we_do_not_know(engine: Engine) -> None:
    engine.routes = {"/v1/models": models("a", "b", owner="library")}

    result = await probe(engine)

    assert (result.gate.state, result.targets, result.engine) == (GateState.OPEN, ("a", "b"), "")


async def test_an_ollama_without_a_model_is_open_and_offers_nothing(engine: Engine) -> None:
    engine.routes = {"/v1/models": plain(b'{"object":"list","data":null}\n')}

    result = await probe(engine)

    assert result == ProbeResult(Gate(GateState.OPEN, "engine_models", "targets: 0"), (), "")


async def test_loading_closes_the_gate_though_the_models_are_listed(engine: Engine) -> None:
    engine.routes["/health"] = of_capture("llama-server/health_loading.http")

    result = await probe(engine)

    assert result.gate == Gate(
        GateState.CLOSED,
        "engine_ready",
        f"engine at {engine.base_url} answered 503: Loading model; try again when the model is loaded",
    )
    assert result.targets == ()


async def test_a_wrong_key_closes_the_gate(engine: Engine) -> None:
    engine.routes["/v1/models"] = of_capture("vllm/err_bad_key.http")

    result = await probe(engine)

    assert result.gate == Gate(
        GateState.CLOSED,
        "engine_key",
        f"engine at {engine.base_url} answered 401: Unauthorized; "
        "set api_key or api_key_file of the adapter to the engine's key",
    )


async def test_an_engine_that_is_down_and_comes_back_is_asked_who_it_is(engine: Engine) -> None:
    adapter = vllm.build(AdapterName("local"), 1, {"base_url": engine.base_url})
    assert (await adapter.probe()).engine == "vLLM 0.32.0"

    engine.routes["/health"] = Answer(raw=True)
    down = await adapter.probe()
    engine.routes["/health"] = plain(b"")
    engine.routes["/version"] = plain({"version": "0.33.0"})
    back = await adapter.probe()
    await adapter.aclose()

    assert (down.gate.state, down.gate.check, down.engine) == (GateState.CLOSED, "engine_reachable", "")
    assert back.engine == "vLLM 0.33.0"


async def test_nothing_listens() -> None:
    async with Engine() as gone:
        base_url = gone.base_url
    adapter = vllm.build(AdapterName("local"), 1, {"base_url": base_url})

    result = await adapter.probe()
    await adapter.aclose()

    assert result.gate == Gate(
        GateState.CLOSED,
        "engine_reachable",
        f"cannot reach engine at {base_url}: connection refused; "
        "start the engine, or correct base_url of adapter 'local'",
    )


async def test_an_engine_that_does_not_answer_in_time(engine: Engine) -> None:
    engine.routes["/v1/models"] = Answer(head_delay_s=60)

    result = await probe(engine, probe_timeout_s=0.05)

    assert result.gate == Gate(
        GateState.CLOSED,
        "engine_reachable",
        f"engine at {engine.base_url} did not answer within probe_timeout_s=0.05",
    )
    await engine.wait_left_early()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"data":{}}', b'{"models":[]}'])
async def test_something_that_lists_no_models(engine: Engine, body: bytes) -> None:
    engine.routes["/v1/models"] = plain(body)

    result = await probe(engine)

    assert result.gate == Gate(
        GateState.CLOSED,
        "engine_models",
        f"engine at {engine.base_url} answered /v1/models with something that is no list of models; "
        "check that base_url of the adapter leads to an OpenAI-compatible engine",
    )


async def test_targets_are_filtered_and_aliases_added(engine: Engine) -> None:
    engine.routes["/v1/models"] = models("org/big", "org/small", "bad\nname", "")
    aliases = {"small": "org/small", "gone": "org/gone"}

    everything = await probe(engine, aliases=aliases)
    chosen = await probe(engine, aliases=aliases, targets=["org/big", "org/gone"])

    assert everything.targets == ("org/big", "org/small", "small")
    assert chosen.targets == ("org/big", "small")


async def test_a_run_names_the_engine_that_the_probe_found(engine: Engine) -> None:
    adapter = vllm.build(AdapterName("local"), 1, {"base_url": engine.base_url, "health_path": ""})
    spec = ExecutionSpec(
        new_run_id(), AdapterName("local"), TargetName("tiny-model"), Operation.CHAT, b'{"messages":[]}'
    )
    before, after = RecordingSink(), RecordingSink()

    await adapter.execute(spec, before)
    await adapter.probe()
    await adapter.execute(spec, after)
    await adapter.aclose()

    assert (before.engine, after.engine) == ("", "vLLM 0.32.0")
    assert "/health" not in [request.path for request in engine.requests]
