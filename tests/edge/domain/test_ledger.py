"""The ledger by transcripts: what comes in, and exactly which effects go out."""

from dataclasses import dataclass, field, replace

import pytest
from tests.support.fake_clock import FakeClock

from iop_edge.domain.effects import (
    AckUpTo,
    Effect,
    LinkKey,
    RouteAgain,
    RunEnded,
    RunMoved,
    SendCancel,
    SendRun,
    TryElsewhere,
)
from iop_edge.domain.event_size import output_size_of
from iop_edge.domain.ledger import MAX_REROUTES, Ledger
from iop_edge.domain.views import Refusal, RunOrder, RunView
from iop_shared.errors import Layer
from iop_shared.ids import AdapterName, Epoch, NodeId, RunId, TargetName
from iop_shared.link.messages import OpenRun, RunRefused, RunVerdict, Verdict
from iop_shared.runs import Operation, RunState, RunStep
from iop_shared.runtime_events import (
    Body,
    Cancelled,
    Closing,
    Failed,
    Gap,
    Interrupted,
    RuntimeEvent,
    Started,
    Succeeded,
    Text,
    Usage,
)

RUN = RunId("01900000-0000-7000-8000-000000000001")
MOCK, ECHO = AdapterName("mock"), TargetName("echo")
GPU1, GPU2 = NodeId("gpu-1"), NodeId("gpu-2")
LINK, OTHER = LinkKey(GPU1, Epoch(1)), LinkKey(GPU2, Epoch(1))
NEXT = LinkKey(GPU1, Epoch(2))
ORDER = RunOrder(MOCK, ECHO, Operation.CHAT, b"hello")
STARTED = Started(MOCK, ECHO, GPU1)


@dataclass
class Story:
    """A ledger and the words to tell what happens to it."""

    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.clock)

    def submitted(self, order: RunOrder = ORDER) -> "Story":
        assert list(self.ledger.submit(RUN, order)) == []
        return self

    def dispatched(self, link: LinkKey = LINK, order: RunOrder = ORDER) -> "Story":
        if self.ledger.get(RUN) is None:
            self.submitted(order)
        self.ledger.dispatch(RUN, link, ())
        return self

    def running(self, order: RunOrder = ORDER) -> "Story":
        self.dispatched(order=order)
        self.ledger.accepted(LINK, RUN, 1)
        return self

    def with_output(self, order: RunOrder = ORDER) -> "Story":
        self.running(order)
        self.event(1, STARTED)
        self.event(2, Text("one"))
        return self

    def event(self, seq: int, body: Body, *, link: LinkKey = LINK, attempt: int = 1) -> list[Effect]:
        event = RuntimeEvent(RUN, attempt, seq, body)
        return list(self.ledger.take_event(link, event, output_size_of(body)))

    @property
    def state(self) -> RunState | None:
        run = self.ledger.get(RUN)
        return None if run is None else run.state

    def ended(self) -> RunView:
        view = self.ledger.ended_view(RUN)
        assert view is not None, "it has not ended"
        assert self.ledger.get(RUN) is None
        return view


@pytest.fixture
def story() -> Story:
    return Story()


def moved(step: RunStep, state: RunState) -> RunMoved:
    return RunMoved(RUN, step, state)


