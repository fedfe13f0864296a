"""Explanations of verdicts: the pairs of classes between which the energy bends."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..core.pairs import Pairs
from .calibrated import Verdict


class Pair(NamedTuple):
    """Two classes, and how much of an input's curvature lies between them."""

    first: int
    """The likelier class, at the features as the detector sees them."""
    second: int
    """The other class."""
    share: float
    """Their part of the whole curvature, between 0 and 1."""


@dataclass(frozen=True)
class Explanation:
    """The verdict on one input, and the pairs of classes that carry its curvature.

    FOLD's score is a sum over pairs of classes (:mod:`flatfold.core.pairs`), so every share is exact. As text it is one
    line, for instance ``OOD (p = 0.004): 71 % of the curvature between cat and dog, 29 % elsewhere``.

    Attributes:
        predicted: The class that the model chooses.
        score: Higher = more out-of-distribution.
        p_value: How unusual the score is among ID inputs: small = unusual.
        is_ood: Whether the guard raises an alarm.
        pairs: The pairs of classes that carry most of the curvature, largest first.
        rest: The share of all other pairs.
        names: Of all classes, or None.
    """

    predicted: int
    score: float
    p_value: float
    is_ood: bool
    pairs: tuple[Pair, ...]
    rest: float
    names: tuple[str, ...] | None = field(default=None, repr=False)  # a thousand names hide everything else

    def name(self, index: int) -> str:
        """Return the name of a class, or its number where there are no names."""
        return f"class {index}" if self.names is None else self.names[index]

    def __str__(self) -> str:
        verdict = f"{'OOD' if self.is_ood else 'ID'} (p = {self.p_value:.2g})"
        if not any(pair.share for pair in self.pairs):
            return f"{verdict}: no curvature between any two classes"
        parts = [
            f"{_percent(pair.share)} between {self.name(pair.first)} and {self.name(pair.second)}"
            for pair in self.pairs
        ]
        parts[0] = parts[0].replace(" between", " of the curvature between", 1)
        if self.rest:
            parts.append(f"{_percent(self.rest)} elsewhere")
        return f"{verdict}: {', '.join(parts)}"


def explain(verdict: Verdict, pairs: Pairs, names: Sequence[str] | None = None) -> list[Explanation]:
    """Return one explanation for each of n inputs, given their pairs of classes ``(n, k)`` and names of all classes."""
    n_classes = verdict.logits.shape[1]
    if names is not None and (isinstance(names, str) or len(names) != n_classes):
        raise ValueError(
            f"names must be one per class, {n_classes} in all, "
            f"got {'one string' if isinstance(names, str) else len(names)}. "
            "Give them in the order of the model's outputs, or leave them out."
        )
    complete = pairs.share.shape[1] == n_classes * (n_classes - 1) // 2
    columns = (*verdict.columns().values(), *pairs)
    explanations = []
    for predicted, score, p_value, is_ood, *entries in zip(*(column.tolist() for column in columns), strict=True):
        named = tuple(Pair(*entry) for entry in zip(*entries, strict=True))
        share = sum(pair.share for pair in named)
        rest = 0.0 if complete or share == 0 else max(0.0, 1 - share)
        texts = None if names is None else tuple(names)
        explanations.append(Explanation(predicted, score, p_value, is_ood, named, rest, texts))
    return explanations


def _percent(share: float) -> str:
    """Return a share as a whole percentage, with one decimal below 1 %."""
    percent = 100 * share
    if percent < 0.05:
        return "under 0.1 %"
    return f"{percent:.1f} %" if percent < 0.95 else f"{percent:.0f} %"
