"""AutoFold's criteria against naive loops, and their standard errors against repeated sampling."""

import pytest
import torch
from torch.testing import assert_close

from flatfold.core.criteria import group_rows, middle_of_maximum, one_vs_rest, paired, shrunk
from flatfold.core.hessian import class_distances
from flatfold.core.masking import Weights

CENTRES = 3 * torch.randn(6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
WEIGHTS = Weights(class_distances(CENTRES), CENTRES.square().sum(-1))


def draw(per_class, seed, spread=4.0):
    """Features around six centres that are also the class weights: labels that are hard, but not too hard, to guess."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(6, (6 * per_class,), generator=g)
    h = CENTRES[labels] + spread * torch.randn(len(labels), 8, generator=g, dtype=torch.float64)
    return 0.15 * h @ CENTRES.T, labels


def half_as_long(logits, labels, groups, weights, score):
    """`shrunk` without a bias and at exponent 0, where logits are half as large as well."""
    return shrunk(logits, logits / 2, labels, groups, weights, (score, score))


@pytest.mark.parametrize("criterion", [paired, one_vs_rest, half_as_long])
def test_the_standard_error_is_the_spread_over_fresh_samples(criterion):
    runs = []
    for seed in range(200):
        logits, labels = draw(20, seed)
        groups = group_rows(labels, torch.arange(6))
        runs.append(torch.stack(criterion(logits, labels, groups, WEIGHTS, lambda m: m.trace)))
    values, errors = torch.stack(runs).T
    # 200 runs know their spread to 5 %; the influence form itself is a first-order approximation
    assert_close(errors.square().mean().sqrt(), values.std(), rtol=0.2, atol=0)


def test_group_rows_lists_the_rows_of_each_class():
    groups = group_rows(torch.tensor([2, 0, 2, 1, 2]), torch.tensor([2, 1]))
    assert groups.rows[0].tolist() == [0, 2, 4]
    assert groups.rows[1][groups.members.valid[1]].tolist() == [3]


@pytest.mark.parametrize(
    ("curve", "index"),
    [
        ([0.1, 0.5, 0.3], 1),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 2),
        ([1.0, 1.0], 0),
        ([0.9, 0.90001, 0.90002, 0.2], 2),
        ([0.2, 1.0, 1.0 - 1e-15, 1.0, 0.9], 2),
    ],
)
def test_among_ties_the_middle_one_is_taken(curve, index):
    assert middle_of_maximum(torch.tensor(curve, dtype=torch.float64)) == index
