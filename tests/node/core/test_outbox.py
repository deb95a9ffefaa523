"""The outbox: numbers, windows, drops and replay."""

import hashlib
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iop_node.core.outbox import Outbox, OutboxLimits, RunOutbox
from iop_node.core.pieces import EVENT_OVERHEAD_BYTES
from iop_shared.ids import AdapterName, NodeId, RunId, TargetName
from iop_shared.runtime_events import (
    Body,
    Embeddings,
    EngineJson,
    Gap,
    RuntimeEvent,
    Started,
    Succeeded,
    Text,
    Usage,
)

RUN = RunId("run-1")
STARTED = Started(AdapterName("mock"), TargetName("echo"), NodeId("n1"))
SMALL = OutboxLimits(run_bytes=1000, reserve_bytes=300, ready_bytes=500, link_bytes=1500, total_bytes=3000)


def seqs(events: Sequence[RuntimeEvent]) -> list[int]:
    return [event.seq for event in events]


def test_a_standing_link_gets_each_event_at_once_numbered_from_one() -> None:
    sent: list[RuntimeEvent] = []
    outbox = Outbox()
    outbox.link_opened(sent.append)
    run = outbox.open_run(RUN, 1)

    run.put(STARTED)
    run.put(Text("a"))
    run.put(Succeeded())

    assert sent == [
        RuntimeEvent(RUN, 1, 1, STARTED),
        RuntimeEvent(RUN, 1, 2, Text("a")),
        RuntimeEvent(RUN, 1, 3, Succeeded()),
    ]
    assert not run.is_settled
    outbox.ack(RUN, 1, 3)
    assert run.is_settled
    assert outbox.statistics().held_bytes == 0


def test_counts_and_checksum_cover_what_was_put_even_if_dropped() -> None:
    outbox = Outbox(SMALL)
    run = outbox.open_run(RUN, 1)

    for _ in range(40):
        run.put(Text("x" * 50))
    run.put(Succeeded())

    assert run.emitted == 40
    assert run.output_bytes == 2000
    assert run.output_sha256 == hashlib.sha256(b"x" * 2000).digest()
    assert outbox.dropped_events > 0


def test_over_the_bound_deltas_become_one_gap_and_the_terminal_body_stays() -> None:
    sent: list[RuntimeEvent] = []
    outbox = Outbox(SMALL)
    run = outbox.open_run(RUN, 1)

    for _ in range(20):
        run.put(Text("x" * 104))  # 200 each with the overhead: five fit into 1000
    run.put(Usage(completion_tokens=20))
    run.put(Succeeded())
    outbox.link_opened(sent.append)

    bodies = [event.body for event in sent]
    while not run.is_settled:
        outbox.ack(RUN, 1, sent[-1].seq)
    bodies = [event.body for event in sent]
    assert bodies[:5] == [Text("x" * 104)] * 5
    assert bodies[5:] == [Gap(15, 15 * 104, "outbox_full"), Usage(completion_tokens=20), Succeeded()]
    assert seqs(sent) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_replay_after_a_break_starts_behind_what_the_edge_has() -> None:
    first: list[RuntimeEvent] = []
    second: list[RuntimeEvent] = []
    outbox = Outbox()
    outbox.link_opened(first.append)
    run = outbox.open_run(RUN, 1)
    for word in "abcd":
        run.put(Text(word))
    outbox.link_lost()
    run.put(Text("e"))

    run.rewind(2)
    outbox.link_opened(second.append)

    assert [(e.seq, e.body) for e in second] == [(3, Text("c")), (4, Text("d")), (5, Text("e"))]


def test_an_edge_that_forgot_what_it_acknowledged_gets_a_gap_with_the_last_missing_number() -> None:
    sent: list[RuntimeEvent] = []
    outbox = Outbox()
    outbox.link_opened(sent.append)
    run = outbox.open_run(RUN, 1)
    for word in "abcd":
        run.put(Text(word))
    outbox.ack(RUN, 1, 3)
    outbox.link_lost()
    sent.clear()

    run.rewind(0)
    outbox.link_opened(sent.append)

    assert [(e.seq, e.body) for e in sent] == [(3, Gap(3, 0, "acknowledged_before")), (4, Text("d"))]


