"""FourFold: a combination of four signs, for networks whose best single method is unknown.

Not in the paper. See ``docs/studies/choice.md`` for where it wins and where it loses.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.hessian import WIDE_WEIGHTS, affordable_distances, entry_chunks, widen
from ..core.pairs import Pairs, largest_pairs
from ..core.shaping import SMALLEST_DIVISOR, split_norm
from ..core.signs import (
    SIGNS,
    Signs,
    fit_signs,
    labels_or_predictions,
    measure_signs,
    tempered_logits,
)
from ..core.validation import check_above_zero, check_features, check_seed
from ..errors import MethodRefusedError, warn
from .base import Costs, Detector
from .citations import FLATFOLD
from .direction import PAPER as MAHALANOBIS_PP
from .fdbd import PAPER as FDBD
from .fold import PAPER as FOLD
from .registry import register

FEWEST, FEW = 10, 50


@register(
    "fourfold",
    printed="FourFold",
    full_name="Four signs combined",
    cite=(FLATFOLD, FOLD, MAHALANOBIS_PP, FDBD),
    fits_on="val",
    needs_labels=False,
    grid={"length": (0.0, 0.25, 1.0), "margin": (0.0, 0.5, 1.0), "curvature": (0.0, 0.5, 1.0)},
)
class FourFold(Detector):
    r"""Weighted sum of standardised signs: direction, length, margin and curvature.

    .. math:: s(h) = t \big( z(\text{direction}) + \tfrac14 z(\text{length}) \big) + \tfrac12 z(\text{margin})
        + \tfrac12 z(\text{curvature}) + (1 - t) \max(0, z(\text{doubt})), \qquad
        z(a) = \frac{a - \operatorname{mean}}{\operatorname{sd}}, \qquad t = \frac{m}{m + 1}

    with m samples per class. Direction and length are learnt for each class and are unreliable with few samples per
    class; doubt, the network's own probability of being wrong, then replaces direction. It may raise a score but not
    lower it, because networks are most confident for the longest features. With a hundred samples per class t is 0.99.

    The signs are those of :mod:`flatfold.core.signs`. Mean and standard deviation are those of *cross-fitted* values:
    each fold of the bank is measured with signs fitted to the other folds, because the values of samples that a sign
    was fitted to are too small. ``fit`` expects labelled data that the network was not trained on; without labels the
    predicted classes are used.

    Args:
        direction: Weight of the squared Mahalanobis distance of the direction of the features to the nearest class,
            and of doubt.
        length: Weight of the squared deviation of their log norm from the usual one of the predicted class.
        margin: Weight of fDBD, the closeness to the decision boundaries.
        curvature: Weight of the log of FOLD's trace at the likeliest temperature.
        folds: Number of folds of the cross-fit.
        seed: Seed of the folds.
    """

    distances: Tensor | None
    weights_: Tensor
    usual_: Tensor
    deviation_: Tensor

    def __init__(
        self,
        direction: float = 1.0,
        length: float = 0.25,
        margin: float = 0.5,
        curvature: float = 0.5,
        folds: int = 5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.weights = (direction, length, margin, curvature)
        self.folds = folds
        self.seed = seed

    def learn(self, bank: FeatureBank, head: Head) -> None:
        self._check(len(bank))
        check_seed(self.seed)
        h, distances = bank.features, affordable_distances(head.weight)
        labels = labels_or_predictions(bank, head)
        values = h.new_empty(len(bank), len(SIGNS), dtype=torch.float64)
        fold_of = torch.randperm(len(bank), generator=torch.Generator().manual_seed(self.seed)) % self.folds
        for fold in range(self.folds):
            inside = (fold_of == fold).to(h.device)
            others, rows = (~inside).nonzero().flatten(), inside.nonzero().flatten()
            signs = _match_head(fit_signs(h, labels, head, others), head.weight)
            for part in entry_chunks(len(rows), max(head.n_classes, head.width)):
                values[rows[part]] = measure_signs(h[rows[part]], signs, head.weight, head.bias, distances).double()
        direction, length, margin, curvature = self.weights
        trust = len(bank) / (len(bank) + head.n_classes)
        self.register_buffer("distances", distances)
        self.register_buffers(
            **_match_head(fit_signs(h, labels, head), head.weight)._asdict(),
            weights_=values.new_tensor([trust * direction, trust * length, margin, curvature, (1 - trust) * direction]),
            usual_=values.mean(dim=0),
            deviation_=values.std(dim=0, correction=0).clamp_min(SMALLEST_DIVISOR),
        )

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        folds = self.folds + 1
        return Costs(
            8 * width * (8 * width + 6 * classes) + 400 * rows,
            folds * rows * width * (width + 3 * classes),
            width * (width + 2 * classes),
        )

    def score(self, h: Tensor) -> Tensor:
        return self._weighted(self._standardise(h), h)

    def score_given(self, h: Tensor, logits: Tensor) -> Tensor:
        return self._weighted(self._standardise(h, logits), h)

    def signs(self, h: Tensor) -> dict[str, Tensor]:
        """Return the standardised signs of each row, in the order of the formula."""
        check_features(h, self.fitted_weight)
        return dict(zip(SIGNS, self._standardise(h).unbind(dim=-1), strict=False))

    def _standardise(self, h: Tensor, logits: Tensor | None = None) -> Tensor:
        bias, distances = self._buffers.get("bias"), self._buffers.get("distances")
        values = measure_signs(h, self._learnt, self.weight, bias, distances, logits)
        # Files written before doubt was added have four signs and no weights_.
        return (values[:, : len(self.usual_)] - self.usual_) / self.deviation_

    def pairs(self, h: Tensor, k: int) -> Pairs:
        """Return the k pairs of classes that contribute most to the curvature."""
        check_features(h, self.fitted_weight)
        bias = self._buffers.get("bias")
        weight, wide = widen(self.weight, h)
        logits = tempered_logits(wide @ weight.mT, split_norm(wide)[0], self._learnt, bias)
        return largest_pairs(logits.softmax(dim=-1).to(h.dtype), self.weight, k)

    @property
    def _learnt(self) -> Signs:
        return Signs(*(self.get_buffer(name) for name in Signs._fields))

    def _weighted(self, signs: Tensor, h: Tensor) -> Tensor:
        weights = self._buffers.get("weights_")
        if weights is None:
            weights = signs.new_tensor(self.weights)
        parts = torch.cat([signs[:, :4], signs[:, 4:].clamp_min(0.0)], dim=-1)
        return (parts * weights).sum(dim=-1).to(h.dtype)

    def _check(self, samples: int) -> None:
        for name, weight in zip(SIGNS, self.weights, strict=False):
            check_above_zero(f"the weight {name}", weight, "1", or_zero=True)
        if not any(self.weights):
            raise MethodRefusedError("all four weights are 0, so every score would be 0. Give at least one of them.")
        if not isinstance(self.folds, int) or self.folds < 2:
            raise MethodRefusedError(f"folds must be a whole number of at least 2, got {self.folds!r}.")
        if samples < max(FEWEST, self.folds):
            raise MethodRefusedError(
                f"FourFold needs at least {max(FEWEST, self.folds)} samples, but this bank has {samples}. "
                "Pass more ID data, or use a method that needs only the head, such as msp."
            )
        if samples < FEW:
            warn(
                f"FourFold estimates a covariance, and {samples} samples are few for that. Pass at least {FEW}, "
                "better 200.",
            )


def _match_head(signs: Signs, weight: Tensor) -> Signs:
    """Return the signs on the device of the head, in float64 unless they are large, like :func:`widen` for heads."""
    dtype = weight.dtype if signs.whitening.numel() > WIDE_WEIGHTS or weight.device.type == "mps" else torch.float64
    return Signs(*(values.to(weight.device, dtype) for values in signs))
