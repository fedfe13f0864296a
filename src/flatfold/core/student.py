r"""Student's t distribution: how far an estimate strays whose own spread is known from a few values only.

.. math:: P(|T| \ge t) = I_x(\tfrac\nu2, \tfrac12), \qquad x = \frac{\nu}{\nu + t^2}

with the regularised incomplete beta function :math:`I_x`, here as its continued fraction.
"""

from collections.abc import Callable
from functools import cache
from math import exp, isqrt, lgamma, log, log1p


def two_sided(t: float, degrees: int) -> float:
    """Return the probability that a value of Student's t lies as far from 0 as ``t``, or farther.

    Small ones keep their digits: nothing is subtracted from 1.

    Args:
        t: An estimate over its standard error.
        degrees: Degrees of freedom, at least 1.

    Example:
        >>> round(two_sided(12.7062, degrees=1), 6), round(two_sided(-1.96, degrees=10**6), 3)
        (0.05, 0.05)
    """
    if degrees < 1:
        raise ValueError(f"Student's t needs at least 1 degree of freedom, got {degrees}. Two values have 1.")
    if t == 0:
        return 1.0
    ratio = t * t / degrees
    inside = -log1p(ratio)  # log x; that of 1 - x is log(ratio) higher
    if ratio > 3 / (degrees + 2):  # where the fraction of the one side converges fast, the other's does not
        return _incomplete_beta(degrees / 2, 0.5, inside, inside + log(ratio))
    return 1 - _incomplete_beta(0.5, degrees / 2, inside + log(ratio), inside)


@cache
def quantile(level: float, degrees: int) -> float:
    """Return how far from 0 the middle ``level`` of Student's t reaches.

    Args:
        level: A share, above 0 and below 1.
        degrees: Degrees of freedom, at least 1.

    Example:
        >>> round(quantile(0.95, 2), 3), round(quantile(0.95, 10), 3)
        (4.303, 2.228)
    """
    check_level(level)
    return smallest(lambda t: two_sided(t, degrees) <= 1 - level)


def smallest(reached: Callable[[float], bool]) -> float:
    """Return the smallest number from 0 on at which a condition holds that then holds for all larger ones.

    By bisection, to the last digit.

    Example:
        >>> smallest(lambda x: x * x >= 2)
        1.4142135623730951
    """
    if reached(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not reached(high):
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def check_level(level: float) -> None:
    """Raise unless a level of confidence is a share."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level:g}. The customary value is 0.95.")


def _incomplete_beta(a: float, b: float, log_x: float, log_rest: float) -> float:
    r"""Return :math:`I_x(a, b)` for x below ``(a + 1) / (a + b + 2)``, given the logarithms of x and 1 - x.

    .. math:: \frac{x^a (1 - x)^b}{a\, B(a, b)} \cdot \cfrac1{1 + \cfrac{d_1}{1 + \cfrac{d_2}{1 + \dots}}}
    """
    x, fraction = exp(log_x), 1.0
    for k in range(50 + 5 * isqrt(int(a + b)), 0, -1):  # from the inside; what is left out is below rounding
        half = k // 2
        term = half * (b - half) if k % 2 == 0 else -(a + half) * (a + b + half)
        fraction = 1 + term * x / ((a + k - 1) * (a + k)) / fraction
    factor = a * log_x + b * log_rest - log(a) + lgamma(a + b) - lgamma(a) - lgamma(b)
    return exp(factor) / fraction
