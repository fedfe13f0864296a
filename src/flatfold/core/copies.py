"""Copies: inputs with equal features up to rounding, and how many of them a calibration may count."""

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
