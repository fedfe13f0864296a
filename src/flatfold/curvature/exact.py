r"""Exact trace and eigenvalues of the Gauss-Newton matrix of single inputs, by backward passes from the logits.

With the class probabilities p the Hessian of every loss here over the logits is ``diag p - p p'``, the covariance of
the class drawn from p. Order the classes by probability, the likeliest first. With r_i the probability of all classes
after the i-th and m_i their mean, the covariance is a sum over the difference of each class from the following ones:

.. math:: \operatorname{diag} p - p p^\top = \sum_{i<c} \frac{p_i\, r_i}{p_i + r_i}\, (e_i - m_i)(e_i - m_i)^\top

So c - 1 backward passes give ``J'(e_i - m_i)``, and the trace is a weighted sum of their squared lengths. No difference
of nearly equal numbers occurs: a confident input keeps its precision in float32. The remainder after the first few
classes is the covariance among the others, which is small and may be estimated.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from ..core.hessian import as_double
from ..data.batch import Batch
from .per_sample import CachedForward, Parameters, cached_parts

TOGETHER = 16  # number of cotangents at which preparing a layer's inputs is cheap in comparison


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

    All classes are exact, or the ``top`` likeliest of each input; each of ``probes`` draws for the others is one
    backward pass from a sum of their terms with random signs, whose squared length is unbiased.
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
    """Return the largest eigenvalues of the Gauss-Newton matrix of each input; all others are zero."""
    values = []
    for cached in cached_parts(model, parameters, batch):
        classes = OrderedClasses(cached.logits)
        cotangents = torch.stack([classes.direction(i) for i in range(classes.terms)])
        values.append(classes.eigenvalues(cached.products(cotangents, pairs=True)))
    return torch.cat(values)


class OrderedClasses:
    """The classes of each input, the likeliest first, and the difference of each from the following ones.

    ``terms``, c - 1, is the number of terms of the covariance; ``weights``, ``(n, c - 1)``, are ``p r / (p + r)``.
    """

    def __init__(self, logits: Tensor) -> None:
        self._p, self._order = as_double(logits.detach()).softmax(dim=-1).sort(dim=-1, descending=True)
        # Summed from the smallest: 1 - p would cancel for a confident input.
        self._least = self._p.flip(1).cumsum(dim=1).flip(1)
        self._after = self._least.roll(-1, dims=1)[:, :-1]
        self.terms = logits.shape[1] - 1
        self.weights = self._p[:, :-1] * _quotient(self._after, self._least[:, :-1])

    def direction(self, i: int) -> Tensor:
        """Return the i-th class minus the mean of the following ones, ``e_i - m_i``, over the logits ``(n, c)``."""
        ordered = torch.zeros_like(self._p)
        ordered[:, i + 1 :] = -_quotient(self._p[:, i + 1 :], self._after[:, i : i + 1])
        ordered[:, i] = 1
        return self._by_class(ordered)

    def rest(self, first: int) -> Tensor:
        """Return the probability of all classes starting at index ``first``, ``(n,)``."""
        return self._least[:, first]

    def signed_sum(self, first: int, generator: torch.Generator | None) -> Tensor:
        """Return the sum of the terms starting at ``first``, with random signs and roots of their shares, ``(n, c)``.

        The expectation of its outer product is the covariance among these classes alone, as if there were no others.
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
    """Return ``part / whole``; 0 if both underflow."""
    return part / whole.clamp_min(torch.finfo(whole.dtype).tiny)


def _square_lengths(cached: CachedForward, cotangents: Iterator[Tensor]) -> Tensor:
    """Return the squared lengths ``(n, k)`` of the gradients of cotangents, in chunks that fit into memory."""
    parts = [as_double(cached.logits[:, :0])]
    while some := list(islice(cotangents, cached.together)):
        parts.append(cached.products(torch.stack(some)))
    return torch.cat(parts, dim=1)
