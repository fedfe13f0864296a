r"""AUROCs of redrawn images, without sorting again.

A bootstrap changes how often an image counts, never the order of the scores. With :math:`K(x)` the number of draws that
fell on known scores below ``x``, those equal to it counted half, and :math:`u_j` the draws of unknown image ``j``,

.. math:: \operatorname{AUROC} = \frac{\sum_j u_j K(x_j)}{\sum_i k_i \sum_j u_j}

so one sort of the known scores serves every replicate and every set of unknown images.
"""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.integer]
Vector = NDArray[np.float64]


class Ranked:
    """Known scores, sorted once, with the draws of every replicate added up along them.

    Args:
        known: Scores of in-distribution inputs, ``(n,)``, higher = more out-of-distribution.
        counts: How often each of them was drawn, ``(b, n)``; a row is a replicate.

    Example:
        >>> Ranked(np.array([0.1, 0.4]), np.array([[1, 1], [2, 0]])).auroc(np.array([0.4]), np.array([[1], [3]]))
        array([0.75, 1.  ])
    """

    def __init__(self, known: Vector, counts: Counts) -> None:
        order = np.argsort(known)
        self._ranked = known[order]
        self._sums = np.zeros((len(counts), len(known) + 1), np.int32)
        np.cumsum(counts.take(order, axis=1), axis=1, out=self._sums[:, 1:])

    def auroc(self, unknown: Vector, counts: Counts) -> Vector:
        """Return how often an unknown draw scores above a known one, ties counted half, ``(b,)``.

        Args:
            unknown: Scores of out-of-distribution inputs, ``(m,)``.
            counts: How often each of them was drawn, ``(b, m)``.
        """
        first, last = (np.searchsorted(self._ranked, unknown, side) for side in ("left", "right"))
        below = self._sums.take(first, axis=1)
        below = 2 * below if np.array_equal(first, last) else below + self._sums.take(last, axis=1)
        beaten = np.einsum("bm,bm->b", below, counts, dtype=np.float64)
        share: Vector = beaten / (2.0 * self._sums[:, -1] * counts.sum(axis=1))
        return share
