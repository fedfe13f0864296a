"""MDS: Mahalanobis distance to the nearest class.

Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", NeurIPS
2018; on the penultimate features, without input noise, as OpenOOD evaluates it.
"""

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.class_statistics import Gaussian, gaussian_of, squared_distances
from ..core.validation import require_labels
from .base import Costs, Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "lee2018mahalanobis",
    "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks",
    ("Kimin Lee", "Kibok Lee", "Honglak Lee", "Jinwoo Shin"),
    2018,
    "NeurIPS",
    "https://arxiv.org/abs/1807.03888",
)


@register("mds", printed="MDS", full_name="Mahalanobis distance", cite=(PAPER,), fits_on="train")
class Mds(Detector):
    r"""Squared Mahalanobis distance to the nearest class mean.

    .. math:: s(h) = \min_c\, (h - \mu_c)^\top \Sigma^{+} (h - \mu_c), \qquad
        \Sigma = \frac1n \sum_i (h_i - \mu_{y_i})(h_i - \mu_{y_i})^\top

    ``fit`` needs labels; classes without samples are ignored. On features of unit length,
    ``create("mds", alpha=1)``, this is Mahalanobis++ (Mueller and Hein, 2025).
    """

    centre: Tensor
    whitening: Tensor
    means: Tensor

    def learn(self, bank: FeatureBank, head: Head) -> None:
        require_labels(bank, "MDS")
        gaussian = gaussian_of(bank.moments(by_class=True))
        self.register_buffers(**gaussian._asdict())

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        return Costs(8 * width * (6 * width + 3 * classes), rows * width**2, width * (width + classes))

    def score(self, h: Tensor) -> Tensor:
        distances = squared_distances(h, Gaussian(self.centre, self.whitening, self.means))
        return distances.amin(dim=-1).to(h.dtype)
