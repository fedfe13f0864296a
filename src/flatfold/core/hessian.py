r"""Curvature of the energy over features, in closed form.

All functions map tensors to tensors, without models, files or devices. With ``z = W h + b`` and ``p = softmax(z)``,
the Hessian of ``logsumexp(z)`` in ``h`` is ``W' (diag p - p p') W``: the covariance of the class weights under ``p``.
So its trace is half the mean squared distance between two classes drawn from ``p``:

.. math:: \operatorname{tr} H = \tfrac12\, p^\top D\, p, \qquad D_{ij} = \|w_i - w_j\|^2

There are two ways to evaluate it, and both add only non-negative numbers. The textbook
``E|w|^2 - |E w|^2`` subtracts two nearly equal ones and rounds the trace of a confident sample to 0.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def class_distances(weight: Tensor) -> Tensor:
    """Return the squared distances between class weights ``(c, d)`` as ``(c, c)``, zero on the diagonal."""
    # Differences, not Gram products: near-equal classes would cancel. Done once per head.
    return torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist").square()


def prefers_distances(n_classes: int, width: int) -> bool:
    """Return whether the pairwise form is cheaper for a head of this shape."""
    # A row costs c² multiplications with the distances and c·d with the centred form. Up to c = 2d the first also wins
    # in practice, because it is a single product; beyond, c² numbers would have to be stored as well.
    return n_classes <= 2 * width


def affordable_distances(weight: Tensor) -> Tensor | None:
    """Return the squared distances between class weights, or None if the weights alone are cheaper."""
    return class_distances(weight) if prefers_distances(*weight.shape) else None


def feature_hessian_trace(probs: Tensor, distances: Tensor) -> Tensor:
    r"""Return the trace of the feature Hessian at class probabilities ``(n, c)``, from ``class_distances(weight)``.

    .. math:: \operatorname{tr} H = \tfrac12\, p^\top D\, p

    Every term is non-negative, so a confident sample keeps its tiny trace in float32.
    """
    return 0.5 * (probs @ distances).mul(probs).sum(dim=-1)


def distances_from(classes: Tensor, weight: Tensor, distances: Tensor | None) -> Tensor:
    """Return the squared distances ``(n, c)`` of one class weight per row from all others.

    Without ``class_distances(weight)`` they are computed from products of the centred weights. Two classes closer than
    the rounding errors of these have distance 0.
    """
    if distances is not None:
        return distances[classes]
    centred = weight - weight.mean(dim=0)
    squares = centred.square().sum(dim=-1)
    sums = squares[classes, None] + squares
    found = sums - 2 * centred[classes] @ centred.mT
    return found.where(found > 16 * torch.finfo(weight.dtype).eps * sums, 0.0)


def log_hessian_trace(logits: Tensor, distances: Tensor | None, weight: Tensor | None = None) -> Tensor:
    r"""Return the logarithm of the trace at logits ``(n, c)``; it does not underflow, however confident the head is.

    With t the likeliest class, s the second and :math:`q_j = e^{z_j - z_s}` for all classes but t:

    .. math:: \log \operatorname{tr} H = (z_s - z_t) + \log\big(D_t\, q + \tfrac12 e^{z_s - z_t} q^\top D q\big)
        - 2 \log\big(1 + e^{z_s - z_t} \textstyle\sum_j q_j\big)

    Without distances the two terms are computed from the mean and the variance of the ``weight`` of the classes other
    than t (:func:`centred_hessian_trace`).

    Example:
        >>> log_hessian_trace(torch.tensor([[500.0, 0.0]]), torch.tensor([[0.0, 4.0], [4.0, 0.0]]))
        tensor([-498.6137])
    """
    best, top = logits.max(dim=-1, keepdim=True)
    below = (logits - best).scatter(-1, top, -torch.inf)
    second = below.amax(dim=-1, keepdim=True)
    known = weight if distances is None else distances
    assert known is not None
    q = (below - second).exp().to(known.dtype)
    ratio, mass = second.squeeze(-1).exp(), q.sum(dim=-1)
    if distances is None:
        centred = known - known.mean(dim=0)
        spread, mean = variance_and_mean(q / mass[:, None], centred, centred.square().sum(dim=-1))
        own = mass * (spread + (centred[top.squeeze(-1)] - mean).square().sum(dim=-1))
        others = mass.square() * spread
    else:
        own = (q * distances[top.squeeze(-1)]).sum(dim=-1)
        others = 0.5 * (q @ distances).mul(q).sum(dim=-1)
    trace = (own + ratio * others).clamp_min(torch.finfo(known.dtype).tiny)  # 0 between classes of equal weights
    return second.squeeze(-1) + trace.log() - 2 * torch.log1p(ratio * mass)


def centred_hessian_trace(probs: Tensor, weight: Tensor) -> Tensor:
    r"""Return the same trace from the weights ``(c, d)``, for heads with many more classes than features.

    Let t be the likeliest class, r = 1 - p_t the mass of all others, q their distribution and m_q, u the mean and
    the total variance of their weights. The variance of the mixture of t and the others is

    .. math:: \operatorname{tr} H = r\, u + r (1 - r)\, \|w_t - m_q\|^2

    Both terms are non-negative. ``u`` is a difference of moments, but it only matters compared with the second term
    when q is spread out, and then little cancels. No matrix over pairs of classes is built.
    """
    centred = weight - weight.mean(dim=0)  # a common shift changes no variance and keeps the moments small
    return variance_and_mean(probs, centred, centred.square().sum(dim=-1))[0]


def variance_and_mean(probs: Tensor, centred: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the trace ``(n,)`` and the mean class weight ``(n, d)``, given centred weights and their squared norms."""
    top, rest, q = split_off_top(probs)
    mean = q @ centred
    spread = (q @ squares - mean.square().sum(dim=-1)).clamp_min(0.0)
    gap = centred[top] - mean
    trace = rest * (spread + (1 - rest) * gap.square().sum(dim=-1))
    return trace, centred[top] - rest[:, None] * gap


