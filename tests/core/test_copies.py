"""Which rows are copies, and which of them a calibration may count."""

import pytest
import torch

from flatfold.core.copies import distinct_rows, group_copies, join_groups, share_near_copies


def test_rows_that_differ_by_rounding_are_copies_and_no_others_are():
    rows, noise = (torch.rand(300, 64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    order = torch.randperm(900, generator=torch.Generator().manual_seed(2))
    for size in (1.0, 1e-30, 1e30):  # whose squares a float32 does not hold
        copies = torch.cat([rows, rows * (1 + 1e-6 * noise), rows])[order] * size
        (groups,) = group_copies(copies)
        assert (order % 300 == order[groups] % 300).all()  # each is in the group of a row that it copies
        assert len(groups.unique()) == 300
        assert len(group_copies(torch.cat([rows, rows * (1 + 1e-4 * noise), 2 * rows]) * size)[0].unique()) == 900
    (same,) = group_copies(rows[:1] * (1 + 1e-6 * torch.randn(5000, 64)))
    assert (same == 0).all()
    here, there = group_copies(rows[:200], torch.cat([rows[100:], torch.zeros(2, 64)]))
    assert torch.equal(there[:100], here[100:])
    assert there[100:].tolist() == [*range(300, 400), 400, 400]


def test_the_first_row_of_each_group_counts_unless_others_have_it_too():
    groups = torch.tensor([0, 1, 0, 3, 1, 5])
    assert distinct_rows(groups).tolist() == [True, True, False, True, False, True]
    assert distinct_rows(groups, torch.tensor([1, 1]), torch.tensor([5])).tolist() == [
        True,
        *[False] * 2,
        True,
        *[False] * 2,
    ]
    assert distinct_rows(groups[[4, 2, 1]]).tolist() == [True, True, False]


def test_rows_are_together_that_one_of_two_groupings_has_together():
    joined = join_groups(torch.tensor([0, 0, 2, 3, 4, 5]), torch.tensor([9, 1, 1, 7, 7, 8]))
    assert joined.unique(return_inverse=True)[1].tolist() == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("views", [2, 5])
def test_near_copies_are_told_from_independent_rows(views):
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(400, 32, generator=g)
    alone = centres + 0.1 * torch.randn(400, 32, generator=g)
    seen = torch.cat([centres + 0.1 * torch.randn(400, 32, generator=g) for _ in range(views)])
    assert share_near_copies(alone, torch.arange(400) % 4) < 0.02
    assert share_near_copies(seen, (torch.arange(400) % 4).repeat(views)) > 0.9
    clusters = centres[torch.arange(400) % 80] + 0.1 * torch.randn(400, 32, generator=g)
    assert share_near_copies(clusters, torch.arange(400) % 80) is None, "five of each class are no near copies"
