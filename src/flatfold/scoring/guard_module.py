"""GuardModule: model and calibrated detector as one module for compilers and exporters."""

from __future__ import annotations

from typing import Any, Self

from torch import nn

from ..models.graph import HeadModule, copy_around_memory
from ..models.heads import FoundHead
from .calibrated import CalibratedDetector, Verdict


class GuardModule(nn.Module):
    """``x -> (logits, score, p_value, is_ood)`` in plain torch; see :class:`flatfold.models.graph.HeadModule`.

    Example:
        >>> import torch
        >>> from flatfold import Guard
        >>> model, x = nn.Linear(2, 3), torch.rand(60, 2)
        >>> guard = Guard.fit(model, [x], detector="msp", fpr=0.1)
        >>> torch.equal(torch.compile(guard.as_module(), backend="eager")(x).score, guard(x).score)
        True
    """

    def __init__(self, model: nn.Module, found: FoundHead, calibrated: CalibratedDetector) -> None:
        super().__init__()
        self.network = HeadModule(model, found)
        self.calibrated = copy_around_memory(calibrated)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Verdict:
        """Return the verdict on a batch; takes what the model takes."""
        features, logits = self.network(*args, **kwargs)
        return Verdict(logits, *self.calibrated(features.to(self.calibrated.detector.fitted_weight.dtype), logits))

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever is asked for."""
        return super().train(False)
