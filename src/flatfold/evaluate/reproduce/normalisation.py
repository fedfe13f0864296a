"""What partial and full normalisation do to other methods (the paper's Table 3)."""

from collections.abc import Mapping
from typing import Any

from ...core.delong import Influence, paired_difference
from ..banks import Banks
from .rows import NORMALISATIONS, Effect, Normalisation
from .scored import fpr95, influences, scored

METHODS = ("msp", "ebo", "react", "ash", "fold", "fold-r", "fold-a")


def effects(
    banks: Banks, alphas: Mapping[Normalisation, float], hyper: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[list[Effect], dict[str, str]]:
    r"""Return seven methods under no, partial and full normalisation, and why some of them could not be measured.

    .. math:: \text{gain} = \operatorname{AUROC}(h / \|h\|^\alpha) - \operatorname{AUROC}(h)

    Its interval is paired: both AUROCs are of the same images, and the average over data sets counts that these share
    the known ones. The features are normalised behind ReAct and ASH, right in front of the score.

    Args:
        banks: Features of every data set.
        alphas: The exponent of each normalisation.
        hyper: Hyper-parameters by method, such as a percentile that was tuned, the same under every normalisation; an
            ``alpha`` among them is left out.
    """
    found, refused = list[Effect](), dict[str, str]()
    for method in METHODS:
        own = {key: value for key, value in (hyper or {}).get(method, {}).items() if key != "alpha"}
        try:
            found += _effects(method, banks, alphas, own)
        except ValueError as error:  # ASH and negative features, say
            refused[method] = str(error)
    return found, refused


def _effects(method: str, banks: Banks, alphas: Mapping[Normalisation, float], hyper: dict[str, Any]) -> list[Effect]:
    scores = {kind: scored(method, banks, **hyper, alpha=alphas[kind]) for kind in NORMALISATIONS}
    aurocs = {kind: influences(values) for kind, values in scores.items()}
    rates = {kind: fpr95(values) for kind, values in scores.items()}
    return [
        Effect(
            method,
            kind,
            alphas[kind],
            column,
            aurocs[kind][column].auroc,
            rate,
            *_gain(kind, aurocs[kind][column], aurocs["none"][column]),
        )
        for kind in NORMALISATIONS
        for column, rate in rates[kind].items()
    ]


def _gain(kind: Normalisation, with_it: Influence, without: Influence) -> tuple[float, float, float]:
    """Return the difference and the ends of its interval; a method beside itself has no doubt."""
    if kind == "none":
        return 0.0, 0.0, 0.0
    difference = paired_difference(with_it, without)
    return difference.value, difference.low, difference.high
