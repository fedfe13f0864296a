"""KLM: divergence of the class probabilities from the mean probabilities of the nearest class.

Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.hessian import as_double, entry_chunks
from ..errors import MethodRefusedError
from .base import PASS, Costs, Detector
from .mls import PAPER as MLS
from .registry import register

SMALLEST = torch.finfo(torch.float32).tiny
WIDE_ENTRIES = 2**27  # largest number of entries of the means stored in float64: 1 GB
MOST_ENTRIES = 2**29


@register("klm", printed="KLM", full_name="KL matching", cite=(MLS,), fits_on="val", needs_labels=False)
class Klm(Detector):
    r"""Smallest divergence of the probabilities from the mean probabilities of a predicted class.

    .. math:: s(h) = \min_c \operatorname{KL}(p \,\|\, m_c), \qquad m_c = \operatorname{mean}\{ p_i : \hat y_i = c \}

    Needs no labels. A class that is never predicted on the bank has no mean: in the paper its mean is a one-hot vector,
    from which the divergence of any softmax is infinite. The means of the others have one entry for each of them and
    each class of the head, up to 2 GB.
    """

    log_means: Tensor

    def learn(self, bank: FeatureBank, head: Head) -> None:
        predicted = head.predict(bank.features)
        seen, rows, counts = torch.unique(predicted, return_inverse=True, return_counts=True)
        entries = len(seen) * head.n_classes
        if entries > MOST_ENTRIES:
            raise MethodRefusedError(
                f"KLM would store {head.n_classes} mean probabilities for each of {len(seen)} predicted classes, which "
                f"takes {4 * entries / 1e9:.1f} GB. Fit it on fewer samples, or use another method."
            )
        dtype = torch.float64 if entries <= WIDE_ENTRIES else torch.float32
        means = as_double(head.weight[:1]).new_zeros(len(seen), head.n_classes, dtype=dtype)
        for part in entry_chunks(len(bank), head.n_classes):
            probs = as_double(head(bank.features[part])).softmax(dim=-1)
            means.index_add_(0, rows[part].to(means.device), probs.to(dtype))
        means.div_(counts[:, None].to(means))
        # Clamped so that probabilities that underflow still have a logarithm: 0 * log 0 would be NaN.
        self.register_buffer("log_means", means.clamp_min_(SMALLEST).log_())

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        return Costs(8 * 2 * classes**2, rows * classes * (width + PASS), classes * (width + classes))

    def score(self, h: Tensor) -> Tensor:
        log_probs = self.logits(h).to(self.log_means.dtype).log_softmax(dim=-1)
        probs = log_probs.exp()
        similarity = (probs @ self.log_means.mT).amax(dim=-1)
        return ((probs * log_probs).sum(dim=-1) - similarity).to(h.dtype)
