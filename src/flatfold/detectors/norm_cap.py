"""Cap on the norms of features.

Energy and FOLD give long features low scores, and OOD features can be longer than all ID features. Normalisation
changes all norms; a cap changes only larger ones. Not in the paper; see the study in ``docs/studies/autofold.md``.
"""

from torch import Tensor

from ..core.bank import FeatureBank
from ..core.shaping import SMALLEST_DIVISOR, cap_norms, percentile_threshold, row_norms
from .base import Detector
from .citations import FLATFOLD
from .ebo import PAPER as EBO
from .ebo import Ebo
from .fold import ALPHAS, Fold, ScoreNorm
from .fold import PAPER as FOLD
from .fold_t import TIMES, FoldT
from .registry import register
from .shaped import Shaped, Shaping


class NormCap(Shaping):
    r"""Scale longer features down to a percentile of in-distribution norms.

    .. math:: h' = h \cdot \min(1, c / \|h\|)

    Args:
        percentile: Share of in-distribution features, in percent, that stay unchanged.
    """

    longest_: Tensor

    def __init__(self, percentile: float = 50) -> None:
        super().__init__()
        self.percentile = percentile

    def learn(self, bank: FeatureBank) -> None:
        longest = percentile_threshold(row_norms(bank.features), self.percentile)
        # If all features are zeros, the cap would be 0.
        self.register_buffer("longest_", bank.features.new_tensor(max(longest, SMALLEST_DIVISOR)))

    def forward(self, h: Tensor) -> Tensor:
        return cap_norms(h, self.learnt("longest_"))


PERCENTILES = (25, 50, 75, 90)


@register(
    "ebo-c",
    printed="EBO-C",
    full_name="Energy, capped norms",
    cite=(FLATFOLD, EBO),
    fits_on="val",
    needs_labels=False,
    grid={"percentile": PERCENTILES},
)
def make_ebo_c(percentile: float = 50, temperature: float = 1.0) -> Detector:
    """Energy of features with capped norms."""
    return Shaped(NormCap(percentile), Ebo(temperature))


@register(
    "fold-c",
    printed="FOLD-C",
    full_name="FOLD, capped norms",
    cite=(FLATFOLD, FOLD),
    fits_on="val",
    needs_labels=False,
    grid={"percentile": PERCENTILES, "alpha": ALPHAS},
)
def make_fold_c(alpha: float = 0.25, percentile: float = 50, score_norm: ScoreNorm = None) -> Detector:
    """FOLD on features with capped norms."""
    return Shaped(NormCap(percentile), Fold(alpha, score_norm))


@register(
    "fold-ct",
    printed="FOLD-CT",
    full_name="FOLD, capped and tempered",
    cite=(FLATFOLD, FOLD),
    fits_on="val",
    grid={"percentile": PERCENTILES, "times": TIMES},
)
def make_fold_ct(percentile: float = 50, times: float = 1.0) -> Detector:
    """FOLD at a fitted temperature on features with capped norms: the curvature of FourFold."""
    return Shaped(NormCap(percentile), FoldT(alpha=0.0, times=times))
