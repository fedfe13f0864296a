r"""What FOLD would say had the network never met a class: the moments of the weights with one logit masked.

AutoFold makes pseudo-unknowns by setting a logit to minus infinity. Masking class k changes the probabilities from p to
``q = softmax(z with z_k = -inf)``. With ``r = 1 - p_k`` we have ``p = r q + (1 - r) e_k``, and the trace is quadratic
in p:

.. math::
    u = \tfrac12 q^\top D q, \qquad v = (D q)_k, \qquad
    \operatorname{tr}_{\text{masked}} = u, \qquad \operatorname{tr} = r^2 u + r (1 - r)\, v

One product ``q D`` gives both sets of scores, exactly, and nothing cancels.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Moments of the class weights under some class probabilities."""

    trace: Tensor
    """Their total variance, which is the trace of the feature Hessian."""
    second: Tensor
    """Their mean squared norm; ``second - trace`` is the squared norm of their mean."""


def masked_softmax(logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class probabilities without one class per row, and the mass of all others while it is there.

    Args:
        logits: ``(n, c)``.
        classes: The class to leave out of each row, ``(n,)`` int64.

    Returns:
        ``q`` of shape ``(n, c)``, zero at the masked class, and ``r = 1 - p_k`` of shape ``(n,)``.

    Example:
        >>> q, r = masked_softmax(torch.zeros(1, 3), torch.tensor([0]))
        >>> q, round(float(r), 4)
        (tensor([[0.0000, 0.5000, 0.5000]]), 0.6667)
    """
    column = classes[:, None]
    without = logits.scatter(-1, column, -torch.inf)
    rest = torch.sigmoid(without.logsumexp(dim=-1) - logits.gather(-1, column).squeeze(-1))
    return without.softmax(dim=-1), rest


def with_and_without(
    logits: Tensor, classes: Tensor, distances: Tensor, square_norms: Tensor
) -> tuple[Moments, Moments]:
    """Return the moments of each row as it is and with one class masked, from a single product.

    Args:
        logits: ``(n, c)``.
        classes: The class to mask in each row, ``(n,)`` int64.
        distances: ``class_distances(weight)``, ``(c, c)``.
        square_norms: Squared norms of the class weights, ``(c,)``.

    Returns:
        The moments without a mask and with it, ``(n,)`` each.
    """
    q, r = masked_softmax(logits, classes)
    pull = q @ distances
    u = 0.5 * (pull * q).sum(dim=-1)
    v = pull.gather(-1, classes[:, None]).squeeze(-1)
    second = q @ square_norms
    whole = Moments(r.square() * u + r * (1 - r) * v, r * second + (1 - r) * square_norms[classes])
    return whole, Moments(u, second)


def without_each(logits: Tensor, classes: Tensor, distances: Tensor, square_norms: Tensor) -> Moments:
    r"""Return the moments of each row with each of some classes masked in turn, from a single product.

    With ``S = tr H``, masking class k leaves the trace

    .. math:: \frac{S - p_k\, (D p)_k}{(1 - p_k)^2}

    The difference cancels when a row has almost all its mass on k, so for the likeliest class of each row the
    value comes from :func:`masked_softmax` instead. Call it in float64: at the runner-up of a very
    confident row a few digits are still lost.

    Args:
        logits: ``(n, c)``.
        classes: The k classes to mask, ``(k,)`` int64.
        distances: ``class_distances(weight)``, ``(c, c)``.
        square_norms: Squared norms of the class weights, ``(c,)``.

    Returns:
        Moments of shape ``(k, n)`` each.
    """
    top = logits.argmax(dim=-1)
    q, r = masked_softmax(logits, top)
    pull = q @ distances
    u = 0.5 * (pull * q).sum(dim=-1)
    v = pull.gather(-1, top[:, None]).squeeze(-1)
    a = 1 - r
    whole = Moments(r * (r * u + a * v), r * (q @ square_norms) + a * square_norms[top])
    # p = r q + a e_top turns the product with q into the product with p; from here on only the columns asked for
    is_top = top[:, None] == classes
    p = torch.where(is_top, a[:, None], r[:, None] * q[:, classes])
    pull = r[:, None] * pull[:, classes] + a[:, None] * distances[top][:, classes]
    left = torch.where(is_top, r[:, None], 1 - p).clamp_min(torch.finfo(p.dtype).tiny)
    trace = ((whole.trace[:, None] - p * pull) / left.square()).clamp_min(0.0)
    second = (whole.second[:, None] - p * square_norms[classes]) / left
    trace = torch.where(is_top, u[:, None], trace)
    second = torch.where(is_top, (q @ square_norms)[:, None], second)
    return Moments(trace.mT.contiguous(), second.mT.contiguous())
