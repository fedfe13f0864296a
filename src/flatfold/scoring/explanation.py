"""Explain verdicts: the signs that raise a score, the pairs of classes that contribute most curvature, and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from ..core.pairs import Pairs
from ..core.signs import CURVATURE
from ..display.numbers import count, z_score
from ..display.table import Table
from .calibrated import Verdict
from .tokens import Token

SHOWN = 50  # explanations as text
UNUSUAL = 2.0  # standard deviations above the mean of ID inputs from which a sign counts as unusual


class Pair(NamedTuple):
    """Two classes and their share of an input's curvature."""

    first: int
    """The more probable class, at the features after shaping by the detector."""
    second: int
    """The other class."""
    share: float
    """Their share of the total curvature, between 0 and 1."""


@dataclass(frozen=True)
class Explanation:
    """The verdict on one input and, if the method provides them, the signs and pairs of classes behind its score.

    The score of FourFold is a weighted sum of standardised signs; FOLD's is a sum over pairs of classes
    (:mod:`flatfold.core.pairs`), so every share is exact. Other methods have a score and a p-value only. As text it is
    one line, such as ``OOD (p = 0.004): unusual direction for class cat (z = 6.1); curvature between cat and dog
    (z = 2.3); usual length, margin and doubt`` or ``OOD (p = 0.004): 71 % of the curvature between cat and dog, 29 %
    elsewhere``.

    Attributes:
        predicted: The class predicted by the model.
        score: Higher = more out-of-distribution.
        p_value: How unusual the score is among ID inputs: small = unusual.
        is_ood: Whether the guard raises an alarm.
        pairs: The pairs of classes with the largest shares of the curvature, largest first; empty for other methods.
        rest: The share of all other pairs.
        names: Names of all classes, or None.
        signs: Standard deviations of each sign above the mean of ID inputs, by name; empty for other methods.
        tokens: The words of a text without which its score is lowest, lowest first; empty unless they were asked for.
    """

    predicted: int
    score: float
    p_value: float
    is_ood: bool
    pairs: tuple[Pair, ...]
    rest: float
    names: tuple[str, ...] | None = field(default=None, repr=False)  # a thousand names would hide everything else
    signs: dict[str, float] = field(default_factory=dict)
    tokens: tuple[Token, ...] = ()

    def name(self, index: int) -> str:
        """Return the name of a class, or its number if there are no names."""
        return f"class {index}" if self.names is None else self.names[index]

    def __str__(self) -> str:
        without = [f"{token.score:.4g} without {token.text!r}" for token in self.tokens]
        return self._describe() + (f"; the score of {self.score:.4g} falls to {', '.join(without)}" if without else "")

    def _describe(self) -> str:
        """Return the verdict and the signs or pairs behind it."""
        verdict = f"{'OOD' if self.is_ood else 'ID'} (p = {self.p_value:.2g})"
        if self.signs:
            return f"{verdict}: {self._describe_signs()}"
        if not self.pairs:
            return f"{verdict}: score {self.score:.4g}"
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

    def __repr__(self) -> str:
        return f"Explanation({str(self)!r})"

    def _describe_signs(self) -> str:
        """Describe the unusual signs, largest z-score first, then list the others."""
        own = self.name(self.predicted)
        texts = {
            "direction": f"unusual direction for {own}",
            "length": f"unusual length for {own}",
            "margin": f"small margin around {own}",
            CURVATURE: "curvature",
            "doubt": f"low probability of {own}",
        }
        if self.pairs and self.pairs[0].share:
            texts[CURVATURE] += f" between {self.name(self.pairs[0].first)} and {self.name(self.pairs[0].second)}"
        ranked = sorted(self.signs, key=lambda sign: -self.signs[sign])
        parts = [f"{texts[sign]} ({z_score(self.signs[sign])})" for sign in ranked if self.signs[sign] >= UNUSUAL]
        usual = [sign for sign in self.signs if self.signs[sign] < UNUSUAL]
        if usual:
            listed = usual[0] if len(usual) == 1 else f"{', '.join(usual[:-1])} and {usual[-1]}"
            parts.append(f"usual {listed}" + (", unusual only together" if self.is_ood and not parts else ""))
        return "; ".join(parts)


class Explanations(list[Explanation]):
    """A list of explanations, shown as one sentence for each input; in a notebook as a table."""

    def __repr__(self) -> str:
        lines = [f"{row}: {explanation}" for row, explanation in enumerate(self[:SHOWN])]
        rest = len(self) - len(lines)
        return "\n".join([*lines, *([f"and {count(rest, 'more input')}"] if rest else [])]) or "[]"

    def _repr_html_(self) -> str:
        rows = [(str(row), str(explanation)) for row, explanation in enumerate(self)]
        return Table(("row", "explanation"), rows, left=(1,)).html()


def explain(
    verdict: Verdict,
    pairs: Pairs | None = None,
    names: Sequence[str] | None = None,
    signs: Mapping[str, Tensor] | None = None,
    tokens: Sequence[tuple[Token, ...]] | None = None,
) -> Explanations:
    """Explain each of n verdicts, given its pairs ``(n, k)``, the names of all classes, its signs and its tokens."""
    n_classes = verdict.logits.shape[1]
    if names is not None and (isinstance(names, str) or len(names) != n_classes):
        raise ValueError(
            f"names must be one per class, {n_classes} in all, "
            f"got {'one string' if isinstance(names, str) else len(names)}. "
            "Pass them in the order of the model's outputs, or leave them out."
        )
    rows = list(zip(*(column.tolist() for column in verdict.columns().values()), strict=True))
    none: list[tuple[Any, ...]] = [()] * len(rows)
    pair_rows = none if pairs is None else zip(*(column.tolist() for column in pairs), strict=True)
    sign_rows = zip(*(column.tolist() for column in signs.values()), strict=True) if signs else none
    every = n_classes * (n_classes - 1) // 2
    explanations = Explanations()
    token_rows = none if tokens is None else tokens
    for row, entries, values, words in zip(rows, pair_rows, sign_rows, token_rows, strict=True):
        predicted, score, p_value, is_ood = row
        named = tuple(Pair(*entry) for entry in zip(*entries, strict=True))
        share = sum(pair.share for pair in named)
        rest = 0.0 if len(named) == every or share == 0 else max(0.0, 1 - share)
        own = dict(zip(signs or (), values, strict=True))
        texts = None if names is None else tuple(names)
        explanations.append(Explanation(predicted, score, p_value, is_ood, named, rest, texts, own, words))
    return explanations


def _percent(share: float) -> str:
    """Format a share as a whole percentage, with one decimal below 1 %."""
    percent = 100 * share
    if percent < 0.05:
        return "under 0.1 %"
    return f"{percent:.1f} %" if percent < 0.95 else f"{percent:.0f} %"