def feature_hessian_diagonal(probs: Tensor, weight: Tensor) -> Tensor:
    r"""Return the diagonal of the feature Hessian, ``(n, d)``: the variance of the class weights in every dimension.

    .. math:: H_{jj} = r\, u_j + r (1 - r)\, (w_{tj} - m_{qj})^2

    with the letters of :func:`centred_hessian_trace`.
    """
    centred = weight - weight.mean(dim=0)
    top, rest, q = split_off_top(probs)
    mean = q @ centred
    spread = (q @ centred.square() - mean.square()).clamp_min(0.0)
    gap = (centred[top] - mean).square()
    return rest[:, None] * (spread + (1 - rest)[:, None] * gap)


def logit_hessian_trace(probs: Tensor) -> Tensor:
    r"""Return the trace of the Hessian of ``logsumexp(z)`` in the logits ``z`` themselves, ``diag p - p p'``.

    .. math:: \operatorname{tr} (\operatorname{diag} p - p p^\top) = \sum_i p_i (1 - p_i)

    For the likeliest class ``1 - p`` is the sum of the others, which keeps its digits; no other class is above 1/2.
    """
    _, rest, q = split_off_top(probs)
    others = q * rest[:, None]
    return (1 - rest) * rest + (others * (1 - others)).sum(dim=-1)


def split_off_top(probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the likeliest class ``(n,)``, the mass of all others ``(n,)`` and their distribution ``(n, c)``."""
    top = probs.argmax(dim=-1, keepdim=True)
    others = probs.scatter(-1, top, 0.0)
    rest = others.sum(dim=-1, keepdim=True)  # summed, not 1 - p_t: a small rest keeps its digits
    q = others / rest.clamp_min(torch.finfo(probs.dtype).tiny)
    return top.squeeze(-1), rest.squeeze(-1), q


WIDE_WEIGHTS = 2**18

"""Largest number of entries of a head whose products are computed in float64: 100 classes of 2048 features and more."""


def widen(weight: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return a head's weight and features in float64, or unchanged if the head is large.

    A logit of 40 is rounded by 2e-6 in float32, and so, relatively, are its class probabilities. In float64 they are
    exact to float32 precision and do not depend on the batch size. For a head like that of ImageNet-1K the product
    would be half of FOLD's cost, so it stays in the type of the features, and the relative error of a confident
    sample's score is then about 1e-5. Some devices (MPS) have no float64.
    """
    if weight.device.type == "mps" or weight.numel() > WIDE_WEIGHTS:
        return weight, h
    return weight.double(), h.double()


def as_double(values: Tensor) -> Tensor:
    """Return ``values`` in float64, moved to the CPU from a device without float64 (MPS)."""
    return (values.cpu() if values.device.type == "mps" else values).double()


ROWS_AT_ONCE = 65_536


def row_chunks(n: int, size: int = ROWS_AT_ONCE) -> Iterator[slice]:
    """Yield slices that cover n rows."""
    return (slice(start, start + size) for start in range(0, n, size))


ENTRIES_AT_ONCE = 2**21


def entry_chunks(n: int, width: int) -> Iterator[slice]:
    """Yield slices that cover n rows of a matrix of this width in parts of at most 16 MB."""
    return row_chunks(n, max(1, ENTRIES_AT_ONCE // width))
