"""Length: how unusual the norm of the features is for the predicted class. One of the four signs of FourFold."""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.hessian import as_double, entry_chunks
from ..core.shaping import split_norm
from ..core.signs import fit_lengths, length
from .base import Detector
from .citations import FLATFOLD
from .registry import register


@register(
    "length", printed="Length", full_name="Norm of the features", cite=(FLATFOLD,), fits_on="val", needs_labels=False
)
class Length(Detector):
    r"""Squared deviation of the log norm of the features from its mean for the predicted class.

    .. math:: s(h) = (\log \|h\| - l_k)^2, \qquad k = \arg\max_j z_j

    :math:`l_k` is the mean over samples predicted as k, shrunk towards the overall mean by empirical Bayes.
    """

    lengths: Tensor

    def learn(self, bank: FeatureBank, head: Head) -> None:
        predicted = head.predict(bank.features)
        parts = entry_chunks(*bank.features.shape)
        norms = torch.cat([split_norm(as_double(bank.features[part]))[0] for part in parts])
        lengths = fit_lengths(norms, predicted, head.n_classes)
        self.register_buffer("lengths", lengths.to(head.weight))

    def score(self, h: Tensor) -> Tensor:
        return length(split_norm(h)[0], self.logits(h).argmax(dim=-1), self.lengths)
