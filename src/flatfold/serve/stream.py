"""All that a service has said so far, in counts."""

from __future__ import annotations

import threading
from math import isfinite
from typing import Any

from ..scoring.judge import Judge
from ..scoring.monitor import Monitor
from ..scoring.verdict import Verdict


class Stream:
    """A monitor that several threads may use.

    Args:
        judge: Whose verdicts are counted.
    """

    def __init__(self, judge: Judge) -> None:
        self._monitor, self._nothing = Monitor.of(judge), Monitor.of(judge)
        self._lock = threading.Lock()

    def add(self, verdict: Verdict) -> None:
        """Count a verdict."""
        with self._lock:
            self._monitor.add(verdict)

    def now(self) -> Monitor:
        """Return what has been counted, as a monitor that does not change."""
        with self._lock:
            return self._monitor + self._nothing

    def as_dict(self) -> dict[str, Any]:
        """Return counts, rates and histograms as values that JSON knows: None for what is not there or infinite."""
        counted = self.now()
        bins = counted.histogram()
        return {
            "seen": counted.seen,
            "alarms": counted.alarms,
            "alarm_rate": finite(counted.alarm_rate),
            "alarm_p_value": counted.alarm_p_value,
            "drift": finite(counted.drift),
            "drift_p_value": counted.drift_p_value,
            "edges": [finite(edge) for edge in bins.edges.tolist()],
            "calibration": bins.calibration.tolist(),
            "live": bins.stream.tolist(),
        }


def finite(value: float) -> float | None:
    """Return a number, or None where it is none that JSON knows."""
    return value if isfinite(value) else None
