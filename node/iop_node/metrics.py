"""All metrics of the node in one list. Values are derived at each scrape where something counts them already."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Counter, Histogram

from iop_node.core.node import Node
from iop_node.core.ports import RunRecord
from iop_node.transport.edge_link import EdgeLink
from iop_shared.aio.sqlite import DatabaseStatistics
from iop_shared.ids import AdapterName
from iop_shared.link.messages import OPEN_GATES
from iop_shared.metrics import BYTES_BUCKETS, FIRST_TOKEN_BUCKETS_S, LabelCap, Metrics
from iop_shared.runs import Operation, RunState


@dataclass(frozen=True, slots=True)
class _RunSeries:
    """The series of runs that are alike: looking them up by their labels costs more than counting."""

    ended: Counter
    first_token: Histogram
    total: Histogram
    output: Histogram


class NodeMetrics:
    """Counts runs as the core's observer, and reads everything else where it is."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._series: dict[tuple[AdapterName, Operation, RunState], _RunSeries] = {}
        self._adapters = LabelCap()
        self._codes = LabelCap()
        self._runs = metrics.counter(
            "iop_node_runs_total", "Runs that ended, by how.", ("adapter", "operation", "state")
        )
        self._failures = metrics.counter(
            "iop_node_run_failures_total", "Failed runs by code and layer.", ("adapter", "code", "layer")
        )
        self._refusals = metrics.counter("iop_node_runs_refused_total", "Requests not taken, by code.", ("code",))
        self._first_token = metrics.histogram(
            "iop_node_run_first_token_seconds",
            "From the acceptance of a run to its first output.",
            ("adapter",),
            buckets=FIRST_TOKEN_BUCKETS_S,
        )
        self._total = metrics.histogram(
            "iop_node_run_seconds", "From the acceptance of a run to its end.", ("adapter",)
        )
        self._output = metrics.histogram(
            "iop_node_run_output_bytes", "Output of a run.", ("adapter",), buckets=BYTES_BUCKETS
        )

    def run_ended(self, record: RunRecord) -> None:
        """See NodeObserver."""
        key = (record.adapter, record.operation, record.state)
        series = self._series.get(key)
        if series is None:
            series = self._make_series(*key)
        series.ended.inc()
        if record.layer:
            adapter = self._adapters.fold(record.adapter)
            self._failures.labels(adapter, self._codes.fold(record.code), record.layer).inc()
        if record.first_token_s is not None:
            series.first_token.observe(record.first_token_s)
        series.total.observe(record.total_s)
        series.output.observe(record.output_bytes)

    def _make_series(self, adapter: AdapterName, operation: Operation, state: RunState) -> "_RunSeries":
        folded = self._adapters.fold(adapter)
        series = _RunSeries(
            ended=self._runs.labels(folded, operation.value, state.value),
            first_token=self._first_token.labels(folded),
            total=self._total.labels(folded),
            output=self._output.labels(folded),
        )
        if folded == adapter:  # bounded, as the labels are
            self._series[adapter, operation, state] = series
        return series

    def run_refused(self, code: str) -> None:
        """See NodeObserver."""
        self._refusals.labels(self._codes.fold(code)).inc()

    def watch(self, node: Node, link: EdgeLink, database: Callable[[], DatabaseStatistics]) -> None:
        """Adds what is read at each scrape. Called once."""
        gauge, counter = self._metrics.gauge_from, self._metrics.counter_from
        gauge("iop_node_runs_live", "Runs that hold a place.", lambda: node.statistics().live_runs)
        gauge(
            "iop_node_runs_abandoned",
            "Runs that ended while their adapter would not.",
            lambda: node.statistics().abandoned_runs,
        )
        gauge(
            "iop_node_adapter_runs",
            "Runs that hold a place, by adapter.",
            lambda: {(self._adapters.fold(name),): float(runs) for name, runs in node.in_flight().items()},
            ("adapter",),
        )
        gauge(
            "iop_node_adapter_gate_open",
            "1 where an adapter may take work, by what its gate says.",
            lambda: {
                (self._adapters.fold(status.name),): float(status.gate.state in OPEN_GATES)
                for status in node.adapter_statuses()
            },
            ("adapter",),
        )
        gauge("iop_node_draining", "1 while no new runs are taken.", lambda: float(node.statistics().draining))
        gauge(
            "iop_node_outbox_bytes",
            "Held until the edge acknowledges it.",
            lambda: node.statistics().outbox.held_bytes,
        )
        counter(
            "iop_node_outbox_dropped_events_total",
            "Events that became part of a gap.",
            lambda: node.statistics().outbox.dropped_events,
        )
        gauge(
            "iop_node_records_pending",
            "Completed runs that the journal has not taken yet.",
            lambda: node.statistics().pending_records,
        )
        gauge("iop_node_link_open", "1 while the link to the edge stands.", lambda: float(link.is_open))
        counter("iop_node_link_dials_total", "Dials to the edge.", lambda: link.dials)
        counter("iop_node_link_opened_total", "Links that came to stand.", lambda: link.opened)
        gauge("iop_node_journal_bytes", "Size of the journal's file.", lambda: database().file_bytes)
        counter(
            "iop_node_journal_failures_total",
            "Writes that the journal did not take.",
            lambda: database().failed_writes,
        )
