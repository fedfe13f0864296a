"""RMDS: the Mahalanobis distance to the nearest class, relative to that from all data.

Ren et al., "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", 2021.
"""

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.class_statistics import Gaussian, gaussian_of, squared_distances
from ..core.validation import require_labels
from .base import Costs, Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "ren2021rmds",
    "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection",
    ("Jie Ren", "Stanislav Fort", "Jeremiah Liu", "Abhijit Guha Roy", "Shreyas Padhy", "Balaji Lakshminarayanan"),
    2021,
    "arXiv",
    "https://arxiv.org/abs/2106.09022",
)


@register("rmds", printed="RMDS", full_name="Relative Mahalanobis distance", cite=(PAPER,), fits_on="train")
class Rmds(Detector):
    r"""Squared Mahalanobis distance to the nearest class minus that to the overall mean.

    .. math:: s(h) = \min_c\, (h - \mu_c)^\top \Sigma^{+} (h - \mu_c) - (h - \mu_0)^\top \Sigma_0^{+} (h - \mu_0)

    The classes share :math:`\Sigma`; :math:`\mu_0, \Sigma_0` are the mean and covariance of all features. ``fit`` needs
    labels.
    """

    centre: Tensor
    whitening: Tensor
    means: Tensor
    background: Tensor
    background_mean: Tensor

    def learn(self, bank: FeatureBank, head: Head) -> None:
        require_labels(bank, "RMDS")
        moments = bank.moments(by_class=True)
        classes, everything = gaussian_of(moments), gaussian_of(moments.pooled())
        self.register_buffers(**classes._asdict(), background=everything.whitening, background_mean=everything.means)

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        return Costs(8 * width * (10 * width + 3 * classes), rows * width**2, width * (2 * width + classes))

    def score(self, h: Tensor) -> Tensor:
        nearest = squared_distances(h, Gaussian(self.centre, self.whitening, self.means)).amin(dim=-1)
        everything = squared_distances(h, Gaussian(self.centre, self.background, self.background_mean)).squeeze(-1)
        return (nearest - everything).to(h.dtype)