def test_what_is_held_counts_what_has_no_number_yet() -> None:
    outbox = Outbox()
    outbox.link_opened(lambda event: None)
    run = outbox.open_run(RUN, 1)
    run.put(STARTED)
    outbox.link_lost()
    run.put(Text("a"))
    run.put(Succeeded())

    assert (run.last_seq, run.held_seq) == (1, 3)


def test_a_restored_end_comes_behind_a_gap_for_what_the_edge_does_not_have() -> None:
    sent: list[RuntimeEvent] = []
    outbox = Outbox()
    run = outbox.restore_run(RUN, 2, 7, Succeeded())
    assert run.held_seq == 8

    run.rewind(4)
    outbox.link_opened(sent.append)

    assert sent == [
        RuntimeEvent(RUN, 2, 7, Gap(3, 0, "acknowledged_before")),
        RuntimeEvent(RUN, 2, 8, Succeeded()),
    ]
    outbox.ack(RUN, 2, 8)
    assert run.is_settled


def test_no_more_than_the_window_is_in_flight_and_acknowledgements_move_it_on() -> None:
    sent: list[RuntimeEvent] = []
    outbox = Outbox(OutboxLimits(run_bytes=1000, link_bytes=10_000))
    outbox.link_opened(sent.append)
    run = outbox.open_run(RUN, 1)
    answer = EngineJson((b"x" * 304,), whole=True)  # 400 with the overhead

    for _ in range(6):
        run.put(answer)

    assert seqs(sent) == [1, 2, 3]
    outbox.ack(RUN, 1, 2)
    assert seqs(sent) == [1, 2, 3, 4, 5]
    outbox.ack(RUN, 1, 5)
    assert seqs(sent) == [1, 2, 3, 4, 5, 6]


def test_an_answer_that_comes_whole_may_exceed_the_bound_of_a_run() -> None:
    outbox = Outbox(SMALL)
    run = outbox.open_run(RUN, 1)

    run.put(Embeddings(b"[" * 2000))

    assert outbox.dropped_events == 0
    assert not run.is_ready


def test_the_total_bound_takes_from_the_greatest_run() -> None:
    outbox = Outbox(SMALL)
    small, great = outbox.open_run(RunId("small"), 1), outbox.open_run(RunId("great"), 1)
    small.put(Text("s" * 100))

    for _ in range(3):
        great.put(Embeddings(b"g" * 900))

    assert outbox.held_bytes <= SMALL.total_bytes
    assert great.droppable_bytes == 0
    assert small.droppable_bytes == 100 + EVENT_OVERHEAD_BYTES


def test_room_made_by_one_run_lets_another_go_on() -> None:
    sent: list[RuntimeEvent] = []
    outbox = Outbox(OutboxLimits(run_bytes=1000, link_bytes=1000, total_bytes=10_000))
    outbox.link_opened(sent.append)
    first, second = outbox.open_run(RunId("first"), 1), outbox.open_run(RunId("second"), 1)
    first.put(Text("x" * 1000))
    second.put(Text("waits"))
    assert [e.run_id for e in sent] == ["first"]

    outbox.ack(first.run_id, 1, 1)

    assert [e.run_id for e in sent] == ["first", "second"]


def test_forgetting_a_run_frees_its_bytes_and_later_bodies_are_only_counted() -> None:
    sent: list[RuntimeEvent] = []
    outbox = Outbox()
    outbox.link_opened(sent.append)
    run = outbox.open_run(RUN, 1)
    run.put(Text("a"))

    outbox.forget(RUN, 1)
    outbox.forget(RUN, 1)
    run.put(Text("b"))

    assert outbox.statistics().held_bytes == outbox.statistics().in_flight_bytes == 0
    assert run.emitted == 2
    assert len(sent) == 1


def test_an_acknowledgement_beyond_what_was_sent_trims_what_was_sent_only() -> None:
    outbox = Outbox()
    outbox.link_opened(lambda event: None)
    run = outbox.open_run(RUN, 1)
    run.put(Text("a"))

    outbox.ack(RUN, 1, 99)
    run.put(Text("b"))

    assert run.acked_seq == 1
    assert run.last_seq == 2


