"""The dispatcher alone, with a clock under the test's hand and a node that only takes notes."""

from random import Random

import pytest
from tests.edge.conftest import ORDER
from tests.support.fake_clock import FakeClock
from tests.support.fake_node import MOCK as MOCK_STATUS

from iop_edge.dispatch import Dispatcher, DispatchLimits
from iop_edge.domain.bus import EventBus
from iop_edge.domain.catalog import Catalog
from iop_edge.domain.effects import LinkKey
from iop_edge.domain.kept_events import KeptEvents
from iop_edge.domain.ledger import Ledger
from iop_edge.domain.ports import ViewMaker
from iop_edge.domain.queue import RunQueue
from iop_edge.domain.refusal_rules import BUSY_RETRY_S
from iop_edge.domain.registry import NO_CONFIG, NodeRegistry
from iop_edge.domain.views import RunEventView, RunView
from iop_shared.ids import AdapterName, Epoch, NodeId, RunId, new_boot_id
from iop_shared.link.messages import CapabilitiesChanged, ConfigResult, Message, RunRefused
from iop_shared.runs import RunRequest, RunState

GPU1 = NodeId("gpu-1")
QUEUE_TIMEOUT_S = BUSY_RETRY_S / 2
"""Shorter than a busy node is left alone, so that one tick can meet both deadlines."""


class NotingLink:
    """A node's link that keeps what it is asked to send."""

    key = LinkKey(GPU1, Epoch(1))

    def __init__(self) -> None:
        self.requests: list[RunRequest] = []

    def send(self, message: Message) -> None:
        pass

    def send_run(self, request: RunRequest) -> None:
        self.requests.append(request)

    def ack(self, run_id: RunId, attempt: int, seq: int, payload_bytes: int) -> None:
        pass

    def heard_ago_s(self) -> float | None:
        return 0.0

    def round_trip_s(self) -> float | None:
        return None

    def close(self, code: str, message: str) -> None:
        pass


class NoSink:
    """A history that keeps nothing and has no trouble."""

    def record(self, run_id: RunId, view: ViewMaker, on_saved: object = None) -> None:
        pass

    def record_event(self, run_id: RunId, event: RunEventView) -> None:
        pass

    def pending_view(self, run_id: RunId) -> RunView | None:
        return None

    async def flush(self) -> None:
        pass

    def trouble(self) -> str:
        return ""


class Story:
    """A dispatcher with one connected node that offers mock/echo."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.link = NotingLink()
        registry = NodeRegistry()
        registry.connect(
            self.link.key,
            boot_id=new_boot_id(),
            software_version="1",
            address="127.0.0.1:1",
            labels={},
            wanted=NO_CONFIG,
            at_ms=0,
        )
        registry.take_config_result(self.link.key, ConfigResult(NO_CONFIG.revision, NO_CONFIG.hash, True))
        registry.take_capabilities(self.link.key, CapabilitiesChanged((MOCK_STATUS,)))
        self.runs = Dispatcher(
            clock=self.clock,
            rng=Random(1),
            ledger=Ledger(self.clock),
            queue=RunQueue(max_queued=8, timeout_s=QUEUE_TIMEOUT_S),
            registry=registry,
            catalog=Catalog((), (AdapterName("mock"),)),
            kept=KeptEvents(),
            sink=NoSink(),
            bus=EventBus(self.clock),
            links={GPU1: self.link},
            limits=DispatchLimits(),
        )

    def refuse_newest(self) -> None:
        request = self.link.requests[-1]
        refused = RunRefused(request.run_id, request.attempt, "node_busy", "all places are taken")
        self.runs.apply(self.runs.ledger.refused(self.link.key, refused))


@pytest.fixture
def story() -> Story:
    return Story()


async def test_a_run_whose_wait_ends_when_its_node_may_be_asked_again_is_sent_there(story: Story) -> None:
    stream = story.runs.submit(ORDER)
    story.refuse_newest()
    assert len(story.runs.queue) == 1

    story.clock.advance(BUSY_RETRY_S)
    story.runs.tick()

    assert [request.run_id for request in story.link.requests] == [stream.run_id] * 2
    run = story.runs.ledger.get(stream.run_id)
    assert run is not None
    assert run.state is RunState.DISPATCHED


async def test_a_run_whose_wait_ends_before_that_fails_with_what_the_node_said(story: Story) -> None:
    stream = story.runs.submit(ORDER)
    story.refuse_newest()

    story.clock.advance(QUEUE_TIMEOUT_S)
    story.runs.tick()

    view = story.runs.ledger.ended_view(stream.run_id)
    assert view is not None
    assert (view.code, view.message) == (
        "queue_timeout",
        "no place became free within 0.25 s: no node can take adapter=mock target=echo: "
        "gpu-1 refused it: all places are taken",
    )
