"""Features in, decision out: a guard without its model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from ..detectors.base import Detector
from .calibration import Calibration


class Judge(nn.Module):
    """A fitted detector and its calibration.

    All that it knows are buffers, so ``.to()``, ``torch.compile`` and ``torch.export`` work. Under autocast it keeps
    the type of the features: a confident score has no digit left in bfloat16.

    Args:
        detector: Fitted.
        calibration: Scores of that detector.
    """

    def __init__(self, detector: Detector, calibration: Calibration) -> None:
        super().__init__()
        self.detector = detector.eval()
        self.calibration = calibration

    def forward(self, features: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return score, p-value and decision of each row of features, ``(n,)`` each.

        Features that are not finite are refused; once compiled or exported, they have a score of NaN, and raise an
        alarm.

        Args:
            features: ``(n, d)``.
            logits: ``(n, c)``, what the head gave for them, if that is known.
        """
        with without_autocast(features):
            score = self.detector(features, logits)
            logits = self.detector.innermost.logits(features) if logits is None else logits
            if torch.compiler.is_compiling():
                # A graph does not refuse such features, and a method may see in an infinity the surest of all inputs.
                score = score.where(features.isfinite().all(dim=-1), torch.nan)
            return score, *self.calibration(score, logits.argmax(dim=-1))

    @classmethod
    def load(cls, path: Path | str) -> Judge:
        """Read the judge of a guard from its file: features can be judged where the model is not."""
        from .artefact import load_judge  # late: a file is read into a judge

        return load_judge(Path(path))[0]

    def at(self, fpr: float) -> Judge:
        """Return a judge that allows another false-alarm rate, with the same detector."""
        return Judge(self.detector, self.calibration.at(fpr))


def without_autocast(features: Tensor) -> AbstractContextManager[object]:
    """Return a context in which features are computed with in their own type."""
    if not isinstance(features, Tensor):
        return nullcontext()  # the detector says what it takes
    kind = features.device.type
    # Only where there is one: in an exported graph the context would become a node that no other runtime knows.
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
