r"""The theorem of the FOLD paper on the expected trace of OOD inputs, corrected and computed.

**The setting.** The features of two classes ``y = ±1`` are Gaussian around ``±mu``, with one covariance ``S``; OOD
inputs are the same mixture around ``±c R mu``. A linear classifier has the logits ``z = (w'x, 0)``. Over the features
the Hessian of the energy ``logsumexp(z)`` has the trace ``|w|^2 phi(w'x)``, with the same average over both classes:

.. math:: E \operatorname{tr} H = \|w\|^2\, E\,\varphi(a), \quad a \sim N(w^\top m,\ w^\top S w),
          \quad \varphi(a) = \frac{e^a}{(1 + e^a)^2}

**The theorem.** At ``w = alpha S^-1 mu``, for every ``alpha > 0``, ID inputs have the smaller expected trace if and
only if, with equality for equality (:func:`compare_traces`),

.. math:: c\, |\mu^\top S^{-1} R \mu| \le \mu^\top S^{-1} \mu

For ``S = I`` this is true for every rotation up to ``c = 1``; for other covariances it need not be. OOD inputs of
another covariance are not covered. The page Mathematics has the proof and four corrections of the paper, among them:
the printed training loss has no minimum (:func:`printed_loss`), the minimiser of the logistic loss that is meant
(:func:`logistic_risk`) is ``2 S^-1 mu``, and the proof needs that the average of ``phi`` over a Gaussian decreases with
the distance of its mean from 0 (:func:`average_curvature`).

**Arguments** of all functions, as tensors or arrays: ``mean``, mu, ``(d,)``; ``covariance``, S, ``(d, d)``, symmetric
and positive definite; ``weight``, w, ``(d,)``; ``rotation``, R, ``(d, d)``, orthogonal, reflections included; ``c``, 0
or more; ``alpha``, the length of the classifier ``w = alpha S^-1 mu``, above 0.
"""

from dataclasses import dataclass
from functools import cache
from math import exp, inf, log, pi, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.hessian import class_distances, feature_hessian_trace, row_chunks
from ..core.validation import as_tensor, check_above_zero
from ..curvature.estimate import Estimate

REACH = 10  # standard deviations on either side of the peak of an integrand; less than 1e-17 of it lies beyond
WIDEST = 1e5  # largest standard deviation of w'x, for which the quadrature takes four million points
ROUNDING = 1e-12  # largest relative difference that counts as equality
FLOAT32 = 1e-6  # tolerance for the orthogonality of a rotation and the symmetry of a covariance in float32
SETTINGS = 200  # number of random settings
RATIOS, LENGTHS, DISTANCES = (0.02, 1.98), (0.5, 2.5), (0.7, 1.4)  # ranges of the random settings

Array = Tensor | NDArray[np.floating]


def average_curvature(mean: float, deviation: float) -> float:
    r"""Return the average of ``phi`` over a Gaussian: even in its mean, and strictly decreasing in its distance from 0.

    .. math:: M(m) = E\, \varphi(m + s t), \quad t \sim N(0, 1)

    Args:
        mean: m.
        deviation: s, from 0 to 1e5. The relative error is below 1e-10.

    Example:
        >>> round(average_curvature(0.0, 1.0), 6), round(average_curvature(-2.0, 1.0), 6)
        (0.206621, 0.115758)
    """
    return exp(log_average_curvature(mean, deviation))


def log_average_curvature(mean: float, deviation: float) -> float:
    """Return the logarithm of :func:`average_curvature`, which is finite where that is too small for a float."""
    points, log_weights = gaussian_points(abs(mean), deviation)
    logs = log_weights - np.abs(points) - 2 * np.log1p(np.exp(-np.abs(points)))
    return float(np.logaddexp.reduce(logs))


