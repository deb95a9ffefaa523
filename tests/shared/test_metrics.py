import re
from collections.abc import Callable, Mapping

import prometheus_client
import pytest

from iop_shared.errors import InternalError
from iop_shared.metrics import FAST_BUCKETS_S, LabelCap, Metrics


def _page(metrics: Metrics) -> str:
    page, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=")
    return page.decode()


def test_a_page_shows_what_was_counted() -> None:
    metrics = Metrics(with_process=False)
    runs = metrics.counter("iop_edge_runs_total", "Runs by how they ended.", ["outcome"])
    metrics.gauge("iop_edge_nodes", "Nodes connected.").set(2)
    first = metrics.histogram("iop_edge_route_seconds", "Time to route.", buckets=FAST_BUCKETS_S)

    runs.labels("failed").inc()
    first.observe(0.002)

    page = _page(metrics)
    assert "# HELP iop_edge_runs_total Runs by how they ended." in page
    assert 'iop_edge_runs_total{outcome="failed"} 1.0' in page
    assert "iop_edge_nodes 2.0" in page
    assert 'iop_edge_route_seconds_bucket{le="0.0025"} 1.0' in page
    assert 'iop_edge_route_seconds_bucket{le="0.001"} 0.0' in page
    assert "_created" not in page


def test_derived_values_are_asked_for_at_each_scrape_and_only_then() -> None:
    metrics, asked = Metrics(with_process=False), []

    def read() -> Mapping[tuple[str, ...], float]:
        asked.append(1)
        return {("vllm",): len(asked), ("mock",): 0}

    metrics.gauge_from("iop_node_runs_in_flight", "Runs now.", read, ["adapter"])
    metrics.counter_from("iop_node_frames_total", "Frames.", lambda: 7)

    assert asked == []
    assert 'iop_node_runs_in_flight{adapter="vllm"} 1.0' in _page(metrics)
    page = _page(metrics)
    assert 'iop_node_runs_in_flight{adapter="vllm"} 2.0' in page
    assert "iop_node_frames_total 7.0" in page


def test_two_daemons_in_one_process_do_not_meet() -> None:
    first, second = Metrics(), Metrics()

    first.gauge("iop_edge_nodes", "Nodes.").set(1)
    second.gauge("iop_edge_nodes", "Nodes.").set(5)

    assert "iop_edge_nodes 1.0" in _page(first)
    assert "iop_edge_nodes 5.0" in _page(second)
    assert b"iop_" not in prometheus_client.generate_latest()


def test_process_metrics_are_there_when_wanted() -> None:
    assert re.search(r"^process_resident_memory_bytes \d", _page(Metrics()), re.MULTILINE)
    assert _page(Metrics(with_process=False)).strip() == ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda m: m.gauge("iop_edge_x", "X.", ["run_id"]),
            "metric iop_edge_x: label 'run_id' is not a bounded one: adapter, class, code, database, direction, "
            "kind, lane, layer, method, node, operation, outcome, queue, reason, route, state, status, surface, "
            "task, version",
        ),
        (lambda m: m.counter("iop_edge_x", "X."), "metric iop_edge_x: the name of a counter ends in _total"),
        (
            lambda m: m.counter_from("iop_edge_x", "X.", lambda: 1),
            "metric iop_edge_x: the name of a counter ends in _total",
        ),
        (
            lambda m: m.gauge("runs", "X."),
            "metric runs: the name must match iop_(edge|node|link|http|client)_[a-z0-9_]+",
        ),
        (lambda m: m.gauge("iop_edge_x", ""), "metric iop_edge_x has no text"),
        (
            lambda m: [m.gauge("iop_edge_x", "X."), m.gauge("iop_edge_x", "X.")],
            "metric iop_edge_x is made twice",
        ),
    ],
)
def test_a_metric_that_breaks_the_rules_is_our_bug(make: Callable[[Metrics], object], message: str) -> None:
    with pytest.raises(InternalError) as caught:
        make(Metrics(with_process=False))

    assert str(caught.value) == message


def test_names_lists_what_was_made_with_its_text() -> None:
    metrics = Metrics()
    metrics.gauge("iop_edge_nodes", "Nodes.")
    metrics.gauge_from("iop_edge_live_runs", "Runs.", lambda: 0)

    assert metrics.names() == {"iop_edge_live_runs": "Runs.", "iop_edge_nodes": "Nodes."}
    assert list(metrics.names()) == ["iop_edge_live_runs", "iop_edge_nodes"]


def test_values_beyond_the_cap_share_one_label() -> None:
    cap = LabelCap(limit=2)

    assert [cap.fold(v) for v in ["a", "b", "c", "a", "d", "b"]] == ["a", "b", "other", "a", "other", "b"]
