"""What a stream is counted by: bins of the score, what the calibration data put into them, and both as plain values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.conformal import allowed_ranks

if TYPE_CHECKING:
    from .judge import Judge

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
    def of(cls, judge: Judge) -> Self:
        """Return the yardstick of a judge."""
        calibration, fpr = judge.calibration, float(judge.calibration.fpr)
        every, counts = calibration.scores.detach().cpu().double(), calibration.counts.cpu()
        scores = every[torch.arange(every.shape[1]) < counts[:, None]].numpy()
        edges = bin_edges(scores, *judge.detector.score_range())
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