class Receiver:
    """What an edge does with the events of one run."""

    def __init__(self) -> None:
        self.last_seq = 0
        self.bodies: list[Body] = []

    def take(self, event: RuntimeEvent) -> None:
        if event.seq <= self.last_seq:
            return
        assert event.seq == self.last_seq + 1, "numbers have no holes"
        self.last_seq = event.seq
        self.bodies.append(event.body)


class Conversation(RuleBasedStateMachine):
    """Two runs, one link that breaks anywhere. Whatever happens, a receiver sees each body once and in
    order, or a Gap that covers it."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(SMALL)
        self.wire: list[RuntimeEvent] = []
        self.runs: dict[str, RunOutbox] = {}
        self.said: dict[str, list[Body]] = {}
        self.heard: dict[str, Receiver] = {}

    @initialize()
    def start(self) -> None:
        for name in ("r1", "r2"):
            self.runs[name] = self.outbox.open_run(RunId(name), 1)
            self.said[name], self.heard[name] = [], Receiver()
            self.say(name, STARTED)

    def say(self, name: str, body: Body) -> None:
        self.said[name].append(body)
        self.runs[name].put(body)

    @rule(name=st.sampled_from(["r1", "r2"]), size=st.integers(0, 400), kind=st.integers(0, 4))
    def emit(self, name: str, size: int, kind: int) -> None:
        if self.runs[name].has_ended:
            return
        text = f"{len(self.said[name])}:" + "x" * size
        bodies: list[Body] = [
            Text(text),
            Text(text),
            Usage(completion_tokens=size),
            EngineJson((text.encode(),)),
            EngineJson((text.encode(),), whole=True),
        ]
        self.say(name, bodies[kind])

    @rule(name=st.sampled_from(["r1", "r2"]))
    def end(self, name: str) -> None:
        if not self.runs[name].has_ended:
            self.say(name, Succeeded())

    @precondition(lambda self: self.wire)
    @rule(share=st.floats(0, 1), acked=st.booleans())
    def deliver(self, share: float, acked: bool) -> None:
        count = max(1, int(len(self.wire) * share))
        arrived, self.wire[:] = self.wire[:count], self.wire[count:]
        for event in arrived:
            self.heard[event.run_id].take(event)
        if acked:
            for name, receiver in self.heard.items():
                self.outbox.ack(RunId(name), 1, receiver.last_seq)

    @rule()
    def break_link(self) -> None:
        self.outbox.link_lost()
        self.wire.clear()

    @rule()
    def open_link(self) -> None:
        self.break_link()
        for name, receiver in self.heard.items():
            self.runs[name].rewind(receiver.last_seq)
        self.outbox.link_opened(self.wire.append)

    @invariant()
    def bounds_hold(self) -> None:
        total = sum(run.held_bytes for run in self.runs.values())
        assert total == self.outbox.held_bytes
        assert self.outbox.in_flight_bytes == sum(run.in_flight_bytes for run in self.runs.values())
        # One event may pass a window, and started, terminal bodies and Gaps are always kept.
        assert self.outbox.in_flight_bytes <= SMALL.link_bytes + 600
        assert self.outbox.held_bytes <= SMALL.total_bytes + 1000

    def teardown(self) -> None:
        if not self.runs:
            return
        for name in self.runs:
            self.end(name)
        self.open_link()
        for _ in range(10_000):
            if not self.wire:
                break
            self.deliver(1.0, True)
        for name, run in self.runs.items():
            assert run.is_settled
            self.check(self.said[name], self.heard[name].bodies)
        assert self.outbox.held_bytes == self.outbox.in_flight_bytes == 0

    @staticmethod
    def check(said: list[Body], heard: list[Body]) -> None:
        at = 0
        for body in heard:
            if isinstance(body, Gap):
                missing = said[at : at + body.events]
                assert len(missing) == body.events
                assert not any(isinstance(m, Started | Succeeded) for m in missing)
                at += body.events
            else:
                assert body == said[at]
                at += 1
        assert at == len(said)


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
