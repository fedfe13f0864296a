"""A case under every rule: exponents, AUROCs, and what was there to reach."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .cases import Case
from .families import ALPHAS, PAPER, Family, Fitted
from .resampled import Vector
from .rules import RULES, Rule, chosen, curve
from .surface import MEAN, Draws, aurocs, draw, surface

CAPPED = Family(cap=0.5)
REFERENCES: dict[str, tuple[Family, Callable[[Tensor], Tensor]]] = {
    "ebo": (PAPER, lambda z: -z.logsumexp(dim=-1)),
    "msp": (PAPER, lambda z: -z.log_softmax(dim=-1).amax(dim=-1)),
    "ebo-cap50": (CAPPED, lambda z: -z.logsumexp(dim=-1)),
    "msp-cap50": (CAPPED, lambda z: -z.log_softmax(dim=-1).amax(dim=-1)),
}
ORACLES = ("oracle", "oracle-T")  # the best exponent; the best exponent and temperature; both see the unknown images


@dataclass(frozen=True, eq=False)
class Measured:
    """A case under every rule; replicate 0 is of the images as they are.

    Attributes:
        methods: Names of rules, references and oracles.
        datasets: Names of the sets of unknown images, and the mean over them.
        alphas: The exponents taken, ``(r, b, o + 1)``, not a number where there is none; only an oracle's depend on
            the set, and only in rules do they depend on the replicate.
        auroc: ``(r, b, o + 1)``, test and unknown images redrawn, the exponents those of replicate 0.
        redrawn: The same with validation images redrawn too, and the exponents chosen again.
        truth: AUROC at each exponent of the paper's score, ``(a, o + 1)``.
        criterion: The paired criterion at each exponent and its standard error, ``(2, a)``.
        accuracy: Of the network on the test images, ``()``.
    """

    methods: list[str]
    datasets: list[str]
    alphas: Vector
    auroc: Vector
    redrawn: Vector
    truth: Vector
    criterion: Vector
    accuracy: Vector


@torch.no_grad()
def measure(case: Case, replicates: int, rules: dict[str, Rule] = RULES) -> Measured:
    """Return a case under every rule.

    Args:
        case: Network and data.
        replicates: Bootstraps of all images.
        rules: By name; ``paired`` must be among them.
    """
    drawn = draw(case, replicates)
    families = dict.fromkeys([PAPER, *(rule.family for rule in rules.values())])
    fitted = {family: family.fit(case.val) for family in families}
    surfaces = {family: surface(case, fitted[family], drawn) for family in families}
    curves = _curves(case, rules, fitted, drawn)
    rows = [_rule(rule, surfaces[rule.family], curves) for rule in rules.values()]
    rows += [_reference(case, family, score, drawn) for family, score in REFERENCES.values()]
    rows += [_oracle([surfaces[PAPER]]), _oracle([s for family, s in surfaces.items() if family.cap is None])]
    alphas, auroc, redrawn = (np.stack(parts) for parts in zip(*rows, strict=True))
    paired = curves[(PAPER, "paired")]
    return Measured(
        [*rules, *REFERENCES, *ORACLES],
        [*case.ood, MEAN],
        alphas,
        auroc,
        redrawn,
        surfaces[PAPER][0],
        np.stack([paired[0], paired[1:].std(axis=0)]),
        np.asarray(case.accuracy),
    )


def _curves(
    case: Case, rules: dict[str, Rule], fitted: dict[Family, Fitted], drawn: Draws
) -> dict[tuple[Family, str], Vector]:
    """Return the criterion's curve in every replicate, once for all rules that share it."""
    wanted = {rule.curve_of: rule for rule in rules.values() if rule.curve_of is not None}
    return {
        key: curve(case.val, fitted[rule.family], rule.criterion, drawn.val)
        for key, rule in wanted.items()
        if not isinstance(rule.criterion, float)
    }


def _rule(rule: Rule, reached: Vector, curves: dict[tuple[Family, str], Vector]) -> tuple[Vector, Vector, Vector]:
    """Return exponents, AUROCs with the exponent of the images as they are, and with that of each replicate."""
    replicate = np.arange(len(reached))
    if rule.curve_of is None:
        index = np.full(len(reached), ALPHAS.index(rule.criterion))
    else:
        index = chosen(curves[rule.curve_of], rule.take)
    alphas = np.repeat(np.asarray(ALPHAS)[index][:, None], reached.shape[2], axis=1)
    return alphas, reached[:, index[0]], reached[replicate, index]


def _reference(
    case: Case, family: Family, score: Callable[[Tensor], Tensor], drawn: Draws
) -> tuple[Vector, Vector, Vector]:
    """Return the same of a method without an exponent, which looks at the logits."""
    fitted = family.fit(case.val, (0.0,))
    reached = aurocs(case, lambda view: score(fitted.logits(view, 0.0)), drawn)
    return np.full_like(reached, np.nan), reached, reached


def _oracle(surfaces: list[Vector]) -> tuple[Vector, Vector, Vector]:
    """Return the same of the best setting for each set of unknown images, kept for all replicates."""
    everything = np.concatenate(surfaces, axis=1)
    best = everything[0].argmax(axis=0)
    reached = np.take_along_axis(everything, best[None, None], axis=1)[:, 0]
    alphas = np.broadcast_to(np.asarray(ALPHAS)[best % len(ALPHAS)], reached.shape)
    return alphas.copy(), reached, reached
