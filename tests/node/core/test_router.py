"""Which adapter executes a request, or why none does: each refusal with its full sentence."""

from dataclasses import replace

import pytest

from iop_node.core.router import AdapterOffer, Refusal, resolve
from iop_node.core.spec import Capabilities, ExecutionSpec
from iop_shared.ids import AdapterName, RunId, SessionId, TargetName
from iop_shared.link.messages import Gate, GateState
from iop_shared.runs import Operation, RunLimits, RunRequest

RUN = RunId("0190b5a4-0000-7000-8000-000000000001")
REQUEST = RunRequest(
    RUN,
    AdapterName("local"),
    TargetName("qwen3:8b"),
    Operation.CHAT,
    b"{}",
    attempt=2,
    limits=RunLimits(total_timeout_s=5),
    session=SessionId("s"),
    engine_json=True,
    stream=False,
    requested_model="small",
    options={"temperature": 0},
)
OPEN = Gate(GateState.OPEN)


def offer(**changes: object) -> dict[AdapterName, AdapterOffer]:
    base = AdapterOffer(
        AdapterName("local"),
        "vllm",
        Capabilities((Operation.CHAT, Operation.EMBED)),
        OPEN,
        (TargetName("qwen3:8b"), TargetName("gemma3")),
    )
    return {AdapterName("local"): replace(base, **changes)}  # type: ignore[arg-type]


def test_a_known_target_resolves_to_all_that_an_adapter_needs() -> None:
    assert resolve(REQUEST, offer()) == ExecutionSpec(
        RUN,
        AdapterName("local"),
        TargetName("qwen3:8b"),
        Operation.CHAT,
        b"{}",
        limits=RunLimits(total_timeout_s=5),
        session=SessionId("s"),
        engine_json=True,
        stream=False,
        requested_model="small",
        options={"temperature": 0},
    )


@pytest.mark.parametrize(
    ("change", "adapters", "code", "message"),
    [
        (
            {"adapter": "locl"},
            offer(),
            "unknown_adapter",
            "unknown adapter 'locl': did you mean 'local'?",
        ),
        ({}, {}, "unknown_adapter", "unknown adapter 'local': none is known"),
        (
            {"target": "qwen3:8"},
            offer(),
            "unknown_target",
            "adapter 'local' has no target 'qwen3:8': did you mean 'qwen3:8b'?",
        ),
        (
            {"operation": Operation.EXEC},
            offer(),
            "operation_unsupported",
            "adapter 'local' (vllm) does not support operation 'exec': it supports chat, embed",
        ),
        (
            {},
            offer(gate=Gate(GateState.CLOSED, "engine_reachable", "connection refused")),
            "gate_closed",
            "adapter 'local' takes no work now: engine_reachable: connection refused",
        ),
        (
            {"run_id": "42"},
            offer(),
            "bad_input",
            "run id '42' is not a UUIDv7 in its 36-character form",
        ),
        (
            {"attempt": 0},
            offer(),
            "bad_input",
            f"attempt 0 of run {RUN} is not valid: attempts count from 1",
        ),
        (
            {"target": "a\nb"},
            offer(),
            "bad_input",
            "target 'a\\nb' (3 characters) is not valid: use 1 to 256 printable characters",
        ),
        (
            {"limits": RunLimits(idle_timeout_s=-1)},
            offer(),
            "bad_input",
            "limit idle_timeout_s is -1; use 0 (the adapter's default) or more",
        ),
        (
            {"limits": RunLimits(total_timeout_s=float("nan"))},
            offer(),
            "bad_input",
            "limit total_timeout_s is nan; use 0 (the adapter's default) or more",
        ),
    ],
)
def test_each_refusal_says_why(
    change: dict[str, object], adapters: dict[AdapterName, AdapterOffer], code: str, message: str
) -> None:
    refused = resolve(replace(REQUEST, **change), adapters)  # type: ignore[arg-type]

    assert isinstance(refused, Refusal)
    assert (refused.code, refused.message) == (code, message)


def test_a_closed_gate_travels_with_the_refusal() -> None:
    gate = Gate(GateState.CLOSED, "engine_reachable", "connection refused")

    refused = resolve(REQUEST, offer(gate=gate))

    assert isinstance(refused, Refusal)
    assert refused.gate == gate


@pytest.mark.parametrize(
    "changes",
    [{"targets": None}, {"targets": (), "capabilities": Capabilities((Operation.CHAT,), any_target=True)}],
    ids=["nobody has asked the engine yet", "any target"],
)
def test_a_target_that_is_not_listed_passes_where_the_list_says_nothing(changes: dict[str, object]) -> None:
    assert isinstance(resolve(REQUEST, offer(**changes)), ExecutionSpec)


def test_an_unknown_gate_lets_work_through() -> None:
    assert isinstance(resolve(REQUEST, offer(gate=Gate(GateState.UNKNOWN))), ExecutionSpec)
