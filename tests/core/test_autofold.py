"""AutoFold's masking, placements and criteria against slow definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from flatfold import AutoFold, FeatureBank, Head, auroc
from flatfold.core.autofold import (
    Side,
    Weights,
    group_rows,
    grouped_auroc,
    middle_of_maximum,
    one_vs_rest_auroc,
    paired_auroc,
    with_and_without,
    without_each,
)


def make_case(n=7, c=5, d=4, seed=0, scale=3.0):
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, c, generator=g, dtype=torch.float64)
    weight = torch.randn(c, d, generator=g, dtype=torch.float64)
    labels = torch.randint(c, (n,), generator=g)
    return logits, labels, weight


WIDTHS = [4, 2]  # of five classes: with distances between all pairs, and from the weights alone


def weights_of(weight):
    weights = Weights.of(weight, second=True)
    assert (weights.distances is None) == (weight.shape[1] == 2)
    return weights


def moments(probs, weight):
    """The definition: E|w - E w|^2 and E|w|^2."""
    mean = probs @ weight
    spread = (weight[None] - mean[:, None]).square().sum(-1)
    return (probs * spread).sum(-1), probs @ weight.square().sum(-1)


def masked_probs(logits, k):
    logits = logits.clone()
    logits[torch.arange(len(logits)), k] = -torch.inf
    return logits.softmax(-1)


@pytest.mark.parametrize("d", WIDTHS)
@given(seed=st.integers(0, 2**31), scale=st.floats(0.01, 8))
def test_masked_moments_equal_their_definitions(d, seed, scale):
    logits, labels, weight = make_case(d=d, seed=seed, scale=scale)
    whole, masked = with_and_without(logits, labels, weights_of(weight))
    for got, probs in ((whole, logits.softmax(-1)), (masked, masked_probs(logits, labels))):
        trace, second = moments(probs, weight)
        assert_close(got.trace, trace, rtol=1e-9, atol=1e-12)
        assert_close(got.second, second, rtol=1e-9, atol=1e-12)
    for classes in (torch.tensor([3, 0, 4]), torch.tensor([3, 1])):  # most of them, and few of them
        got = without_each(logits, classes, weights_of(weight))
        for row, k in enumerate(classes):
            trace, second = moments(masked_probs(logits, torch.full((len(logits),), int(k))), weight)
            assert_close(got.trace[row], trace, rtol=1e-6, atol=1e-9)
            assert_close(got.second[row], second, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("d", WIDTHS)
def test_masking_the_top_class_of_a_very_confident_row_is_exact(d):
    weight = make_case(d=d)[2]
    for gap in (10.0, 40.0, 700.0):
        logits = torch.tensor([[gap, 1.0, 0.5, 0.0, -1.0]], dtype=torch.float64)
        trace, second = moments(masked_probs(logits, torch.tensor([0])), weight)
        got = without_each(logits, torch.tensor([0]), weights_of(weight))
        assert torch.allclose(got.trace[0], trace, rtol=1e-12, atol=0), gap
        assert torch.allclose(got.second[0], second, rtol=1e-12, atol=0), gap
    # a class with hardly any mass keeps its part of the trace
    logits = torch.tensor([[0.0, -40.0, -45.0, -46.0, -50.0]], dtype=torch.float64)
    whole, _ = with_and_without(logits, torch.tensor([1]), weights_of(weight))
    p = logits.softmax(-1)[0]
    pairs = sum(p[i] * p[j] * (weight[i] - weight[j]).square().sum() for i in range(5) for j in range(i))
    assert_close(whole.trace[0], pairs, rtol=1e-12, atol=0)


def pair_sum(p, weight):
    """The sum over pairs of classes, of which no term is negative."""
    return 0.5 * (p[:, :, None] * p[:, None] * (weight[:, None] - weight).square().sum(-1)).sum((1, 2))


@pytest.mark.parametrize(("c", "d"), [(30, 60), (60, 8)])
def test_confident_rows_keep_their_digits(c, d):
    logits, _, weight = make_case(n=40, c=c, d=d, scale=1.0)
    top = logits.argmax(-1)
    logits[torch.arange(40), top] += 20 + 10 * torch.rand(40, generator=torch.Generator().manual_seed(0))
    weights = Weights.of(weight)
    assert (weights.distances is None) == (c == 60)
    assert (1 - logits.softmax(-1).amax(-1)).median() < 1e-9
    second = logits.topk(2).indices[:, 1]
    for classes in (top, second, second.roll(1)):
        whole, masked = with_and_without(logits, classes, weights)
        assert_close(whole.trace, pair_sum(logits.softmax(-1), weight), rtol=1e-11, atol=0)
        assert_close(masked.trace, pair_sum(masked_probs(logits, classes), weight), rtol=1e-11, atol=0)
    got = without_each(logits, torch.arange(c), weights).trace
    for k in range(c):
        assert_close(got[k], pair_sum(masked_probs(logits, torch.full((40,), k)), weight), rtol=1e-10, atol=0)


@pytest.mark.parametrize("d", WIDTHS)
@given(seed=st.integers(0, 2**31))
def test_rounding_makes_no_masked_trace_negative(d, seed):
    logits, _, weight = make_case(d=d, seed=seed, scale=60.0)
    assert (without_each(logits, torch.arange(5), weights_of(weight)).trace >= 0).all()


# --- placements


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
        assert_close(float(got.auroc[g]), auroc(low[g][low_valid[g]], high[g][high_valid[g]]))
    # deviations from a mean add up to nothing on each side
    assert_close(got.low_influence.sum(-1), torch.zeros(len(sizes), dtype=torch.float64))
    assert_close(got.high_influence.sum(-1), torch.zeros(len(sizes), dtype=torch.float64))
    assert (got.high_influence[~high_valid] == 0).all()


def test_blocks_of_classes_give_what_all_classes_give_at_once(monkeypatch):
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(9, (60,), generator=g)
    known, masked, each = (torch.randn(*size, generator=g).double() for size in ((60,), (60,), (4, 60)))
    classes = torch.tensor([7, 0, 3, 4])
    at_once = group_rows(labels, classes)
    monkeypatch.setattr("flatfold.core.hessian.ENTRIES_AT_ONCE", 130)  # two classes
    parts = group_rows(labels, classes)
    assert (len(at_once.blocks), len(parts.blocks)) == (1, 2)
    for criterion, scores in ((paired_auroc, (known, masked)), (one_vs_rest_auroc, (each,))):
        expected, got = criterion(*scores, at_once), criterion(*scores, parts)
        assert_close(got.auroc, expected.auroc)
        assert_close(got.influence, expected.influence)
    assert_close(float(expected.auroc[2]), auroc(each[2][labels != 3], each[2][labels == 3]))


def test_the_influences_give_delongs_standard_error():
    rng = np.random.default_rng(0)
    low, high = rng.normal(size=40), rng.normal(1, 1, size=25)
    placed_high = np.array([np.mean(low < x) for x in high])
    placed_low = np.array([np.mean(high > x) for x in low])
    delong = np.sqrt(placed_high.var(ddof=1) / len(high) + placed_low.var(ddof=1) / len(low))
    low_side, high_side = (Side.of(torch.ones(1, size, dtype=torch.bool)) for size in (40, 25))
    got = grouped_auroc(torch.from_numpy(low)[None], low_side, torch.from_numpy(high)[None], high_side)
    assert_close(float(torch.cat([got.low_influence, got.high_influence], -1).norm()), float(delong))


def test_the_error_of_a_paired_auroc_is_that_of_leaving_out_samples_with_their_copies():
    rng = np.random.default_rng(2)
    known = rng.normal(size=60)
    for copies in (known + 0.5 + 0.2 * rng.normal(size=60), 0.5 - known):  # that move with them, and against them
        labels = torch.zeros(60, dtype=torch.int64)
        scores = torch.from_numpy(known), torch.from_numpy(copies)
        _, error = paired_auroc(*scores, group_rows(labels, labels[:1])).mean()
        without = [auroc(np.delete(known, i), np.delete(copies, i)) for i in range(60)]
        assert float(error) == pytest.approx(np.std(without) * 59**0.5, rel=0.05)


# --- criteria

CENTRES = 3 * torch.randn(6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def draw(per_class, seed, spread=4.0):
    """Features around six centres that are also the class weights: labels that are hard, but not too hard, to guess."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(6, (6 * per_class,), generator=g)
    h = CENTRES[labels] + spread * torch.randn(len(labels), 8, generator=g, dtype=torch.float64)
    return FeatureBank(0.15 * h, labels)


@pytest.mark.parametrize("criterion", ["paired", "one_vs_rest", "shrunk"])
def test_the_standard_error_is_the_spread_over_fresh_samples(criterion):
    runs = []
    for seed in range(200):
        fitted = AutoFold(criterion, grid=[0.0]).fit(draw(20, seed), Head(CENTRES))
        runs.append(torch.cat([fitted.curve_, fitted.curve_stderr_]))
    values, errors = torch.stack(runs).T
    # 200 runs know their spread to 5 %; the influence form itself is a first-order approximation
    assert_close(errors.square().mean().sqrt(), values.std(), rtol=0.2, atol=0)


def test_among_ties_the_middle_one_is_taken():
    for curve, index in (
        ([0.1, 0.5, 0.3], 1),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 2),
        ([1.0, 1.0], 0),
        ([0.9, 0.90001, 0.90002, 0.2], 2),
        ([0.2, 1.0, 1.0 - 1e-15, 1.0, 0.9], 2),
    ):
        assert middle_of_maximum(torch.tensor(curve, dtype=torch.float64)) == index, curve
