r"""Averages of the curvature of two classes over a Gaussian.

.. math:: \varphi(a) = \frac{e^a}{(1 + e^a)^2}
"""

from math import exp, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

REACH = 10  # standard deviations either side of the peak of an integrand: beyond, less than 1e-17 of it
WIDEST = 1e5  # standard deviation of w'x: the points of the quadrature grow with it, here to four million


def average_curvature(mean: float, deviation: float) -> float:
    r"""Return the average of ``phi`` over a Gaussian: even in its mean, and strictly decreasing in its distance from 0.

    .. math:: M(m) = E\, \varphi(m + s t), \quad t \sim N(0, 1)

    Args:
        mean: m.
        deviation: s, from 0 to 1e5. The relative error is below 1e-10.

    Example:
        >>> [round(average_curvature(mean, 1.0), 6) for mean in (0.0, 2.0, -2.0)]
        [0.206621, 0.115758, 0.115758]
    """
    return exp(log_average_curvature(mean, deviation))


def log_average_curvature(mean: float, deviation: float) -> float:
    """Return the logarithm of :func:`average_curvature`, which is finite where that is too small for a float."""
    points, log_weights = gaussian_points(abs(mean), deviation)
    logs = log_weights - np.abs(points) - 2 * np.log1p(np.exp(-np.abs(points)))
    return float(np.logaddexp.reduce(logs))


def gaussian_points(mean: float, deviation: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return points of ``N(mean, deviation^2)`` and the logarithms of their weights: the trapezoidal rule.

    For an analytic function it converges exponentially: the nearest singularities of ``phi`` and of ``log(1 + e^-a)``
    are ``±i pi``, and steps of 1/2 in a, or of half a deviation, leave an error below 1e-16 of the integral. Both fall
    like ``e^-a``, which moves the peak of their product with the Gaussian towards 0: the points lie around that peak.
    """
    if not 0 <= deviation <= WIDEST:
        raise ValueError(
            f"the score w'x must have a standard deviation from 0 to {WIDEST:g}, got {deviation:g}. "
            "Make the weight or the covariance smaller."
        )
    peak = -min(deviation, max(mean, 0.0) / deviation) if deviation > 0 else 0.0
    step = 0.5 / max(1.0, deviation)
    count = round(REACH / step)
    t = peak + step * np.arange(-count, count + 1, dtype=np.float64)
    return mean + deviation * t, log(step / sqrt(2 * pi)) - t**2 / 2
