"""Monitor: a stream of verdicts in a few kilobytes, and how it differs from the calibration data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from math import inf, isfinite, nan
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray

from ..core.conformal import alarm_p_value, allowed_ranks, ks_p_value
from ..errors import DamagedFileError
from ..io.artifacts import decode, encode
from ..io.files import write_atomically
from .calibrated import CalibratedDetector, Verdict

QUANTILES = 128  # bins of ID inputs
STEPS = 32  # bins between the largest score of an ID input and the largest possible one
LEVEL = 0.01  # p-values up to here are called more than chance in text
SMALLEST = 1e-300  # smaller p-values are not distinguished in text
LARGEST = 2**53 - 1  # larger counts would be rounded by other JSON readers

REFERENCE = (
    "_guard",
    "_fpr",
    "_confidence",
    "_calibrated",
    "_edges",
    "_known",
)  # what monitors of one guard have in common

Count = Annotated[int, Meta(ge=0, le=LARGEST)]


def bin_edges(scores: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Return the edges ``(b + 1,)`` of bins: quantiles up to the largest score, then equal steps to a finite end."""
    ranks = -(-np.arange(1, QUANTILES + 1) * len(scores) // QUANTILES) - 1  # rounded up: quantiles are scores
    quantiles = np.sort(scores)[ranks]
    beyond = np.linspace(quantiles[-1], high, STEPS + 1) if isfinite(high) else quantiles[-1:]
    inner = np.unique(np.concatenate([quantiles, beyond]))
    return np.concatenate([[low], inner[(low < inner) & (inner < high)], [high]])


def bin_counts(scores: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many scores lie in each bin; one on an edge counts below it, one beyond the ends in the last bin."""
    inner = edges[1:-1]  # so that rounding above the largest possible score, or a NaN, is counted too
    return np.bincount(np.searchsorted(inner, scores), minlength=len(inner) + 1).astype(np.int64)


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


class Monitor(
    msgspec.Struct,
    eq=False,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename=lambda name: name.removeprefix("_"),
):
    """Counts of the verdicts of a guard, whose size does not grow with the stream.

    Made by ``guard.monitor()``. Monitors of one guard that ran in several processes, or over several hours, can be
    merged: the result is the same, to the last count, as that of one monitor that saw everything.

    The two p-values assume that inputs are independent of each other: frames of one video are not. They hold for one
    look at a stream whose length was chosen before. Looking after every batch finds something by chance, so keep a
    monitor for each hour or day, look when it is over, and merge those into longer ones. A small p-value says that the
    stream is not like the calibration data, not how much that matters: ``alarm_rate`` and ``drift`` do.

    Give each thread and process its own monitor: adding to one from two threads at once may lose counts.
    """

    FORMAT: ClassVar[str] = "flatfold-monitor"
    VERSION: ClassVar[int] = 1

    _guard: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]  # sha256 of the calibration
    _fpr: Annotated[float, Meta(gt=0, lt=1)]
    _calibrated: Annotated[tuple[Count, ...], Meta(min_length=1)]  # inputs of each group: all, or each predicted class
    _edges: Annotated[tuple[float | None, ...], Meta(min_length=2)]  # strictly increasing; None is infinite
    _known: tuple[Count, ...]  # calibration inputs in each bin
    _seen: tuple[Count, ...]  # inputs of the stream in each group
    _alarms: tuple[Count, ...]  # those of them that raised an alarm
    _stream: tuple[Count, ...]  # inputs of the stream in each bin
    _confidence: Annotated[float, Meta(gt=0, lt=1)] | None = None  # of the rate, if one was asked for

    def __post_init__(self) -> None:
        bins, groups = len(self._edges) - 1, len(self._calibrated)
        if not all(a < b for a, b in pairwise(self._bounds.tolist())):
            raise ValueError("edges do not increase")
        for name, length in {"known": bins, "stream": bins, "seen": groups, "alarms": groups}.items():
            if len(getattr(self, f"_{name}")) != length:
                raise ValueError(f"{name} must hold {length} counts")
        if sum(self._known) != sum(self._calibrated) or min(self._allowed) < 1:
            raise ValueError("the counts of the calibration data do not add up")
        more = any(a > n for a, n in zip(self._alarms, self._seen, strict=True))
        if self.seen != sum(self._stream) or self.seen > LARGEST or more:
            raise ValueError("the counts of the stream do not add up")

    @classmethod
    def of(cls, calibrated: CalibratedDetector) -> Self:
        """Return a monitor of verdicts of ``calibrated`` that has seen nothing."""
        calibration, fpr = calibrated.calibration, float(calibrated.calibration.fpr)
        padded, counts = calibration.scores.detach().cpu().double(), calibration.counts.cpu()
        scores = padded[torch.arange(padded.shape[1]) < counts[:, None]].numpy()
        edges = bin_edges(scores, *calibrated.detector.score_range())
        digest = hashlib.sha256()
        for part in (scores, counts.numpy(), calibration.threshold.detach().cpu().double().numpy(), edges):
            digest.update(part.tobytes())
        digest.update(repr(fpr).encode())
        finite = tuple(edge if isfinite(edge) else None for edge in edges.tolist())
        known = tuple(bin_counts(scores, edges).tolist())
        none, empty = (0,) * len(counts), (0,) * len(known)
        groups = tuple(counts.tolist())
        return cls(digest.hexdigest(), fpr, groups, finite, known, none, none, empty, calibration.confidence)

    @property
    def _bounds(self) -> NDArray[np.float64]:
        """The edges, with their infinite ends."""
        low, *inner, high = self._edges
        return np.array([-inf if low is None else low, *inner, inf if high is None else high], np.float64)

    @property
    def _allowed(self) -> list[int]:
        """The rank k of each group's threshold: an alarm is a score above its k-th largest calibration score."""
        return [allowed_ranks(self._fpr, samples, self._confidence) for samples in self._calibrated]

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
        columns = verdict.columns()
        score = columns["score"].double()  # numpy knows no bfloat16
        self.count(columns["predicted"].numpy(), score.numpy(), columns["is_ood"].numpy())

    def count(self, predicted: NDArray[np.integer], score: NDArray[np.floating], is_ood: NDArray[np.bool_]) -> None:
        """Count rows of a table: the class, score and decision of each input, ``(n,)`` each."""
        group = predicted if len(self._seen) > 1 else np.zeros(len(score), np.int64)
        # What is not finite is an alarm, and counted with the highest scores.
        stream = bin_counts(np.where(np.isfinite(score), score, inf).astype(np.float64), self._bounds)
        seen, alarms = (np.bincount(inputs, minlength=len(self._seen)) for inputs in (group, group[is_ood]))
        self._increase(seen, alarms, stream)

    def merge(self, other: Monitor) -> None:
        """Add all that another monitor of the same guard has counted; it stays as it is."""
        if not isinstance(other, Monitor):
            raise TypeError(f"a monitor can be merged with a monitor, got {type(other).__name__}. Read it with load.")
        if any(getattr(self, name) != getattr(other, name) for name in REFERENCE):
            raise ValueError(
                f"these monitors are of different guards ({self._guard[:8]} at {self._fpr:g} and {other._guard[:8]} at "
                f"{other._fpr:g}), whose scores and alarms cannot be compared. "
                "Merge monitors of one guard at one false-alarm rate."
            )
        self._increase(other._seen, other._alarms, other._stream)

    def _increase(self, *counts: Sequence[int] | NDArray[np.int64]) -> None:
        before = (self._seen, self._alarms, self._stream)
        self._seen, self._alarms, self._stream = (
            tuple(np.add(old, new).tolist()) for old, new in zip(before, counts, strict=True)
        )

    def __add__(self, other: Monitor) -> Monitor:
        both = copy(self)
        both.merge(other)
        return both

    @property
    def seen(self) -> int:
        """How many inputs were counted."""
        return sum(self._seen)

    @property
    def alarms(self) -> int:
        """How many of them raised an alarm."""
        return sum(self._alarms)

    @property
    def alarm_rate(self) -> float:
        """The share of them that did; NaN when nothing was seen."""
        return self.alarms / self.seen if self.seen else nan

    @property
    def groups(self) -> list[Group]:
        """Each predicted class if every one has a threshold of its own, else all inputs together."""
        columns = zip(self._seen, self._alarms, self._calibrated, self._allowed, strict=True)
        return [Group(n, a, alarm_p_value(a, n, m, k)) for n, a, m, k in columns]

    @property
    def alarm_p_value(self) -> float:
        """How likely as many alarms are, or more, if the stream is like the calibration data; 1 when nothing was seen.

        It is exact. Of several groups it is the smallest times the number of groups that were seen, at most 1
        (Bonferroni).
        """
        p_values = [group.p_value for group in self.groups if group.seen]
        return min(1.0, len(p_values) * min(p_values)) if p_values else 1.0

    @property
    def drift(self) -> float:
        """The largest difference between the shares of the stream and of the calibration data that score up to an edge.

        It is a lower bound of the Kolmogorov-Smirnov distance, which looks between the edges too. Predicted classes
        are taken together. NaN when nothing was seen.
        """
        if not self.seen:
            return nan
        return float(np.abs(np.cumsum(self._stream) / self.seen - np.cumsum(self._known) / sum(self._known)).max())

    @property
    def drift_p_value(self) -> float:
        """How likely such a drift is, or a larger one, if the stream is like the calibration data.

        It is asymptotic, and rather too large than too small, as the drift is; 1 when nothing was seen.
        """
        return ks_p_value(self.drift, self.seen, sum(self._known)) if self.seen else 1.0

    def histogram(self) -> Histogram:
        """Return the bins of the score, and how many inputs of the stream and of the calibration data lie in each."""
        return Histogram(self._bounds, np.array(self._stream), np.array(self._known))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as values that JSON knows."""
        content: dict[str, Any] = msgspec.json.decode(encode(self))
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the monitor that :meth:`to_dict` was called on; other content is refused."""
        return cls._decode(msgspec.json.encode(content), "this monitor")

    def save(self, path: Path | str) -> None:
        """Write it to a JSON file, in one step."""
        write_atomically(Path(path), encode(self, indent=0) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what :meth:`save` wrote."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no monitor at {path}. Check the path.")
        return cls._decode(Path(path).read_bytes(), str(path))

    @classmethod
    def _decode(cls, text: bytes, where: str) -> Self:
        try:
            return decode(text, cls)
        except DamagedFileError as error:
            raise ValueError(
                f"{where} is damaged: {error}. Take an older copy, or start a new one with guard.monitor()."
            ) from error

    def __str__(self) -> str:
        if not self.seen:
            return "nothing seen yet"
        lines = [
            f"{_count(self.seen, 'input')}, {_count(self.alarms, 'alarm')}: {100 * self.alarm_rate:.3g} %, "
            f"where {100 * self._fpr:g} % were allowed ({_chance(self.alarm_p_value)}).",
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
