"""Monitor: a stream of verdicts in a few kilobytes, and whether it still is like the calibration data."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.conformal import alarm_p_value, allowed_ranks, ks_p_value
from ..io.files import write_atomically
from .calibrated import Verdict

if TYPE_CHECKING:
    from .calibrated import CalibratedDetector


# What a stream is counted by: bins of the score, what the calibration data put into them, and both as plain values.


QUANTILES = 128  # bins of known inputs

STEPS = 32  # bins between the largest score of a known input and the largest possible one

FORMAT, VERSION = "flatfold-monitor", 1

AGAIN = "Take an older copy, or start a new one with guard.monitor()."

LARGEST = 2**53 - 1  # beyond it, other readers of JSON round


@dataclass(frozen=True)
class Yardstick:
    """All that a monitor knows of a guard. It never changes, and two of one guard are equal.

    Attributes:
        guard: The sha256 of the calibration: monitors with another one cannot be merged.
        fpr: The share of known inputs that may raise an alarm.
        calibrated: Calibration inputs of each group: of all inputs, or of each predicted class.
        edges: Of the bins, from the smallest possible score to the largest, strictly increasing; ends may be infinite.
        known: Calibration inputs in each bin, one fewer than edges.
    """

    guard: str
    fpr: float
    calibrated: tuple[int, ...]
    edges: tuple[float, ...]
    known: tuple[int, ...]

    @classmethod
    def of(cls, calibrated: CalibratedDetector) -> Self:
        """Return the yardstick of a calibrated."""
        calibration, fpr = calibrated.calibration, float(calibrated.calibration.fpr)
        every, counts = calibration.scores.detach().cpu().double(), calibration.counts.cpu()
        scores = every[torch.arange(every.shape[1]) < counts[:, None]].numpy()
        edges = bin_edges(scores, *calibrated.detector.score_range())
        digest = hashlib.sha256()
        for part in (scores, counts.numpy(), calibration.threshold.detach().cpu().double().numpy(), edges):
            digest.update(part.tobytes())
        digest.update(repr(fpr).encode())
        known = tuple(bin_counts(scores, edges).tolist())
        return cls(digest.hexdigest(), fpr, tuple(counts.tolist()), tuple(edges.tolist()), known)

    @property
    def allowed(self) -> tuple[int, ...]:
        """The rank k of each group's threshold: an alarm is a score above its k-th largest calibration score."""
        return tuple(allowed_ranks(self.fpr, samples) for samples in self.calibrated)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with None for an end that is infinite."""
        return {
            "guard": self.guard,
            "fpr": self.fpr,
            "calibrated": list(self.calibrated),
            "edges": [edge if isfinite(edge) else None for edge in self.edges],
            "known": list(self.known),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_dict` was called on; a KeyError or TypeError says what cannot be."""
        guard, fpr, groups, edges = content["guard"], content["fpr"], content["calibrated"], _edges(content["edges"])
        if not isinstance(guard, str) or not re.fullmatch("[0-9a-f]{64}", guard):
            raise TypeError("'guard' is no sha256")
        if not isinstance(fpr, float) or not 0 < fpr < 1:
            raise TypeError(f"'fpr' is {fpr!r}")
        if not isinstance(groups, list) or not groups:
            raise TypeError("'calibrated' is no list of counts")
        calibrated = _whole_numbers(content, "calibrated", len(groups))
        known = _whole_numbers(content, "known", len(edges) - 1)
        read = cls(guard, fpr, tuple(calibrated), edges, tuple(known))
        if sum(known) != sum(calibrated) or min(read.allowed) < 1:
            raise TypeError("the counts of the calibration data do not add up")
        return read


