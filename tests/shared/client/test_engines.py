"""What is taken for an engine, and what is not."""

import socket
from typing import Any

import pytest
from tests.support.scripted_edge import Answer, ScriptedEdge, answer_json

from iop_shared.client.engines import MAX_ANSWER_BYTES, Engine, find_engines, probe_engine


def models(*ids: str, owner: str = "") -> Answer:
    return answer_json({"object": "list", "data": [{"id": name, "owned_by": owner} for name in ids]})


@pytest.mark.parametrize(
    ("owner", "kind"), [("vllm", "vllm"), ("llamacpp", "llamacpp"), ("library", "ollama"), ("me", "engine")]
)
def test_an_engine_is_named_by_what_it_says(edge: ScriptedEdge, owner: str, kind: str) -> None:
    edge.on("GET", "/v1/models", models("a", "org/b:c", owner=owner))

    assert probe_engine(edge.url) == Engine(kind, edge.url, ("a", "org/b:c"))
    assert [(asked.method, asked.path) for asked in edge.asked] == [("GET", "/v1/models")]


@pytest.mark.parametrize("data", [[], None])
def test_an_engine_without_models_is_one(edge: ScriptedEdge, data: Any) -> None:
    edge.on("GET", "/v1/models", answer_json({"object": "list", "data": data}))

    assert probe_engine(edge.url) == Engine("engine", edge.url, ())


@pytest.mark.parametrize(
    "answer",
    [
        Answer([b"<html>"], content_type="text/html"),
        answer_json({"data": "x"}),
        answer_json({"data": [{"name": "x"}]}),
        answer_json({"data": [1]}),
        answer_json([]),
        answer_json({"object": "list", "data": [{"id": "x"}]}, status=401),
        Answer([b'{"data": [', b" " * MAX_ANSWER_BYTES, b" ]}"]),
        Answer([b'{"data": ['], cut=True),
        models("mock/echo", owner="iop"),  # an IOP edge: it would offer itself to itself
    ],
)
def test_something_else_on_the_port_is_no_engine(edge: ScriptedEdge, answer: Answer) -> None:
    edge.on("GET", "/v1/models", answer)

    assert probe_engine(edge.url) is None


def test_a_port_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert probe_engine(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1) is None


def test_ports_are_asked_at_once_and_skipped_ones_not_at_all(edge: ScriptedEdge) -> None:
    edge.on("GET", "/v1/models", models("a", owner="vllm"))
    port = int(edge.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_port = silent.getsockname()[1]

        assert find_engines((silent_port, port), timeout_s=0.2) == [Engine("vllm", edge.url, ("a",))]
    assert find_engines((port,), skip={port}) == []