def gaussian_points(mean: float, deviation: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return points of ``N(mean, deviation^2)`` and the logarithms of their weights: the trapezoidal rule.

    It converges exponentially: the nearest singularities of ``phi`` and of ``log(1 + e^-a)`` are ``±i pi``, and steps
    of 1/2 in a, or of half a deviation, leave an error below 1e-16. Both fall like ``e^-a``, which moves the peak of
    their product with the Gaussian towards 0: the points lie around that peak.
    """
    if not 0 <= deviation <= WIDEST:
        wanted = f"the score w'x must have a standard deviation from 0 to {WIDEST:g}, got {deviation:g}"
        raise ValueError(f"{wanted}. Make the weight or the covariance smaller.")
    peak = -min(deviation, max(mean, 0.0) / deviation) if deviation > 0 else 0.0
    step = 0.5 / max(1.0, deviation)
    count = round(REACH / step)
    t = peak + step * np.arange(-count, count + 1, dtype=np.float64)
    return mean + deviation * t, log(step / sqrt(2 * pi)) - t**2 / 2


@dataclass(frozen=True)
class Theorem:
    """Both sides of the condition, and both expected traces.

    Attributes:
        id: Expected trace of ID inputs; 0 where it is too small for a float.
        ood: That of OOD inputs.
        log_ratio: Logarithm of ``ood / id``, also where both are too small for a float.
        shifted: Left side of the condition, ``c |mu' S^-1 R mu|``.
        bound: Its right side, ``mu' S^-1 mu``.
        alpha: Length of the classifier, ``w = alpha S^-1 mu``.
    """

    id: float
    ood: float
    log_ratio: float
    shifted: float
    bound: float
    alpha: float

    @property
    def gap(self) -> float:
        """Expected trace of OOD inputs minus that of ID ones."""
        return self.ood - self.id

    @property
    def margin(self) -> float:
        """Right minus left side of the condition: it has the sign of ``gap``."""
        return self.bound - self.shifted

    @property
    def ratio(self) -> float:
        """Left side over right side: the condition is true up to 1."""
        return self.shifted / self.bound

    @property
    def holds(self) -> bool:
        """Whether the condition is true; a difference of the size of rounding counts as equality."""
        return self.ratio <= 1 + ROUNDING

    @property
    def agrees(self) -> bool:
        """Whether the traces are ordered as the condition says, up to rounding."""
        resolved = abs(self.log_ratio) > ROUNDING and abs(self.margin) > ROUNDING * self.bound
        return not resolved or (self.log_ratio > 0) == (self.margin > 0)


def expected_trace(mean: Array, covariance: Array, weight: Array) -> float:
    """Return the expected trace for classes around ``mean`` and its negative, equally often, by quadrature."""
    centre, spread, w = _classifier(mean, covariance, weight)
    return float(w @ w) * average_curvature(*_score(centre, spread, w))


def monte_carlo_trace(mean: Array, covariance: Array, weight: Array, samples: int = 100_000, seed: int = 0) -> Estimate:
    """Return the expected trace by Monte Carlo over features of the mixture, with its standard error.

    It shares nothing with the quadrature: the draws have d dimensions and pass through the softmax of two logits. Value
    and error are too small if ``w'x = 0`` lies four deviations from the means or more. Draws at least 2 samples.
    """
    centre, spread, w = _classifier(mean, covariance, weight)
    if samples < 2:
        raise ValueError(f"a standard error takes at least 2 samples, got {samples}. The default is 100000.")
    head, factor = torch.stack([w, torch.zeros_like(w)]), torch.linalg.cholesky(spread)
    distances, generator = class_distances(head), torch.Generator().manual_seed(seed)
    traces = torch.empty(samples, dtype=torch.float64)
    for part in row_chunks(samples):
        n = len(traces[part])
        sign = torch.randint(0, 2, (n, 1), generator=generator) * 2 - 1
        x = sign * centre + torch.randn(n, len(w), dtype=torch.float64, generator=generator) @ factor.mT
        traces[part] = feature_hessian_trace((x @ head.mT).softmax(dim=-1), distances)
    value, stderr = float(traces.mean()), float(traces.std()) / sqrt(samples)
    return Estimate(value, stderr, "monte carlo", "hessian", "energy", 0, seed, samples)


def bayes_weight(mean: Array, covariance: Array, alpha: float = 2.0) -> Tensor:
    """Return ``alpha S^-1 mu``, ``(d,)`` in float64: with 2, the minimiser of :func:`logistic_risk`; the paper takes 1.

    Example:
        >>> bayes_weight(torch.tensor([1.0, 2.0]), torch.eye(2))
        tensor([2., 4.], dtype=torch.float64)
    """
    check_above_zero("alpha", alpha, "2, the minimiser of the logistic risk,")
    centre, spread = _mixture(mean, covariance)
    return alpha * torch.cholesky_solve(centre[:, None], torch.linalg.cholesky(spread))[:, 0]


def logistic_risk(weight: Array, mean: Array, covariance: Array) -> float:
    r"""Return the risk that training minimises, by quadrature.

    .. math:: E \log(1 + e^{-y\, w^\top x}) = E \log(1 + e^{-a}), \quad a \sim N(w^\top \mu,\ w^\top S w)
    """
    centre, spread, w = _classifier(mean, covariance, weight)
    points, log_weights = gaussian_points(*_score(centre, spread, w))
    return float(np.exp(log_weights) @ np.logaddexp(0.0, -points))


def printed_loss(weight: Array, mean: Array, covariance: Array) -> float:
    r"""Return the training loss as the paper prints it, which has no minimum: ``-logistic_risk(-w)``.

    .. math:: E\bigl[-\log \textstyle\sum_i e^{y z_i}\bigr] = -E \log(1 + e^{y\, w^\top x})

    Along ``S^-1 mu`` it falls in proportion to the length of w.
    """
    return -logistic_risk(-as_tensor(weight, "weight"), mean, covariance)


def holds(mean: Array, covariance: Array, rotation: Array, c: float) -> bool:
    """Return whether ``c |mu' S^-1 R mu| <= mu' S^-1 mu``: whether ID inputs have the smaller expected trace.

    Example:
        >>> quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> mean, covariance = torch.tensor([1.0, 2.0]), torch.diag(torch.tensor([1.0, 3.0]))
        >>> holds(mean, covariance, quarter_turn, c=1.7), holds(mean, covariance, quarter_turn, c=1.8)
        (True, False)
    """
    shifted, bound = _sides(*_setting(mean, covariance, rotation, c))
    return shifted / bound <= 1 + ROUNDING


def compare_traces(mean: Array, covariance: Array, rotation: Array, c: float, alpha: float = 2.0) -> Theorem:
    """Return both sides of the condition and both expected traces, at ``w = alpha S^-1 mu``; the mean is not 0.

    The order of the traces does not depend on alpha.
    """
    centre, spread, elsewhere = _setting(mean, covariance, rotation, c)
    w = bayes_weight(centre, spread, alpha)
    known, unknown = (log_average_curvature(*_score(m, spread, w)) for m in (centre, elsewhere))
    length, (shifted, bound) = float(w @ w), _sides(centre, spread, elsewhere)
    return Theorem(length * exp(known), length * exp(unknown), unknown - known, shifted, bound, alpha)


@dataclass(frozen=True)
class Setting:
    """A random setting: mu, S, R, the stretch c and the length alpha of the classifier."""

    mean: Tensor
    covariance: Tensor
    rotation: Tensor
    c: float
    alpha: float


@cache
def random_theorems(count: int = SETTINGS, seed: int = 0) -> list[tuple[Setting, Theorem]]:
    """Return random settings of 2 to 8 dimensions with both traces; the ratio of the sides is uniform around 1."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    theorems = []
    for _ in range(count):
        d = int(torch.randint(2, 9, (), generator=generator))
        root, turn = torch.randn(2, d, d, generator=generator, dtype=torch.float64)
        covariance, rotation = root @ root.mT / d + 0.1 * torch.eye(d), torch.linalg.qr(turn).Q
        mean = torch.randn(d, generator=generator, dtype=torch.float64)
        ratio, alpha, distance = (uniform(*ends) for ends in (RATIOS, LENGTHS, DISTANCES))
        mean = mean * distance / float(mean @ torch.linalg.solve(covariance, mean)) ** 0.5
        shifted, bound = _sides(mean, covariance, rotation @ mean)
        setting = Setting(mean, covariance, rotation, ratio / (shifted / bound), alpha)
        theorems.append((setting, compare_traces(mean, covariance, rotation, setting.c, alpha)))
    return theorems


def _score(mean: Tensor, covariance: Tensor, weight: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of ``w'x``."""
    return float(weight @ mean), sqrt(float(weight @ covariance @ weight))


def _sides(mean: Tensor, covariance: Tensor, elsewhere: Tensor) -> tuple[float, float]:
    """Return both sides of the condition, left first."""
    towards = bayes_weight(mean, covariance, alpha=1.0)
    shifted, bound = abs(float(towards @ elsewhere)), float(towards @ mean)
    if not 0 < bound < inf or shifted == inf:
        raise ValueError(
            f"both sides of the condition must be finite and the right one above 0, got {shifted:g} and {bound:g}. "
            "Give mean and covariance, or c, another scale."
        )
    return shifted, bound


def _setting(mean: Array, covariance: Array, rotation: Array, c: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return mu, S and ``c R mu``, checked and in float64."""
    centre, spread = _mixture(mean, covariance)
    if not bool(centre.any()):
        raise ValueError("mean must not be 0: both classes would have the same mean. Give them some distance.")
    if not 0 <= c < inf:
        raise ValueError(f"c must be a finite number of 0 or more, got {c!r}. To turn mu around, use the rotation.")
    turn = _double(rotation, "rotation", (len(centre), len(centre)))
    off = float((turn.mT @ turn - torch.eye(len(turn))).abs().max())
    if off > FLOAT32:
        raise ValueError(f"rotation must be orthogonal, but R'R is off by {off:.2g}. Take torch.linalg.qr(matrix).Q.")
    return centre, spread, c * (turn @ centre)


def _classifier(mean: Array, covariance: Array, weight: Array) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, covariance and weight, checked and in float64."""
    centre, spread = _mixture(mean, covariance)
    return centre, spread, _double(weight, "weight", (len(centre),))


def _mixture(mean: Array, covariance: Array) -> tuple[Tensor, Tensor]:
    """Return mean and covariance, checked and in float64."""
    size = as_tensor(mean, "mean").numel()
    centre, spread = _double(mean, "mean", (size,)), _double(covariance, "covariance", (size, size))
    if float((spread - spread.mT).abs().max()) > FLOAT32 * float(spread.abs().max()):
        raise ValueError("covariance must be symmetric, but differs from its transpose. Try (S + S.T) / 2.")
    if int(torch.linalg.cholesky_ex(spread).info):
        low = float(torch.linalg.eigvalsh(spread)[0])
        raise ValueError(
            f"covariance must be positive definite, but its smallest eigenvalue is {low:.2g}. "
            "Add a little to its diagonal, or leave out directions without variance."
        )
    return centre, spread


def _double(values: Array, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return ``values`` on the CPU in float64, or say which shape was expected."""
    tensor = as_tensor(values, name).detach().cpu().double()
    if tensor.shape != shape or 0 in shape:
        wanted = "(d,) with d from 1 on" if name == "mean" else f"{shape}, as the mean has d={shape[0]}"
        raise ValueError(f"{name} must have the shape {wanted}, got {tuple(tensor.shape)}. Reshape it first.")
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} must be finite, but has a NaN or infinite entry. Look at how it was made.")
    return tensor