def bin_edges(scores: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Return the edges of the bins that scores are counted in.

    Up to the largest calibration score they are quantiles, so that each bin holds about the same share of known
    inputs; from there to a finite upper end they are equally far apart. Equal ones are dropped.

    Args:
        scores: Of the calibration inputs, ``(m,)`` in any order.
        low: The smallest possible score, perhaps infinite.
        high: The largest, perhaps infinite.

    Returns:
        ``(b + 1,)``, from ``low`` to ``high``.
    """
    ranks = -(-np.arange(1, QUANTILES + 1) * len(scores) // QUANTILES) - 1  # rounded up: quantiles are scores
    quantiles = np.sort(scores)[ranks]
    beyond = np.linspace(quantiles[-1], high, STEPS + 1) if isfinite(high) else quantiles[-1:]
    inner = np.unique(np.concatenate([quantiles, beyond]))
    return np.concatenate([[low], inner[(low < inner) & (inner < high)], [high]])


def bin_counts(scores: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many scores lie in each bin; one on an edge counts below it, one beyond the ends in the last bin."""
    inner = edges[1:-1]  # so that rounding above the largest possible score, or a NaN, loses nobody
    return np.bincount(np.searchsorted(inner, scores), minlength=len(inner) + 1).astype(np.int64)


def read_counts(content: Mapping[str, Any]) -> tuple[Yardstick, list[int], list[int], list[int]]:
    """Return what plain values of a monitor hold: its yardstick, inputs seen, alarms, and the bins of the stream."""
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise ValueError(f"this holds no monitor: its format must be {FORMAT!r}. Was it made by monitor.to_dict?")
    if content.get("version") != VERSION:
        raise ValueError(
            f"this monitor has version {content.get('version')!r}, this flatfold reads version {VERSION}. "
            "Upgrade flatfold, or start a new one with guard.monitor()."
        )
    try:
        yardstick = Yardstick.from_dict(content)
        seen, alarms = (_whole_numbers(content, key, len(yardstick.calibrated)) for key in ("seen", "alarms"))
        stream = _whole_numbers(content, "stream", len(yardstick.known))
        if sum(seen) != sum(stream) or any(a > n for a, n in zip(alarms, seen, strict=True)):
            raise TypeError("the counts of the stream do not add up")
        return yardstick, seen, alarms, stream
    except KeyError as error:
        raise ValueError(f"this monitor is damaged: it has no {error}. {AGAIN}") from error
    except TypeError as error:
        raise ValueError(f"this monitor is damaged: {error}. {AGAIN}") from error


def _whole_numbers(content: Mapping[str, Any], key: str, length: int) -> list[int]:
    values = content[key]
    if not isinstance(values, list) or len(values) != length:
        raise TypeError(f"{key!r} is no list of {length} counts")
    wrong = [value for value in values if type(value) is not int or value < 0]
    if wrong:
        raise TypeError(f"{key!r} holds {wrong[0]!r}, which is no count")
    if sum(values) > LARGEST:
        raise TypeError(f"{key!r} counts more than {LARGEST}")
    return values


def _edges(values: Any) -> tuple[float, ...]:
    """Return edges with their infinite ends put back."""
    if not isinstance(values, list) or len(values) < 2:
        raise TypeError("'edges' is no list of edges")
    low, *inner, high = values
    edges = (-inf if low is None else low, *inner, inf if high is None else high)
    if any(type(edge) not in (float, int) for edge in edges) or not all(a < b for a, b in pairwise(edges)):
        raise TypeError("'edges' do not increase")
    return tuple(map(float, edges))


LEVEL = 0.01  # p-values up to here are called more than chance in text

SMALLEST = 1e-300  # p-values below are not told apart in text


class Group(NamedTuple):
    """The inputs that share a threshold."""

    seen: int
    alarms: int
    p_value: float
    """Of that many alarms or more, if the inputs are like the calibration data."""


class Histogram(NamedTuple):
    """Scores of a stream and of the calibration data in the same bins."""

    edges: NDArray[np.float64]
    """``(b + 1,)``, strictly increasing; the first and the last may be infinite."""
    stream: NDArray[np.int64]
    """``(b,)``, inputs seen."""
    calibration: NDArray[np.int64]
    """``(b,)``, calibration inputs."""


class Monitor:
    """Counts of what a guard said, whose size does not grow with the stream.

    Made by ``guard.monitor()``. Monitors of one guard that ran in several processes, or over several hours, can be
    merged: the result is the same, to the last count, as that of one monitor that saw everything.

    The two p-values assume that inputs are independent of each other: frames of one video are not. They hold for one
    look at a stream whose length was settled before. Who looks after every batch will find something by chance, so keep
    a monitor for each hour or day, look when it is over, and merge those into longer ones. A small p-value says that
    the stream is not like the calibration data, not how much that matters: ``alarm_rate`` and ``drift`` do.

    Let each thread and process have its own: adding to one from two threads at once may lose counts.

    Args:
        yardstick: Of the guard.
        seen: Inputs of each group.
        alarms: Those of them that raised an alarm.
        stream: Inputs in each bin of the score.
    """

    def __init__(self, yardstick: Yardstick, seen: Sequence[int], alarms: Sequence[int], stream: Sequence[int]) -> None:
        self.yardstick = yardstick
        self._seen, self._alarms, self._stream = (np.array(counts, np.int64) for counts in (seen, alarms, stream))

    @classmethod
    def of(cls, calibrated: CalibratedDetector) -> Self:
        """Return a monitor of verdicts of ``calibrated`` that has seen nothing."""
        yardstick = Yardstick.of(calibrated)
        none = [0] * len(yardstick.calibrated)
        return cls(yardstick, none, none, [0] * len(yardstick.known))

    def add(self, verdict: Verdict) -> None:
        """Count what the guard said about a batch, which may be empty and on any device."""
        if not isinstance(verdict, Verdict):
            raise TypeError(
                f"a monitor counts what a guard says, got {type(verdict).__name__}. Call monitor.add(guard(x))."
            )
        groups, classes = len(self._seen), verdict.logits.shape[-1]
        if groups not in (1, classes):
            raise ValueError(
                f"this monitor is of a guard with {groups} classes, the verdict has {classes}. "
                "Add what the guard said that made the monitor."
            )
        predicted = verdict.logits.detach().argmax(dim=-1)
        score = verdict.score.detach().double()  # numpy knows no bfloat16
        self.count(*(values.cpu().numpy() for values in (predicted, score, verdict.is_ood)))

    def count(self, predicted: NDArray[np.integer], score: NDArray[np.floating], is_ood: NDArray[np.bool_]) -> None:
        """Count rows of a table: the class, score and decision of each input, ``(n,)`` each."""
        group = predicted if len(self._seen) > 1 else np.zeros(len(score), np.int64)
        stream = bin_counts(score.astype(np.float64), np.array(self.yardstick.edges))
        seen, alarms = (np.bincount(each, minlength=len(self._seen)) for each in (group, group[is_ood]))
        if len(seen) > len(self._seen):
            raise ValueError(
                f"this monitor is of a guard with {len(self._seen)} classes, the table has a class {group.max()}. "
                "Count the table of the guard that made the monitor."
            )
        self._stream += stream  # all or nothing: what can fail lies above
        self._seen += seen
        self._alarms += alarms

    def merge(self, other: Monitor) -> None:
        """Add all that another monitor of the same guard has counted; it stays as it is."""
        if not isinstance(other, Monitor):
            raise TypeError(f"a monitor can be merged with a monitor, got {type(other).__name__}. Read it with load.")
        if self.yardstick != other.yardstick:
            raise ValueError(
                f"these monitors are of different guards ({self.yardstick.guard[:8]} at {self.yardstick.fpr:g} and "
                f"{other.yardstick.guard[:8]} at {other.yardstick.fpr:g}), whose scores and alarms cannot be compared. "
                "Merge monitors of one guard at one false-alarm rate."
            )
        self._seen += other._seen
        self._alarms += other._alarms
        self._stream += other._stream

    def __add__(self, other: Monitor) -> Monitor:
        both = Monitor(self.yardstick, self._seen.tolist(), self._alarms.tolist(), self._stream.tolist())
        both.merge(other)
        return both

    @property
    def seen(self) -> int:
        """How many inputs were counted."""
        return int(self._seen.sum())

    @property
    def alarms(self) -> int:
        """How many of them raised an alarm."""
        return int(self._alarms.sum())

    @property
    def alarm_rate(self) -> float:
        """The share of them that did; NaN when nothing was seen."""
        return self.alarms / self.seen if self.seen else nan

    @property
    def groups(self) -> list[Group]:
        """Each predicted class if every one has a threshold of its own, else all inputs together."""
        counts = zip(self._seen.tolist(), self._alarms.tolist(), strict=True)
        samples = zip(self.yardstick.calibrated, self.yardstick.allowed, strict=True)
        return [Group(n, a, alarm_p_value(a, n, m, k)) for (n, a), (m, k) in zip(counts, samples, strict=True)]

    @property
    def alarm_p_value(self) -> float:
        """How likely as many alarms are, or more, if the stream is like the calibration data; 1 when nothing was seen.

        It is exact. Of several groups it is the smallest times the number of groups that were seen, at most 1
        (Bonferroni).
        """
        each = [group.p_value for group in self.groups if group.seen]
        return min(1.0, len(each) * min(each)) if each else 1.0

    @property
    def drift(self) -> float:
        """The largest difference between the shares of the stream and of the calibration data that score up to an edge.

        It is a lower bound of the Kolmogorov-Smirnov distance, which looks between the edges too. Predicted classes
        are taken together. NaN when nothing was seen.
        """
        if not self.seen:
            return nan
        known = np.array(self.yardstick.known)
        return float(np.abs(self._stream.cumsum() / self.seen - known.cumsum() / known.sum()).max())

    @property
    def drift_p_value(self) -> float:
        """How likely such a drift is, or a larger one, if the stream is like the calibration data.

        It is asymptotic, and rather too large than too small, as the drift is; 1 when nothing was seen.
        """
        return ks_p_value(self.drift, self.seen, sum(self.yardstick.known)) if self.seen else 1.0

    def histogram(self) -> Histogram:
        """Return the bins of the score, and how many inputs of the stream and of the calibration data lie in each."""
        return Histogram(np.array(self.yardstick.edges), self._stream.copy(), np.array(self.yardstick.known))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as values that JSON knows."""
        counts = {"seen": self._seen, "alarms": self._alarms, "stream": self._stream}
        plain = {name: values.tolist() for name, values in counts.items()}
        return {"format": FORMAT, "version": VERSION, **self.yardstick.to_dict(), **plain}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the monitor that :meth:`to_dict` was called on; what cannot come from there is refused."""
        return cls(*read_counts(content))

    def save(self, path: Path | str) -> None:
        """Write it to a JSON file, in one step."""
        write_atomically(Path(path), json.dumps(self.to_dict(), allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what :meth:`save` wrote."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no monitor at {path}. Check the path.")
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:  # of the encoding too
            raise ValueError(f"{path} is not valid JSON ({error}). {AGAIN}") from error
        try:
            return cls.from_dict(content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def __str__(self) -> str:
        if not self.seen:
            return "nothing seen yet"
        lines = [
            f"{_count(self.seen, 'input')}, {_count(self.alarms, 'alarm')}: {100 * self.alarm_rate:.3g} %, "
            f"where {100 * self.yardstick.fpr:g} % were allowed ({_chance(self.alarm_p_value)}).",
            f"Scores differ from calibration by {self.drift:.2g} ({_chance(self.drift_p_value)}).",
        ]
        groups = self.groups
        if len(groups) > 1 and self.alarm_p_value <= LEVEL:
            worst = min(groups, key=lambda group: group.p_value)
            of = f"{worst.alarms:,} of {_count(worst.seen, 'input')}"
            lines.append(f"Class {groups.index(worst)} is the most unusual: {of} raised an alarm.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Monitor({_count(self.seen, 'input')}, {_count(self.alarms, 'alarm')})"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _chance(p: float) -> str:
    """Return a p-value and what it says, as text."""
    value = f"p < {SMALLEST:g}" if p < SMALLEST else f"p = {p:.2g}"
    return f"{value}: more than chance" if p <= LEVEL else f"{value}: no more than chance explains"
