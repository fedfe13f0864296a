"""`core.bootstrap` against `core.ranking` on images that are really repeated, and the laws of a bootstrap."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatfold.core import bootstrap
from flatfold.core.bootstrap import METRICS, SortedPair, draws, percentile_interval, rate_interval, spoilt_aupr
from flatfold.core.ranking import aupr, fpr_at_tpr

ROUNDING = 1e-14  # of sums of up to 60 areas in another order; rates are exact


def ranked(known, unknown):
    """The metrics of `core.ranking`."""
    return {
        "fpr95_ood_positive": fpr_at_tpr(known, unknown, positive="ood"),
        "fpr95_id_positive": fpr_at_tpr(known, unknown, positive="id"),
        "aupr_out": aupr(known, unknown, positive="ood"),
        "aupr_in": aupr(known, unknown, positive="id"),
    }


def assert_equal_to_repeated(got, known, unknown, known_counts, unknown_counts):
    for row, (k, u) in enumerate(zip(known_counts, unknown_counts, strict=True)):
        for name, expected in ranked(np.repeat(known, k), np.repeat(unknown, u)).items():
            if name.startswith("fpr"):
                assert got[name][row] == expected
            else:
                assert got[name][row] == pytest.approx(expected, abs=ROUNDING)


@given(
    n=st.integers(1, 60),
    m=st.integers(1, 60),
    kinds=st.sampled_from([2, 5, 1000]),
    whole=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_metrics_are_those_of_images_that_are_repeated(n, m, kinds, whole, seed):
    """Few kinds of scores: ties. Rows need not sum to n."""
    rng = np.random.default_rng(seed)
    known, unknown = (rng.integers(0, kinds, size).astype(np.float32) for size in (n, m))
    if whole:
        counts = [draws(size, 4, rng) for size in (n, m)]
    else:
        counts = [rng.integers(0, 3, (4, size)) for size in (n, m)]
        for side in counts:
            side[:, 0] += side.sum(axis=1) == 0
    assert_equal_to_repeated(SortedPair(known, unknown).metrics(*counts), known, unknown, *counts)


@pytest.mark.parametrize("size", [1, 19, 20, 21, 40, 100, 133, 180, 200, 399, 400, 1000, 2020])
def test_the_rate_of_95_percent_is_reached_at_the_same_image(size):
    """0.95 n is not always a whole number in floating point."""
    rng = np.random.default_rng(size)
    known, unknown = rng.normal(size=size), rng.normal(1, 1, size=size)
    counts = draws(size, 5, rng), draws(size, 5, rng)
    assert_equal_to_repeated(SortedPair(known, unknown).metrics(*counts), known, unknown, *counts)


def test_scores_are_taken_as_ranking_takes_them():
    known, unknown = np.array([-np.inf, 1.0, np.inf]), np.array([np.inf, 2.0])
    counts = np.array([[2, 1, 0], [1, 1, 1]]), np.array([[1, 1], [2, 0]])
    assert_equal_to_repeated(SortedPair(known, unknown).metrics(*counts), known, unknown, *counts)
    with pytest.raises(ValueError, match="1 NaN of 2"):
        SortedPair(np.array([0.0, np.nan]), unknown)


def test_chunks_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    pair = SortedPair(rng.normal(size=30), rng.normal(1, 1, size=20))
    counts = draws(30, 11, rng), draws(20, 11, rng)
    whole = pair.metrics(*counts), pair.bootstrap(11, generators(3))
    for chunk in (1, 100, 250):
        monkeypatch.setattr(bootstrap, "CHUNK", chunk)
        for expected, got in zip(whole, (pair.metrics(*counts), pair.bootstrap(11, generators(3))), strict=True):
            assert all(np.array_equal(got[name], expected[name]) for name in METRICS)


def generators(seed):
    return np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])


def test_a_bootstrap_is_the_metrics_of_its_draws():
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(size=40).round(1), rng.normal(1, 1, size=25).round(1)
    known_rng, unknown_rng = generators(7)
    counts = draws(40, 9, known_rng), draws(25, 9, unknown_rng)
    got = SortedPair(known, unknown).bootstrap(9, generators(7))
    assert tuple(got) == METRICS
    assert_equal_to_repeated(got, known, unknown, *counts)


def test_only_what_is_asked_for_is_returned():
    pair = SortedPair(np.arange(5.0), np.arange(3.0, 9.0))
    whole = pair.bootstrap(20, generators(1))
    for name in METRICS:
        (item,) = pair.bootstrap(20, generators(1), names=[name]).items()
        assert item[0] == name
        assert np.array_equal(item[1], whole[name])


def test_a_draw_has_as_many_images_as_there_are_and_each_is_as_likely():
    counts = draws(50, 4000, np.random.default_rng(0))
    assert counts.shape == (4000, 50)
    assert counts.dtype == np.int32
    assert (counts.sum(axis=1) == 50).all()
    assert (counts >= 0).all()
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=5 / np.sqrt(4000))
    assert counts.var() == pytest.approx(1 - 1 / 50, rel=0.05)
    assert abs(np.corrcoef(counts[:, 0], counts[:, 1])[0, 1] + 1 / 49) < 5 / np.sqrt(4000)


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_draws_in_pieces_are_the_draws_at_once(n):
    whole = draws(n, 7, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    assert np.array_equal(np.concatenate([draws(n, size, rng) for size in (1, 3, 3)]), whole)
    assert n == 1 or not np.array_equal(whole[0], whole[1])


def test_memory_does_not_grow_with_the_replicates():
    rng = np.random.default_rng(0)
    pair = SortedPair(rng.normal(size=50_000), rng.normal(1, 1, size=70_000))
    tracemalloc.start()
    pair.bootstrap(40, generators(0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64e6


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(0, 1), st.sampled_from([0.5, 0.95]))
def test_an_interval_holds_the_estimate_and_the_middle_of_the_replicates(replicates, estimate, level):
    low, high = percentile_interval(estimate, np.array(replicates), level)
    assert low <= estimate <= high
    ends = np.percentile(replicates, [50 - 50 * level, 50 + 50 * level])
    assert (low, high) == pytest.approx((min(ends[0], estimate), max(ends[1], estimate)), abs=1e-12)


@pytest.mark.parametrize("n", [1, 20, 5000])
def test_a_rate_of_0_or_1_gets_the_exact_binomial_bound(n):
    low, high = rate_interval(0.0, n)
    assert low == 0
    assert (1 - high) ** n == pytest.approx(0.025)
    assert rate_interval(1.0, n) == pytest.approx((1 - high, 1))
    assert rate_interval(0.25, n) == (0.25, 0.25)


@pytest.mark.parametrize(("share", "positives", "negatives"), [(0.01, 20_000, 20_000), (0.1, 30_000, 6_000)])
def test_a_spoilt_ranking_has_the_area_of_one_that_is_made(share, positives, negatives):
    first = round(share * negatives)
    others = np.concatenate([np.full(first, 3.0), np.full(negatives - first, 1.0)])
    hits = np.linspace(2, 2.5, positives)
    assert spoilt_aupr(share, positives, negatives) == pytest.approx(aupr(others, hits), abs=2e-4)


def test_counts_of_other_sizes_are_refused():
    pair = SortedPair(np.arange(3.0), np.arange(2.0))
    good = np.ones((4, 3), int), np.ones((4, 2), int)
    with pytest.raises(ValueError, match=r"known_counts must have a row of 3 counts per replicate, got shape \(4, 2\)"):
        pair.metrics(good[1], good[1])
    with pytest.raises(ValueError, match=r"unknown_counts must have a row of 2 counts .* got shape \(2,\)"):
        pair.metrics(good[0], good[1][0])
    with pytest.raises(ValueError, match=r"known_counts must have a row of 3 counts .* got shape \(0, 3\)"):
        pair.metrics(good[0][:0], good[1][:0])
    with pytest.raises(ValueError, match=r"as many rows, got 4 and 3"):
        pair.metrics(good[0], good[1][:3])


@pytest.mark.parametrize("counts", [[[0, 0, 0]], [[2, -1, 1]]])
def test_a_row_that_draws_nothing_is_refused(counts):
    pair = SortedPair(np.arange(3.0), np.arange(2.0))
    with pytest.raises(ValueError, match="every row of known_counts must draw an image, and none less than 0 times"):
        pair.metrics(np.array(counts), np.ones((1, 2), int))


def test_a_metric_that_does_not_exist_is_refused():
    pair = SortedPair(np.arange(3.0), np.arange(2.0))
    with pytest.raises(ValueError, match=r"no metric is called auroc here\. There are fpr95_ood_positive, "):
        pair.bootstrap(3, generators(0), names=["auroc"])


def test_a_bootstrap_without_replicates_is_refused():
    pair = SortedPair(np.arange(3.0), np.arange(2.0))
    with pytest.raises(ValueError, match=r"a bootstrap needs a replicate, got 0\. 1000 is customary"):
        pair.bootstrap(0, generators(0))
