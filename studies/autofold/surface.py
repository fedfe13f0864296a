"""AUROCs of a case at every exponent, in every replicate."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from zlib import crc32

import numpy as np
from torch import Tensor

from flatfold.core.bootstrap import draws

from .cases import Case
from .families import ALPHAS, Fitted
from .resampled import Counts, Ranked, Vector
from .view import View

MEAN = "mean"  # over the sets of unknown images, each with the same weight


class Draws(NamedTuple):
    """How often each image counts, ``(b, n)`` each; the first row is the images as they are, once each."""

    val: Counts
    test: Counts
    ood: dict[str, Counts]


def draw(case: Case, replicates: int) -> Draws:
    """Return the images as they are and ``replicates`` bootstraps of them.

    Networks of one suite saw the same images and get the same draws. Validation images are drawn within their class, as
    they were in the first place.
    """
    seed = crc32(case.suite.encode())
    sizes = {"test": len(case.test.norms), **{name: len(view.norms) for name, view in case.ood.items()}}
    every = {
        name: _with_first(draws(size, replicates, np.random.default_rng([seed, number])))
        for number, (name, size) in enumerate(sizes.items())
    }
    return Draws(_within_classes(case.val.labels.numpy(), replicates, seed), every.pop("test"), every)


def surface(case: Case, fitted: Fitted, drawn: Draws) -> Vector:
    """Return the AUROC at each exponent for each set of unknown images and their mean, ``(b, a, o + 1)``."""
    return np.stack([aurocs(case, partial(fitted.scores, alpha=alpha), drawn) for alpha in ALPHAS], axis=1)


def aurocs(case: Case, score: Callable[[View], Tensor], drawn: Draws) -> Vector:
    """Return the AUROC of a score for each set of unknown images and their mean, ``(b, o + 1)``."""
    ranked = Ranked(score(case.test).numpy(), drawn.test)
    each = [ranked.auroc(score(view).numpy(), drawn.ood[name]) for name, view in case.ood.items()]
    return np.stack([*each, np.mean(each, axis=0)], axis=1)


def _within_classes(labels: Counts, replicates: int, seed: int) -> Counts:
    counts = np.empty((replicates + 1, len(labels)), np.int32)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rng = np.random.default_rng([seed, 1000 + int(label)])
        counts[:, rows] = _with_first(draws(len(rows), replicates, rng))
    return counts


def _with_first(counts: Counts) -> Counts:
    """Return the counts behind a row of ones."""
    return np.concatenate([np.ones_like(counts[:1]), counts])
