r"""Eigenvalues of the feature Hessian of single samples, exactly and without a d x d matrix.

``H = W' (diag p - p p') W`` is tiny for a confident sample, and the difference in the middle would cancel. So the
likeliest class t is split off: with r the mass of all others, q their distribution, ``u = sqrt q``, the differences
``V = W - w_t``, their mean ``m = V' q`` and ``g = 1 - sqrt(1 - r)``,

.. math:: H = r\, A^\top A, \qquad A = \operatorname{diag}(u)\, (V - g\, 1 m^\top) = (I - g\, u u^\top)
    \operatorname{diag}(u)\, V

because ``(I - g u u')^2 = I - r u u'``. Nothing cancels: ``I - g u u'`` shrinks no direction below ``sqrt p_t``. The
eigenvalues of ``A'A`` are those of the c x c matrix ``A A'``, whose entries come from the Gram matrix of the weights.
"""

import torch
from torch import Tensor

from .hessian import as_double, row_chunks, split_off_top

NUMBERS = 2**23  # numbers in memory at once in float64, 64 MB
NEAR = 2**19  # numbers in float64 that fit in the cache while a matrix is assembled, 4 MB
SMALL = 256  # matrix size up to which all eigenvalues cost no more than the largest one by Lanczos steps
TOLERANCE = 1e-5  # residual of a largest eigenvalue found by Lanczos steps, relative to it
STEPS = 12  # Lanczos steps between two checks of the residuals


