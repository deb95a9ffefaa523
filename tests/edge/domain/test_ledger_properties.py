"""The ledger under anything that clients, nodes and links may do, in any order."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.fake_clock import FakeClock

from iop_edge.domain.effects import Effect, LinkKey, RouteAgain, RunEnded, TryElsewhere
from iop_edge.domain.event_size import output_size_of
from iop_edge.domain.ledger import Ledger
from iop_edge.domain.views import RunOrder
from iop_shared.errors import Layer
from iop_shared.ids import AdapterName, Epoch, NodeId, RunId, TargetName
from iop_shared.link.messages import OpenRun, RunRefused
from iop_shared.runs import Operation, RunState
from iop_shared.runtime_events import (
    TERMINAL_TYPES,
    Body,
    Cancelled,
    Failed,
    Gap,
    Interrupted,
    RuntimeEvent,
    Started,
    Succeeded,
    Text,
)

RUNS = [RunId(f"r{i}") for i in range(4)]
NODES = [NodeId("n0"), NodeId("n1")]
ADAPTERS = [AdapterName("a"), AdapterName("b")]
BODIES: list[Body] = [
    Started(ADAPTERS[0], TargetName("t"), NODES[0]),
    Text("x"),
    Gap(1, 1, "full"),
    Succeeded(),
    Failed("engine_error", Layer.SERVING, "no"),
    Cancelled("asked", True, 1),
    Interrupted("node_restarted", "its process ended"),
]
runs, nodes = st.sampled_from(RUNS), st.sampled_from(NODES)
links = st.builds(LinkKey, nodes, st.integers(1, 4).map(Epoch))


class LedgerMachine(RuleBasedStateMachine):
    """Feeds the ledger; checks that each run ends exactly once and that no place leaks."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.ledger = Ledger(self.clock)
        self.epochs = dict.fromkeys(NODES, 1)
        self.births: Counter[RunId] = Counter()
        self.terminals: Counter[RunId] = Counter()
        self.records: Counter[RunId] = Counter()
        self.last_seq: dict[tuple[RunId, int], int] = {}

    def take(self, effects: object) -> None:
        for effect in effects:  # type: ignore[attr-defined]
            self.look(effect)

    def look(self, effect: Effect) -> None:
        match effect:
            case RuntimeEvent(run_id=run_id, attempt=attempt, seq=seq, body=body):
                key = (run_id, attempt)
                assert seq > self.last_seq.get(key, 0), "what readers see has growing numbers"
                self.last_seq[key] = seq
                self.terminals[run_id] += isinstance(body, TERMINAL_TYPES)
            case RunEnded(view=view):
                self.records[view.run_id] += 1
                assert view.state.is_terminal
            case RouteAgain(run_id=run_id):
                run = self.ledger.get(run_id)
                assert run is not None
                assert run.state is RunState.QUEUED
                assert not run.has_output, "a run that has produced something is never restarted"
            case TryElsewhere(run_id=run_id):
                run = self.ledger.get(run_id)
                assert run is not None
                assert not run.has_output

    @rule(run_id=runs, adapter=st.sampled_from(ADAPTERS), operation=st.sampled_from(Operation))
    def submit(self, run_id: RunId, adapter: AdapterName, operation: Operation) -> None:
        if self.births[run_id]:
            return
        self.births[run_id] += 1
        self.take(self.ledger.submit(run_id, RunOrder(adapter, TargetName("t"), operation, b"in")))

    @rule(run_id=runs, node=nodes)
    def dispatch(self, run_id: RunId, node: NodeId) -> None:
        run = self.ledger.get(run_id)
        if run is not None and run.state is RunState.QUEUED:
            self.take(self.ledger.dispatch(run_id, LinkKey(node, Epoch(self.epochs[node])), ()))

    @rule(run_id=runs, link=links, attempt=st.integers(1, 3))
    def accept(self, run_id: RunId, link: LinkKey, attempt: int) -> None:
        self.take(self.ledger.accepted(link, run_id, attempt))

    @rule(
        run_id=runs,
        link=links,
        attempt=st.integers(1, 3),
        code=st.sampled_from(["node_busy", "gate_closed", "bad_input", "from_the_future"]),
    )
    def refuse(self, run_id: RunId, link: LinkKey, attempt: int, code: str) -> None:
        self.take(self.ledger.refused(link, RunRefused(run_id, attempt, code, "no")))

    @rule(
        run_id=runs,
        node=nodes,
        ahead=st.integers(-1, 3),
        attempt_ahead=st.sampled_from([0, 0, 0, -1, 1]),
        body=st.sampled_from(BODIES),
    )
    def event(self, run_id: RunId, node: NodeId, ahead: int, attempt_ahead: int, body: Body) -> None:
        run = self.ledger.get(run_id)
        attempt = max(1, (1 if run is None else run.attempt) + attempt_ahead)
        seq = max(1, (0 if run is None else run.last_seq) + 1 + ahead)
        link = LinkKey(node, Epoch(self.epochs[node]))
        event = RuntimeEvent(run_id, attempt, seq, body)
        self.take(self.ledger.take_event(link, event, output_size_of(body)))

    @rule(run_id=runs)
    def cancel(self, run_id: RunId) -> None:
        if self.ledger.get(run_id) is not None:
            self.take(self.ledger.cancel(run_id, "enough"))

    @rule(run_id=runs)
    def reroute_detached(self, run_id: RunId) -> None:
        run = self.ledger.get(run_id)
        if run is not None and run.state is RunState.DETACHED and run.may_restart:
            self.take(self.ledger.reroute(run_id))

    @rule(
        node=nodes,
        same_boot=st.booleans(),
        reported=st.lists(
            st.builds(
                OpenRun,
                runs,
                st.integers(1, 3),
                st.integers(0, 6),
                st.sampled_from(["accepted", "running", "cancelling", "ended"]),
            ),
            max_size=3,
            unique_by=lambda r: r.run_id,
        ),
    )
    def reconnect(self, node: NodeId, same_boot: bool, reported: list[OpenRun]) -> None:
        self.take(self.ledger.link_lost(LinkKey(node, Epoch(self.epochs[node]))))
        self.epochs[node] += 1
        link = LinkKey(node, Epoch(self.epochs[node]))
        verdicts, effects = self.ledger.link_opened(link, reported, same_boot=same_boot)
        assert [(v.run_id, v.attempt) for v in verdicts] == [(r.run_id, r.attempt) for r in reported]
        self.take(effects)

    @rule(seconds=st.sampled_from([0.1, 59.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.take(self.ledger.tick())

    @invariant()
    def each_run_is_live_or_has_ended_once(self) -> None:
        for run_id in RUNS:
            ended = self.births[run_id] - (self.ledger.get(run_id) is not None)
            assert self.terminals[run_id] == self.records[run_id] == ended

    @invariant()
    def places_are_exactly_the_runs_with_a_node(self) -> None:
        expected = Counter((run.node_id, run.order.adapter) for run in self.ledger if run.node_id is not None)
        for node in NODES:
            for adapter in ADAPTERS:
                assert self.ledger.in_flight(node, adapter) == expected[node, adapter]
            cancelling = {run.run_id for run in self.ledger if run.state is RunState.CANCELLING}
            assert set(self.ledger.cancelling_on(node)) == {
                run.run_id for run in self.ledger if run.node_id == node and run.run_id in cancelling
            }

    @invariant()
    def every_state_that_waits_for_a_peer_has_a_deadline(self) -> None:
        waits = {RunState.DISPATCHED, RunState.DETACHED, RunState.CANCELLING}
        for run in self.ledger:
            assert (run.run_id in self.ledger._deadlines) == (run.state in waits)
            assert (run.link is None) == (run.state in (RunState.QUEUED, RunState.DETACHED)) or (
                run.state is RunState.CANCELLING
            )


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
