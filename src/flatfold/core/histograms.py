r"""Metrics of the pixels of many images, from histograms of their scores.

Scores of hundreds of millions of pixels are not kept. Each is counted in one of 2^16 bins, whose edges are the ranks of
a sample of scores (:func:`bin_edges`), so every bin holds about as many pixels. All metrics depend on ranks only, and
pixels of one bin count as tied: the exact values lie within bounds that the histogram itself gives
(:func:`rounding`). With :math:`k_b` of N ID pixels and :math:`u_b` of M OOD pixels in bin b, AUROC is within

.. math:: \frac{1}{2 N M} \sum_b k_b u_b

of its value, FPR95 within the share of negatives in the bin of the threshold, and AUPR within the sum over bins of the
share of positives times the difference of the precisions with all positives, or all negatives, of the bin first.

Pixels of one image depend on each other, so intervals are over images. The influence of an image on AUROC is the sum of
the influences of its pixels of both classes (a cluster-robust variance), other metrics are computed from resampled
histograms of images.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .intervals import Influence

BINS = 2**16
COARSE = 2**10  # bins of the histograms of single images
AT_ONCE = 32  # resamplings computed at once
METRICS = ("auroc", "fpr95_ood_positive", "fpr95_id_positive", "aupr_out", "aupr_in")

Counts = NDArray[np.integer] | NDArray[np.floating]
Values = NDArray[np.float64]


def bin_edges(sample: NDArray[np.floating], bins: int = BINS) -> NDArray[np.float32]:
    """Return the edges between ``bins`` bins, which hold equal shares of a sample of scores unless there are ties."""
    ranked = np.sort(sample.astype(np.float64))  # np.quantile takes seconds for so many
    places = np.arange(1, bins) / bins * (len(ranked) - 1)
    low = places.astype(np.int64)
    with np.errstate(invalid="ignore"):
        steps = (places - low) * (ranked[np.minimum(low + 1, len(ranked) - 1)] - ranked[low])
    edges: NDArray[np.float64] = ranked[low] + np.where(np.isfinite(steps), steps, 0.0)
    return edges.astype(np.float32)


def count_scores(scores: NDArray[np.floating], ood: NDArray[np.bool_], edges: NDArray[np.float32]) -> Counts:
    """Return how many ID and OOD scores are in each bin, ``(2, bins)``; equal scores are in the same bin."""
    places = np.searchsorted(edges, scores.astype(np.float32))
    bins = len(edges) + 1
    counts: Counts = np.bincount(places + bins * ood, minlength=2 * bins).reshape(2, bins)
    return counts


def coarsen(counts: Counts, bins: int = COARSE) -> Counts:
    """Return histograms with fewer bins, ``(..., bins)``."""
    coarse: Counts = counts.reshape(*counts.shape[:-1], bins, -1).sum(axis=-1)
    return coarse


def histogram_metrics(known: Counts, unknown: Counts, names: Sequence[str] = METRICS) -> dict[str, Values]:
    """Return the metrics of histograms, ``(...)`` each; NaN where one of the classes has no score.

    Args:
        known: Numbers of ID scores in each bin, ``(..., bins)``, from low to high scores.
        unknown: The same of OOD scores.
        names: The metrics to compute, a subset of ``METRICS``.

    Example:
        >>> known, unknown = np.array([2, 2, 0]), np.array([0, 2, 2])
        >>> histogram_metrics(known, unknown, ["auroc"])["auroc"].item()
        0.875
    """
    known, unknown = (np.asarray(counts, dtype=np.float64) for counts in (known, unknown))
    found: dict[str, Values] = {}
    valid = (known.sum(axis=-1) > 0) & (unknown.sum(axis=-1) > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        for name in names:
            if name == "auroc":
                below = known.cumsum(axis=-1) - known / 2
                values = (unknown * below).sum(axis=-1) / (known.sum(axis=-1) * unknown.sum(axis=-1))
            else:
                out = name in ("fpr95_ood_positive", "aupr_out")
                sides = (unknown[..., ::-1], known[..., ::-1]) if out else (known, unknown)
                values = (_fpr95 if name.startswith("fpr95") else _aupr)(*sides)
            found[name] = np.where(valid, values, np.nan)
    return found


def rounding(known: Counts, unknown: Counts) -> dict[str, float]:
    """Return the largest difference that each metric of one histogram may have from that of the scores themselves."""
    known, unknown = (np.asarray(counts, dtype=np.float64) for counts in (known, unknown))
    n, m = known.sum(), unknown.sum()
    bounds = {"auroc": float((known * unknown).sum() / (2 * n * m))}
    for name, (hits, others) in {"out": (unknown[::-1], known[::-1]), "in": (known, unknown)}.items():
        found, false = hits.cumsum(), others.cumsum()
        worst, best = _precision(found - hits, false), _precision(found, false - others)
        bounds[f"aupr_{name}"] = float((hits * (best - worst)).sum() / hits.sum())
        positive = "ood" if name == "out" else "id"
        bounds[f"fpr95_{positive}_positive"] = float(others[_reached(found)] / others.sum())
    return bounds


def _reached(found: Values) -> NDArray[np.intp]:
    """Return the first bin up to which 95 % of the positives are found, ``(...)``."""
    needed = np.ceil(0.95 * found[..., -1:])  # 0.95 n never rounds to just above an integer
    first: NDArray[np.intp] = (found >= needed).argmax(axis=-1)
    return first


def _fpr95(hits: Values, others: Values) -> Values:
    """Return FPR95 of histograms whose first bin is the most positive."""
    at = _reached(hits.cumsum(axis=-1))
    false = others.cumsum(axis=-1)
    rate: Values = np.take_along_axis(false, at[..., None], axis=-1)[..., 0] / false[..., -1]
    return rate


def _aupr(hits: Values, others: Values) -> Values:
    """Return the area under the precision-recall curve as :func:`flatfold.core.metrics.aupr` does."""
    found, false = hits.cumsum(axis=-1), others.cumsum(axis=-1)
    before, above = found - hits, false - others
    start = np.divide(before, before + above, out=np.ones_like(found), where=before + above > 0)
    end = np.divide(found, found + false, out=np.zeros_like(found), where=found > 0)
    area: Values = (hits * (start + end)).sum(axis=-1) / (2 * found[..., -1])
    return area


def _precision(found: Values, false: Values) -> Values:
    """Return the precision, 1 where there is no alarm."""
    precision: Values = np.divide(found, found + false, out=np.ones_like(found), where=found + false > 0)
    return precision


def influence_of_images(images: Counts) -> Influence:
    """Return AUROC of all pixels and the influence of each image on it, given histograms ``(n, 2, bins)``.

    The squares of the influences add up to a variance that allows for any dependence of the pixels of an image.
    """
    known, unknown = images.sum(axis=0).astype(np.float64)
    n, m = known.sum(), unknown.sum()
    below = (known.cumsum() - known / 2) / n  # the share of ID scores below each bin
    above = (unknown[::-1].cumsum()[::-1] - unknown / 2) / m
    auroc = float((unknown * below).sum() / m)
    ours, theirs = images[:, 0].astype(np.float64), images[:, 1].astype(np.float64)
    influence = ours @ (above - auroc) / n + theirs @ (below - auroc) / m
    both = min(int((side.sum(axis=1) > 0).sum()) for side in (ours, theirs))
    count = len(images)
    return Influence(auroc, np.zeros(0), influence * np.sqrt(count / max(count - 1, 1)), pairs=both)


def resampled_metrics(images: Counts, draws: Counts, names: Sequence[str] = METRICS) -> dict[str, Values]:
    """Return the metrics of images drawn with replacement, ``(b,)`` each.

    Args:
        images: Histograms of the images, ``(n, 2, bins)``.
        draws: The count of each image in each resampling, ``(b, n)``; NaN where no pixel of a class is drawn.
        names: The metrics to compute.
    """
    flat = images.reshape(len(images), -1).astype(np.float64)
    parts = []
    for first in range(0, len(draws), AT_ONCE):
        pooled = (draws[first : first + AT_ONCE].astype(np.float64) @ flat).reshape(-1, *images.shape[1:])
        parts.append(histogram_metrics(pooled[:, 0], pooled[:, 1], names))
    return {name: np.concatenate([part[name] for part in parts]) for name in names}
