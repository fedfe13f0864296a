"""Counters of a service in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import __version__
from .scorer import LiveMonitor

_ROUTES = frozenset({"/", "/score", "/stream", "/healthz", "/metrics"})

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service, with a registry of its own."""

    def __init__(self, monitor: LiveMonitor, method: str, waiting: Callable[[], int]) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter("flatfold_requests", "Requests answered.", ["route", "status"], registry=registry)
        self._refused = Counter(
            "flatfold_refused", "Requests answered with a status of 400 or more.", registry=registry
        )
        self._seconds = Histogram("flatfold_request_seconds", "From request to answer.", ["route"], registry=registry)
        self._batches = Histogram(
            "flatfold_batch_size", "Inputs in one forward pass.", buckets=_BATCH_SIZES, registry=registry
        )
        Info("flatfold_build", "What is running.", registry=registry).info({"version": __version__, "method": method})
        registry.register(_LiveCollector(monitor, waiting))

    def count_batch(self, size: int) -> None:
        """Count one forward pass."""
        self._batches.observe(size)

    def count_answer(self, path: str, status: int, seconds: float) -> None:
        """Count one answer; unknown paths share a label, or they would fill the memory."""
        route = path if path in _ROUTES else "other"
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if status >= 400:
            self._refused.inc()

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)


class _LiveCollector(Collector):
    """Metrics that are computed when Prometheus asks."""

    def __init__(self, monitor: LiveMonitor, waiting: Callable[[], int]) -> None:
        self._monitor, self._waiting = monitor, waiting

    def collect(self) -> Iterable[Metric]:
        monitor = self._monitor.snapshot()
        yield CounterMetricFamily("flatfold_inputs", "Inputs scored.", value=monitor.seen)
        yield CounterMetricFamily("flatfold_alarms", "Inputs that raised an alarm.", value=monitor.alarms)
        yield GaugeMetricFamily(
            "flatfold_alarm_rate", "Share of alarms, NaN before the first.", value=monitor.alarm_rate
        )
        yield GaugeMetricFamily(
            "flatfold_drift", "Distance of the scores from the calibration scores, 0 to 1.", value=monitor.drift
        )
        yield GaugeMetricFamily("flatfold_waiting", "Inputs that wait for the model.", value=self._waiting())
