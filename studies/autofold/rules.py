"""The rules: ways to choose an exponent, and how to score at it, from in-distribution data alone.

A rule names a family, which says how an exponent is used, and a way to the exponent: a constant, or where a criterion
is largest.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from . import criteria
from .cases import Validation
from .criteria import Criterion
from .families import ALPHAS, PAPER, Family, Fitted
from .resampled import Counts, Vector

Group = Literal["exponent", "temperature", "cap"]
Take = Literal["best", "smallest", "largest"]
Choices = NDArray[np.intp]


@dataclass(frozen=True)
class Rule:
    """A way to choose an exponent.

    Args:
        about: One sentence for the page.
        criterion: Maximised over the exponent, or the exponent itself.
        family: How the exponent is used.
        take: The best exponent; or the smallest or largest that is within one standard error of the best.
        afterthought: True if it came up when the others had been judged; it is shown, and never chosen or kept.
    """

    about: str
    criterion: Criterion | float
    family: Family = PAPER
    take: Take = "best"
    afterthought: bool = False

    @property
    def group(self) -> Group:
        """What it changes of the paper's method."""
        if self.family.cap is not None:
            return "cap"
        return "exponent" if self.family.times is None else "temperature"

    @property
    def curve_of(self) -> tuple[Family, str] | None:
        """What its curve is found under; rules of one family and criterion share it."""
        return None if isinstance(self.criterion, float) else (self.family, self.criterion.__name__)


RULES = {
    "paired": Rule("The paper's criterion: today's AutoFold.", criteria.paired),
    "one-vs-rest": Rule("The criterion of the authors' code.", criteria.one_vs_rest),
    "fixed-0": Rule("No normalisation.", 0.0),
    "fixed-0.25": Rule("A quarter, always.", 0.25),
    "fixed-0.5": Rule("A half, always.", 0.5),
    "fixed-1": Rule("The unit sphere, always.", 1.0),
    "paired-smallest": Rule("Smallest exponent within a standard error.", criteria.paired, take="smallest"),
    "paired-largest": Rule("Largest exponent within a standard error.", criteria.paired, take="largest"),
    "one-vs-rest-smallest": Rule("Smallest within a standard error.", criteria.one_vs_rest, take="smallest"),
    "pooled": Rule("One AUROC over all classes in place of one per class.", criteria.pooled),
    "mixed": Rule("Pseudo-unknowns are means of two classes.", criteria.mixed),
    "shuffled": Rule("Pseudo-unknowns are shuffled features.", criteria.shuffled),
    "shrunk": Rule("Pseudo-unknowns are masked and half as long.", criteria.shrunk),
    "likelihood": Rule("Exponent and temperature of the likeliest labels.", criteria.likelihood, Family(times=1)),
    **{
        f"paired-T{times:g}": Rule(f"Temperature {times:g} times the likeliest.", criteria.paired, Family(times=times))
        for times in (0.5, 1, 2, 3, 5, 10)
    },
    **{
        f"fixed-{alpha:g}-T{times:g}": Rule(f"Temperature {times:g} times the likeliest.", alpha, Family(times=times))
        for alpha in (0.5, 1.0)
        for times in (1, 2, 3)
    },
    **{
        f"paired-cap{100 * cap:g}": Rule(
            f"Norms above the {100 * cap:g}th percentile count as it.", criteria.paired, Family(cap=cap)
        )
        for cap in (0.25, 0.5, 0.75, 0.9)
    },
    "pooled-cap50": Rule("Norms above the median count as it.", criteria.pooled, Family(cap=0.5)),
    "fixed-0.25-cap50": Rule("Norms above the median count as it.", 0.25, Family(cap=0.5)),
    "paired-cap50-T2": Rule("Cap and temperature.", criteria.paired, Family(times=2, cap=0.5)),
    "shrunk-cap50": Rule("Both of what helped.", criteria.shrunk, Family(cap=0.5), afterthought=True),
    "fixed-0.5-cap50-T2": Rule("Both of what helped.", 0.5, Family(times=2, cap=0.5), afterthought=True),
}


def curve(val: Validation, fitted: Fitted, criterion: Criterion, counts: Counts) -> Vector:
    """Return a criterion at every exponent in every replicate, ``(b, a)``."""
    return np.stack([criterion(val, fitted, alpha, counts) for alpha in ALPHAS], axis=1)


def chosen(curves: Vector, take: Take = "best") -> Choices:
    r"""Return the index of the exponent that is taken in each replicate, ``(b,)``.

    With :math:`c(\alpha)` the criterion, :math:`\alpha^*` its best exponent and :math:`e` the standard deviation of
    :math:`c(\alpha^*)` over replicates, the smallest and the largest are among :math:`c(\alpha) \ge c(\alpha^*) - e`.
    Of equals, the middle one is the best.

    Args:
        curves: ``(b, a)``; the first row is of the images as they are, the others are of redrawn ones.
        take: Which one.
    """
    tolerance = 1e-12 if take == "best" else float(curves[1:, curves[0].argmax()].std())
    good = curves >= curves.max(axis=1, keepdims=True) - tolerance
    places = good.cumsum(axis=1)  # 1 at the first that is good enough
    wanted = {"smallest": np.ones_like(places[:, -1]), "largest": places[:, -1], "best": (places[:, -1] + 1) // 2}
    index: Choices = (places < wanted[take][:, None]).sum(axis=1)
    return index
