r"""From a score to a p-value with a guarantee, by comparing it with scores of held-out in-distribution data.

If a new in-distribution input and the n calibration inputs are exchangeable, its rank among them is uniform, so

.. math:: p = \frac{1 + \#\{i : s_i \ge s\}}{n + 1}, \qquad \Pr(p \le \epsilon) \le \epsilon

for every n, whatever the model, the method and the data. Raising an alarm when ``p <= fpr`` therefore has a false-alarm
rate of at most ``fpr`` (split-conformal prediction; Vovk et al. 2005).
"""

from math import ceil

import torch
from torch import Tensor


def p_values(scores: Tensor, calibration: Tensor) -> Tensor:
    """Return the conformal p-value of each score, small for inputs unlike the calibration data.

    Args:
        scores: ``(n,)``, higher = more out-of-distribution.
        calibration: Scores of held-out in-distribution data in ascending order, ``(m,)``.

    Example:
        >>> p_values(torch.tensor([0.0, 2.5, 9.0]), torch.tensor([1.0, 2.0, 3.0]))
        tensor([1.0000, 0.5000, 0.2500])
    """
    at_least = len(calibration) - torch.searchsorted(calibration, scores.contiguous())
    return (1 + at_least).to(scores.dtype) / (len(calibration) + 1)


def samples_needed(fpr: float) -> int:
    """Return how many calibration samples a false-alarm rate takes: with fewer, no p-value is ever that small.

    Example:
        >>> samples_needed(0.05), samples_needed(0.01)
        (19, 99)
    """
    return ceil(1 / fpr - 1e-9) - 1
