"""Theorem 1: unknown inputs bend the energy more, under a condition."""

from collections.abc import Sequence

import torch

from ....curvature.theory import Theorem, compare
from ..verdict import Check, Material
from .exhibit import Exhibit, Found

SETTINGS = 300


def theorem_1() -> Exhibit:
    """Return the theorem on random settings, which are the same in every run."""
    return Exhibit(
        "Theorem 1",
        "The expected trace of two Gaussian classes",
        "If c |μ′S⁻¹Rμ| is at most μ′S⁻¹μ, the expected trace of the feature Hessian is not smaller for unknown than "
        "for known inputs.",
        _look,
        "Computed on random settings, not on the data of this run. The condition is also necessary. The paper's slips: "
        "the training loss has the wrong sign as printed and falls without end; its minimiser is 2S⁻¹μ and not S⁻¹μ, "
        "which changes every number but not the order; the energy itself, which sees no labels, is smallest at w = 0; "
        "the proof lacks the step that the average of φ over a Gaussian falls as its mean leaves 0; and c < 1 is "
        "enough where S is a multiple of the identity, but not otherwise.",
    )


def random_settings(count: int, seed: int = 0) -> list[tuple[float, Theorem]]:
    """Return settings of 2 to 8 dimensions: c, and what the theorem is about.

    Args:
        count: How many.
        seed: Of means, covariances, rotations, c up to 3 and lengths of the classifier.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_setting(generator) for _ in range(count)]


def _setting(generator: torch.Generator) -> tuple[float, Theorem]:
    d = int(torch.randint(2, 9, (), generator=generator))
    root, turn = torch.randn(2, d, d, generator=generator, dtype=torch.float64)
    covariance = root @ root.mT / d + 0.1 * torch.eye(d)
    mean = torch.randn(d, generator=generator, dtype=torch.float64)
    mean = mean / float(mean @ torch.linalg.solve(covariance, mean)) ** 0.5
    c, alpha = (float(end * torch.rand((), generator=generator)) + 0.02 for end in (3.0, 2.0))
    return c, compare(mean, covariance, torch.linalg.qr(turn).Q, c, alpha)


def _look(_: Sequence[Material]) -> Found:
    found = random_settings(SETTINGS)
    true, false = ([each for _, each in found if each.holds == holds] for holds in (True, False))
    wrong, reversed_ = sum(not each.agrees for each in true), sum(each.gap < 0 for each in false)
    short = [each for c, each in found if c < 1]
    unmet = sum(not each.holds for each in short)
    checks = [
        Check("any", f"condition true: {wrong} of {len(true)} settings contradict the theorem", wrong == 0),
        Check("any", f"condition false: {reversed_} of {len(false)} have the reverse order", reversed_ == len(false)),
    ]
    return Found(
        f"Of {len(true)} random settings that meet the condition {wrong} contradict the theorem, of {len(false)} that "
        f"do not {reversed_} have the reverse order, and of {len(short)} with c < 1 the condition "
        f"fails in {unmet}",
        checks,
    )
