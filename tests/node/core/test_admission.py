"""Tombstones, draining and room."""

from tests.support.fake_clock import FakeClock
from tests.support.node_fakes import PlayedAdapter

from iop_node.core.admission import MAX_ENDED, MAX_TOMBSTONES, TOMBSTONE_TTL_S, Admission
from iop_node.core.allow import AllowList
from iop_node.core.roster import Roster
from iop_node.core.router import Refusal
from iop_node.core.spec import ExecutionSpec
from iop_shared.ids import AdapterName, RunId, TargetName
from iop_shared.link.messages import AdapterConfig
from iop_shared.node_config import make_node_config
from iop_shared.runs import Operation, RunRequest

RUN = RunId("0190b5a4-0000-7000-8000-000000000001")
REQUEST = RunRequest(RUN, AdapterName("a"), TargetName("echo"), Operation.CHAT, b"{}")


def roster(most: int = 2) -> Roster:
    made = Roster({"played": lambda name, most, settings: PlayedAdapter(name)}, AllowList(("played",), ()))
    made.apply(make_node_config(1, [AdapterConfig(AdapterName("a"), "played", most)]))
    return made


def refusal(found: ExecutionSpec | Refusal) -> tuple[str, str]:
    assert isinstance(found, Refusal)
    return found.code, found.message


async def test_a_cancel_that_comes_first_wins_for_a_while() -> None:
    clock = FakeClock()
    admission = Admission(clock, max_runs=4)
    admission.note_cancelled(RUN, "client left")
    admission.note_cancelled(RUN, "repeated")

    assert refusal(admission.decide(REQUEST, roster(), 0)) == (
        "cancelled",
        f"run {RUN} was cancelled before it came: client left",
    )
    clock.advance(TOMBSTONE_TTL_S)
    assert isinstance(admission.decide(REQUEST, roster(), 0), ExecutionSpec)


async def test_what_is_remembered_is_bounded() -> None:
    admission = Admission(FakeClock(), max_runs=4)
    for n in range(MAX_TOMBSTONES + 1):
        admission.note_cancelled(RunId(str(n)), "x")
    for n in range(MAX_ENDED + 1):
        admission.note_ended((RunId(str(n)), 1))

    assert len(admission._tombstones) == MAX_TOMBSTONES
    assert RunId("0") not in admission._tombstones
    assert not admission.has_ended((RunId("0"), 1))
    assert admission.has_ended((RunId("1"), 1))
    assert admission.has_run(RunId("1"))


async def test_each_bound_refuses_with_its_numbers() -> None:
    admission = Admission(FakeClock(), max_runs=4)
    full = roster(most=2)
    slot = full.get(AdapterName("a"))
    assert slot is not None
    slot.live |= {(RunId("x"), 1), (RunId("y"), 1)}

    assert refusal(admission.decide(REQUEST, full, 2)) == ("adapter_busy", "adapter 'a' is busy (2/2 runs)")
    assert refusal(admission.decide(REQUEST, roster(), 4)) == ("node_busy", "this node is busy (4/4 runs)")
    admission.draining_reason = "SIGTERM"
    assert refusal(admission.decide(REQUEST, roster(), 0)) == (
        "node_draining",
        "this node takes no new runs: SIGTERM",
    )
