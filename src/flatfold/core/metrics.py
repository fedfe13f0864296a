"""Metrics of the separation of OOD from ID scores: AUROC, AUPR and FPR at a fixed TPR.

All functions take two vectors, in-distribution scores first, and a higher score means "more out-of-distribution". They
are exact, including ties, and cost one sort of each vector.

**Which class is positive?** AUROC does not depend on it. FPR95 and AUPR do, and the literature uses both conventions:

* ``positive="ood"`` (OpenOOD since v1.5, the FOLD paper; the default here). The alarm threshold is set so that 95 %
  of the OOD inputs raise an alarm; FPR95 is the share of ID inputs that raise one as well.
* ``positive="id"`` (ODIN, energy, ReAct, ASH, kNN and most papers before 2023). The threshold is set so that 95 % of
  the ID inputs pass; FPR95 is the share of OOD inputs that pass as well.

Both give different numbers for the same scores and must not be compared.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .validation import check_tensor, check_unmasked

LONG = 100_000  # number of scores above which a second thread pays off


Positive = Literal["ood", "id"]

Scores = Tensor | NDArray[np.floating]


def auroc(id_scores: Scores, ood_scores: Scores) -> float:
    """Return the probability that an OOD input scores above an ID input, ties counted half.

    Args:
        id_scores: Scores of in-distribution inputs, ``(n,)``, torch or numpy.
        ood_scores: Scores of out-of-distribution inputs, ``(m,)``.

    Example:
        >>> auroc(np.array([0.1, 0.4]), np.array([0.4, 0.9]))
        0.875
    """
    known, unknown = score_vectors(id_scores, ood_scores)
    below = _sort_and_count_below(known, unknown)
    tied = known[np.minimum(below, len(known) - 1)] == unknown
    half = np.searchsorted(known, unknown[tied], side="right") - below[tied]
    return (2 * int(below.sum()) + int(half.sum())) / (2 * len(known) * len(unknown))


def fpr_at_tpr(id_scores: Scores, ood_scores: Scores, tpr: float = 0.95, positive: Positive = "ood") -> float:
    """Return the false positive rate at the strictest threshold that reaches a true positive rate.

    Args:
        id_scores: Scores of in-distribution inputs, ``(n,)``, torch or numpy.
        ood_scores: Scores of out-of-distribution inputs, ``(m,)``.
        tpr: The true positive rate to reach, above 0 and at most 1.
        positive: The class that the rates refer to; the module's docstring explains both conventions.

    Example:
        >>> id_scores, ood_scores = np.arange(100.0), np.arange(90.0, 110.0)
        >>> fpr_at_tpr(id_scores, ood_scores), fpr_at_tpr(id_scores, ood_scores, positive="id")
        (0.09, 0.25)
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must be above 0 and at most 1, got {tpr:g}. The customary value is 0.95.")
    hits, others = _positive_first(*score_vectors(id_scores, ood_scores), positive)
    count = ceil(tpr * len(hits))
    if (count - 1) / len(hits) >= tpr:  # 0.95 * n may land just above a whole number
        count -= 1
    threshold = np.partition(hits, len(hits) - count)[len(hits) - count]
    return float((others >= threshold).mean())


def aupr(id_scores: Scores, ood_scores: Scores, positive: Positive = "ood") -> float:
    """Return the area under the precision-recall curve by the trapezoidal rule, as OpenOOD computes it.

    Args:
        id_scores: Scores of in-distribution inputs, ``(n,)``, torch or numpy.
        ood_scores: Scores of out-of-distribution inputs, ``(m,)``.
        positive: ``"ood"`` gives OpenOOD's AUPR_OUT, ``"id"`` its AUPR_IN. Unlike AUROC, it depends on the numbers of
            ID and OOD inputs.

    Example:
        >>> aupr(np.array([0.1, 0.4]), np.array([0.6, 0.9]))
        1.0
    """
    hits, others = _positive_first(*score_vectors(id_scores, ood_scores), positive)
    others.sort()
    values, counts = np.unique(hits, return_counts=True)
    found = np.cumsum(counts[::-1])
    above = len(others) - np.searchsorted(others, values[::-1], side="right")
    at_least = len(others) - np.searchsorted(others, values[::-1], side="left")
    # The curve only moves sideways at a positive's score: from just above that score to the score itself.
    before = found - counts[::-1]
    start = np.divide(before, before + above, out=np.ones(len(found)), where=before + above > 0)
    end = found / (found + at_least)
    return float((counts[::-1] * (start + end)).sum() / (2 * len(hits)))


def _sort_and_count_below(known: NDArray[np.floating], unknown: NDArray[np.floating]) -> NDArray[np.intp]:
    """Sort both vectors in place and return the number of the first strictly below each of the second."""
    # Sorting the second as well makes the search ten times faster at 1e7 scores. Long vectors use two threads: numpy
    # releases the interpreter lock while it sorts and searches.
    if len(known) + len(unknown) < LONG:
        known.sort()
        unknown.sort()
        return np.searchsorted(known, unknown)
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(np.ndarray.sort, (known, unknown)))
        return np.concatenate(list(pool.map(partial(np.searchsorted, known), np.array_split(unknown, 2))))


def score_vectors(id_scores: Scores, ood_scores: Scores) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return copies of both score vectors in one floating-point type; raise for NaN and empty vectors."""
    known, unknown = score_vector(id_scores, "id_scores"), score_vector(ood_scores, "ood_scores")
    dtype = np.promote_types(known.dtype, unknown.dtype)
    return known.astype(dtype), unknown.astype(dtype)


def score_vector(scores: Scores, name: str = "scores") -> NDArray[np.floating]:
    """Return scores as a floating-point numpy vector; raise for NaN and empty vectors."""
    if isinstance(scores, Tensor):
        check_tensor(scores, name)
        scores = scores.detach().cpu()
        scores = (scores if scores.element_size() >= 4 else scores.float()).numpy()
    if isinstance(scores, np.ndarray):
        check_unmasked(scores, name)
    scores = np.asarray(scores)
    if scores.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be real numbers, got {scores.dtype}.")
    if scores.ndim != 1 or scores.size == 0:
        raise ValueError(f"{name} must be a non-empty vector, got shape {scores.shape}.")
    if not np.issubdtype(scores.dtype, np.floating):
        scores = scores.astype(np.float64)
    if np.isnan(scores).any():
        raise ValueError(
            f"{name} must not contain NaN, got {int(np.isnan(scores).sum())} in {scores.size}. Remove those rows."
        )
    return scores


def _positive_first(
    known: NDArray[np.floating], unknown: NDArray[np.floating], positive: Positive
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return (positives, negatives) such that a higher value means "more positive"."""
    if positive == "ood":
        return unknown, known
    if positive == "id":
        return -known, -unknown
    raise ValueError(f'positive must be "ood" or "id", got {positive!r}.')
