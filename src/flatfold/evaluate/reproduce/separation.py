"""How far FOLD's scores of unknown inputs lie above those of known ones, and how they go with the norm (Figure 5)."""

from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.bootstrap import CHUNK, draws, percentile_interval
from ...core.shaping import row_norms
from ..banks import Banks
from ..results import ID
from .rows import NORMALISATIONS, Normalisation, Separation
from .scored import Scores, columns, scored

REPLICATES = 1000  # of the bootstrap behind each interval
APART = 1e6  # stands for infinitely many standard deviations, which JSON does not know
Vector = NDArray[np.float64]


class Separated(NamedTuple):
    """The rows, and what was compared for them: scores by ``normalisation/dataset`` and norms by data set."""

    separations: list[Separation]
    scores: Scores
    norms: Scores


def separations(banks: Banks, alphas: Mapping[Normalisation, float], seed: int = 0) -> Separated:
    """Return Cohen's d of FOLD's scores under every normalisation, and their correlation with the norm.

    The interval comes from a bootstrap that draws known and unknown images again, the same ones under every
    normalisation.

    Args:
        banks: Features of every data set.
        alphas: The exponent of each normalisation.
        seed: Of the bootstrap.
    """
    norms = {name: row_norms(bank.features).squeeze(-1).float().numpy() for name, bank in banks.judged.items()}
    kinds = {kind: scored("fold", banks, alpha=alphas[kind]) for kind in NORMALISATIONS}
    rows = []
    for column, members in columns(norms).items():
        known = np.stack([scores[ID] for scores in kinds.values()]).astype(np.float64)
        unknown = np.stack([_joined(scores, members) for scores in kinds.values()])
        norm = np.concatenate([norms[ID], _joined(norms, members)])
        rngs = np.random.default_rng([seed, *ID.encode()]), np.random.default_rng([seed, *column.encode()])
        redrawn = bootstrapped_d(known, unknown, REPLICATES, rngs)
        for kind, ours, theirs, replicates in zip(NORMALISATIONS, known, unknown, redrawn, strict=True):
            d, correlation = cohens_d(ours, theirs), spearman(norm, np.concatenate([ours, theirs]))
            interval = percentile_interval(d, replicates)
            rows.append(Separation(kind, alphas[kind], column, d, *interval, correlation))
    rows.sort(key=lambda row: NORMALISATIONS.index(row.normalisation))
    return Separated(rows, {f"{kind}/{name}": v for kind, of in kinds.items() for name, v in of.items()}, norms)


def cohens_d(known: Vector, unknown: Vector) -> float:
    r"""Return the difference of two means in standard deviations.

    .. math:: d = \frac{\bar u - \bar k}{s}, \qquad s^2 = \frac{(n - 1) s_k^2 + (m - 1) s_u^2}{n + m - 2}

    with unbiased variances :math:`s_k^2, s_u^2` of ``n`` known and ``m`` unknown scores. Where neither side varies it
    is 0 for equal means, and otherwise a million, with the sign of the difference.

    Example:
        >>> cohens_d(np.array([0.0, 2.0]), np.array([3.0, 5.0]))
        2.1213203435596424
    """
    ones = np.ones((1, len(known)), np.int32), np.ones((1, len(unknown)), np.int32)
    return float(_d(ones[0], ones[1], known[None], unknown[None])[0, 0])


def bootstrapped_d(
    known: Vector, unknown: Vector, replicates: int, rngs: tuple[np.random.Generator, np.random.Generator]
) -> Vector:
    """Return Cohen's d on redrawn images for several scores at once, ``(k, replicates)``.

    Args:
        known: ``(k, n)``, a row for each kind of score.
        unknown: ``(k, m)``.
        replicates: How many.
        rngs: Draw known and unknown images.
    """
    rows = max(1, CHUNK // (known.shape[1] + unknown.shape[1]))
    sizes = [min(rows, replicates - first) for first in range(0, replicates, rows)]
    drawn = ((draws(known.shape[1], size, rngs[0]), draws(unknown.shape[1], size, rngs[1])) for size in sizes)
    return np.concatenate([_d(ours, theirs, known, unknown) for ours, theirs in drawn], axis=1)


def spearman(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; 0 where one side does not vary.

    Example:
        >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
        0.5
    """
    a, b = (_ranks(values) - (len(values) + 1) / 2 for values in (x, y))
    scale = sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else 0.0


def _ranks(values: NDArray[np.floating]) -> Vector:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Vector = (last - (counts - 1) / 2)[place]
    return ranks


def _joined(values: Scores, members: tuple[str, ...]) -> Vector:
    return np.concatenate([values[name] for name in members]).astype(np.float64)


def _d(known_counts: NDArray[np.int32], unknown_counts: NDArray[np.int32], known: Vector, unknown: Vector) -> Vector:
    """Return Cohen's d of scores ``(k, n)`` and ``(k, m)`` that count ``(b, n)`` and ``(b, m)`` times, ``(k, b)``."""
    # Around the median, or squares of large scores would cancel; what does not vary is then exactly 0.
    middle, their_middle = (np.median(values, axis=1, keepdims=True) for values in (known, unknown))
    (a, aa), (b, bb) = _moments(known_counts, known - middle), _moments(unknown_counts, unknown - their_middle)
    n, m = known.shape[1], unknown.shape[1]
    pooled = (n * aa + m * bb) / max(n + m - 2, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        d: Vector = (their_middle - middle + b - a) / np.sqrt(pooled)
    return np.clip(np.nan_to_num(d, posinf=APART, neginf=-APART), -APART, APART)


def _moments(counts: NDArray[np.int32], values: Vector) -> tuple[Vector, Vector]:
    """Return mean and mean squared deviation of values ``(k, n)`` that count ``(b, n)`` times, each ``(k, b)``."""
    times = counts.T.astype(np.float64) / counts.shape[1]
    mean = values @ times
    return mean, np.maximum(values**2 @ times - mean**2, 0.0)
