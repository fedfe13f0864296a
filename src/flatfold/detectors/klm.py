"""KLM: how far the class probabilities are from those usual for any class.

Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.hessian import as_double
from .base import Detector
from .registry import register


@register("klm", fits_on="val", needs_labels=False)
class Klm(Detector):
    r"""Smallest divergence of the probabilities from the mean probabilities of a predicted class.

    .. math:: s(h) = \min_c \operatorname{KL}(p \,\|\, m_c), \qquad m_c = \operatorname{mean}\{ p_i : \hat y_i = c \}

    Needs no labels. The mean of a class that is never predicted is certainty of it.
    """

    log_means: Tensor

    def learn(self, bank: FeatureBank, head: Head) -> None:
        probs = as_double(head(bank.features)).softmax(dim=-1)
        predicted = probs.argmax(dim=-1)
        counts = predicted.bincount(minlength=head.n_classes)
        sums = torch.zeros_like(probs[:1]).expand(head.n_classes, -1).index_add(0, predicted, probs)
        means = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], torch.eye(len(sums)).to(sums))
        # Probabilities below what a float can hold still have a logarithm: 0 * log 0 would be no number.
        self.register_buffer("log_means", means.clamp_min(torch.finfo(torch.float32).tiny).log())

    def score(self, h: Tensor) -> Tensor:
        log_probs = self.logits(h).to(self.log_means.dtype).log_softmax(dim=-1)
        probs = log_probs.exp()
        divergences = (probs * log_probs).sum(dim=-1, keepdim=True) - probs @ self.log_means.mT
        return divergences.amin(dim=-1).to(h.dtype)
