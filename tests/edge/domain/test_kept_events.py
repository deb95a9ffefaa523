"""What is kept of runs: bounds per run and in total, gaps, expiry."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.domain.event_size import EVENT_OVERHEAD_BYTES
from iop_edge.domain.kept_events import KeptEvents
from iop_shared.errors import Layer
from iop_shared.ids import RunId
from iop_shared.runtime_events import Body, EngineJson, Failed, Gap, RuntimeEvent, Text, Usage

A, B = RunId("a"), RunId("b")
STEPS = ["begin", "push", "end", "expire"]
SIZE = 100 + EVENT_OVERHEAD_BYTES


def event(run_id: RunId, seq: int) -> RuntimeEvent:
    return RuntimeEvent(run_id, 1, seq, Text("x" * 100))


def fill(kept: KeptEvents, run_id: RunId, count: int) -> None:
    for seq in range(1, count + 1):
        kept.push(event(run_id, seq), 100, 1000 + seq)


def test_a_late_reader_gets_what_follows_its_last_event() -> None:
    kept = KeptEvents()
    kept.begin(A)
    fill(kept, A, 5)

    assert [e.seq for e in kept.after(A, 0)] == [1, 2, 3, 4, 5]
    assert [e.seq for e in kept.after(A, 3)] == [4, 5]
    assert kept.after(A, 5) == []
    assert [k.at_ms for k in kept.listed(A)] == [1001, 1002, 1003, 1004, 1005]


def test_beyond_the_bound_of_a_run_its_oldest_go_and_a_gap_says_how_many() -> None:
    kept = KeptEvents(per_run_bytes=3 * SIZE)
    kept.begin(A)
    fill(kept, A, 5)

    found = kept.after(A, 0)

    assert found[0] == RuntimeEvent(A, 1, 2, Gap(2, 200, "no longer kept by the edge"))
    assert [e.seq for e in found[1:]] == [3, 4, 5]
    assert [e.seq for e in kept.after(A, 2)] == [3, 4, 5]


def test_beyond_the_total_the_oldest_ended_run_goes_first() -> None:
    kept = KeptEvents(total_bytes=4 * SIZE)
    kept.begin(A)
    fill(kept, A, 3)
    kept.end(A, 10.0)
    kept.begin(B)
    fill(kept, B, 2)

    assert A not in kept
    assert [e.seq for e in kept.after(B, 0)] == [1, 2]


def test_with_live_runs_only_the_pushing_one_loses_its_oldest() -> None:
    kept = KeptEvents(total_bytes=4 * SIZE)
    kept.begin(A)
    fill(kept, A, 2)
    kept.begin(B)
    fill(kept, B, 3)

    assert [e.seq for e in kept.after(A, 0)] == [1, 2]
    assert [type(e.body).__name__ for e in kept.after(B, 0)] == ["Gap", "Text", "Text"]


def test_ended_runs_expire() -> None:
    kept = KeptEvents(retain_ended_s=300.0)
    kept.begin(A)
    fill(kept, A, 1)
    kept.end(A, 10.0)

    kept.expire(309.0)
    assert A in kept
    kept.expire(310.0)

    assert A not in kept
    assert kept.size == 0
    assert kept.after(A, 0) == []


def test_runs_that_were_not_begun_are_ignored() -> None:
    kept = KeptEvents()
    kept.push(event(A, 1), 100, 0)

    assert kept.size == 0
    assert kept.listed(A) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "push", "end", "expire"]), st.sampled_from([A, B]), st.integers(0, 400)
        ),
        max_size=60,
    )
)
def test_the_size_is_always_the_sum_and_under_the_bounds(steps: list[tuple[str, RunId, int]]) -> None:
    kept = KeptEvents(per_run_bytes=2000, total_bytes=3000, retain_ended_s=5.0)
    seqs = {A: 0, B: 0}
    for now, (step, run_id, size) in enumerate(steps):
        match step:
            case "begin":
                kept.begin(run_id)
            case "push":
                seqs[run_id] += 1
                kept.push(RuntimeEvent(run_id, 1, seqs[run_id], Text("")), size, 0)
            case "end":
                kept.end(run_id, float(now))
            case _:
                kept.expire(float(now))
        total = sum(k.size for run in (A, B) for k in kept.listed(run))
        assert kept.size == total <= 3000
        assert all(sum(k.size for k in kept.listed(run)) <= 2000 for run in (A, B))


@pytest.mark.parametrize(
    "body",
    [
        EngineJson((b"{1}",)),
        EngineJson((b"{1}", b"{2}")),
        EngineJson((b"{}",), whole=True),
        EngineJson(()),
        Text("one"),
        Text("two", index=1),
        Text(""),
        Usage(1, 2),
        Failed("engine_error", Layer.SERVING, "it failed"),
    ],
)
def test_what_is_kept_comes_back_as_it_was(body: Body) -> None:
    kept = KeptEvents()
    kept.begin(A)
    pushed = RuntimeEvent(A, 2, 7, body)

    kept.push(pushed, 10, 1234)

    assert kept.after(A, 0) == [pushed]
    assert [(k.event, k.size, k.at_ms) for k in kept.listed(A)] == [(pushed, 10 + EVENT_OVERHEAD_BYTES, 1234)]


def test_kept_tokens_are_nothing_for_the_garbage_collector_to_walk() -> None:
    kept = KeptEvents()
    kept.begin(A)
    gc.collect()
    before = len(gc.get_objects())

    for seq in range(1, 1001):
        kept.push(RuntimeEvent(A, 1, seq, EngineJson((b"{%d}" % seq,))), 10, seq)
    gc.collect()  # lets go of the tuples inside
    gc.collect()  # and then of those around them

    assert len(gc.get_objects()) - before < 100
