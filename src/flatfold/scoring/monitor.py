"""Monitor: summarise a stream of verdicts in a few kilobytes and test it against the calibration data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from html import escape
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
from ..display.numbers import count
from ..errors import DamagedFileError
from ..io.artifacts import decode, encode
from ..io.files import write_atomically
from .calibrated import CalibratedDetector, Verdict

QUANTILES = 128  # bins of ID inputs
STEPS = 32  # bins between the largest score of an ID input and the largest possible score
LEVEL = 0.01  # significance level in text
SMALLEST = 1e-300  # smaller p-values are not distinguished in text
SHARE = 10**6  # shares of positions are counted in millionths, so that sums do not depend on the order
LARGEST = 2**53 - 1  # larger counts would be rounded by other JSON readers

REFERENCE = (
    "_guard",
    "_fpr",
    "_confidence",
    "_calibrated",
    "_edges",
    "_known",
)  # fields that are equal for all monitors of one guard

Count = Annotated[int, Meta(ge=0, le=LARGEST)]


def bin_edges(scores: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Return bin edges ``(b + 1,)``: quantiles up to the largest score, then equal steps to a finite end."""
    ranks = -(-np.arange(1, QUANTILES + 1) * len(scores) // QUANTILES) - 1  # rounded up: quantiles are scores
    quantiles = np.sort(scores)[ranks]
    beyond = np.linspace(quantiles[-1], high, STEPS + 1) if isfinite(high) else quantiles[-1:]
    inner = np.unique(np.concatenate([quantiles, beyond]))
    return np.concatenate([[low], inner[(low < inner) & (inner < high)], [high]])


def bin_counts(scores: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Count the scores in each bin; one on an edge counts below it, one beyond the ends in the outer bin."""
    inner = edges[1:-1]  # so that values rounded above the largest possible score, and NaN, are counted too
    return np.bincount(np.searchsorted(inner, scores), minlength=len(inner) + 1).astype(np.int64)


class Group(NamedTuple):
    """Counts of the inputs that share a threshold."""

    seen: int
    alarms: int
    p_value: float
    """p-value of the number of alarms under the calibration distribution."""


class Histogram(NamedTuple):
    """Histogram of the scores of a stream and of the calibration data, in the same bins."""

    edges: NDArray[np.float64]
    """``(b + 1,)``, strictly increasing; the first and the last may be infinite."""
    stream: NDArray[np.int64]
    """``(b,)``, inputs of the stream."""
    calibration: NDArray[np.int64]
    """``(b,)``, calibration inputs."""

    def __repr__(self) -> str:
        seen, known = (count(int(counts.sum()), "input") for counts in self[1:])
        return f"Histogram({len(self.stream)} bins: {seen} of the stream, {known} of the calibration)"


class Monitor(
    msgspec.Struct,
    eq=False,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename=lambda name: name.removeprefix("_"),
):
    """Counts of the verdicts of a guard, in constant memory.

    Create one with ``guard.monitor()``. Monitors of one guard from several processes, or several hours, can be
    merged: the result has exactly the counts of a single monitor of all inputs.

    The two p-values assume independent inputs: frames of one video are not. They are valid for one
    test of a stream whose length was fixed in advance. Testing after every batch finds something by chance, so keep a
    monitor per hour or day, test at its end, and merge them into longer ones. A small p-value means that the
    stream differs from the calibration data, not how much: ``alarm_rate`` and ``drift`` measure that.

    A monitor is not thread-safe: use one per thread and process, and merge them.
    """

    FORMAT: ClassVar[str] = "flatfold-monitor"
    VERSION: ClassVar[int] = 1

    _guard: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]  # sha256 of the calibration
    _fpr: Annotated[float, Meta(gt=0, lt=1)]
    _calibrated: Annotated[tuple[Count, ...], Meta(min_length=1)]  # inputs of each group: all, or each predicted class
    _edges: Annotated[tuple[float | None, ...], Meta(min_length=2)]  # strictly increasing; None is infinite
    _known: tuple[Count, ...]  # calibration inputs in each bin
    _seen: tuple[Count, ...]  # inputs of the stream in each group
    _alarms: tuple[Count, ...]  # alarms in each group
    _stream: tuple[Count, ...]  # inputs of the stream in each bin
    _confidence: Annotated[float, Meta(gt=0, lt=1)] | None = None  # of the false-alarm rate, if set
    _shares: Count | None = None  # sum of the shares of alarms in images, of a guard for every position

    def __post_init__(self) -> None:
        bins, groups = len(self._edges) - 1, len(self._calibrated)
        if not all(a < b for a, b in pairwise(self._bounds.tolist())):
            raise ValueError("edges must be strictly increasing")
        for name, length in {"known": bins, "stream": bins, "seen": groups, "alarms": groups}.items():
            if len(getattr(self, f"_{name}")) != length:
                raise ValueError(f"{name} must hold {length} counts")
        if sum(self._known) != sum(self._calibrated) or min(self._allowed) < 1:
            raise ValueError("the counts of the calibration data are inconsistent")
        more = any(a > n for a, n in zip(self._alarms, self._seen, strict=True))
        if self._shares is not None and (groups > 1 or self._shares > SHARE * self.seen):
            raise ValueError("the shares of positions are inconsistent")
        if self.seen != sum(self._stream) or self.seen > LARGEST or more:
            raise ValueError("the counts of the stream are inconsistent")

    @classmethod
    def of(cls, calibrated: CalibratedDetector, positions: bool = False) -> Self:
        """Create an empty monitor for the verdicts of ``calibrated``.

        With ``positions``, verdicts have a decision at every position, and ``calibrated`` is about images as a whole.
        """
        calibration, fpr = calibrated.calibration, float(calibrated.calibration.fpr)
        padded, counts = calibration.scores.detach().cpu().double(), calibration.counts.cpu()
        each = calibration.above + 1
        if each > 1:  # of inputs in groups, one score for each group: every one of these counts as an input
            padded, counts = padded[:, each - 1 :: each], counts // each
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
        stream = (none, none, empty, calibration.confidence, 0 if positions else None)
        return cls(digest.hexdigest(), fpr, groups, finite, known, *stream)

    @property
    def _bounds(self) -> NDArray[np.float64]:
        """The bin edges, with infinite ends."""
        low, *inner, high = self._edges
        return np.array([-inf if low is None else low, *inner, inf if high is None else high], np.float64)

    @property
    def _allowed(self) -> list[int]:
        """The rank k of each group's threshold: a score above the k-th largest calibration score is an alarm."""
        return [allowed_ranks(self._fpr, samples, self._confidence) for samples in self._calibrated]

    def add(self, verdict: Verdict) -> None:
        """Count the verdict on a batch, which may be empty and on any device."""
        if not isinstance(verdict, Verdict):
            raise TypeError(f"verdict must be a Verdict, got {type(verdict).__name__}. Call monitor.add(guard(x)).")
        columns = {name: values.double().numpy() for name, values in verdict.columns().items()}  # not in bfloat16
        if ("share_ood" in columns) != (self._shares is not None):
            here, there = ("every position", "whole inputs")[:: 1 if self._shares is not None else -1]
            raise ValueError(
                f"this monitor belongs to a guard for {here}, but the verdict is about {there}. Add verdicts of the "
                "guard that created the monitor."
            )
        groups, classes = len(self._seen), verdict.logits.shape[-1]
        if groups not in (1, classes):
            raise ValueError(
                f"this monitor belongs to a guard with {groups} classes, but the verdict has {classes}. "
                "Add verdicts of the guard that created the monitor."
            )
        self.count_rows(columns)

    def count_rows(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Count rows of a table, given the columns of verdicts."""
        if self._shares is None:
            self.count(columns["predicted"].astype(np.int64), columns["score"], columns["is_ood"].astype(np.bool_))
            return
        score, is_ood = columns["image_score"], columns["image_is_ood"].astype(np.bool_)
        self.count(np.zeros(len(score), np.int64), score, is_ood)
        self._shares += int(np.rint(SHARE * columns["share_ood"]).sum())

    def count(self, predicted: NDArray[np.integer], score: NDArray[np.floating], is_ood: NDArray[np.bool_]) -> None:
        """Count rows of a table: class, score and decision of each input, ``(n,)`` each."""
        group = predicted if len(self._seen) > 1 else np.zeros(len(score), np.int64)
        # Non-finite scores are alarms, and counted with the highest scores.
        stream = bin_counts(np.where(np.isfinite(score), score, inf).astype(np.float64), self._bounds)
        seen, alarms = (np.bincount(inputs, minlength=len(self._seen)) for inputs in (group, group[is_ood]))
        self._increase(seen, alarms, stream)

    def merge(self, other: Monitor) -> None:
        """Add the counts of another monitor of the same guard, which is not modified."""
        if not isinstance(other, Monitor):
            raise TypeError(f"other must be a Monitor, got {type(other).__name__}. Read one with Monitor.load.")
        if any(getattr(self, name) != getattr(other, name) for name in REFERENCE):
            raise ValueError(
                f"these monitors belong to different guards ({self._guard[:8]} at {self._fpr:g} and "
                f"{other._guard[:8]} at {other._fpr:g}), whose scores and alarms cannot be compared. "
                "Merge monitors of one guard at one false-alarm rate."
            )
        self._increase(other._seen, other._alarms, other._stream)
        self._shares = None if self._shares is None else self._shares + (other._shares or 0)

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
        """Number of inputs."""
        return sum(self._seen)

    @property
    def alarms(self) -> int:
        """Number of alarms."""
        return sum(self._alarms)

    @property
    def alarm_rate(self) -> float:
        """Fraction of inputs that raised an alarm; NaN if empty."""
        return self.alarms / self.seen if self.seen else nan

    @property
    def share_ood(self) -> float | None:
        """Mean share of the positions of an image that raised an alarm; NaN if empty, None for other guards."""
        return None if self._shares is None else self._shares / SHARE / self.seen if self.seen else nan

    @property
    def groups(self) -> list[Group]:
        """Counts per predicted class if classes have their own thresholds, else one group for all inputs."""
        columns = zip(self._seen, self._alarms, self._calibrated, self._allowed, strict=True)
        return [Group(n, a, alarm_p_value(a, n, m, k)) for n, a, m, k in columns]

    @property
    def alarm_p_value(self) -> float:
        """p-value of the number of alarms under the calibration distribution; 1 if empty.

        It is exact. For several groups it is the smallest p-value times the number of non-empty groups, at most 1
        (Bonferroni).
        """
        p_values = [group.p_value for group in self.groups if group.seen]
        return min(1.0, len(p_values) * min(p_values)) if p_values else 1.0

    @property
    def drift(self) -> float:
        """Largest difference of the score distributions of the stream and the calibration data at any bin edge.

        It is a lower bound of the Kolmogorov-Smirnov distance, which includes points between the edges. Predicted
        classes are pooled. NaN if empty.
        """
        if not self.seen:
            return nan
        return float(np.abs(np.cumsum(self._stream) / self.seen - np.cumsum(self._known) / sum(self._known)).max())

    @property
    def drift_p_value(self) -> float:
        """p-value of the drift under the calibration distribution; 1 if empty.

        It is asymptotic, and conservative, since the drift is a lower bound.
        """
        return ks_p_value(self.drift, self.seen, sum(self._known)) if self.seen else 1.0

    def histogram(self) -> Histogram:
        """Return the histogram of the scores of the stream and of the calibration data."""
        return Histogram(self._bounds, np.array(self._stream), np.array(self._known))

    def to_dict(self) -> dict[str, Any]:
        """Convert the monitor to plain values for JSON."""
        content: dict[str, Any] = msgspec.json.decode(encode(self))
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Restore a monitor from :meth:`to_dict`; reject other content."""
        return cls._decode(msgspec.json.encode(content), "this monitor")

    def save(self, path: Path | str) -> None:
        """Write the monitor to a JSON file, atomically."""
        write_atomically(Path(path), encode(self, indent=0) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a monitor from a file of :meth:`save`."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"no monitor at {path}. Check the path.")
        return cls._decode(Path(path).read_bytes(), str(path))

    @classmethod
    def _decode(cls, text: bytes, where: str) -> Self:
        try:
            return decode(text, cls)
        except DamagedFileError as error:
            raise ValueError(
                f"{where} is damaged: {error}. Use an older copy, or start a new one with guard.monitor()."
            ) from error

    def __str__(self) -> str:
        if not self.seen:
            return "no inputs yet"
        noun = "input" if self._shares is None else "image"
        lines = [
            f"{count(self.seen, noun)}, {count(self.alarms, 'alarm')}: {100 * self.alarm_rate:.3g} %, "
            f"{100 * self._fpr:g} % allowed: {_significance(self.alarm_p_value)}.",
            f"Scores differ from calibration by {self.drift:.2g}: {_significance(self.drift_p_value)}.",
        ]
        if self.share_ood is not None:
            lines.insert(1, f"Alarms at {100 * self.share_ood:.3g} % of the positions of an image, on average.")
        groups = self.groups
        if len(groups) > 1 and self.alarm_p_value <= LEVEL:
            worst = min(groups, key=lambda group: group.p_value)
            of = f"{worst.alarms:,} of {count(worst.seen, 'input')}"
            lines.append(f"Class {groups.index(worst)} is the most unusual: {of} raised an alarm.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in str(self).splitlines())

    def __repr__(self) -> str:
        share = "" if self.share_ood is None else f", at {100 * self.share_ood:.1f} % of positions"
        return f"Monitor({count(self.seen, 'input')}, {count(self.alarms, 'alarm')}{share})"


def _significance(p: float) -> str:
    """Format a p-value with its significance."""
    if p > LEVEL:
        return f"not enough evidence of a change yet (p = {p:.2g}; significant at p <= {LEVEL:g})"
    return f"significant change (p {f'< {SMALLEST:g}' if p < SMALLEST else f'= {p:.2g}'})"
