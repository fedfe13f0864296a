r"""Exact trace and eigenvalues of the Gauss-Newton matrix of single inputs, from passes back from the logits.

With the class probabilities p the Hessian of every loss here over the logits is ``diag p - p p'``, the covariance of
the class drawn from p. Take one class after the other, the likeliest first. With r_i the probability of all classes
after the i-th and m_i their mean, the covariance is made of what each class differs from those that follow:

.. math:: \operatorname{diag} p - p p^\top = \sum_{i<c} \frac{p_i\, r_i}{p_i + r_i}\, (e_i - m_i)(e_i - m_i)^\top

So c - 1 passes give ``J'(e_i - m_i)``, and the trace is a sum of their squared lengths. No difference of nearly equal
numbers occurs: a confident input keeps its digits in float32. What remains after the first few classes is the
covariance among the others, which is small and may be estimated.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from ..core.hessian import as_double
from ..data.batch import Batch
from .per_sample import CachedForward, Parameters, cached_parts

TOGETHER = 16  # cotangents from which preparing a layer's inputs costs next to nothing


def ggn_traces(
    model: nn.Module,
    parameters: Parameters,
    batch: Batch,
    top: int | None = None,
    probes: int = 0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor | None, int]:
    r"""Return the trace of the Gauss-Newton matrix of each input, its standard error, and the number of passes back.

    .. math:: \operatorname{tr} G = \sum_{i<c} \frac{p_i\, r_i}{p_i + r_i}\, \|J^\top (e_i - m_i)\|^2

    All classes are done exactly, or the ``top`` likeliest of each input; each of ``probes`` draws for the others is one
    pass back from a sum of their terms with random signs, whose squared length is right on average.
    """
    values, errors, passes = [], [], 0
    for cached in cached_parts(model, parameters, batch, TOGETHER):
        classes = OrderedClasses(cached.logits)
        first = classes.terms if top is None else min(top, classes.terms)
        terms = _square_lengths(cached, (classes.direction(i) for i in range(first))) * classes.weights[:, :first]
        total = terms.sum(dim=1)
        if first < classes.terms:
            sums = (classes.signed_sum(first, generator) for _ in range(probes))
            draws = _square_lengths(cached, sums) * classes.rest(first)[:, None]
            total = total + draws.mean(dim=1)
            errors.append(draws.std(dim=1) / probes**0.5)
        values.append(total)
        passes = first + (probes if first < classes.terms else 0)
    return torch.cat(values), torch.cat(errors) if errors else None, passes


def ggn_eigenvalues(model: nn.Module, parameters: Parameters, batch: Batch) -> Tensor:
    """Return the largest eigenvalues of the Gauss-Newton matrix of each input, all others of which are zero."""
    values = []
    for cached in cached_parts(model, parameters, batch):
        classes = OrderedClasses(cached.logits)
        cotangents = torch.stack([classes.direction(i) for i in range(classes.terms)])
        values.append(classes.eigenvalues(cached.products(cotangents, pairs=True)))
    return torch.cat(values)


class OrderedClasses:
    """The classes of each input, the likeliest first, and how each differs from those after it.

    ``terms``, c - 1, is the number of terms of the covariance; ``weights``, ``(n, c - 1)``, are ``p r / (p + r)``.
    """

    def __init__(self, logits: Tensor) -> None:
        self._p, self._order = as_double(logits.detach()).softmax(dim=-1).sort(dim=-1, descending=True)
        # Summed from the smallest on: 1 - p would leave a confident input without digits.
        self._least = self._p.flip(1).cumsum(dim=1).flip(1)
        self._after = self._least.roll(-1, dims=1)[:, :-1]
        self.terms = logits.shape[1] - 1
        self.weights = self._p[:, :-1] * _quotient(self._after, self._least[:, :-1])

    def direction(self, i: int) -> Tensor:
        """Return the i-th class less the mean of those after it, ``e_i - m_i``, over the logits ``(n, c)``."""
        ordered = torch.zeros_like(self._p)
        ordered[:, i + 1 :] = -_quotient(self._p[:, i + 1 :], self._after[:, i : i + 1])
        ordered[:, i] = 1
        return self._by_class(ordered)

    def rest(self, first: int) -> Tensor:
        """Return the probability of all classes from the ``first`` on, ``(n,)``."""
        return self._least[:, first]

    def signed_sum(self, first: int, generator: torch.Generator | None) -> Tensor:
        """Return the terms from the ``first`` on, with random signs, each times the root of its share, ``(n, c)``.

        Its square is on average the covariance among these classes alone, as if there were no others.
        """
        shares = _quotient(self.weights[:, first:], self.rest(first)[:, None]).sqrt()
        place = self._p.device if generator is None else generator.device
        signs = torch.randint(0, 2, shares.shape, generator=generator, device=place).to(shares) * 2 - 1
        terms = shares * signs
        before = _quotient(terms, self._after[:, first:]).cumsum(dim=1)
        ordered = torch.zeros_like(self._p)
        ordered[:, first:-1] = terms
        ordered[:, first + 1 :] -= self._p[:, first + 1 :] * before
        return self._by_class(ordered)

    def eigenvalues(self, products: Tensor) -> Tensor:
        """Return the eigenvalues ``(n, c)``, largest first, from the products of all pairs of pulled-back vectors."""
        roots = self.weights.sqrt()
        values = torch.linalg.eigvalsh(roots[:, :, None] * products * roots[:, None, :]).flip(1).clamp_min(0)
        return torch.cat([values, values.new_zeros(len(values), 1)], dim=1)

    def _by_class(self, ordered: Tensor) -> Tensor:
        return torch.zeros_like(ordered).scatter(1, self._order, ordered)


def _quotient(part: Tensor, whole: Tensor) -> Tensor:
    """Return a part of a whole; 0 where both are too small for any number."""
    return part / whole.clamp_min(torch.finfo(whole.dtype).tiny)


def _square_lengths(cached: CachedForward, cotangents: Iterator[Tensor]) -> Tensor:
    """Return the squared lengths ``(n, k)`` of what cotangents pull back, as many at a time as fit into memory."""
    parts = [as_double(cached.logits[:, :0])]
    while some := list(islice(cotangents, cached.together)):
        parts.append(cached.products(torch.stack(some)))
    return torch.cat(parts, dim=1)
