"""FOLD with a fitted temperature: the exponent changes the norms, the temperature the softness of the probabilities.

Not in the paper, whose exponent changes both at once; see the study in ``docs/studies/autofold.md``.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.class_statistics import likeliest_temperature, logits_by_rows
from ..core.hessian import as_double
from ..core.shaping import check_alpha, partially_normalised
from ..core.validation import check_above_zero, require_labels
from ..errors import warn
from .base import Detector
from .citations import FLATFOLD
from .fold import ALPHAS, Fold
from .fold import PAPER as FOLD
from .registry import register

TIMES = (0.5, 1.0, 2.0, 3.0, 5.0)


@register(
    "fold-t",
    printed="FOLD-T",
    full_name="FOLD, fitted temperature",
    cite=(FLATFOLD, FOLD),
    fits_on="val",
    grid={"times": TIMES, "alpha": ALPHAS},
)
class FoldT(Detector):
    r"""FOLD with a fitted temperature.

    .. math:: s(h) = \operatorname{tr} H(\tilde h), \qquad \tilde h = \frac{h}{T\, \|h\|^\alpha}, \qquad
        T = k \arg\min_T \frac1n \sum_i -\log \operatorname{softmax}\big(W h_i / (T \|h_i\|^\alpha) + b\big)_{y_i}

    ``fit`` needs labels and sets ``temperature_``. If all samples are classified correctly, even without the bias,
    there is no likeliest temperature: 1 is used, with a warning.

    Args:
        alpha: 0 leaves norms unchanged, 1 makes them equal.
        times: Multiple k of the likeliest temperature.
    """

    temperature_: Tensor

    def __init__(self, alpha: float = 0.5, times: float = 2.0) -> None:
        super().__init__()
        self.alpha = alpha
        self.times = times
        self.fold = Fold(alpha=0.0)

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_alpha(self.alpha)
        check_above_zero("times", self.times, "2")
        labels = require_labels(bank, "fold-t")
        normalised = lambda h: partially_normalised(as_double(h), self.alpha)  # noqa: E731
        projected = logits_by_rows(bank.features, as_double(head.weight), of=normalised)
        likeliest = likeliest_temperature(projected, labels, head.bias)
        if likeliest is None:
            warn(
                "every sample of this bank is classified correctly, so there is no likeliest temperature, and 1 is "
                "used. Pass more samples, or harder ones.",
            )
            likeliest = 1.0
        self.fold.fit(bank, head)
        self.register_buffer("temperature_", torch.tensor(self.times * likeliest).to(head.weight))

    def score(self, h: Tensor) -> Tensor:
        return self.fold.score(self.inner_features(h))

    @property
    def inner(self) -> Detector:
        """FOLD; its range of scores is the same for all features."""
        return self.fold

    def inner_features(self, h: Tensor) -> Tensor:
        return partially_normalised(h, self.alpha) / self.temperature_
