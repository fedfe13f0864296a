"""Copies of inputs: which features are equal up to rounding, what a calibration may count, and signs of near copies."""

from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor

from .hessian import entry_chunks
from .shaping import split_norm

SAME = 1e-5  # largest distance, relative to their length, of two rows that differ by rounding only: duplicates
PROJECTIONS = 16
NEIGHBOURS, NEAREST = 30, 10  # neighbours of a row, and how many of them may be near copies of it
FEWEST = 30  # rows of a class in which near copies are looked for: the neighbours must be of one kind
QUERIES, COMPARED = 2000, 10_000  # rows that are looked at in all, and rows of its class that each is compared to
UNLIKELY, ENOUGH = 0.01, 200  # probability of a gap by chance; rows without which no share is stated
EQUAL_DIGITS = 6  # decimals of projections, which are around 1: rows that agree in them are certainly duplicates


def group_copies(*features: Tensor) -> list[Tensor]:
    """Group duplicate rows: return the group ``(n,)`` of each row of each matrix of features ``(n, d)``.

    Duplicates differ by rounding only: by about ``SAME`` of their length. A group is numbered by its first row in the
    concatenation of all matrices. Distances are those between random projections, which preserve them up to a factor
    of about two.
    """
    points = np.concatenate([_projections(matrix) for matrix in features])
    _, first, inverse = np.unique(points.round(EQUAL_DIGITS), axis=0, return_index=True, return_inverse=True)
    group = first[inverse.reshape(-1)]
    for slack in (20.0, 0.0):  # approximate neighbours first: the nearest of thousands of duplicates is slow to find
        while True:
            rows, places = np.unique(group, return_inverse=True)
            own, (_, nearest) = np.arange(len(rows)), cKDTree(points[rows]).query(points[rows], 2, slack, 2, SAME)
            other = np.where(nearest[:, 0] == own, nearest[:, 1], nearest[:, 0])
            near = other < len(rows)  # the tree returns len(rows) where no row is within SAME
            if not near.any():
                break
            graph = coo_matrix((near[near], (own[near], other[near])), shape=(len(rows), len(rows)))
            component = connected_components(graph, directed=False)[1]
            group = rows[np.unique(component, return_index=True)[1][component]][places]
    return list(torch.split(torch.from_numpy(group), [len(matrix) for matrix in features]))


def distinct_rows(groups: Tensor, *others: Tensor) -> Tensor:
    """Return the rows of distinct inputs as a mask ``(n,)``: the first of each group that is in none of the ``others``.

    These are what a calibration may count: copies of each other, and of inputs that the detector has learnt from, say
    nothing about inputs to come.
    """
    distinct = torch.zeros(len(groups), dtype=torch.bool)
    distinct[np.unique(groups.numpy(), return_index=True)[1]] = True
    for other in others:
        distinct &= ~torch.isin(groups, other)
    return distinct


def join_groups(first: Tensor, second: Tensor) -> Tensor:
    """Return the finest grouping ``(n,)`` in which rows are together that are together in one of two groupings."""
    (a, b), n = (np.unique(each.numpy(), return_inverse=True)[1] for each in (first, second)), len(first)
    graph = coo_matrix((np.ones(n, np.int8), (a, a.max(initial=0) + 1 + b)), shape=(2 * n + 2, 2 * n + 2))
    return torch.from_numpy(connected_components(graph, directed=False)[1][a].astype(np.int64))


def share_near_copies(features: Tensor, classes: Tensor) -> float | None:
    r"""Return the share of rows that are much closer to others of their class than chance explains: 0.01 if none is.

    Near copies, such as two views or two JPEG files of one image, are groups of rows with a gap around them. Where m
    dimensions are filled evenly, the distances :math:`d_1 \le d_2 \le \dots` of a row to its neighbours satisfy

    .. math:: E_j = j \, m \log \frac{d_{j+1}}{d_j} \sim \text{independent, exponential with mean 1}

    (Renyi's representation). The outer neighbours give m, and the row counts if the largest gap of the inner ones,
    :math:`\max_{j < 10} E_j`, has a probability below 0.01. Only classes with at least 30 rows are looked at: in
    smaller ones, all neighbours of a class would look like near copies.

    Args:
        features: ``(n, d)``, without equal rows.
        classes: ``(n,)``, labels or predicted classes.

    Returns:
        The share, or None if fewer than 200 rows can be judged.
    """
    generator, unlikely, judged = torch.Generator().manual_seed(0), 0, 0
    labels, counts = torch.unique(classes, return_counts=True)
    large = labels[counts >= FEWEST]
    ranks = torch.arange(1, NEIGHBOURS, dtype=torch.float64)
    for label in large:
        rows = (classes == label).nonzero().flatten().cpu()
        rows = rows[torch.randperm(len(rows), generator=generator)][:COMPARED]
        h = features[rows.to(features.device)].double()
        queries = h[: max(FEWEST, QUERIES // len(large))]
        distances = torch.cdist(queries, h).cpu()
        near = distances.topk(min(NEIGHBOURS + 1, len(h)), largest=False).values[:, 1:]  # without the row itself
        logs = near.clamp_min(torch.finfo(near.dtype).tiny).log()
        gaps = logs.diff(dim=1) * ranks[: near.shape[1] - 1]
        inner, outer = gaps[:, : NEAREST - 1], gaps[:, NEAREST - 1 :]
        largest = inner.amax(dim=1) / outer.mean(dim=1)
        unlikely += int((1 - (1 - (-largest).exp()) ** (NEAREST - 1) < UNLIKELY).sum())
        judged += len(queries)
    return unlikely / judged if judged >= ENOUGH else None


def count_copies_once(scores: Tensor, distinct: Tensor) -> Tensor:
    r"""Return calibration scores ``(m,)``, in ascending order, that are valid however duplicates of inputs arose.

    The boolean mask ``distinct`` selects the m of n calibration scores of distinct inputs; the others belong to
    duplicates of them. If duplicates are an artefact, future inputs are as diverse as the m, and ``p`` among the m is
    valid. If these inputs recur in use, all n are needed for their frequencies, and ``p`` among the n is valid. The
    larger of the two is valid in both cases; for j = 1 ... m in descending order it is, rounded up, ``p`` among

    .. math:: \max(d_{(j)}, s_{(i)}), \qquad i = \lfloor j \, (n + 1) / (m + 1) \rfloor

    with the j-th largest score d of the m and the i-th largest score s of the n. Without duplicates, the scores are
    returned unchanged.
    """
    every = scores.sort(descending=True).values
    once = scores[distinct].sort(descending=True).values
    n, m = len(every), len(once)
    ranks = torch.arange(1, m + 1, device=scores.device) * (n + 1) // (m + 1)
    return torch.maximum(once, every[ranks - 1]).flip(0)


def _projections(features: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return projections ``(n, p + 1)`` whose distances approximate those of the features, relative to their length."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(features.shape[1], PROJECTIONS, generator=generator, dtype=torch.float64)
    directions = directions.to(features.device) / PROJECTIONS**0.5
    parts = []
    for part in entry_chunks(*features.shape):
        length, unit = split_norm(features[part])
        parts.append(torch.cat([unit.double() @ directions, length.double().log()], dim=1).cpu())
    return torch.cat(parts).numpy()
