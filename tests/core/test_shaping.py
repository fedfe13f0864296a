"""Feature shaping: partial normalisation, norm caps, ReAct and ASH, row by row."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from flatfold.core.hessian import widen
from flatfold.core.shaping import (
    ash_b,
    cap_norms,
    column_percentiles,
    partially_normalised,
    partially_normalised_probs,
    percentile_threshold,
    percentiles,
)
from tests.refusals import assert_refused

H = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@given(st.floats(0, 1))
def test_partial_normalisation_leaves_a_norm_of_one_minus_alpha(alpha):
    assert_close(partially_normalised(H, alpha).norm(dim=-1), H.norm(dim=-1) ** (1 - alpha))
    assert_close(partially_normalised(1e-6 * H, 1.0), partially_normalised(H, 1.0))


def test_zero_features_stay_zero_and_get_the_bias_as_logits():
    for dtype in (torch.float32, torch.float64):
        zero, bias = torch.zeros(2, 9, dtype=dtype), torch.arange(3, dtype=dtype)
        for alpha in (0.0, 0.3, 1.0):
            assert_close(partially_normalised(zero, alpha), zero)
            assert_close(partially_normalised_probs(zero, H[:3].to(dtype), bias, alpha), bias.softmax(-1).expand(2, 3))


def test_rescaling_logits_is_normalising_features():
    for bias in (None, torch.arange(3.0, dtype=torch.float64)):
        got = partially_normalised_probs(H, H[:3], bias, 0.4)
        expected = partially_normalised(H, 0.4) @ H[:3].T + (0 if bias is None else bias)
        assert_close(got, expected.softmax(-1))


def test_a_device_without_float64_and_a_large_head_keep_the_type_of_the_features():
    weight = SimpleNamespace(device=SimpleNamespace(type="mps"), numel=lambda: 1)
    assert widen(weight, "features") == (weight, "features")
    h, weight = torch.randn(3, 2048), torch.randn(1000, 2048) / 45
    got = partially_normalised_probs(h, weight, None, 0.0)
    assert_close(got, (h @ weight.T).softmax(-1), rtol=0, atol=0)
    assert_close(got.double(), (h.double() @ weight.double().T).softmax(-1), rtol=1e-4, atol=0)


def test_probabilities_do_not_depend_on_the_batch_not_even_in_the_last_bit():
    h, weight = torch.randn(300, 512), torch.randn(100, 512)
    together = partially_normalised_probs(h, weight, None, 0.3)
    alone = torch.cat([partially_normalised_probs(row[None], weight, None, 0.3) for row in h])
    assert (together != alone).double().mean() < 1e-4  # a float64 sum may round to the neighbour once in a while
    assert_close(together, alone, rtol=2e-7, atol=0)


def shortened(h, longest):
    """Slow and obvious: a row is left alone, or brought to the longest norm."""
    return torch.stack([row if row.norm() <= longest else row / row.norm() * longest for row in h])


def test_only_rows_longer_than_the_cap_are_shortened_and_keep_their_direction():
    h = torch.randn(50, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert 0 < int((h.norm(dim=1) > 2.5).sum()) < 50
    assert_close(cap_norms(h, 2.5), shortened(h, 2.5), rtol=1e-12, atol=0)
    h = torch.randn(200, 7, generator=torch.Generator().manual_seed(1))
    assert torch.equal(cap_norms(h, float(h.norm(dim=1).max()) * 1.001), h)  # to the last bit
    for size in (1e-42, 1e-25, 1e18, 1e25, 8e37):  # the squares need not be numbers of the type
        h = torch.tensor([[3.0, -4.0]]) * size
        assert torch.allclose(cap_norms(h, 2.5), shortened(h.double(), 2.5).float(), rtol=1e-6, atol=0), size


def test_a_capped_row_of_zeros_stays_one_and_can_be_differentiated():
    h = torch.zeros(2, 3, requires_grad=True)
    short = cap_norms(h, 1.0)
    assert torch.equal(short, torch.zeros(2, 3))
    short.sum().backward()
    assert torch.equal(h.grad, torch.ones(2, 3))


@given(st.floats(1, 99.99))
def test_the_threshold_is_numpys_percentile(percentile):
    assert percentile_threshold(H, percentile) == np.percentile(H.numpy(), percentile)


def test_the_threshold_works_where_torch_quantile_gives_up():
    assert percentile_threshold(torch.zeros(17, 1_000_000), 90) == 0.0


def test_react_clips_from_above_only_and_no_shaping_changes_its_input():
    before = H.clone()
    ash_b(H, 65), partially_normalised(H, 1), cap_norms(H, 0.1)
    assert torch.equal(H, before)


def test_ash_sets_the_k_largest_to_the_same_share_of_the_sum():
    """Keep 9 - round(9 percentile / 100), rounding half to even: 9 * 0.5 = 4.5 becomes 4."""
    for percentile, k in ((0, 9), (50, 5), (65, 3), (90, 1), (94, 1)):
        for before, after in zip(H, ash_b(H, percentile), strict=True):
            kept = after != 0
            assert int(kept.sum()) == k, percentile
            assert k == 9 or before[kept].min() >= before[~kept].max(), percentile
            assert_close(after[kept], before.sum().expand(k) / k)


def test_a_percentile_outside_the_range_is_refused():
    for percentile in (-1, 0.9, 100, 100.5):
        assert_refused(ValueError, "below 100", ash_b, H, percentile)
        assert_refused(ValueError, "below 100", percentile_threshold, H, percentile)
    assert_refused(ValueError, "leaves none", ash_b, H, 99)


@given(n=st.integers(1, 40), d=st.integers(1, 30), digits=st.integers(0, 4), seed=st.integers(0, 2**31))
def test_percentiles_without_a_copy_are_numpys_to_the_last_digit(n, d, digits, seed):
    rng, shares = np.random.default_rng(seed), (0.0, 0.1, 37.3, 50, 90, 99.9, 100)
    h = rng.standard_normal((n, d)).round(digits).astype(np.float32)  # ties, zeros of both signs
    h = np.maximum(h, 0) if seed % 2 else h
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flatfold.core.shaping.ENTRIES_SORTED", 0)
        patch.setattr("flatfold.core.hessian.ENTRIES_AT_ONCE", 17)
        assert percentiles(torch.from_numpy(h), shares) == [float(value) for value in np.percentile(h, shares)]
        assert percentile_threshold(torch.from_numpy(h), 90) == np.percentile(h, [90])[0]
        assert np.array_equal(column_percentiles(torch.from_numpy(h), 90), np.percentile(h, 90, axis=0))
