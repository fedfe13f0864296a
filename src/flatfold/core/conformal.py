r"""Conformal p-values of scores, and tests for drift of a stream away from the calibration data.

If a new in-distribution input and the n calibration inputs are exchangeable, its rank among them is uniform, so

.. math:: p = \frac{1 + \#\{i : s_i \ge s\}}{n + 1}, \qquad \Pr(p \le \epsilon) \le \epsilon

for every n, any model, method and data. Raising an alarm when ``p <= fpr`` therefore has a false-alarm
rate of at most ``fpr``, on average over draws of the calibration inputs (split-conformal prediction; Vovk et al. 2005).
The same holds within any group of inputs defined without their labels, such as those of one predicted class (Mondrian
conformal prediction).

Inputs that come in groups, such as views of one patient or pixels of one image, are not exchangeable, but their groups
may be. With n groups and :math:`L_i(s)`, the share of the scores of group i that are at least s,

.. math:: p = \frac{1 + \sum_i L_i(s)}{n + 1}

bounds the expected share of the inputs of a new group with ``p <= fpr`` by ``fpr`` (conformal risk control;
Angelopoulos et al. 2024), because L is at most 1 and does not grow with s. :func:`pool_groups` turns groups into scores
for the ordinary formula.

The rate of one calibration, with the alarm above its k-th largest score, has the distribution Beta(k, n + 1 - k) (Vovk
2012), which bounds it with any probability below 1 (:func:`allowed_ranks`).
"""

from math import ceil, floor, log1p, sqrt

import numpy as np
import torch
from scipy.special import betainc, kolmogorov
from torch import Tensor

ROUNDING = 1e-9  # 0.29 * 100 is a little less than 29 in floating point


def p_values(scores: Tensor, calibration: Tensor, counts: int | Tensor | None = None, above: int = 0) -> Tensor:
    """Return the conformal p-value of each score ``(n,)``, small for inputs unlike the calibration data.

    ``calibration`` holds scores of held-out ID data in ascending order: ``(m,)``, or ``(n, m)`` with one row per score,
    which may be padded with infinities; ``counts``, one number or ``(n,)``, is then the number of entries that count.
    ``above`` more scores, which are not stored, are larger than all others (:func:`pool_groups`).
    """
    counts = calibration.shape[-1] if counts is None else counts
    if calibration.ndim == 1:
        below = torch.searchsorted(calibration, scores.contiguous())
    else:
        below = torch.searchsorted(calibration, scores[:, None].contiguous()).squeeze(-1)
    return (1 + above + counts - below).clamp_min(1 + above).to(scores.dtype) / (1 + above + counts)


def pool_groups(scores: Tensor, groups: Tensor, each: int) -> Tensor:
    r"""Return calibration scores ``(n * each,)`` of n groups, in ascending order, in which every group counts the same.

    With the share :math:`L_i(s)` of the scores of group i that are at least s, they satisfy for every s

    .. math:: \#\{q \ge s\} = \lceil \textstyle\sum_i \text{each} \cdot L_i(s) \rceil

    so that the p-value among them and ``above = each - 1`` larger ones is that of the groups, rounded up to a multiple
    of 1 / (each (n + 1)). The number of scores does not grow with the size of the groups.

    Args:
        scores: ``(m,)``.
        groups: ``(m,)``, equal numbers for scores of the same group.
        each: Scores per group, a resolution.

    Example:
        >>> pool_groups(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0, 0, 1]), each=2)
        tensor([1., 2., 9., 9.])
    """
    _, group, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    ranked, order = scores.sort(descending=True)
    weight = (each * sizes.to(torch.float64).reciprocal())[group[order]].cumsum(dim=0)
    steps = torch.arange(len(sizes) * each, dtype=torch.float64, device=scores.device)
    first = torch.searchsorted(weight, steps + ROUNDING * each)
    return ranked[first.clamp_max(len(ranked) - 1)].flip(0)


def samples_needed(fpr: float, confidence: float | None = None) -> int:
    """Return the minimum number of calibration samples for a false-alarm rate: with fewer, no alarm is allowed."""
    on_average = ceil(1 / fpr - ROUNDING) - 1
    return on_average if confidence is None else max(on_average, ceil(log1p(-confidence) / log1p(-fpr) - ROUNDING))


def allowed_ranks(fpr: float, samples: int, confidence: float | None = None, above: int = 0) -> int:
    r"""Return k, the rank of the threshold: an alarm is a score above the k-th largest of n = ``samples`` scores.

    .. math:: k = \lfloor \text{fpr}\,(n + 1) \rfloor

    which is the same as ``p <= fpr``. With a ``confidence`` it is the largest k up to this one with

    .. math:: \Pr(\operatorname{Beta}(k, n + 1 - k) \le \text{fpr}) \ge \text{confidence}

    so that this calibration has a rate of at most ``fpr`` with that probability. Ties lower the rate.

    ``above`` more scores, which are not among the samples, are larger than all of them; there is no confidence then.

    Example:
        >>> allowed_ranks(0.05, 1000), allowed_ranks(0.05, 1000, confidence=0.95)
        (50, 39)
    """
    most = min(samples, floor(fpr * (samples + above + 1) + ROUNDING) - above)
    if confidence is None:
        return most
    assert not above
    k = np.arange(1, most + 1)
    return int((betainc(k, samples + 1 - k, fpr) >= confidence).sum())  # which falls with k


def alarm_p_value(alarms: int, seen: int, calibrated: int, allowed: int) -> float:
    r"""Return the p-value of a = ``alarms`` alarms among n = ``seen`` inputs under the calibration distribution.

    An alarm is a score above the k-th largest (k = ``allowed``) of the m = ``calibrated`` calibration scores. There are
    a alarms or more if and only if at most k - 1 of the a + k - 1 largest of all scores are calibration scores:

    .. math:: P(X \ge a) = \sum_{j < k} \binom{m}{j} \binom{n}{a + k - 1 - j} \Big/ \binom{m + n}{a + k - 1}

    It is exact without ties, and too large (conservative) with ties. Its cost grows with ``calibrated`` only.
    """
    if not 0 <= alarms <= seen or not 1 <= allowed <= calibrated:
        raise ValueError(
            f"alarms must be from 0 to seen={seen}, got {alarms}, and allowed from 1 to calibrated={calibrated}, got "
            f"{allowed}. The rank for a false-alarm rate is floor(fpr * (calibrated + 1))."
        )
    top = alarms + allowed - 1
    fewest, most = max(0, top - seen), min(calibrated, top)
    j = np.arange(fewest, most, dtype=np.float64)
    # Ratios of consecutive terms: logarithms of factorials of 1e9 would lose the digits that matter.
    steps = np.log((calibrated - j) / (j + 1) * ((top - j) / (seen - top + j + 1)))
    peak = int((steps > 0).sum())  # the ratios fall, so the largest term is here; all are relative to it
    down, up = -np.cumsum(steps[:peak][::-1])[::-1], np.cumsum(steps[peak:])
    terms = np.exp(np.concatenate([down, [0.0], up]))
    return min(1.0, float(terms[: allowed - fewest].sum() / terms.sum()))


def ks_p_value(distance: float, n: int, m: int) -> float:
    r"""Return the asymptotic p-value of the two-sample Kolmogorov-Smirnov test for samples of n and m values.

    .. math:: P(D \ge d) \approx 2 \sum_{i \ge 1} (-1)^{i - 1} e^{-2 i^2 x^2}, \qquad x = d \sqrt{\frac{n m}{n + m}}
    """
    return float(kolmogorov(distance * sqrt(n * m / (n + m))))
