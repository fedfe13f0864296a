"""`core.placements` against the ranking functions and a bootstrap."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from flatfold.core.placements import Side, grouped_auroc
from flatfold.core.ranking import auroc


def ragged(rng, sizes, ties):
    width = max(sizes)
    values = rng.integers(0, 6, (len(sizes), width)).astype(float) if ties else rng.normal(size=(len(sizes), width))
    valid = np.arange(width) < np.array(sizes)[:, None]
    return torch.from_numpy(values), torch.from_numpy(valid)


@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20)), min_size=1, max_size=4),
    ties=st.booleans(),
)
def test_each_group_has_the_auroc_of_its_own_samples(seed, sizes, ties):
    rng = np.random.default_rng(seed)
    low, low_valid = ragged(rng, [n for n, _ in sizes], ties)
    high, high_valid = ragged(rng, [m for _, m in sizes], ties)
    got = grouped_auroc(low, Side.of(low_valid), high, Side.of(high_valid))
    for g in range(len(sizes)):
        expected = auroc(low[g][low_valid[g]], high[g][high_valid[g]])
        assert_close(float(got.auroc[g]), expected)
    # deviations from a mean add up to nothing on each side
    assert_close(got.low_influence.sum(-1), torch.zeros(len(sizes), dtype=torch.float64))
    assert_close(got.high_influence.sum(-1), torch.zeros(len(sizes), dtype=torch.float64))
    assert (got.high_influence[~high_valid] == 0).all()


def test_the_influences_give_delongs_standard_error():
    rng = np.random.default_rng(0)
    low, high = rng.normal(size=40), rng.normal(1, 1, size=25)
    placed_high = np.array([np.mean(low < x) for x in high])
    placed_low = np.array([np.mean(high > x) for x in low])
    delong = np.sqrt(placed_high.var(ddof=1) / len(high) + placed_low.var(ddof=1) / len(low))
    low_side, high_side = (Side.of(torch.ones(1, size, dtype=torch.bool)) for size in (40, 25))
    got = grouped_auroc(torch.from_numpy(low)[None], low_side, torch.from_numpy(high)[None], high_side)
    stderr = torch.cat([got.low_influence, got.high_influence], -1).norm()
    assert_close(float(stderr), float(delong))
