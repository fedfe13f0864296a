"""OptFS: weight each feature by the contribution of values of its size to the predicted logit on ID data.

Zhao et al., "Towards Optimal Feature-Shaping Methods for Out-of-Distribution Detection", ICLR 2024.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.hessian import as_double, entry_chunks
from ..core.shaping import percentiles
from ..core.validation import check_count
from ..errors import MethodRefusedError
from .base import PASS, Costs, Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "zhao2024optfs",
    "Towards Optimal Feature-Shaping Methods for Out-of-Distribution Detection",
    ("Qinyu Zhao", "Ming Xu", "Kartik Gupta", "Akshay Asthana", "Liang Zheng", "Stephen Gould"),
    2024,
    "ICLR",
    "https://arxiv.org/abs/2402.00865",
)
MOST_BINS = 2**20


@register(
    "optfs", printed="OptFS", full_name="Optimal feature shaping", cite=(PAPER,), fits_on="train", needs_labels=False
)
class OptFS(Detector):
    r"""Minus the contribution of shaped features to the logit of the predicted class.

    .. math:: s(h) = -\sum_j w_{\hat y j}\, \theta(h_j)\, h_j, \qquad
        \theta_b \propto \frac1n \sum_i \sum_{j:\, h_{ij} \in b} w_{\hat y_i j}\, h_{ij}, \qquad \|\theta\| = 1

    where the bins b divide the range between the 0.1 and the 99.9 percentile of all activations into equal parts;
    :math:`\theta` is 0 outside. The authors' code multiplies :math:`\theta` by 1000, which does not change the ranking.

    Args:
        bins: Number of bins.
    """

    needs_all_features = True

    theta: Tensor
    edges: Tensor

    def __init__(self, bins: int = 100) -> None:
        super().__init__()
        self.bins = bins

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_count("bins", self.bins)
        if self.bins > MOST_BINS:
            raise MethodRefusedError(f"bins must be at most {MOST_BINS:,}, got {self.bins!r:.60}. 100 is customary.")
        start, end = percentiles(bank.features, (0.1, 99.9))
        width = (end - start) / self.bins
        if not width > 0:
            raise MethodRefusedError(f"OptFS needs features that vary, but nearly all are {start:g}. Check the bank.")
        edges = bank.features.new_tensor((start, width))  # the first edge and the bin width
        theta = as_double(bank.features.new_zeros(self.bins + 1))
        for part in entry_chunks(len(bank), head.width + head.n_classes):
            h = bank.features[part]
            contributions = as_double(head.weight[head(h).argmax(dim=-1)] * h)
            theta.index_add_(0, _bins(h, edges, self.bins).flatten(), contributions.flatten())
        theta[-1] = 0  # for values outside
        if not bool(theta.any()):
            raise MethodRefusedError("OptFS found no feature that contributes to a logit. Check the bank and the head.")
        theta = theta / theta.norm()
        self.register_buffers(theta=theta.to(bank.features), edges=edges)

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        return Costs(2**26, rows * width * (classes + 10 * PASS), width * classes)

    def score(self, h: Tensor) -> Tensor:
        shaped = self.theta[_bins(h, self.edges, self.bins)] * h
        return -(self.weight[self.logits(h).argmax(dim=-1)] * shaped).sum(dim=-1)


def _bins(h: Tensor, edges: Tensor, bins: int) -> Tensor:
    """Return the bin of each entry, ``bins`` for entries outside."""
    places = ((h - edges[0]) / edges[1]).floor()
    return torch.where((places >= 0) & (places < bins), places, float(bins)).long()
