"""AutoFold: FOLD that chooses its exponent from in-distribution data alone.

Park et al., "Exploiting Local Flatness for Efficient Out-of-Distribution Detection", ECCV 2026.

Masking the logit of a sample's own class makes a pseudo-OOD sample: an input whose class the network does not know.
The best exponent is the one whose scores separate pseudo-OOD from ID samples best.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.autofold import (
    Groups,
    Moments,
    Weights,
    calibration_classes,
    flatness,
    group_rows,
    middle_of_maximum,
    one_vs_rest,
    paired,
    shrunk,
)
from ..core.bank import FeatureBank, Head
from ..core.hessian import class_distances
from ..core.pairs import Pairs
from ..core.shaping import SMALLEST_DIVISOR, check_alpha, rescaled_logits, row_norms
from ..core.validation import MethodRefused, check_choice, check_features, require_labels
from . import ash, react
from .base import Detector
from .fold import SCORE_NORMS, Fold, ScoreNorm
from .joint import joint_factory
from .registry import register

Criterion = Literal["paired", "one_vs_rest", "shrunk"]

PER_CLASS = {"paired": paired, "one_vs_rest": one_vs_rest}
GRID = tuple(i / 100 for i in range(1, 101))


class AutoFold(Detector):
    r"""FOLD with the exponent that best separates in-distribution samples from their masked copies.

    .. math:: \alpha^* = \arg\max_\alpha
        \frac1K \sum_k \operatorname{AUROC}\big(S_k(\alpha),\, S_k^{\text{masked}}(\alpha)\big)

    ``fit`` needs labels and sees in-distribution data only: there is no argument for anything else. It leaves
    ``alpha_``, ``grid_``, ``curve_`` (the criterion at each exponent of the grid) and ``curve_stderr_``. Among exact
    ties the middle exponent is taken; a curve that is flat within its standard error raises a warning.

    Args:
        criterion: ``"paired"`` compares the samples of a class with their own masked copies (the paper).
            ``"one_vs_rest"`` masks class k in all samples and compares its samples with those of all other classes
            (the authors' code). ``"shrunk"`` compares all samples with all copies that are masked and half as long (not
            in the paper; see the study in ``docs/studies/autofold.md``).
        grid: Exponents to try.
        max_classes: Average over at most this many classes, drawn with ``seed``; None means all. ``"shrunk"`` pools
            their samples instead.
        seed: Seed of that draw.
        score_norm: As in :class:`Fold`, during the choice and for the scores.
    """

    alpha_: Tensor
    grid_: Tensor
    curve_: Tensor
    curve_stderr_: Tensor

    def __init__(
        self,
        criterion: Criterion = "paired",
        grid: Sequence[float] = GRID,
        max_classes: int | None = None,
        seed: int = 0,
        score_norm: ScoreNorm = None,
    ) -> None:
        super().__init__()
        self.criterion = criterion
        self.grid = grid
        self.max_classes = max_classes
        self.seed = seed
        self.fold = Fold(score_norm=score_norm)

    def learn(self, bank: FeatureBank, head: Head) -> None:
        """Choose the exponent and remember the whole curve."""
        self._check(bank, head)
        curve, stderr = self._curve(bank, head)
        best = middle_of_maximum(curve)
        if why := flatness(curve, stderr):
            warnings.warn(
                f"AutoFold's curve is flat: {why}, so alpha = {self.grid[best]:g} is not significantly better than "
                "others. Give more samples per class.",
                stacklevel=4,
            )
        self.fold.fit(bank, head)
        alpha, grid = curve.new_tensor(self.grid[best]), curve.new_tensor(self.grid)
        learnt = {"alpha_": alpha, "grid_": grid, "curve_": curve, "curve_stderr_": stderr}
        self.register_buffers(**{name: values.to(head.weight) for name, values in learnt.items()})

    def score(self, h: Tensor) -> Tensor:
        """Return FOLD's score at the chosen exponent."""
        return self.fold.score_at(h, self.alpha_)

    def score_given(self, h: Tensor, logits: Tensor) -> Tensor:
        """Return FOLD's score at the chosen exponent, from the logits as far as they have the digits."""
        return self.fold.score_at(h, self.alpha_, logits)

    def pairs(self, h: Tensor, k: int) -> Pairs:
        """Return FOLD's pairs of classes at the chosen exponent."""
        check_features(h, self.fitted_weight)
        return self.fold.pairs_at(h, k, self.alpha_)

    @property
    def inner(self) -> Detector:
        """FOLD, whose range of scores is the same for every exponent."""
        return self.fold

    def _check(self, bank: FeatureBank, head: Head) -> None:
        check_choice("score_norm", self.fold.score_norm, SCORE_NORMS)
        if head.n_classes < 3:
            raise MethodRefused(
                "AutoFold masks one class, so two classes are too few. Use FOLD and choose alpha yourself."
            )
        check_choice("criterion", self.criterion, (*PER_CLASS, "shrunk"))
        if not isinstance(self.grid, Iterable) or not len(self.grid):
            raise MethodRefused(f"grid must be a sequence of exponents, got {self.grid!r}.")
        for alpha in self.grid:
            check_alpha(alpha)
        require_labels(bank, "AutoFold")

    def _curve(self, bank: FeatureBank, head: Head) -> tuple[Tensor, Tensor]:
        """Return the criterion and its standard error at each exponent, in float64."""
        if bank.features.device.type == "mps":  # which has no float64
            bank, head = bank.to("cpu"), head.to("cpu")
        assert bank.labels is not None
        h, weight, labels = bank.features.double(), head.weight.double(), bank.labels
        groups = self._groups(labels)
        square_norms = weight.square().sum(dim=-1) if self.fold.score_norm == "weight" else None
        weights = Weights(class_distances(weight), square_norms)
        projected, norms = h @ weight.mT, row_norms(h)  # all that any exponent needs
        points = []
        for alpha in self.grid:
            logits, score = self._logits_and_score(projected, norms, alpha, head)
            if self.criterion == "shrunk":
                short_logits, short_score = self._logits_and_score(projected / 2, norms / 2, alpha, head)
                point = shrunk(logits, short_logits, labels, groups, weights, (score, short_score))
            else:
                point = PER_CLASS[self.criterion](logits, labels, groups, weights, score)
            points.append(torch.stack(point))
        curve, stderr = torch.stack(points, dim=-1)
        return curve, stderr

    def _logits_and_score(
        self, projected: Tensor, norms: Tensor, alpha: float, head: Head
    ) -> tuple[Tensor, Callable[[Moments], Tensor]]:
        """Return the logits at an exponent, and the function from their moments to scores."""
        logits = rescaled_logits(projected, norms**alpha, head.bias)
        return logits, _score(self.fold.score_norm, norms.squeeze(-1) ** (2 - 2 * alpha))

    def _groups(self, labels: Tensor) -> Groups:
        """Return the rows of the classes to average over."""
        if self.criterion == "one_vs_rest" and len(torch.unique(labels)) < 2:
            raise MethodRefused('"one_vs_rest" compares classes, but this bank has one class. Use criterion="paired".')
        classes = calibration_classes(labels, self.max_classes, self.seed, "AutoFold")
        return group_rows(labels, classes)


def _score(score_norm: ScoreNorm, feature_norms: Tensor) -> Callable[[Moments], Tensor]:
    """Return how FOLD turns moments into scores under ``score_norm``."""

    def score(moments: Moments) -> Tensor:
        if score_norm is None:
            return moments.trace
        if score_norm == "weight":
            assert moments.second is not None
            divisor = moments.second - moments.trace
        else:
            divisor = feature_norms
        return moments.trace / divisor.clamp_min(SMALLEST_DIVISOR)

    return score


register("autofold", fits_on="val", tuned_on="id")(AutoFold)

register("autofold-r", fits_on="val", tuned_on="id")(
    joint_factory(
        react.ReAct, AutoFold, react.PERCENTILES, "AutoFold on features clipped by ReAct, percentile chosen too."
    )
)

register("autofold-a", fits_on="val", tuned_on="id")(
    joint_factory(ash.Ash, AutoFold, ash.PERCENTILES, "AutoFold on features shaped by ASH, percentile chosen too.")
)
