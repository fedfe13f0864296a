"""What a rule maximises over the exponent, from in-distribution validation images alone.

Every criterion takes the validation images, a fitted family, an exponent and how often each image was drawn,
``(b, n)``, and returns its value in each replicate, ``(b,)``.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flatfold.core.autofold import MIN_PER_CLASS, with_and_without, without_each

from .cases import Validation
from .families import Fitted
from .resampled import Counts, Ranked, Vector
from .view import View, view_of

Rows = NDArray[np.intp]
Criterion = Callable[[Validation, Fitted, float, Counts], Vector]


def paired(val: Validation, fitted: Fitted, alpha: float, counts: Counts) -> Vector:
    r"""Compare the samples of each class with their own copies whose label is masked (the paper).

    .. math:: \frac1K \sum_k \operatorname{AUROC}\big( s(h_i),\; s^{\setminus k}(h_i) : y_i = k \big)
    """
    known, masked = _with_and_without(val, fitted, alpha)
    return _mean_over_classes(val, lambda rows, _: _auroc(known, rows, masked, rows, counts))


def one_vs_rest(val: Validation, fitted: Fitted, alpha: float, counts: Counts) -> Vector:
    r"""Mask a class for everybody and compare its samples with those of all other classes (the authors' code).

    .. math:: \frac1K \sum_k
        \operatorname{AUROC}\big( s^{\setminus k}(h_i) : y_i \neq k,\; s^{\setminus k}(h_j) : y_j = k \big)
    """
    every = torch.arange(len(val.classes.bias))
    scores = without_each(fitted.logits(val.view, alpha), every, val.classes.weights).trace.numpy()
    others = _rows_of_others(val)
    return _mean_over_classes(val, lambda rows, k: _auroc(scores[k], others[k], scores[k], rows, counts))


def pooled(val: Validation, fitted: Fitted, alpha: float, counts: Counts) -> Vector:
    r"""Compare all samples with all masked copies at once: one threshold for all classes, as in use.

    .. math:: \operatorname{AUROC}\big( s(h_i),\; s^{\setminus y_j}(h_j) \big)
    """
    known, masked = _with_and_without(val, fitted, alpha)
    return Ranked(known, counts).auroc(masked, counts)


def mixed(val: Validation, fitted: Fitted, alpha: float, counts: Counts) -> Vector:
    r"""Compare samples with means of two samples of different classes, each drawn as often as its first sample.

    .. math:: \operatorname{AUROC}\big( s(h_i),\; s(\tfrac12 h_j + \tfrac12 h_{\pi(j)}) : y_j \neq y_{\pi(j)} \big)
    """
    view, rows = _mixtures(val)
    known, unknown = (fitted.scores(each, alpha).numpy() for each in (val.view, view))
    return Ranked(known, counts).auroc(unknown, counts[:, rows])


def shuffled(val: Validation, fitted: Fitted, alpha: float, counts: Counts) -> Vector:
    r"""Compare samples with features whose every entry is another sample's, so that nothing fits together.

    .. math:: \operatorname{AUROC}\big( s(h_i),\; s(h') \big), \qquad h'_{jd} = h_{\pi_d(j), d}
    """
    known, unknown = (fitted.scores(each, alpha).numpy() for each in (val.view, _shuffles(val)))
    return Ranked(known, counts).auroc(unknown, counts)


def shrunk(val: Validation, fitted: Fitted, alpha: float, counts: Counts) -> Vector:
    r"""Compare samples with masked copies of half their norm: unknown inputs often have small features.

    .. math:: \operatorname{AUROC}\big( s(h_i),\; s^{\setminus y_j}(\tfrac12 h_j) \big)
    """
    known, _ = _with_and_without(val, fitted, alpha)
    _, masked = _with_and_without(val, fitted, alpha, View(val.view.projected / 2, val.view.norms / 2))
    return Ranked(known, counts).auroc(masked, counts)


def likelihood(val: Validation, fitted: Fitted, alpha: float, counts: Counts) -> Vector:
    r"""Return the mean log-probability of the labels; there are no pseudo-unknowns at all.

    .. math:: \frac1n \sum_i \log p_{i y_i}
    """
    log_probs = fitted.logits(val.view, alpha).log_softmax(dim=-1).gather(-1, val.labels[:, None]).squeeze(-1)
    mean: Vector = counts @ log_probs.numpy() / counts.sum(axis=1)
    return mean


def _with_and_without(val: Validation, fitted: Fitted, alpha: float, view: View | None = None) -> tuple[Vector, Vector]:
    """Return the scores of samples as they are and with their class masked."""
    logits = fitted.logits(val.view if view is None else view, alpha)
    known, masked = with_and_without(logits, val.labels, val.classes.weights)
    return known.trace.numpy(), masked.trace.numpy()


def _mean_over_classes(val: Validation, auroc_of: Callable[[Rows, int], Vector]) -> Vector:
    present, sizes = torch.unique(val.labels, return_counts=True)
    chosen = present[sizes >= MIN_PER_CLASS].tolist()
    each = [auroc_of(np.flatnonzero(val.labels.numpy() == label), label) for label in chosen]
    mean: Vector = np.mean(each, axis=0)
    return mean


def _auroc(known: Vector, known_rows: Rows, unknown: Vector, unknown_rows: Rows, counts: Counts) -> Vector:
    return Ranked(known[known_rows], counts[:, known_rows]).auroc(unknown[unknown_rows], counts[:, unknown_rows])


def _rows_of_others(val: Validation) -> dict[int, Rows]:
    labels = val.labels.numpy()
    return {label: np.flatnonzero(labels != label) for label in np.unique(labels).tolist()}


@cache
def _mixtures(val: Validation) -> tuple[View, Rows]:
    """Return means of two samples of different classes and the row of the first of them."""
    order = torch.randperm(len(val.labels), generator=torch.Generator().manual_seed(0))
    rows = (val.labels != val.labels[order]).nonzero().flatten()
    return view_of((val.features[rows] + val.features[order[rows]]) / 2, val.head), rows.numpy()


@cache
def _shuffles(val: Validation) -> View:
    """Return samples whose columns were shuffled apart from each other."""
    generator = torch.Generator().manual_seed(0)
    columns: list[Tensor] = [
        column[torch.randperm(len(column), generator=generator)] for column in val.features.unbind(1)
    ]
    return view_of(torch.stack(columns, dim=1), val.head)
