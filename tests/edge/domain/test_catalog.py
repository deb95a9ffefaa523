"""The catalog: what a model's name stands for, what is listed, and what is unknown."""

from dataclasses import replace

import pytest

from iop_edge.domain.catalog import Catalog, Profile
from iop_edge.domain.routing import Candidate
from iop_edge.domain.views import ModelView, ResolvedModel, RunOrder
from iop_shared.errors import InvalidName, UnknownName
from iop_shared.ids import AdapterName, NodeId, ProfileName, TargetName
from iop_shared.link.messages import AdapterStatus, Gate, GateState
from iop_shared.runs import Operation, RunLimits

VLLM, MOCK = AdapterName("vllm"), AdapterName("mock")
QWEN, ECHO = TargetName("Qwen/Qwen3-8B"), TargetName("echo")
SMALL = Profile(
    ProfileName("small"),
    VLLM,
    QWEN,
    3,
    {"temperature": 0.2},
    RunLimits(idle_timeout_s=9.0),
    {"site": "lab"},
)


def offering(node: str, adapter: AdapterName, *targets: TargetName, gate: GateState = GateState.OPEN) -> Candidate:
    status = AdapterStatus(adapter, "x", Gate(gate), 4, (Operation.CHAT,), targets)
    return Candidate(NodeId(node), True, labels={"site": "lab"}, adapters={adapter: status})


NODES = [offering("gpu-2", VLLM, QWEN), offering("gpu-1", VLLM, QWEN), offering("cpu", MOCK, ECHO)]
CATALOG = Catalog([SMALL], [VLLM, MOCK])
ORDER = RunOrder(VLLM, QWEN, Operation.CHAT, b"{}")


def test_a_profile_brings_its_options_limits_and_labels() -> None:
    assert CATALOG.resolve("small", NODES) == ResolvedModel(
        "small",
        VLLM,
        QWEN,
        ProfileName("small"),
        {"temperature": 0.2},
        RunLimits(idle_timeout_s=9.0),
        {"site": "lab"},
    )


def test_a_direct_name_is_split_at_the_first_slash() -> None:
    assert CATALOG.resolve("vllm/Qwen/Qwen3-8B", NODES) == ResolvedModel("vllm/Qwen/Qwen3-8B", VLLM, QWEN)
    assert CATALOG.resolve("mock/anything", []).target == "anything"


def test_an_unknown_model_is_told_the_nearest_names() -> None:
    with pytest.raises(UnknownName) as unknown:
        CATALOG.resolve("smal", NODES)

    assert str(unknown.value) == "unknown model 'smal': did you mean 'small'?"
    assert (unknown.value.code, unknown.value.param) == ("unknown_model", "model")
    with pytest.raises(UnknownName):
        CATALOG.resolve("vllm/", NODES)
    with pytest.raises(UnknownName):
        CATALOG.resolve("olama/echo", NODES)
    with pytest.raises(InvalidName):
        CATALOG.resolve("mock/a\nb", NODES)


def test_models_are_profiles_then_what_connected_nodes_offer() -> None:
    models = CATALOG.models([*NODES, replace(offering("off", MOCK, ECHO), is_connected=False)])

    assert models == [
        ModelView("small", VLLM, QWEN, (NodeId("gpu-1"), NodeId("gpu-2")), True),
        ModelView("mock/echo", MOCK, ECHO, (NodeId("cpu"),), False),
        ModelView("vllm/Qwen/Qwen3-8B", VLLM, QWEN, (NodeId("gpu-1"), NodeId("gpu-2")), False),
    ]


def test_a_closed_gate_offers_nothing_but_the_profile_stays_listed() -> None:
    models = CATALOG.models([offering("gpu-1", VLLM, QWEN, gate=GateState.CLOSED)])

    assert models == [ModelView("small", VLLM, QWEN, (), True)]


def test_an_adapter_that_nobody_has_heard_of_is_unknown() -> None:
    with pytest.raises(UnknownName) as unknown:
        CATALOG.check_known(replace(ORDER, adapter=AdapterName("vlm")), NODES)

    assert str(unknown.value) == "unknown adapter 'vlm': did you mean 'vllm'?"


def test_a_target_that_nobody_offers_is_unknown_only_while_somebody_could_tell() -> None:
    order = replace(ORDER, target=TargetName("Qwen/Qwen3-9B"))

    with pytest.raises(UnknownName) as unknown:
        CATALOG.check_known(order, NODES)

    assert str(unknown.value) == "unknown target 'Qwen/Qwen3-9B': did you mean 'Qwen/Qwen3-8B'?"
    CATALOG.check_known(order, [])  # nobody is connected
    CATALOG.check_known(order, [offering("gpu-1", VLLM, gate=GateState.CLOSED)])  # its engine is away
    CATALOG.check_known(ORDER, [offering("gpu-1", VLLM)])  # a profile names it
