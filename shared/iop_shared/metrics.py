"""Metrics: one private registry per daemon, bounded labels, shared bucket sets, Prometheus text out.

The library's global registry is never used: two daemons in one process (tests, `iop up`) must not meet.
Every metric is named `iop_<daemon>_<thing>_<unit>`, and docs/metrics.md lists it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from iop_shared.errors import InternalError

# Labels are identity with few values. Never a run, session, token or client address: a series lives forever.
ALLOWED_LABELS: Final = frozenset(
    {
        "adapter", "class", "code", "database", "direction", "kind", "lane", "layer", "method", "node",
        "operation", "outcome", "queue", "reason", "route", "state", "status", "surface", "task", "version",
    }
)  # fmt: skip
OTHER: Final = "other"

# Seconds. Chosen to resolve both a local 1 ms hop and a long generation; change freely, but all at once.
FAST_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
FIRST_TOKEN_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
RUN_BUCKETS_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
BYTES_BUCKETS: Final = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 33554432.0)

_NAME: Final = re.compile(r"iop_(edge|node|link|http|client)_[a-z0-9_]+")
Samples = Mapping[tuple[str, ...], float]


class Metrics:
    """The metrics of one daemon. Making one twice, or with a label that is not allowed, is our bug.

    `with_process`: adds memory, CPU and open files of this process (Linux) and the collector's counts.
    """

    def __init__(self, *, with_process: bool = True) -> None:
        # A second series beside each counter and histogram, which nobody asked for and no document explains.
        # The library knows this setting for the whole process only.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        self._names: dict[str, str] = {}
        if with_process:
            ProcessCollector(registry=self.registry)
            GCCollector(registry=self.registry)

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Returns a new counter; its name ends in `_total`."""
        if not name.endswith("_total"):
            raise InternalError(f"metric {name}: the name of a counter ends in _total")
        self._check(name, text, labels)
        return Counter(name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """Returns a new gauge that is set by hand. Prefer `gauge_from`: what is derived cannot drift."""
        self._check(name, text, labels)
        return Gauge(name, text, labels, registry=self.registry)

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = RUN_BUCKETS_S
    ) -> Histogram:
        """Returns a new histogram over one of the bucket sets above."""
        self._check(name, text, labels)
        return Histogram(name, text, labels, registry=self.registry, buckets=tuple(buckets))

    def gauge_from(
        self, name: str, text: str, read: Callable[[], float | Samples], labels: Sequence[str] = ()
    ) -> None:
        """Adds a gauge whose values `read` tells at each scrape: a number, or numbers by label values."""
        self._check(name, text, labels)
        self.registry.register(_Reader(lambda: GaugeMetricFamily(name, text, labels=labels), read))

    def counter_from(
        self, name: str, text: str, read: Callable[[], float | Samples], labels: Sequence[str] = ()
    ) -> None:
        """As `gauge_from`, for totals that some object counts already; the name ends in `_total`."""
        if not name.endswith("_total"):
            raise InternalError(f"metric {name}: the name of a counter ends in _total")
        self._check(name, text, labels)
        self.registry.register(_Reader(lambda: CounterMetricFamily(name, text, labels=labels), read))

    def names(self) -> Mapping[str, str]:
        """Returns every metric made here with its text, sorted by name. Without those of the process."""
        return dict(sorted(self._names.items()))

    def render(self) -> tuple[bytes, str]:
        """Returns the page for a scraper and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _check(self, name: str, text: str, labels: Iterable[str]) -> None:
        if _NAME.fullmatch(name) is None:
            raise InternalError(f"metric {name}: the name must match {_NAME.pattern}")
        if name in self._names:
            raise InternalError(f"metric {name} is made twice")
        if not text:
            raise InternalError(f"metric {name} has no text")
        wrong = sorted(set(labels) - ALLOWED_LABELS)
        if wrong:
            allowed = ", ".join(sorted(ALLOWED_LABELS))
            raise InternalError(f"metric {name}: label {wrong[0]!r} is not a bounded one: {allowed}")
        self._names[name] = text


class _Reader(Collector):
    """Asks `read` at each scrape."""

    def __init__(
        self,
        family: Callable[[], GaugeMetricFamily | CounterMetricFamily],
        read: Callable[[], float | Samples],
    ) -> None:
        self._family, self._read = family, read

    def collect(self) -> Iterable[Metric]:
        """Yields the family with the values of now."""
        family, values = self._family(), self._read()
        if isinstance(values, Mapping):
            for labels, value in sorted(values.items()):
                family.add_metric(labels, value)
        else:
            family.add_metric((), values)
        yield family

    def describe(self) -> Iterable[Metric]:
        """Yields the family without values, so that registering asks nobody."""
        yield self._family()


class LabelCap:
    """Keeps a label bounded: the first `limit` values stay themselves, all later ones become `other`.

    For values that operators choose (adapters, nodes) but that a mistake could make many.
    """

    def __init__(self, limit: int = 200) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def fold(self, value: str) -> str:
        """Returns `value`, or `other` once too many are known."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit:
            return OTHER
        self._seen.add(value)
        return value
