"""The registry: names, epochs, duplicates, and what nodes say of themselves."""

import pytest

from iop_edge.domain.effects import LinkKey
from iop_edge.domain.registry import Newcomer, NodeRegistry
from iop_shared.errors import UnknownName
from iop_shared.ids import AdapterName, BootId, Epoch, NodeId, TargetName
from iop_shared.link.messages import (
    AdapterStatus,
    CapabilitiesChanged,
    ConfigResult,
    DrainingChanged,
    Gate,
    GateChanged,
    GateState,
)
from iop_shared.node_config import make_node_config
from iop_shared.runs import Operation

GPU1 = NodeId("gpu-1")
BOOT, OTHER_BOOT = BootId("a" * 32), BootId("b" * 32)
FIRST, SECOND = LinkKey(GPU1, Epoch(5)), LinkKey(GPU1, Epoch(6))
MOCK = AdapterStatus(
    AdapterName("mock"), "mock", Gate(GateState.OPEN), 4, (Operation.CHAT,), (TargetName("echo"),)
)
WANTED = make_node_config(3, [])


def connect(registry: NodeRegistry, key: LinkKey = FIRST, boot_id: BootId = BOOT) -> bool:
    return registry.connect(
        key,
        boot_id=boot_id,
        software_version="0.1.0",
        address="127.0.0.1:5000",
        labels={"gpu": "h200", "site": "own"},
        wanted=WANTED,
        at_ms=1000,
    )


def state(registry: NodeRegistry) -> str:
    return registry.view(GPU1, in_flight={}, last_heard_s=None, round_trip_s=None).state


def test_a_node_of_the_configuration_is_known_before_it_connects() -> None:
    registry = NodeRegistry()
    registry.declare(GPU1, {"site": "lab"})

    view = registry.view(GPU1, in_flight={}, last_heard_s=None, round_trip_s=None)

    assert (view.state, view.epoch, view.labels) == ("lost", 0, {"site": "lab"})
    assert [c.is_connected for c in registry.candidates()] == [False]


def test_labels_of_the_configuration_win_over_the_nodes_own() -> None:
    registry = NodeRegistry()
    registry.declare(GPU1, {"site": "lab"})
    connect(registry)

    assert registry.get(GPU1).labels == {"gpu": "h200", "site": "lab"}


def test_connecting_again_tells_whether_it_is_the_same_process() -> None:
    registry = NodeRegistry()
    assert connect(registry) is False
    registry.disconnect(FIRST)

    assert connect(registry, SECOND) is True
    registry.disconnect(SECOND)
    assert connect(registry, LinkKey(GPU1, Epoch(7)), OTHER_BOOT) is False


@pytest.mark.parametrize(
    ("boot_id", "heard_ago_s", "verdict"),
    [
        (BOOT, 0.1, Newcomer.REPLACES),
        (OTHER_BOOT, 0.1, Newcomer.DUPLICATE),
        (OTHER_BOOT, 29.9, Newcomer.DUPLICATE),
        (OTHER_BOOT, 30.1, Newcomer.REPLACES),
        (OTHER_BOOT, None, Newcomer.WELCOME),
    ],
)
def test_who_may_have_a_name_that_is_taken(boot_id: BootId, heard_ago_s: float | None, verdict: Newcomer) -> None:
    registry = NodeRegistry()
    connect(registry)

    assert registry.judge(GPU1, boot_id, heard_ago_s, silent_after_s=30.0) is verdict


def test_a_free_name_is_anybodys() -> None:
    registry = NodeRegistry()
    assert registry.judge(GPU1, BOOT, None, 30.0) is Newcomer.WELCOME
    connect(registry)
    registry.disconnect(FIRST)

    assert registry.judge(GPU1, OTHER_BOOT, 0.0, 30.0) is Newcomer.WELCOME


def test_an_old_epoch_changes_nothing_and_is_counted() -> None:
    registry = NodeRegistry()
    connect(registry)
    registry.disconnect(FIRST)
    connect(registry, SECOND)

    assert registry.is_current(FIRST) is False
    assert registry.disconnect(FIRST) is False
    assert registry.is_current(SECOND) is True
    assert registry.stale_frames == 2
    assert state(registry) == "connected"


def test_an_epoch_that_does_not_grow_is_our_bug() -> None:
    registry = NodeRegistry()
    connect(registry, SECOND)

    with pytest.raises(AssertionError, match="epoch 5 of gpu-1 does not grow"):
        connect(registry, FIRST)


def test_configuration_goes_from_pending_to_the_answer_about_the_wanted_one() -> None:
    registry = NodeRegistry()
    connect(registry)
    assert registry.candidates()[0].config_state == "pending"

    assert not registry.take_config_result(FIRST, ConfigResult(2, "old", True))
    assert registry.candidates()[0].config_state == "pending"
    assert registry.take_config_result(FIRST, ConfigResult(3, WANTED.hash, False, ("no such adapter",)))
    assert state(registry) == "rejected_config"
    assert registry.get(GPU1).config_reasons == ("no such adapter",)
    registry.want(GPU1, make_node_config(4, []))
    assert registry.candidates()[0].config_state == "pending"
    assert registry.take_config_result(FIRST, ConfigResult(4, WANTED.hash, True))
    assert state(registry) == "connected"


def test_capabilities_gates_and_draining_reach_routing() -> None:
    registry = NodeRegistry()
    connect(registry)

    registry.take_capabilities(FIRST, CapabilitiesChanged((MOCK,)))
    assert registry.take_gate(FIRST, GateChanged(MOCK.name, Gate(GateState.CLOSED, "c", "why")))
    assert not registry.take_gate(FIRST, GateChanged(AdapterName("nope"), Gate(GateState.OPEN)))
    registry.take_draining(FIRST, DrainingChanged(True, "upgrade"))

    candidate = registry.candidates()[0]
    assert candidate.adapters[MOCK.name].gate == Gate(GateState.CLOSED, "c", "why")
    assert candidate.is_draining
    assert state(registry) == "draining"


def test_a_new_link_starts_without_what_the_old_one_said() -> None:
    registry = NodeRegistry()
    connect(registry)
    registry.take_capabilities(FIRST, CapabilitiesChanged((MOCK,)))
    registry.take_draining(FIRST, DrainingChanged(True))
    registry.disconnect(FIRST)
    assert state(registry) == "lost"

    connect(registry, SECOND)

    candidate = registry.candidates()[0]
    assert (candidate.adapters, candidate.is_draining, candidate.config_state) == ({}, False, "pending")


def test_an_unknown_node_is_told_the_nearest_ids() -> None:
    registry = NodeRegistry()
    registry.declare(GPU1, {})

    with pytest.raises(UnknownName) as unknown:
        registry.get(NodeId("gpu-2"))

    assert str(unknown.value) == "unknown node 'gpu-2': did you mean 'gpu-1'?"
    assert unknown.value.code == "unknown_node"