def hessian_eigenvalues(probs: Tensor, weight: Tensor, k: int | None = None) -> Tensor:
    r"""Return the largest eigenvalues of each sample's feature Hessian ``W' (diag p - p p') W``.

    At most ``min(c - 1, d)`` of the d eigenvalues are positive, so no more than ``min(c, d)`` are returned; all others
    are zero. The error is that of rounding: a few times the type's precision, relative to the sample's largest
    eigenvalue, however confident it is.
    """
    c, d = weight.shape
    centred = centred_weights(weight)
    gram = centred @ centred.T if c <= d else None
    count = min(c, d) if k is None else min(k, c, d)
    values = probs.new_empty(len(probs), count)
    for part in row_chunks(len(probs), max(1, NEAR // (c * min(c, d)))):
        split = split_off_top(as_double(probs[part]))
        matrix = _by_features(centred, *split) if gram is None else _by_classes(gram, *split)
        largest = torch.linalg.eigvalsh(matrix.to(probs.dtype)).flip(-1)[:, :count]
        values[part] = largest * split[1][:, None].to(probs.dtype)
    return values.clamp_min(0.0)


def largest_hessian_eigenvalue(probs: Tensor, weight: Tensor) -> Tensor:
    """Return the largest eigenvalue of each sample's feature Hessian.

    Up to 256 classes or features it is the first of :func:`hessian_eigenvalues`. Beyond that, it is computed by Lanczos
    steps for all samples together, until the residual is below 1e-5 of the eigenvalue; all samples start from the same
    vector.
    """
    c, d = weight.shape
    if min(c, d) <= SMALL:
        return hessian_eigenvalues(probs, weight, 1)[:, 0]
    centred = centred_weights(weight)
    # One product with the Gram matrix, or two with the weights: whichever multiplies less.
    gram = centred @ centred.T if c <= 2 * d else None
    values = probs.new_empty(len(probs))
    for part in row_chunks(len(probs), max(1, NUMBERS // (4 * STEPS * c))):
        top, rest, q = split_off_top(as_double(probs[part]))
        values[part] = (_largest(_Krylov(centred, gram, top, rest, q)) * rest).to(probs)
    return values


def logit_hessian_eigenvalues(probs: Tensor, k: int | None = None) -> Tensor:
    r"""Return the largest eigenvalues of each sample's Hessian in the logits, ``diag p - p p'``.

    With ``p_1 >= p_2 >= ...`` the j-th eigenvalue is the root between ``p_{j+1}`` and ``p_j`` of

    .. math:: \sum_i \frac{p_i}{p_i - \lambda} = 0,

    found by bisection, and at most ``p_{j+1} + sum_{i > j} p_i``; the last is zero. Each has full relative accuracy,
    and no matrix is built.
    """
    c = probs.shape[1]
    count = c if k is None else min(k, c)
    values = probs.new_zeros(len(probs), count)
    roots = min(count, c - 1)
    for part in row_chunks(len(probs), max(1, NUMBERS // (c * roots))):
        p = as_double(probs[part]).sort(dim=-1, descending=True).values
        values[part, :roots] = _roots(p, roots).to(probs)
    return values


def centred_weights(weight: Tensor) -> Tensor:
    """Return the weights in float64 minus their mean: a common shift changes no eigenvalue and costs digits."""
    weight = as_double(weight)
    return weight - weight.mean(dim=0)


def _by_classes(gram: Tensor, top: Tensor, rest: Tensor, q: Tensor) -> Tensor:
    """Return ``A A'``, ``(n, c, c)``, from the Gram matrix: ``u_i u_j (G_ij - e_i - e_j)``."""
    u, g = q.sqrt(), _shrinkage(rest)
    to_top = gram[top]
    corner = gram[top, top][:, None]
    # a = V m and s = |m|^2, for V V' = G - G_t 1' - 1 G_t' + G_tt
    a = q @ gram - to_top - (q * to_top).sum(-1, keepdim=True) + corner
    s = (q * a).sum(-1, keepdim=True)
    e = to_top - corner / 2 + g * a - g.square() * s / 2
    scaled = (gram * u[:, :, None]).mul_(u[:, None, :])
    return scaled.baddbmm_(torch.stack([u, u * e], dim=2), torch.stack([u * e, u], dim=1), alpha=-1)


def _by_features(weight: Tensor, top: Tensor, rest: Tensor, q: Tensor) -> Tensor:
    """Return ``A' A``, ``(n, d, d)``: the smaller matrix if there are more classes than features."""
    differences = weight - weight[top][:, None]
    mean = (q[:, None] @ differences).squeeze(1)
    rows = (differences - (_shrinkage(rest) * mean)[:, None]).mul_(q.sqrt()[:, :, None])
    return rows.mT @ rows


def _shrinkage(rest: Tensor) -> Tensor:
    """Return ``g = 1 - sqrt(1 - r)``, ``(n, 1)``, without the difference."""
    return (rest / (1 + (1 - rest).sqrt()))[:, None]


class _Krylov:
    """A Lanczos basis of every sample's ``A A'``, all of one length, reorthogonalised twice at each step."""

    def __init__(self, weight: Tensor, gram: Tensor | None, top: Tensor, rest: Tensor, q: Tensor) -> None:
        n, c = q.shape
        start = torch.randn(c, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(q.device)
        self.weight, self.gram, self.top, self.u, self.g = weight, gram, top[:, None], q.sqrt(), _shrinkage(rest)
        self.vector, self.basis = (start / start.norm()).expand(n, c), start.new_empty(n, 0, c)
        self.diagonal = self.off_diagonal = start.new_empty(n, 0)

    def product(self, x: Tensor) -> Tensor:
        """Return ``A A' x`` for each row of ``x``, ``(n, c)``, with ``V' y = W' (y - e_t sum y)``."""
        y = self.u * self._shrunk(x)
        y = y.scatter_add(-1, self.top, -y.sum(-1, keepdim=True))
        z = y @ self.gram if self.gram is not None else (y @ self.weight) @ self.weight.T
        return self._shrunk(self.u * (z - z.gather(-1, self.top)))

    def _shrunk(self, x: Tensor) -> Tensor:
        return x - self.g * self.u * (self.u * x).sum(-1, keepdim=True)

    def extend(self) -> None:
        """Extend the basis by ``STEPS`` Lanczos steps."""
        n, first, c = self.basis.shape
        self.basis = torch.cat([self.basis, self.basis.new_empty(n, STEPS, c)], dim=1)
        for step in range(first, first + STEPS):
            self.basis[:, step] = self.vector
            image = self.product(self.vector)
            self.diagonal = torch.cat([self.diagonal, (image * self.vector).sum(-1, keepdim=True)], dim=1)
            basis = self.basis[:, : step + 1]
            for _ in range(2):
                image = image - ((basis @ image[:, :, None]).mT @ basis).squeeze(1)
            length = image.norm(dim=-1, keepdim=True)
            # In an exhausted space only rounding is left. A zero vector yields zeros, which are never the maximum.
            alive = length > 1e-14 * self.diagonal.amax(dim=-1, keepdim=True)
            self.vector = torch.where(alive, image / length, 0.0)
            self.off_diagonal = torch.cat([self.off_diagonal, torch.where(alive, length, 0.0)], dim=1)

    def largest(self) -> tuple[Tensor, Tensor]:
        """Return each sample's largest Ritz value, ``(n,)``, and its residual, a bound on its error."""
        off = torch.diag_embed(self.off_diagonal[:, :-1], 1)
        values, vectors = torch.linalg.eigh(torch.diag_embed(self.diagonal) + off + off.mT)
        return values[:, -1].clamp_min(0.0), self.off_diagonal[:, -1] * vectors[:, -1, -1].abs()

    def keep(self, rows: Tensor) -> None:
        """Drop all samples except ``rows``."""
        for name in ("top", "u", "g", "vector", "basis", "diagonal", "off_diagonal"):
            setattr(self, name, getattr(self, name)[rows])


def _largest(krylov: _Krylov) -> Tensor:
    """Return the largest eigenvalue of each sample's matrix, ``(n,)``; converged samples are dropped."""
    n, c = krylov.u.shape
    found = krylov.u.new_zeros(n)
    waiting = torch.arange(n, device=found.device)
    for _ in range(0, c, STEPS):  # after c steps the space is exhausted
        krylov.extend()
        found[waiting], residual = krylov.largest()
        unsettled = residual > TOLERANCE * found[waiting]
        krylov.keep(unsettled)
        waiting = waiting[unsettled]
        if not len(waiting):
            break
    return found


def _roots(p: Tensor, count: int) -> Tensor:
    """Return the first roots of the secular equation for sorted probabilities ``(n, c)``, by bisection."""
    tail = p.flip(-1).cumsum(-1).flip(-1)[:, 1 : count + 1]
    low = p[:, 1 : count + 1]
    high = torch.minimum(p[:, :count], low + tail)
    for _ in range(64):  # the first bracket is at most c times its root: halved to below the precision of float64
        middle = (low + high) / 2
        below = (p[:, None] / (p[:, None] - middle[:, :, None])).sum(-1) < 0
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


class MeanHessian:
    r"""Mean of the logit Hessian over a data set, from which that of the feature Hessian follows.

    .. math:: \bar S = \operatorname{diag}(L 1) - L, \qquad L_{ij} = \frac1n \sum p_i p_j \;(i \ne j), \quad L_{ii} = 0

    which is ``diag(mean p) - P'P / n`` without cancellation: only products of two classes are summed, in float64.
    ``rows`` is the number of samples.
    """

    def __init__(self, n_classes: int) -> None:
        self.rows = 0
        self._products = torch.zeros(n_classes, n_classes, dtype=torch.float64)

    def add(self, probs: Tensor) -> None:
        """Add samples with class probabilities ``(n, c)``."""
        for part in row_chunks(len(probs)):
            p = as_double(probs[part])
            self._products += (p.T @ p).cpu()
        self.rows += len(probs)

    def eigenvalues(self, weight: Tensor | None = None) -> Tensor:
        """Return the largest ``min(c, d)`` eigenvalues of the mean feature Hessian for weights ``(c, d)``.

        The other ``d - c`` are zero, and so is the last one returned if ``d >= c``. Without weights, the result is the
        c eigenvalues of the mean logit Hessian.
        """
        values: Tensor = torch.linalg.eigvalsh(self._matrix(weight)[0]).flip(0).clamp_min(0.0)
        if len(values) == len(self._products):
            values[-1] = 0.0  # S maps the vector of ones exactly to zero
        return values

    def eigenvectors(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues ``(k,)`` and the projections of the centred weights on the eigenvectors, ``(c, k)``.

        The curvature of an input along the j-th eigenvector is the variance of the j-th column under its probabilities.
        """
        matrix, triangle = self._matrix(weight)
        values, vectors = torch.linalg.eigh(matrix)
        return values.flip(0).clamp_min(0.0), triangle.T @ vectors.flip(1)

    def _matrix(self, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return ``R S R'``, which has the non-zero eigenvalues of ``W' S W``, and R of ``W' = Q R``."""
        pairs = self._products / self.rows
        pairs.fill_diagonal_(0.0)
        mean = pairs.sum(dim=1).diag() - pairs
        if weight is None:
            return mean, mean
        triangle = torch.linalg.qr(centred_weights(weight).cpu().T, mode="r").R
        return triangle @ mean @ triangle.T, triangle
