"""All metrics of the edge (beside those of HTTP) in one list, fed by the bus and read from the service.

Labels are bounded: adapter names are folded, outcomes and codes come from tables of ours. Never a run id.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Histogram

from iop_edge.domain.views import EdgeEvent
from iop_edge.service import EdgeService
from iop_shared.metrics import FIRST_TOKEN_BUCKETS_S, RUN_BUCKETS_S, LabelCap, Metrics

MAX_SERIES: Final = 1000
"""Looked-up series kept. Chosen; a code that a node makes up beyond that is looked up each time."""


class EdgeMetrics:
    """Makes the metrics and keeps them true. `link_count`: connections on the link's port now.

    `history_pending`, `history_failures`: records that wait, and batches that could not be written.
    """

    def __init__(
        self,
        metrics: Metrics,
        service: EdgeService,
        *,
        link_count: Callable[[], int],
        history_pending: Callable[[], int],
        history_failures: Callable[[], int],
    ) -> None:
        self._adapters = LabelCap()
        self._codes = LabelCap()
        self._series: dict[tuple[str, str, str], _RunSeries] = {}
        self._steps_by_kind: dict[str, PrometheusCounter] = {}
        runs, registry, bus = service.runs, service.registry, service.bus
        self._finished = metrics.counter(
            "iop_edge_runs_finished_total", "Runs that ended.", ("adapter", "outcome", "code")
        )
        self._steps = metrics.counter(
            "iop_edge_run_events_total", "Changes of state of runs, by kind of event.", ("kind",)
        )
        self._queued_s = metrics.histogram(
            "iop_edge_run_queued_seconds", "From submission to the start on the node.", ("adapter",)
        )
        self._first_token_s = metrics.histogram(
            "iop_edge_run_first_token_seconds",
            "From submission to the first output at the edge.",
            ("adapter",),
            buckets=FIRST_TOKEN_BUCKETS_S,
        )
        self._total_s = metrics.histogram(
            "iop_edge_run_seconds",
            "From submission to the terminal event.",
            ("adapter", "outcome"),
            buckets=RUN_BUCKETS_S,
        )
        self._events = metrics.counter(
            "iop_edge_runtime_events_total", "RuntimeEvents of ended runs.", ("adapter",)
        )
        self._output_bytes = metrics.counter(
            "iop_edge_output_bytes_total", "Output bytes of ended runs.", ("adapter",)
        )
        self._input_bytes = metrics.counter(
            "iop_edge_input_bytes_total", "Input bytes of ended runs.", ("adapter",)
        )
        self._nodes_lost = metrics.counter("iop_edge_links_lost_total", "Open links that ended.", ("code",))
        self._nodes_refused = metrics.counter(
            "iop_edge_links_refused_total", "Links that ended before they were open.", ("code",)
        )
        metrics.gauge_from("iop_edge_runs_live", "Runs that have not ended.", lambda: len(runs.ledger))
        metrics.gauge_from("iop_edge_runs_queued", "Runs that wait for a free place.", lambda: len(runs.queue))
        metrics.gauge_from(
            "iop_edge_nodes",
            "Nodes by state.",
            lambda: {(state,): float(n) for state, n in Counter(e.state for e in registry).items()},
            ("state",),
        )
        metrics.gauge_from("iop_edge_links", "Connections on the link's port.", link_count)
        metrics.gauge_from(
            "iop_edge_kept_output_bytes", "Events kept for readers that come late.", lambda: runs.kept.size
        )
        metrics.gauge_from("iop_edge_bus_subscribers", "Readers of the event bus.", lambda: bus.subscriber_count)
        metrics.counter_from("iop_edge_bus_events_total", "Events published on the bus.", lambda: bus.last_id)
        metrics.gauge_from("iop_edge_history_pending", "Records that are not written yet.", history_pending)
        metrics.counter_from(
            "iop_edge_history_failures_total", "Batches of records that could not be written.", history_failures
        )
        metrics.counter_from(
            "iop_edge_dropped_events_total",
            "RuntimeEvents that were not taken, by why.",
            lambda: {
                ("duplicate",): runs.ledger.counts.duplicate_events,
                ("stale",): runs.ledger.counts.stale_events,
            },
            ("reason",),
        )
        metrics.counter_from(
            "iop_edge_event_holes_total",
            "Holes in the numbers of a run's events.",
            lambda: runs.ledger.counts.holes,
        )
        metrics.counter_from(
            "iop_edge_stale_frames_total", "Messages of an old link, dropped.", lambda: registry.stale_frames
        )
        metrics.counter_from(
            "iop_edge_slow_readers_total", "Streams lost because nobody read them.", lambda: runs.slow_consumers
        )
        metrics.counter_from(
            "iop_edge_output_mismatches_total",
            "Runs whose count of output bytes differs from the node's.",
            lambda: runs.mismatches,
        )
        bus.add_listener(self._on_event)

    def _on_event(self, event: EdgeEvent) -> None:
        detail: Any = event.detail
        match event.kind:
            case "run_finished":
                self._on_run_finished(detail)
            case "node_lost":
                self._nodes_lost.labels(self._codes.fold(detail["code"])).inc()
            case "node_refused":
                self._nodes_refused.labels(self._codes.fold(detail["code"])).inc()
        if event.run_id is not None:
            step = self._steps_by_kind.get(event.kind)
            if step is None:
                step = self._steps_by_kind[event.kind] = self._steps.labels(event.kind)
            step.inc()

    def _on_run_finished(self, detail: Any) -> None:
        key = (detail["adapter"], detail["outcome"], detail["code"])
        series = self._series.get(key)
        if series is None:
            series = self._make_series(*key)
        series.finished.inc()
        series.total_s.observe(detail["total_s"])
        if detail["queued_s"] is not None:
            series.queued_s.observe(detail["queued_s"])
        if detail["first_token_s"] is not None:
            series.first_token_s.observe(detail["first_token_s"])
        series.events.inc(detail["events"])
        series.output_bytes.inc(detail["output_bytes"])
        series.input_bytes.inc(detail["input_bytes"])

    def _make_series(self, adapter: str, outcome: str, code: str) -> "_RunSeries":
        folded, folded_code = self._adapters.fold(adapter), self._codes.fold(code)
        series = _RunSeries(
            finished=self._finished.labels(folded, outcome, folded_code),
            total_s=self._total_s.labels(folded, outcome),
            queued_s=self._queued_s.labels(folded),
            first_token_s=self._first_token_s.labels(folded),
            events=self._events.labels(folded),
            output_bytes=self._output_bytes.labels(folded),
            input_bytes=self._input_bytes.labels(folded),
        )
        if len(self._series) < MAX_SERIES:
            self._series[adapter, outcome, code] = series
        return series


@dataclass(frozen=True, slots=True)
class _RunSeries:
    """The series that one end of a run moves, looked up once: looking up costs more than counting."""

    finished: PrometheusCounter
    total_s: Histogram
    queued_s: Histogram
    first_token_s: Histogram
    events: PrometheusCounter
    output_bytes: PrometheusCounter
    input_bytes: PrometheusCounter
