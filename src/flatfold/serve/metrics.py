"""What a service measures of itself, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import __version__
from .scorer import Stream

ROUTES = frozenset({"/", "/score", "/stream", "/healthz", "/metrics"})

OTHER = "other"  # whatever else is asked for: each path on its own would fill the memory

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service; several in one process do not meet.

    Args:
        stream: What the service has said.
        method: Of the detector.
    """

    def __init__(self, stream: Stream, method: str) -> None:
        self.registry = CollectorRegistry()
        ours = self.registry
        self._requests = Counter("flatfold_requests", "Requests answered.", ["route", "status"], registry=ours)
        self._refused = Counter("flatfold_refused", "Requests answered with a status from 400 on.", registry=ours)
        self._seconds = Histogram("flatfold_request_seconds", "From request to answer.", ["route"], registry=ours)
        self._batches = Histogram(
            "flatfold_batch_size", "Inputs that went through the model together.", buckets=SIZES, registry=ours
        )
        Info("flatfold_build", "What is running.", registry=ours).info({"version": __version__, "method": method})
        self._now = _Now(stream)
        self.registry.register(self._now)

    def watch_line(self, length: Callable[[], int]) -> None:
        """Say how the number of inputs that wait is found."""
        self._now.length = length

    def note_batch(self, size: int) -> None:
        """Count inputs that go through the model together."""
        self._batches.observe(size)

    def note(self, path: str, status: int, seconds: float) -> None:
        """Count an answer."""
        route = path if path in ROUTES else OTHER
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if status >= 400:
            self._refused.inc()

    def text(self) -> bytes:
        """Return all of it."""
        return generate_latest(self.registry)


class _Now(Collector):
    """What is looked up when somebody asks."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.length: Callable[[], int] = lambda: 0

    def collect(self) -> Iterable[Metric]:
        counted = self.stream.now()
        yield CounterMetricFamily("flatfold_inputs", "Inputs judged.", value=counted.seen)
        yield CounterMetricFamily("flatfold_alarms", "Those that raised an alarm.", value=counted.alarms)
        yield GaugeMetricFamily("flatfold_alarm_rate", "Their share, NaN before the first.", value=counted.alarm_rate)
        yield GaugeMetricFamily(
            "flatfold_drift", "Distance of the scores from those of calibration, 0 to 1.", value=counted.drift
        )
        yield GaugeMetricFamily("flatfold_waiting", "Inputs that wait for the model.", value=self.length())
