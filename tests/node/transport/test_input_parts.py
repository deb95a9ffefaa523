"""Large inputs come in parts: put together, bounded, refused with a sentence."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_node.transport.input_parts import PART_TIMEOUT_S, InputParts
from iop_shared.ids import AdapterName, RunId, TargetName
from iop_shared.link.messages import RunInputPart, RunRefused, RunSubmission
from iop_shared.runs import Operation, RunRequest

RUN = RunId("r1")


def submission(data: bytes, total: int, run_id: RunId = RUN) -> RunSubmission:
    return RunSubmission(RunRequest(run_id, AdapterName("a"), TargetName("t"), Operation.CHAT, data), total)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_however_it_is_cut_the_input_is_whole(data: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.sets(st.integers(0, len(data)), max_size=6)) | {0, len(data)})
    pieces = [data[a:b] for a, b in itertools.pairwise(cuts)] or [data]
    parts = InputParts(1000)

    outcome = parts.begin(submission(pieces[0], len(data)), 0.0)
    offset = len(pieces[0])
    for piece in pieces[1:]:
        assert outcome is None
        outcome = parts.add(RunInputPart(RUN, 1, offset, piece), 0.0)
        offset += len(piece)

    assert isinstance(outcome, RunRequest)
    assert outcome.input == data
    assert len(parts) == 0


@pytest.mark.parametrize(
    ("first", "total", "part", "message"),
    [
        (b"", 101, None, "the input has 101 bytes, this node takes 100 (max_input_bytes)"),
        (b"abc", 2, None, "the input has 3 bytes where 2 were announced"),
        (b"abc", 9, (4, b"x"), "a part of the input begins at byte 4, expected 3"),
        (b"abc", 9, (3, b"x" * 7), "a part of 7 bytes at 3 does not fit the 9 announced"),
        (b"abc", 9, (3, b""), "a part of 0 bytes at 3 does not fit the 9 announced"),
    ],
)
def test_what_breaks_a_rule_is_refused(
    first: bytes, total: int, part: tuple[int, bytes] | None, message: str
) -> None:
    parts = InputParts(100)

    outcome = parts.begin(submission(first, total), 0.0)
    if part is not None:
        assert outcome is None
        outcome = parts.add(RunInputPart(RUN, 1, *part), 0.0)

    assert outcome == RunRefused(RUN, 1, "bad_input", message)
    assert len(parts) == 0
    assert parts.add(RunInputPart(RUN, 1, 3, b"late"), 0.0) is None


def test_all_inputs_under_way_are_bounded_together() -> None:
    parts = InputParts(100)
    for n in range(4):
        assert parts.begin(submission(b"x", 100, RunId(f"r{n}")), 0.0) is None

    outcome = parts.begin(submission(b"x", 2, RunId("r9")), 0.0)

    assert isinstance(outcome, RunRefused)
    assert (outcome.code, outcome.message) == (
        "node_busy",
        "4 large inputs (400 bytes) are on their way to this node, 2 more bytes would exceed 400",
    )


def test_an_input_whose_rest_does_not_come_is_refused() -> None:
    parts = InputParts(100)
    parts.begin(submission(b"abc", 9), 0.0)
    parts.add(RunInputPart(RUN, 1, 3, b"de"), 10.0)
    assert parts.next_deadline() == 10.0 + PART_TIMEOUT_S
    assert parts.expire(10.0 + PART_TIMEOUT_S - 0.1) == []

    assert parts.expire(10.0 + PART_TIMEOUT_S) == [
        RunRefused(RUN, 1, "bad_input", "the rest of the input did not come within 30 s: 5 of 9 bytes are here")
    ]
    assert parts.next_deadline() is None


def test_a_repeated_submission_starts_afresh_and_a_cancel_lets_go() -> None:
    parts = InputParts(100)
    parts.begin(submission(b"abc", 9), 0.0)
    parts.begin(submission(b"a", 9), 0.0)
    assert len(parts) == 1

    dropped = parts.drop(RUN)

    assert [request.run_id for request in dropped] == [RUN]
    assert len(parts) == 0
