"""Routing: each reason in full, preferences, and that it has an answer for anything."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.domain.routing import Candidate, Need, choose_node, explain
from iop_edge.domain.views import Refusal
from iop_shared.ids import AdapterName, NodeId, TargetName
from iop_shared.link.messages import AdapterStatus, Gate, GateState
from iop_shared.runs import Operation

VLLM = AdapterName("vllm")
QWEN = TargetName("qwen3:8b")
NEED = Need(VLLM, QWEN, Operation.CHAT)


def status(**changes: object) -> AdapterStatus:
    base = AdapterStatus(VLLM, "vllm", Gate(GateState.OPEN), 4, (Operation.CHAT,), (QWEN,))
    return replace(base, **changes)  # type: ignore[arg-type]


def candidate(name: str = "gpu-1", *, adapter: AdapterStatus | None = None, **changes: object) -> Candidate:
    offered = adapter or status()
    base = Candidate(NodeId(name), True, labels={"site": "lab"}, adapters={offered.name: offered})
    return replace(base, **changes)  # type: ignore[arg-type]


def choose(candidates: list[Candidate], need: Need = NEED, in_flight: dict[str, int] | None = None):  # type: ignore[no-untyped-def]
    running = in_flight or {}
    return choose_node(candidates, need, lambda node_id, _: running.get(node_id, 0), Random(1))


@pytest.mark.parametrize(
    ("lost", "need", "code", "message"),
    [
        (candidate(is_connected=False), NEED, "not_connected", "is not connected"),
        (candidate(is_draining=True), NEED, "draining", "is draining"),
        (
            candidate(config_state="pending"),
            NEED,
            "config_pending",
            "has not applied its configuration yet",
        ),
        (
            candidate(config_state="rejected", adapters={}),
            NEED,
            "config_rejected",
            "lacks the adapter vllm and has rejected its configuration",
        ),
        (candidate(adapters={}), NEED, "adapter_missing", "lacks the adapter vllm"),
        (
            candidate(adapter=status(targets=(TargetName("llama"),))),
            NEED,
            "target_missing",
            "lacks the target qwen3:8b",
        ),
        (
            candidate(adapter=status(operations=(Operation.EMBED, Operation.COMPLETION))),
            NEED,
            "operation_unsupported",
            "cannot chat with vllm (it offers embed, completion)",
        ),
        (
            candidate(adapter=status(gate=Gate(GateState.CLOSED, "serving.health", "connection refused"))),
            NEED,
            "gate_closed",
            "has the gate of vllm closed by check serving.health: connection refused",
        ),
        (
            candidate(adapter=status(gate=Gate(GateState.UNKNOWN))),
            NEED,
            "gate_closed",
            "has the gate of vllm unknown: no reason given",
        ),
        (
            candidate(),
            replace(NEED, labels={"site": "home"}),
            "label_mismatch",
            "has site=lab, wanted site=home",
        ),
        (
            candidate(),
            replace(NEED, labels={"gpu": "h200"}),
            "label_mismatch",
            "has no such label, wanted gpu=h200",
        ),
        (
            candidate(),
            replace(NEED, node=NodeId("gpu-9")),
            "pinned_elsewhere",
            "is not the node asked for (gpu-9)",
        ),
        (
            candidate(),
            replace(NEED, shunned={NodeId("gpu-1"): Refusal(NodeId("gpu-1"), "gate_closed", "no memory")}),
            "gate_closed",
            "refused it: no memory",
        ),
    ],
)
def test_each_loser_has_a_code_and_a_phrase(lost: Candidate, need: Need, code: str, message: str) -> None:
    decision = choose([lost], need)

    assert decision.node_id is None
    assert decision.refusals == (Refusal(NodeId("gpu-1"), code, message),)
    assert decision.may_wait is (code == "config_pending")


def test_a_full_node_loses_by_capacity_alone_and_the_run_may_wait() -> None:
    decision = choose([candidate()], in_flight={"gpu-1": 4})

    assert decision.node_id is None
    assert decision.refusals == (Refusal(NodeId("gpu-1"), "capacity", "is busy (4/4 runs of vllm)"),)
    assert decision.may_wait


@pytest.mark.parametrize("code", ["node_busy", "adapter_busy"])
def test_a_node_that_said_it_is_busy_lets_the_run_wait(code: str) -> None:
    shunned = {NodeId("gpu-1"): Refusal(NodeId("gpu-1"), code, "4 of 4 places are taken")}

    decision = choose([candidate()], replace(NEED, shunned=shunned))

    assert (decision.node_id, decision.may_wait) == (None, True)


def test_a_full_node_that_lacks_the_target_is_not_worth_waiting_for() -> None:
    lost = candidate(adapter=status(targets=()))

    decision = choose([lost], in_flight={"gpu-1": 4})

    assert decision.refusals[0].code == "target_missing"
    assert not decision.may_wait


def test_any_target_takes_what_is_not_listed() -> None:
    assert choose([candidate(adapter=status(targets=(), any_target=True))]).node_id == "gpu-1"


@pytest.mark.parametrize("gate", [GateState.OPEN, GateState.NOT_APPLICABLE])
def test_gates_that_are_open_or_do_not_apply_take_work(gate: GateState) -> None:
    assert choose([candidate(adapter=status(gate=Gate(gate)))]).node_id == "gpu-1"


def test_the_larger_free_share_wins() -> None:
    small = candidate("small", adapter=status(max_concurrent=4))
    large = candidate("large", adapter=status(max_concurrent=100))

    assert choose([small, large], in_flight={"small": 0, "large": 50}).node_id == "small"
    assert choose([small, large], in_flight={"small": 2, "large": 10}).node_id == "large"


def test_with_equal_shares_the_fewest_runs_in_flight_win() -> None:
    small = candidate("small", adapter=status(max_concurrent=2))
    large = candidate("large", adapter=status(max_concurrent=4))

    assert choose([large, small], in_flight={"small": 1, "large": 2}).node_id == "small"


def test_equal_candidates_are_drawn_by_lot() -> None:
    candidates = [candidate(f"gpu-{i}") for i in range(3)]
    rng = Random(7)

    chosen = {choose_node(candidates, NEED, lambda *_: 0, rng).node_id for _ in range(60)}

    assert chosen == {"gpu-0", "gpu-1", "gpu-2"}


def test_the_node_of_the_session_wins_while_it_can_take_the_run() -> None:
    need = replace(NEED, favourite=NodeId("gpu-2"))
    candidates = [candidate("gpu-1"), candidate("gpu-2")]

    assert choose(candidates, need, {"gpu-2": 3}).node_id == "gpu-2"
    assert choose(candidates, need, {"gpu-2": 4}).node_id == "gpu-1"


def test_no_route_tells_why_each_candidate_lost() -> None:
    decision = choose(
        [
            candidate("gpu-1"),
            candidate("gpu-2", adapter=status(targets=())),
            candidate("gpu-3", is_connected=False),
        ],
        in_flight={"gpu-1": 4},
    )

    assert explain(NEED, decision.refusals) == (
        "no node can take adapter=vllm target=qwen3:8b: gpu-1 is busy (4/4 runs of vllm); "
        "gpu-2 lacks the target qwen3:8b; gpu-3 is not connected"
    )
    assert explain(NEED, ()) == (
        "no node can take adapter=vllm target=qwen3:8b: no node is known; start one with `iop-node run`"
    )
    many = tuple(Refusal(NodeId(f"n{i}"), "draining", "is draining") for i in range(10))
    assert explain(NEED, many).endswith("n7 is draining; and 2 more")


statuses = st.builds(
    AdapterStatus,
    name=st.sampled_from([VLLM, AdapterName("mock")]),
    type=st.just("vllm"),
    gate=st.builds(Gate, st.sampled_from(GateState)),
    max_concurrent=st.integers(0, 3),
    operations=st.lists(st.sampled_from(Operation), max_size=3).map(tuple),
    targets=st.lists(st.sampled_from([QWEN, TargetName("other")]), max_size=2).map(tuple),
    any_target=st.booleans(),
)
candidates_ = st.lists(
    st.builds(
        Candidate,
        node_id=st.sampled_from([NodeId(f"n{i}") for i in range(6)]),
        is_connected=st.booleans(),
        is_draining=st.booleans(),
        config_state=st.sampled_from(["pending", "applied", "rejected"]),
        labels=st.dictionaries(st.sampled_from(["site", "gpu"]), st.sampled_from(["a", "b"])),
        adapters=st.lists(statuses, max_size=2).map(lambda found: {s.name: s for s in found}),
    ),
    max_size=6,
    unique_by=lambda c: c.node_id,
)
needs = st.builds(
    Need,
    adapter=st.sampled_from([VLLM, AdapterName("mock")]),
    target=st.sampled_from([QWEN, TargetName("other")]),
    operation=st.sampled_from(Operation),
    node=st.none() | st.sampled_from([NodeId("n1"), NodeId("n9")]),
    labels=st.dictionaries(st.sampled_from(["site"]), st.sampled_from(["a", "b"])),
    shunned=st.dictionaries(
        st.sampled_from([NodeId("n0"), NodeId("n1")]),
        st.builds(Refusal, st.just(NodeId("n0")), st.sampled_from(["node_busy", "gate_closed"]), st.just("x")),
    ),
    favourite=st.none() | st.sampled_from([NodeId("n0"), NodeId("n2")]),
)


def test_a_node_that_rejected_a_change_goes_on_with_what_it_offers() -> None:
    decision = choose([candidate(config_state="rejected")])

    assert decision.node_id == "gpu-1"


@given(candidates_, needs, st.dictionaries(st.sampled_from([f"n{i}" for i in range(6)]), st.integers(0, 4)))
def test_routing_is_total_and_never_picks_a_loser(
    candidates: list[Candidate], need: Need, running: dict[str, int]
) -> None:
    decision = choose_node(candidates, need, lambda node_id, _: running.get(node_id, 0), Random(1))

    refused = [refusal.node_id for refusal in decision.refusals]
    assert len(refused) == len(set(refused))
    if decision.node_id is None:
        assert sorted(refused) == sorted(c.node_id for c in candidates)
        return
    assert decision.node_id not in refused
    chosen = next(c for c in candidates if c.node_id == decision.node_id)
    offered = chosen.adapters[need.adapter]
    assert chosen.is_connected
    assert running.get(chosen.node_id, 0) < offered.max_concurrent
    assert offered.any_target or need.target in offered.targets
    assert need.operation in offered.operations
    assert need.node in (None, chosen.node_id)
