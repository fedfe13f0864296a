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
    second: Tensor | None = None
    """Their mean squared norm, when it was asked for; ``second - trace`` is the squared norm of their mean."""


class Weights(NamedTuple):
    """What moments need to know of the class weights."""

    distances: Tensor
    """``(c, c)``, squared distances between them."""
    square_norms: Tensor | None = None
    """``(c,)``, their squared norms; without them there is no second moment."""


def masked_softmax(logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the class probabilities without one class per row, and how the mass is shared while it is there.

    Args:
        logits: ``(n, c)``.
        classes: The class to leave out of each row, ``(n,)`` int64.

    Returns:
        ``q`` of shape ``(n, c)``, zero at the masked class; the mass ``r`` of all others and ``p_k = 1 - r`` of the
        class itself, ``(n,)`` each, both with all their digits.

    Example:
        >>> q, r, own = masked_softmax(torch.zeros(1, 3), torch.tensor([0]))
        >>> q, round(float(r), 4)
        (tensor([[0.0000, 0.5000, 0.5000]]), 0.6667)
    """
    column = classes[:, None]
    without = logits.scatter(-1, column, -torch.inf)
    q = without.softmax(dim=-1)
    logsumexp = without.amax(dim=-1) - q.amax(dim=-1).log()  # without another exponential of everything
    margin = logsumexp - logits.gather(-1, column).squeeze(-1)
    return q, torch.sigmoid(margin), torch.sigmoid(-margin)


def with_and_without(logits: Tensor, classes: Tensor, weights: Weights) -> tuple[Moments, Moments]:
    """Return the moments of each row as it is and with one class masked, from a single product.

    Args:
        logits: ``(n, c)``.
        classes: The class to mask in each row, ``(n,)`` int64.
        weights: Of the classes.

    Returns:
        The moments without a mask and with it, ``(n,)`` each.
    """
    q, r, own = masked_softmax(logits, classes)
    pull = q @ weights.distances
    u = 0.5 * (pull * q).sum(dim=-1)
    v = pull.gather(-1, classes[:, None]).squeeze(-1)
    trace = r * (r * u + own * v)
    if weights.square_norms is None:
        return Moments(trace), Moments(u)
    second = q @ weights.square_norms
    return Moments(trace, r * second + own * weights.square_norms[classes]), Moments(u, second)


def without_each(logits: Tensor, classes: Tensor, weights: Weights) -> Moments:
    r"""Return the moments of each row with each of some classes masked in turn, from a single product.

    Masking class k leaves the trace ``(tr H - p_k (D p)_k) / (1 - p_k)^2``. The difference would cancel for the
    likeliest class t of a confident row, so the product is taken with that class masked, ``p = r q + (1 - r) e_t``:

    .. math:: \operatorname{tr}_{k \neq t} =
        r\, \frac{r u + (1 - r) v - q_k \big( r (D q)_k + (1 - r) D_{tk} \big)}{(1 - r q_k)^2},
        \qquad \operatorname{tr}_{t} = u

    Call it in float64: at the runner-up of a row digits are still lost, all of them when it leaves less than 1e-16 of
    the remaining mass to the classes behind it.

    Args:
        logits: ``(n, c)``.
        classes: The k classes to mask, ``(k,)`` int64.
        weights: Of the classes.

    Returns:
        Moments of shape ``(k, n)`` each.
    """
    top = logits.argmax(dim=-1)
    column = top[:, None]
    q, r, own = masked_softmax(logits, top)
    pull = q @ weights.distances
    u = 0.5 * (pull * q).sum(dim=-1, keepdim=True)
    v = pull.gather(-1, column)
    r, own = r[:, None], own[:, None]
    others = r * q
    left = 1 - others  # of the mass when class k is masked: at least a half, for k is not the likeliest
    # In place from here on: these are matrices of all rows and all classes, made anew for every exponent.
    trace = pull.mul_(r).addcmul_(weights.distances[top], own).mul_(q).neg_().add_(r * u + own * v)
    trace = trace.mul_(r).div_(left).div_(left).clamp_min_(0.0).scatter_(-1, column, u)
    if weights.square_norms is None:
        return Moments(trace.mT[classes])
    masked = (q @ weights.square_norms)[:, None]
    whole = r * masked + own * weights.square_norms[column]
    second = ((whole - others * weights.square_norms) / left).scatter_(-1, column, masked)
    return Moments(trace.mT[classes], second.mT[classes])
