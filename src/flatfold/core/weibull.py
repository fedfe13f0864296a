r"""The Weibull distribution of the largest distances, by maximum likelihood, for many classes at once.

OpenMax says how unusual a distance is among the largest ones seen in training. Distances are moved so that the
smallest of the tail lies at 1, and a two-parameter Weibull is fitted:

.. math:: w(d) = 1 - \exp\!\big(-((d - d_{\min} + 1) / \text{scale})^{\text{shape}}\big)
"""

from typing import NamedTuple

import torch
from torch import Tensor

STEEPEST = 1e6
"""Shape of a tail whose distances are all equal: a step."""
_HALVINGS = 60


class Weibull(NamedTuple):
    """One fitted tail per class, ``(k,)`` each."""

    smallest: Tensor
    scale: Tensor
    shape: Tensor

    def cdf(self, distances: Tensor) -> Tensor:
        """Return the share of the tail that lies below each distance, 0 to 1; ``distances`` broadcast with the fits."""
        shifted = (distances - self.smallest + 1).clamp_min(0.0)
        return -torch.expm1(-((shifted / self.scale) ** self.shape))


def fit_tails(tails: Tensor, valid: Tensor) -> Weibull:
    r"""Fit one Weibull per row.

    With ``y = log x`` scaled to ``u = (y - max y) / (max y - min y)`` the likelihood is largest where

    .. math:: s + \operatorname{mean}(u) - \frac{\sum u\, e^{u / s}}{\sum e^{u / s}} = 0, \qquad \text{shape} = 1 / s,

    which rises with s and changes its sign between 0 and 1: it is halved until float64 has no digits left.

    Args:
        tails: Distances ``(k, t)``, rows padded with any finite value.
        valid: ``(k, t)`` bool, at least one per row.
    """
    tails = tails.double()
    smallest = tails.masked_fill(~valid, torch.inf).amin(dim=-1)
    logs = (tails - smallest[:, None] + 1).clamp_min(1.0).log()
    top = logs.masked_fill(~valid, 0.0).amax(dim=-1)  # the smallest distance lies at log 1 = 0, so this is the range
    spread = top.clamp_min(torch.finfo(top.dtype).tiny)
    u = ((logs - top[:, None]) / spread[:, None]).masked_fill(~valid, 0.0)
    s = _solve(u, valid)
    mean_power = (_powers(u, s, valid).sum(dim=-1) / valid.sum(dim=-1)).log()
    scale, shape = (s * mean_power * spread + top).exp(), 1 / (s * spread)
    degenerate = top * STEEPEST <= 1
    return Weibull(smallest, scale.where(~degenerate, top.exp()), shape.where(~degenerate, STEEPEST))


def _powers(u: Tensor, s: Tensor, valid: Tensor) -> Tensor:
    return (u / s[:, None]).exp() * valid


def _solve(u: Tensor, valid: Tensor) -> Tensor:
    mean = u.sum(dim=-1) / valid.sum(dim=-1)
    low, high = torch.zeros_like(mean), torch.ones_like(mean)
    for _ in range(_HALVINGS):
        s = (low + high) / 2
        powers = _powers(u, s, valid)
        above = s + mean - (u * powers).sum(dim=-1) / powers.sum(dim=-1) > 0
        low, high = torch.where(above, low, s), torch.where(above, s, high)
    return (low + high) / 2