def kinds(effects: list[Effect] | tuple[Effect, ...]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def test_a_run_goes_from_the_queue_to_its_end(story: Story) -> None:
    story.submitted()
    story.clock.advance(0.5)

    sent = list(story.ledger.dispatch(RUN, LINK, (Refusal(GPU2, "draining", "is draining"),)))
    run = story.ledger.get(RUN)
    assert run is not None
    assert sent == [SendRun(LINK, run.request()), moved(RunStep.DISPATCH, RunState.DISPATCHED)]
    assert list(story.ledger.accepted(LINK, RUN, 1)) == [moved(RunStep.START, RunState.RUNNING)]
    story.clock.advance(0.5)
    assert kinds(story.event(1, STARTED)) == ["RuntimeEvent"]
    story.clock.advance(1.0)
    assert kinds(story.event(2, Text("héllo"))) == ["RuntimeEvent"]
    assert kinds(story.event(3, Usage(5, 1))) == ["RuntimeEvent"]
    closing = Closing(events=3, output_bytes=6, usage=Usage(5, 2), finish_reason="stop")
    last = story.event(4, Succeeded(closing))

    view = story.ended()
    assert last == [
        RuntimeEvent(RUN, 1, 4, Succeeded(closing)),
        RunEnded(view, AckUpTo(LINK, RUN, 1, 4)),
    ]
    assert (view.state, view.node_id, view.attempt) == (RunState.SUCCEEDED, GPU1, 1)
    assert (view.queued_s, view.first_token_s, view.total_s) == (1.0, 2.0, 2.0)
    assert (view.input_bytes, view.output_bytes, view.events) == (5, 6, 3)
    assert (view.usage, view.finish_reason) == (Usage(5, 2), "stop")
    assert view.refusals == (Refusal(GPU2, "draining", "is draining"),)
    assert story.ledger.in_flight_of(GPU1) == {}
    assert story.ledger.next_deadline_s() is None


def test_the_first_event_starts_a_run_whose_acceptance_got_lost(story: Story) -> None:
    story.dispatched()

    effects = story.event(1, STARTED)

    assert effects == [moved(RunStep.START, RunState.RUNNING), RuntimeEvent(RUN, 1, 1, STARTED)]


def test_duplicates_are_dropped_and_acknowledged_again(story: Story) -> None:
    story.with_output()

    assert story.event(2, Text("one")) == [AckUpTo(LINK, RUN, 1, 2)]
    assert story.event(1, STARTED) == [AckUpTo(LINK, RUN, 1, 2)]
    run = story.ledger.get(RUN)
    assert run is not None
    assert (run.output_bytes, run.events) == (3, 2)
    assert story.ledger.counts.duplicate_events == 2


def test_a_hole_shows_as_a_gap(story: Story) -> None:
    story.with_output()

    effects = story.event(6, Text("two"))

    assert effects == [
        RuntimeEvent(RUN, 1, 5, Gap(3, 0, "missing on the link")),
        RuntimeEvent(RUN, 1, 6, Text("two")),
    ]
    assert story.ledger.counts.holes == 1
    assert kinds(story.event(7, Text("three"))) == ["RuntimeEvent"]


def test_a_gap_of_the_node_may_jump_ahead(story: Story) -> None:
    story.with_output()

    effects = story.event(9, Gap(7, 70, "acknowledged_before"))

    assert kinds(effects) == ["RuntimeEvent"]
    assert story.ledger.counts.holes == 0
    assert kinds(story.event(10, Text("on"))) == ["RuntimeEvent"]


def test_events_of_another_link_or_attempt_change_nothing(story: Story) -> None:
    story.with_output()

    assert story.event(3, Text("x"), link=OTHER) == [AckUpTo(OTHER, RUN, 1, 3)]
    assert story.event(3, Text("x"), link=NEXT) == [AckUpTo(NEXT, RUN, 1, 3)]
    assert story.event(3, Text("x"), attempt=2) == []
    assert story.ledger.counts.stale_events == 3
    assert kinds(story.event(3, Text("x"))) == ["RuntimeEvent"]


def test_what_an_ended_run_still_says_is_acknowledged_so_that_the_node_forgets(story: Story) -> None:
    story.with_output()
    story.event(3, Succeeded())

    assert story.event(3, Succeeded()) == [AckUpTo(LINK, RUN, 1, 3)]
    assert story.ended().state is RunState.SUCCEEDED


def test_output_lets_go_of_the_input(story: Story) -> None:
    story.with_output()

    run = story.ledger.get(RUN)
    assert run is not None
    assert (run.order.input, run.input_bytes) == (b"", 5)


def test_a_count_that_differs_without_a_gap_is_told(story: Story) -> None:
    story.with_output()

    effects = story.event(3, Succeeded(Closing(output_bytes=10)))

    ended = effects[-1]
    assert isinstance(ended, RunEnded)
    assert ended.mismatch == "the node counted 10 output bytes, 3 arrived, and no gap was announced"


# --- cancel -----------------------------------------------------------------------------------------------


def test_cancel_while_queued_ends_at_once_and_starts_nothing(story: Story) -> None:
    story.submitted()

    effects = list(story.ledger.cancel(RUN, "client left"))

    terminal = Cancelled("client left", confirmed=True, took_ms=0)
    assert effects == [RuntimeEvent(RUN, 1, 1, terminal), RunEnded(story.ended(), None)]
    assert story.ended().cancel_reason == "client left"


def test_cancel_is_sent_and_repeated_until_the_node_says_the_end(story: Story) -> None:
    story.with_output()

    first = list(story.ledger.cancel(RUN, "enough"))
    again = list(story.ledger.cancel(RUN, "I said enough"))

    assert first == [moved(RunStep.CANCEL, RunState.CANCELLING), SendCancel(LINK, RUN, "enough")]
    assert again == [SendCancel(LINK, RUN, "I said enough")]
    assert story.ledger.cancelling_on(GPU1) == (RUN,)
    assert kinds(story.event(3, Text("late"))) == ["RuntimeEvent"]
    story.event(4, Cancelled("enough", confirmed=True, took_ms=12))
    view = story.ended()
    assert (view.state, view.cancel_reason) == (RunState.CANCELLED, "enough")
    assert (view.cancel_confirmed, view.cancel_took_ms) == (True, 12)
    assert story.ledger.cancelling_on(GPU1) == ()


def test_a_run_that_succeeds_while_it_is_cancelled_has_succeeded(story: Story) -> None:
    story.with_output()
    story.ledger.cancel(RUN, "enough")

    story.event(3, Succeeded())

    assert story.ended().state is RunState.SUCCEEDED


def test_a_cancel_that_overtook_its_request_ends_with_the_refusal(story: Story) -> None:
    story.dispatched()
    story.ledger.cancel(RUN, "enough")

    effects = story.ledger.refused(LINK, RunRefused(RUN, 1, "cancelled", "cancelled before it started"))

    assert kinds(list(effects)) == ["RuntimeEvent", "RunEnded"]
    assert (story.ended().state, story.ended().cancel_confirmed) == (RunState.CANCELLED, True)


def test_a_cancel_that_nobody_answers_ends_unconfirmed(story: Story) -> None:
    story.with_output()
    story.ledger.cancel(RUN, "enough")
    story.clock.advance(59.9)
    assert list(story.ledger.tick()) == []

    story.clock.advance(0.1)
    effects = list(story.ledger.tick())

    assert kinds(effects) == ["RuntimeEvent", "RunEnded"]
    view = story.ended()
    assert (view.state, view.cancel_confirmed, view.cancel_took_ms) == (RunState.CANCELLED, False, 60_000)


# --- refusals ---------------------------------------------------------------------------------------------


def test_a_refused_run_goes_elsewhere_and_not_to_the_same_node(story: Story) -> None:
    story.dispatched()

    effects = list(story.ledger.refused(LINK, RunRefused(RUN, 1, "gate_closed", "no memory")))

    assert effects == [moved(RunStep.REROUTE, RunState.QUEUED), RouteAgain(RUN)]
    run = story.ledger.get(RUN)
    assert run is not None
    assert (run.attempt, run.node_id, run.link) == (2, None, None)
    assert run.shunned[GPU1].refusal == Refusal(GPU1, "gate_closed", "no memory")
    assert run.shunned[GPU1].until_s is None
    assert story.ledger.in_flight(GPU1, MOCK) == 0
    sent = story.ledger.dispatch(RUN, OTHER, ())[0]
    assert isinstance(sent, SendRun)
    assert (sent.link, sent.request.attempt, sent.request.input) == (OTHER, 2, b"hello")


def test_a_busy_node_is_left_alone_only_for_a_while_and_costs_no_reroute(story: Story) -> None:
    story.dispatched()
    for attempt in range(1, 10):
        effects = list(story.ledger.refused(LINK, RunRefused(RUN, attempt, "node_busy", "4 of 4")))
        assert effects[-1] == RouteAgain(RUN)
        story.ledger.dispatch(RUN, LINK, ())

    run = story.ledger.get(RUN)
    assert run is not None
    assert (run.attempt, run.reroutes) == (10, 0)
    assert run.shunned[GPU1].until_s == story.clock.monotonic() + 0.5
    assert run.waiting_since_s == run.created_s


def test_bad_input_fails_at_once_wherever_it_was_sent(story: Story) -> None:
    story.dispatched()

    effects = list(story.ledger.refused(LINK, RunRefused(RUN, 1, "bad_input", "messages is not a list")))

    assert kinds(effects) == ["RuntimeEvent", "RunEnded"]
    view = story.ended()
    assert (view.state, view.code, view.layer) == (RunState.FAILED, "bad_input", "target")
    assert view.message == "node gpu-1 refused the run: messages is not a list"


def test_after_a_few_refusals_the_run_fails_with_the_last(story: Story) -> None:
    story.submitted()
    for attempt in range(1, MAX_REROUTES + 2):
        link = LinkKey(NodeId(f"gpu-{attempt}"), Epoch(1))
        story.ledger.dispatch(RUN, link, ())
        effects = list(story.ledger.refused(link, RunRefused(RUN, attempt, "gate_closed", "no memory")))

    assert kinds(effects) == ["RuntimeEvent", "RunEnded"]
    assert story.ended().message == f"node gpu-{MAX_REROUTES + 1} refused the run: no memory"
    assert story.ended().code == "gate_closed"


def test_a_refusal_of_an_accepted_run_or_an_old_attempt_is_ignored(story: Story) -> None:
    story.running()

    assert list(story.ledger.refused(LINK, RunRefused(RUN, 1, "node_busy", ""))) == []
    assert list(story.ledger.refused(LINK, RunRefused(RUN, 7, "node_busy", ""))) == []
    assert list(story.ledger.refused(OTHER, RunRefused(RUN, 1, "node_busy", ""))) == []
    assert story.state is RunState.RUNNING


def test_a_node_that_never_answers_loses_the_run(story: Story) -> None:
    story.dispatched()
    story.clock.advance(60.0)

    effects = list(story.ledger.tick())

    assert effects == [
        SendCancel(LINK, RUN, "node_silent"),
        moved(RunStep.REROUTE, RunState.QUEUED),
        RouteAgain(RUN),
    ]


# --- links come and go ------------------------------------------------------------------------------------


def test_a_lost_link_detaches_and_a_run_with_output_waits_for_its_node(story: Story) -> None:
    story.with_output()

    assert list(story.ledger.link_lost(LINK)) == [moved(RunStep.DETACH, RunState.DETACHED)]
    assert story.ledger.in_flight(GPU1, MOCK) == 1
    assert story.event(3, Text("x")) == [AckUpTo(LINK, RUN, 1, 3)]  # an old epoch


def test_the_node_comes_back_within_the_grace_and_nothing_is_missed(story: Story) -> None:
    story.with_output()
    story.ledger.link_lost(LINK)
    story.clock.advance(59.0)

    verdicts, effects = story.ledger.link_opened(NEXT, [OpenRun(RUN, 1, 5, "running")], same_boot=True)

    assert verdicts == (RunVerdict(RUN, 1, 2, Verdict.KEEP),)
    assert list(effects) == [moved(RunStep.REATTACH, RunState.RUNNING)]
    assert kinds(story.event(3, Text("two"), link=NEXT)) == ["RuntimeEvent"]
    story.clock.advance(1e6)
    assert list(story.ledger.tick()) == []


def test_a_node_that_stays_away_beyond_the_grace_interrupts_the_run(story: Story) -> None:
    story.with_output()
    story.ledger.link_lost(LINK)
    story.clock.advance(60.0)

    effects = list(story.ledger.tick())

    assert kinds(effects) == ["RuntimeEvent", "RunEnded"]
    event = effects[0]
    assert isinstance(event, RuntimeEvent)
    assert (event.seq, event.body) == (
        3,
        Interrupted(
            "node_lost",
            "the link to the node was lost and did not come back within the grace",
            Closing(events=2, output_bytes=3, timings=replace(Closing().timings, total_s=60.0)),
        ),
    )
    view = story.ended()
    assert (view.state, view.code, view.layer) == (RunState.INTERRUPTED, "node_lost", "node")
    assert view.message == "the link to the node was lost and did not come back within the grace"


def test_after_the_grace_a_node_that_still_has_the_run_is_told_to_stop_it(story: Story) -> None:
    story.with_output()
    story.ledger.link_lost(LINK)
    story.clock.advance(60.0)
    story.ledger.tick()

    verdicts, effects = story.ledger.link_opened(NEXT, [OpenRun(RUN, 1, 5, "running")], same_boot=True)

    assert verdicts == (RunVerdict(RUN, 1, 5, Verdict.CANCEL),)
    assert list(effects) == []


def test_unknown_runs_are_cancelled_and_unknown_ended_ones_forgotten(story: Story) -> None:
    verdicts, _ = story.ledger.link_opened(
        LINK, [OpenRun(RunId("x"), 1, 3, "running"), OpenRun(RunId("y"), 2, 9, "ended")], same_boot=False
    )

    assert verdicts == (
        RunVerdict(RunId("x"), 1, 3, Verdict.CANCEL),
        RunVerdict(RunId("y"), 2, 9, Verdict.FORGET),
    )


def test_a_run_that_produced_nothing_may_go_elsewhere_at_once(story: Story) -> None:
    story.running()

    lost = list(story.ledger.link_lost(LINK))
    assert lost == [moved(RunStep.DETACH, RunState.DETACHED), TryElsewhere(RUN)]
    assert list(story.ledger.reroute(RUN)) == [moved(RunStep.REROUTE, RunState.QUEUED), RouteAgain(RUN)]
    story.ledger.dispatch(RUN, OTHER, ())

    verdicts, effects = story.ledger.link_opened(NEXT, [OpenRun(RUN, 1, 1, "running")], same_boot=True)
    assert verdicts == (RunVerdict(RUN, 1, 1, Verdict.CANCEL),)
    assert list(effects) == []


def test_a_command_that_was_accepted_is_never_started_again(story: Story) -> None:
    story.running(replace(ORDER, operation=Operation.EXEC))

    assert list(story.ledger.link_lost(LINK)) == [moved(RunStep.DETACH, RunState.DETACHED)]
    _, effects = story.ledger.link_opened(NEXT, [], same_boot=False)

    assert kinds(list(effects)) == ["RuntimeEvent", "RunEnded"]
    assert story.ended().code == "node_restarted"
    assert story.ended().message == "the node's process ended while the run was under way"


def test_a_restarted_node_interrupts_what_had_output_exactly_once(story: Story) -> None:
    story.with_output()
    story.ledger.link_lost(LINK)

    _, effects = story.ledger.link_opened(NEXT, [], same_boot=False)
    later = story.event(3, Interrupted("node_restarted", "its process ended"), link=NEXT)

    assert kinds(list(effects)) == ["RuntimeEvent", "RunEnded"]
    assert later == [AckUpTo(NEXT, RUN, 1, 3)]


def test_a_restarted_node_that_kept_the_terminal_event_may_say_it(story: Story) -> None:
    story.with_output()
    story.ledger.link_lost(LINK)

    verdicts, _ = story.ledger.link_opened(NEXT, [OpenRun(RUN, 1, 3, "ended")], same_boot=False)
    story.event(3, Interrupted("node_restarted", "its process ended"), link=NEXT)

    assert verdicts[0].verdict is Verdict.KEEP
    assert story.ended().code == "node_restarted"


@pytest.mark.parametrize(("last_seq", "state"), [(1, "running"), (2, "ended")])
def test_a_node_whose_numbers_cannot_go_on_from_ours_is_not_believed(
    story: Story, last_seq: int, state: str
) -> None:
    story.with_output()
    story.ledger.link_lost(LINK)

    verdicts, effects = story.ledger.link_opened(NEXT, [OpenRun(RUN, 1, last_seq, state)], same_boot=True)

    assert verdicts[0].verdict is (Verdict.FORGET if state == "ended" else Verdict.CANCEL)
    assert kinds(list(effects)) == ["RuntimeEvent", "RunEnded"]


def test_a_restarted_node_gets_a_run_again_that_had_produced_nothing(story: Story) -> None:
    story.running()
    story.ledger.link_lost(LINK)

    verdicts, effects = story.ledger.link_opened(NEXT, [OpenRun(RUN, 1, 1, "ended")], same_boot=False)

    assert verdicts[0].verdict is Verdict.FORGET
    assert list(effects) == [moved(RunStep.REROUTE, RunState.QUEUED), RouteAgain(RUN)]


def test_a_cancel_during_the_break_is_sent_when_the_node_is_back(story: Story) -> None:
    story.with_output()
    story.ledger.link_lost(LINK)
    assert list(story.ledger.cancel(RUN, "enough")) == [moved(RunStep.CANCEL, RunState.CANCELLING)]

    verdicts, effects = story.ledger.link_opened(NEXT, [OpenRun(RUN, 1, 4, "running")], same_boot=True)

    assert verdicts[0].verdict is Verdict.KEEP
    assert list(effects) == [SendCancel(NEXT, RUN, "enough")]


def test_a_cancelled_run_that_the_node_does_not_have_any_more_is_cancelled_unconfirmed(story: Story) -> None:
    story.with_output()
    story.ledger.cancel(RUN, "enough")
    assert list(story.ledger.link_lost(LINK)) == []

    story.ledger.link_opened(NEXT, [], same_boot=False)

    assert (story.ended().state, story.ended().cancel_confirmed) == (RunState.CANCELLED, False)


def test_the_edge_can_fail_and_interrupt_by_itself(story: Story) -> None:
    story.submitted()
    effects = list(story.ledger.fail(RUN, "queue_timeout", Layer.EDGE, "no place became free", retryable=True))
    event = effects[0]
    assert isinstance(event, RuntimeEvent)
    assert isinstance(event.body, Failed)
    assert (event.body.code, event.body.retryable) == ("queue_timeout", True)

    other = Story().with_output()
    assert kinds(list(other.ledger.interrupt_all("edge_restarted"))) == ["RuntimeEvent", "RunEnded"]
    assert (other.ended().code, other.ended().layer) == ("edge_restarted", "edge")
