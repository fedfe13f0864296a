r"""Whether a stream of inputs still is like the calibration data: exact for alarms, asymptotic for scores.

An alarm is a score above the k-th largest of m calibration scores. If n inputs are exchangeable with these, every order
of all m + n scores is equally likely, so the number X of alarms has a law that no model or method changes:

.. math:: X \sim \text{BetaBinomial}(n,\, k,\, m + 1 - k)

It is wider than a binomial law with rate k / (m + 1), because the threshold itself was drawn.
"""

from math import exp, pi, sqrt

import numpy as np

TERMS = 5  # of either series of Kolmogorov's law: what is left out is below 1e-20 of the sum


def alarm_p_value(alarms: int, seen: int, calibrated: int, allowed: int) -> float:
    r"""Return the probability that inputs like the calibration data raise that many alarms, or more.

    There are a alarms or more if and only if at most k - 1 of the a + k - 1 largest of all scores are calibration ones:

    .. math:: P(X \ge a) = \sum_{j < k} \binom{m}{j} \binom{n}{a + k - 1 - j} \Big/ \binom{m + n}{a + k - 1}

    It is exact when no two scores are equal, and too large when some are. Its cost grows with ``calibrated`` only.

    Args:
        alarms: a, how many inputs raised an alarm.
        seen: n, of how many.
        calibrated: m, the number of calibration scores.
        allowed: k: an alarm is a score above the k-th largest of them.

    Example:
        >>> round(alarm_p_value(alarms=9, seen=100, calibrated=999, allowed=50), 4)
        0.0723
    """
    _check_counts(alarms, seen, calibrated, allowed)
    top = alarms + allowed - 1
    fewest, most = max(0, top - seen), min(calibrated, top)
    j = np.arange(fewest, most, dtype=np.float64)
    # From each term to the next: logarithms of factorials of 1e9 would have lost the digits that matter.
    steps = np.log((calibrated - j) / (j + 1) * ((top - j) / (seen - top + j + 1)))
    peak = int((steps > 0).sum())  # the steps fall, so the terms rise up to here; all are taken relative to this one
    down, up = -np.cumsum(steps[:peak][::-1])[::-1], np.cumsum(steps[peak:])
    terms = np.exp(np.concatenate([down, [0.0], up]))
    return min(1.0, float(terms[: allowed - fewest].sum() / terms.sum()))


def ks_p_value(distance: float, n: int, m: int) -> float:
    r"""Return the probability that two samples of one distribution differ by a distance, or more.

    This is Kolmogorov's law of D, the largest difference between their shares of values up to a point, for large ones:

    .. math:: P(D \ge d) \approx 2 \sum_{i \ge 1} (-1)^{i - 1} e^{-2 i^2 x^2}, \qquad x = d \sqrt{\frac{n m}{n + m}}

    Small ones keep their digits: nothing is subtracted from 1.

    Args:
        distance: d, from 0 to 1.
        n: Values in the one sample.
        m: Values in the other.

    Example:
        >>> round(ks_p_value(0.0607, n=1000, m=1000), 3)
        0.05
    """
    if not 0 <= distance <= 1:
        raise ValueError(f"distance must be a difference of shares, from 0 to 1, got {distance:g}. Pass D, not D^2 n.")
    if n < 1 or m < 1:
        raise ValueError(f"two samples are compared, so both need a value, got n={n} and m={m}. Wait for some.")
    x = distance * sqrt(n * m / (n + m))
    if x > 1:
        return 2 * sum((-1.0) ** (i - 1) * exp(-2 * (i * x) ** 2) for i in range(1, TERMS + 1))
    if x < 0.04:  # the probability differs from 1 by less than 1e-300
        return 1.0
    odd = range(1, 2 * TERMS, 2)  # the same sum, seen through its Fourier transform: it converges where that does not
    return 1 - sqrt(2 * pi) / x * sum(exp(-((i * pi / x) ** 2) / 8) for i in odd)


def _check_counts(alarms: int, seen: int, calibrated: int, allowed: int) -> None:
    if not 0 <= alarms <= seen:
        raise ValueError(f"alarms must lie between 0 and the {seen} inputs seen, got {alarms}. Were they swapped?")
    if not 1 <= allowed <= calibrated:
        raise ValueError(
            f"allowed must be the rank of one of {calibrated} calibration scores, got {allowed}. "
            "For a false-alarm rate it is floor(fpr * (calibrated + 1))."
        )
