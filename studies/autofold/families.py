r"""Three ways to score at an exponent, between which a rule chooses before it chooses the exponent.

* The paper's, :math:`\tilde h = h / \|h\|^\alpha`.
* With a temperature of its own, :math:`\tilde h = (h / T) (m / \|h\|)^\alpha`, where ``T`` is a multiple of the one
  that makes the labels of validation images likeliest.
* With capped norms: a norm above the ``q``-th quantile ``Q`` of validation norms counts as ``Q``, then the paper's,
  :math:`h \leftarrow h \min(1, Q / \|h\|)`. To be larger than known inputs is no sign of being one.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from .cases import Validation
from .view import Classes, View, likeliest_temperature, logits_at, paper_temperature, scores_at

ALPHAS = tuple(i / 20 for i in range(21))


class Fitted(NamedTuple):
    """A family that knows its validation images."""

    classes: Classes
    """Of the head."""
    cap: float
    """The largest norm that counts, infinity for any."""
    temperatures: dict[float, float]
    """By exponent."""

    def capped(self, view: View) -> View:
        """Return the view of features whose norms are at most the cap."""
        return View(view.projected * (self.cap / view.norms).clamp_max(1.0), view.norms.clamp_max(self.cap))

    def logits(self, view: View, alpha: float) -> Tensor:
        """Return the logits ``(n, c)`` at an exponent."""
        return logits_at(self.capped(view), self.classes, alpha, self.temperatures[alpha])

    def scores(self, view: View, alpha: float) -> Tensor:
        """Return FOLD's scores ``(n,)`` at an exponent."""
        return scores_at(self.capped(view), self.classes, alpha, self.temperatures[alpha])


@dataclass(frozen=True)
class Family:
    """A way to score at an exponent.

    Args:
        times: Temperature as a multiple of the likeliest one; None for the paper's.
        cap: Quantile of validation norms at which norms are capped; None for no cap.
    """

    times: float | None = None
    cap: float | None = None

    @property
    def name(self) -> str:
        """Short, for tables."""
        temperature = "" if self.times is None else f"T x {self.times:g}"
        cap = "" if self.cap is None else f"cap {100 * self.cap:g}"
        return ", ".join(filter(None, (temperature, cap))) or "paper"

    def fit(self, val: Validation, alphas: tuple[float, ...] = ALPHAS) -> Fitted:
        """Return the family with cap and temperatures from validation images."""
        cap = torch.inf if self.cap is None else float(torch.quantile(val.view.norms, self.cap))
        fitted = Fitted(val.classes, cap, {})
        for alpha in alphas:
            fitted.temperatures[alpha] = (
                paper_temperature(val.classes, alpha)
                if self.times is None
                else self.times * _likeliest(val, cap, alpha)
            )
        return fitted


@cache
def _likeliest(val: Validation, cap: float, alpha: float) -> float:
    """Return the likeliest temperature behind a cap, found once for all its multiples."""
    return likeliest_temperature(Fitted(val.classes, cap, {}).capped(val.view), val.labels, val.classes, alpha)


PAPER = Family()
