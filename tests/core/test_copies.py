"""Which rows are copies, and which of them a calibration may count."""

import torch

from flatfold.core.copies import distinct_rows, group_copies


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
