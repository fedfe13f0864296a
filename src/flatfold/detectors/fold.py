"""FOLD: the curvature of the energy at the features of an input.

Park et al., "Exploiting Local Flatness for Efficient Out-of-Distribution Detection", ECCV 2026.
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.hessian import (
    affordable_distances,
    as_double,
    centred_hessian_trace,
    feature_hessian_diagonal,
    feature_hessian_trace,
)
from ..core.pairs import Pairs, largest_pairs
from ..core.shaping import (
    SMALLEST_DIVISOR,
    check_alpha,
    partially_normalised,
    partially_normalised_probs,
    project,
    rescaled_logits,
    row_norms,
    softmax,
)
from ..core.validation import check_choice, check_features
from . import ash, react
from .base import Detector
from .citations import Work
from .registry import register
from .shaped import Shaped

PAPER = Work(
    "park2026fold",
    "Exploiting Local Flatness for Efficient Out-of-Distribution Detection",
    ("Seonghwan Park", "Hyunji Jung", "Dongyeop Lee", "Namhoon Lee"),
    2026,
    "ECCV",
)

ScoreNorm = Literal[None, "weight", "feature"]


class Fold(Detector):
    r"""Trace of the feature Hessian at partially normalised features.

    .. math:: s(h) = \operatorname{tr} W^\top (\operatorname{diag} p - p p^\top) W, \qquad
        p = \operatorname{softmax}(W \tilde h + b), \qquad \tilde h = h / \|h\|^\alpha

    Args:
        alpha: 0 leaves features as they are, 1 puts them on the unit sphere.
        score_norm: None is the paper's score. The authors' code may divide it by the squared norm of the mean class
            weight, ``"weight"``: :math:`\|W^\top p\|^2`, or of the features, ``"feature"``: :math:`\|\tilde h\|^2`.
        kept: Function from normalised features to a mask of the entries that count, ``(n, d) -> (n, d)`` bool; None
            means all. The authors' FOLD-R counts those below ReAct's threshold.
    """

    distances: Tensor | None

    def __init__(
        self, alpha: float = 0.5, score_norm: ScoreNorm = None, kept: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.alpha = alpha
        self.score_norm = score_norm
        self.kept = kept

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_alpha(self.alpha)
        check_choice("score_norm", self.score_norm, get_args(ScoreNorm))
        self.register_buffer("distances", affordable_distances(head.weight))

    def score(self, h: Tensor) -> Tensor:
        return self.score_at(h, self.alpha)

    def score_given(self, h: Tensor, logits: Tensor) -> Tensor:
        return self.score_at(h, self.alpha, logits)

    def score_at(self, h: Tensor, alpha: float | Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the scores for a given exponent instead of the constructor's."""
        return self._score(h, alpha, *project(h, self.weight, self._buffers.get("bias"), logits))

    def score_over(self, h: Tensor, alphas: Sequence[float | Tensor]) -> Tensor:
        """Return the scores ``(a, n)`` for several exponents, computed from a single product with the head."""
        projection = project(h, self.weight, self._buffers.get("bias"))
        # Not a list: small tensors kept in between would fragment the memory of the next probabilities.
        scores = h.new_empty(len(alphas), len(h))
        for own, alpha in zip(scores, alphas, strict=True):
            own.copy_(self._score(h, alpha, *projection))
        return scores

    def _score(self, h: Tensor, alpha: float | Tensor, projected: Tensor, norms: Tensor) -> Tensor:
        probs = softmax(rescaled_logits(projected, norms**alpha, self._buffers.get("bias"))).to(h.dtype)
        trace = self._trace(probs, h, alpha)
        if self.score_norm is None:
            return trace
        if self.score_norm == "weight":
            divisor = (probs @ self.weight).square().sum(dim=-1)
        else:
            divisor = row_norms(h).squeeze(-1) ** (2 - 2 * alpha)
        return trace / divisor.clamp_min(SMALLEST_DIVISOR)

    def pairs(self, h: Tensor, k: int, alpha: float | Tensor | None = None) -> Pairs:
        """Return the k pairs of classes that contribute most to the trace; ``score_norm`` does not change them."""
        check_features(h, self.fitted_weight)
        alpha = self.alpha if alpha is None else alpha
        probs = partially_normalised_probs(h, self.weight, self._buffers.get("bias"), alpha)
        kept = None if self.kept is None else self.kept(partially_normalised(h, alpha))
        return largest_pairs(probs, self.weight, k, kept)

    def score_range(self) -> tuple[float, float]:
        r"""Return 0 and the largest squared distance of a class weight from the mean; infinity with a ``score_norm``.

        The trace is the variance of the class weights under p, and a variance is at most the mean squared distance
        from any point, so also from the plain mean m of the weights:

        .. math:: \operatorname{tr} H \le \sum_k p_k \|w_k - m\|^2 \le \max_k \|w_k - m\|^2

        It holds for any p, so for any features and exponent, and also if dimensions are masked.
        """
        weight = as_double(self.fitted_weight)
        if self.score_norm is not None:
            return 0.0, torch.inf
        bound = float((weight - weight.mean(dim=0)).square().sum(dim=-1).amax())
        # Sums of c and d rounded terms: two equally likely classes would otherwise exceed it by rounding.
        return 0.0, bound * (1 + 2 * sum(weight.shape) * torch.finfo(self.weight.dtype).eps)

    def _trace(self, probs: Tensor, h: Tensor, alpha: float | Tensor) -> Tensor:
        if self.kept is not None:
            kept = self.kept(partially_normalised(h, alpha))
            return (feature_hessian_diagonal(probs, self.weight) * kept).sum(dim=-1)
        distances = self._buffers.get("distances")
        if distances is None:
            return centred_hessian_trace(probs, self.weight)
        return feature_hessian_trace(probs, distances)


ALPHAS = tuple(i / 10 for i in range(1, 11))


@register("fold", printed="FOLD", full_name="Curvature of the energy", cite=(PAPER,), grid={"alpha": ALPHAS})
def make_fold(alpha: float = 0.5, score_norm: ScoreNorm = None) -> Detector:
    """Trace of the feature Hessian at partially normalised features."""
    return Fold(alpha, score_norm)


@register(
    "fold-r",
    printed="FOLD-R",
    full_name="FOLD after ReAct",
    cite=(PAPER, react.PAPER),
    fits_on="val",
    needs_labels=False,
    grid={"percentile": react.PERCENTILES, "alpha": ALPHAS},
)
def make_fold_r(
    alpha: float = 0.5, percentile: float = 90, score_norm: ScoreNorm = None, masked: bool = False
) -> Detector:
    """FOLD on features clipped by ReAct."""
    check_choice("masked", masked, (True, False))
    clipping = react.ReAct(percentile)
    return Shaped(clipping, Fold(alpha, score_norm, kept=clipping.kept if masked else None))


@register(
    "fold-a",
    printed="FOLD-A",
    full_name="FOLD after ASH",
    cite=(PAPER, ash.PAPER),
    grid={"percentile": ash.PERCENTILES, "alpha": ALPHAS},
)
def make_fold_a(alpha: float = 0.5, percentile: float = 90, score_norm: ScoreNorm = None) -> Detector:
    """FOLD on features shaped by ASH."""
    return Shaped(ash.Ash(percentile), Fold(alpha, score_norm))
