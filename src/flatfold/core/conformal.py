r"""From a score to a p-value with a guarantee, by comparing it with scores of held-out in-distribution data.

If a new in-distribution input and the n calibration inputs are exchangeable, its rank among them is uniform, so

.. math:: p = \frac{1 + \#\{i : s_i \ge s\}}{n + 1}, \qquad \Pr(p \le \epsilon) \le \epsilon

for every n, whatever the model, the method and the data. Raising an alarm when ``p <= fpr`` therefore has a false-alarm
rate of at most ``fpr`` (split-conformal prediction; Vovk et al. 2005). The same is true within any group of inputs that
can be told without their labels, such as those of one predicted class (Mondrian conformal prediction).
"""

from math import ceil, floor

import torch
from torch import Tensor

ROUNDING = 1e-9  # 0.29 * 100 is a little less than 29 in floating point


def p_values(scores: Tensor, calibration: Tensor, counts: int | Tensor | None = None) -> Tensor:
    """Return the conformal p-value of each score, small for inputs unlike the calibration data.

    Args:
        scores: ``(n,)``, higher = more out-of-distribution. A NaN is unlike everything.
        calibration: Scores of held-out in-distribution data in ascending order: ``(m,)``, or ``(n, m)`` with a row of
            its own for each score, which may end in infinities that do not count.
        counts: How many of them count, one number or ``(n,)``; by default all.

    Example:
        >>> p_values(torch.tensor([0.0, 2.5, 9.0]), torch.tensor([1.0, 2.0, 3.0]))
        tensor([1.0000, 0.5000, 0.2500])
    """
    counts = calibration.shape[-1] if counts is None else counts
    if calibration.ndim == 1:
        below = torch.searchsorted(calibration, scores.contiguous())
    else:
        below = torch.searchsorted(calibration, scores[:, None].contiguous()).squeeze(-1)
    at_least = (counts - below).clamp_min(0)
    return (1 + at_least).to(scores.dtype) / (1 + counts)


def samples_needed(fpr: float) -> int:
    """Return how many calibration samples a false-alarm rate takes: with fewer, no p-value is ever that small.

    Example:
        >>> samples_needed(0.05), samples_needed(0.01)
        (19, 99)
    """
    return ceil(1 / fpr - ROUNDING) - 1


def allowed_ranks(fpr: float, samples: int) -> int:
    """Return k, such that ``p <= fpr`` for a score above the k-th largest calibration score and for no other.

    Example:
        >>> allowed_ranks(0.05, 19), allowed_ranks(0.05, 18), allowed_ranks(0.29, 99)
        (1, 0, 29)
    """
    return min(samples, floor(fpr * (samples + 1) + ROUNDING))
