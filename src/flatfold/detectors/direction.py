"""Direction: Mahalanobis distance on the unit sphere, regularised for few labelled samples per class.

One of the four signs of FourFold. Mahalanobis++ (Mueller and Hein, 2025) with regularised estimates.
"""

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.hessian import as_double
from ..core.shaping import split_norm
from ..core.signs import direction, fit_directions, labels_or_predictions
from .base import Detector
from .citations import FLATFOLD, Work
from .registry import register

PAPER = Work(
    "mueller2025mahalanobispp",
    "Mahalanobis++: Improving OOD Detection via Feature Normalization",
    ("Maximilian Mueller", "Matthias Hein"),
    2025,
    "ICML",
    "https://arxiv.org/abs/2505.18032",
)


@register(
    "direction",
    printed="Direction",
    full_name="Mahalanobis on the sphere",
    cite=(FLATFOLD, PAPER),
    fits_on="val",
    needs_labels=False,
)
class Direction(Detector):
    r"""Squared Mahalanobis distance of the direction of the features to the nearest class.

    .. math:: s(h) = \min_k\, (u - m_k)^\top S^{-1} (u - m_k), \qquad u = h / \|h\|

    Class means :math:`m_k` are shrunk towards the weights of the head by empirical Bayes, the covariance S by
    Ledoit-Wolf (:func:`flatfold.core.signs.fit_directions`). Without labels the predicted classes are used.
    """

    centre: Tensor
    whitening: Tensor
    means: Tensor
    squares: Tensor

    def learn(self, bank: FeatureBank, head: Head) -> None:
        labels = labels_or_predictions(bank, head)
        gaussian = fit_directions(bank.features, labels, as_double(head.weight))
        self.register_buffers(**gaussian._asdict(), squares=gaussian.means.square().sum(dim=-1))

    def score(self, h: Tensor) -> Tensor:
        units = split_norm(h.to(self.centre.dtype))[1]
        return direction(units, self.centre, self.whitening, self.means, self.squares).to(h.dtype)
