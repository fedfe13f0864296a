"""`core.shaping`: the formulas, row by row."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from flatfold.core.precision import widened
from flatfold.core.shaping import (
    ash_b,
    partially_normalised,
    partially_normalised_probs,
    percentile_threshold,
    react,
)

H = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@given(st.floats(0, 1))
def test_partial_normalisation_leaves_a_norm_of_one_minus_alpha(alpha):
    assert_close(partially_normalised(H, alpha).norm(dim=-1), H.norm(dim=-1) ** (1 - alpha))


def test_very_short_features_are_normalised_like_others():
    assert_close(partially_normalised(1e-6 * H, 1.0), partially_normalised(H, 1.0))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_zero_features_stay_zero_and_get_the_bias_as_logits(alpha, dtype):
    zero, bias = torch.zeros(2, 9, dtype=dtype), torch.arange(3, dtype=dtype)
    assert_close(partially_normalised(zero, alpha), zero)
    assert_close(partially_normalised_probs(zero, H[:3].to(dtype), bias, alpha), bias.softmax(-1).expand(2, 3))


@pytest.mark.parametrize("bias", [None, torch.arange(3.0, dtype=torch.float64)])
def test_rescaling_logits_is_normalising_features(bias):
    got = partially_normalised_probs(H, H[:3], bias, 0.4)
    expected = partially_normalised(H, 0.4) @ H[:3].T + (0 if bias is None else bias)
    assert_close(got, expected.softmax(-1))


def test_a_device_without_float64_is_left_in_peace():
    weight = SimpleNamespace(device=SimpleNamespace(type="mps"), numel=lambda: 1)
    assert widened(weight, "features") == (weight, "features")


def test_a_large_head_is_multiplied_in_the_type_of_the_features():
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


@given(st.floats(1, 99.99))
def test_the_threshold_is_numpys_percentile(percentile):
    assert percentile_threshold(H, percentile) == np.percentile(H.numpy(), percentile)


def test_the_threshold_works_where_torch_quantile_gives_up():
    assert percentile_threshold(torch.zeros(17, 1_000_000), 90) == 0.0


def test_react_clips_from_above_only():
    clipped = react(H, 0.5)
    assert_close(clipped, torch.from_numpy(np.minimum(H.numpy(), 0.5)))


@pytest.mark.parametrize(("percentile", "k"), [(0, 9), (50, 5), (65, 3), (90, 1), (94, 1)])
def test_ash_sets_the_k_largest_to_the_same_share_of_the_sum(percentile, k):
    """Keep 9 - round(9 percentile / 100), rounding half to even: 9 * 0.5 = 4.5 becomes 4."""
    shaped = ash_b(H, percentile)
    for before, after in zip(H, shaped, strict=True):
        kept = after != 0
        assert int(kept.sum()) == k
        assert before[kept].min() >= before[~kept].max() if k < 9 else True
        assert_close(after[kept], before.sum().expand(k) / k)


def test_no_shaping_changes_its_input():
    before = H.clone()
    ash_b(H, 65)
    react(H, 0.1)
    partially_normalised(H, 1)
    assert_close(H, before, rtol=0, atol=0)


@pytest.mark.parametrize("percentile", [-1, 0.9, 100, 100.5])
def test_a_percentile_outside_the_range_is_refused(percentile):
    with pytest.raises(ValueError, match="at least 1 and below 100"):
        ash_b(H, percentile)
    with pytest.raises(ValueError, match="at least 1 and below 100"):
        percentile_threshold(H, percentile)


def test_a_percentile_that_leaves_no_feature_is_refused():
    with pytest.raises(ValueError, match="percentile 99 of 9 features leaves none"):
        ash_b(H, 99)
