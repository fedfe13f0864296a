"""The bootstrap against the ranking metrics of images that are really repeated, and the laws of a bootstrap."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatfold import aupr, fpr_at_tpr
from flatfold.core import bootstrap
from flatfold.core.bootstrap import METRICS, SortedScores, draws, percentile_interval, rate_interval, worst_case_aupr
from tests.refusals import assert_refused

ROUNDING = 1e-14  # of sums of up to 60 areas in another order; rates are exact


def ranked(known, unknown):
    return {
        "fpr95_ood_positive": fpr_at_tpr(known, unknown, positive="ood"),
        "fpr95_id_positive": fpr_at_tpr(known, unknown, positive="id"),
        "aupr_out": aupr(known, unknown, positive="ood"),
        "aupr_in": aupr(known, unknown, positive="id"),
    }


def assert_metrics_of_repeated(known, unknown, known_counts, unknown_counts):
    got = SortedScores([known], [[unknown]]).metrics(known_counts, [unknown_counts])
    assert_equal_to_repeated(
        {name: values[0, 0] for name, values in got.items()}, known, unknown, known_counts, unknown_counts
    )


def assert_equal_to_repeated(got, known, unknown, known_counts, unknown_counts):
    for row, (k, u) in enumerate(zip(known_counts, unknown_counts, strict=True)):
        for name, expected in ranked(np.repeat(known, k), np.repeat(unknown, u)).items():
            rounding = 0 if name.startswith("fpr") else ROUNDING
            assert got[name][row] == pytest.approx(expected, rel=0, abs=rounding), (name, len(known), len(unknown))


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
    assert_metrics_of_repeated(known, unknown, *counts)


def test_the_rate_of_95_percent_is_reached_at_the_same_image():
    """0.95 n is not always a whole number in floating point."""
    for size in (1, 19, 20, 21, 40, 100, 133, 180, 200, 399, 400, 1000, 2020):
        rng = np.random.default_rng(size)
        known, unknown = rng.normal(size=size), rng.normal(1, 1, size=size)
        counts = draws(size, 5, rng), draws(size, 5, rng)
        assert_metrics_of_repeated(known, unknown, *counts)


def test_infinite_scores_have_a_rank():
    known, unknown = np.array([-np.inf, 1.0, np.inf]), np.array([np.inf, 2.0])
    counts = np.array([[2, 1, 0], [1, 1, 1]]), np.array([[1, 1], [2, 0]])
    assert_metrics_of_repeated(known, unknown, *counts)


def make_methods(rng, methods, n, *sizes, decimals=1):
    """Scores of some methods on the same ID images and data sets, rounded for ties."""
    known = [rng.normal(size=n).round(decimals) for _ in range(methods)]
    unknown = [[rng.normal(1, 1, size=m).round(decimals) for m in sizes] for _ in range(methods)]
    return known, unknown


def generators(seed, count=2):
    return [np.random.default_rng([seed, i]) for i in range(count)]


def test_chunks_change_nothing(monkeypatch):
    scores = SortedScores(*make_methods(np.random.default_rng(0), 2, 30, 20, 40))
    whole = scores.bootstrap(11, generators(3, 3))
    for chunk in (1, 150, 350):  # of one, two and five replicates
        monkeypatch.setattr(bootstrap, "CHUNK", chunk)
        got = scores.bootstrap(11, generators(3, 3))
        assert all(np.array_equal(got[name], whole[name]) for name in METRICS)


def test_long_vectors_are_summed_in_parts(monkeypatch):
    known, unknown = (np.random.default_rng(i).normal(i, 1, size=60) for i in (0, 1))
    counts = draws(60, 4, np.random.default_rng(2)), draws(60, 4, np.random.default_rng(3))
    for rows, block in ((1, 1), (7, 2), (61, 61)):
        monkeypatch.setattr(bootstrap, "ROWS", rows)
        monkeypatch.setattr(bootstrap, "BLOCK", block)
        assert_metrics_of_repeated(known, unknown, *counts)


def test_counts_that_do_not_fit_into_short_integers_are_counted():
    known, unknown = np.array([0.0, 2.0, 2.0]), np.array([1.0, 2.0])
    for most in (20_000, 40_000):
        counts = np.array([[most, 3, 1], [1, 2, most]]), np.array([[2, most], [most, 5]])
        assert_metrics_of_repeated(known, unknown, *counts)


def test_a_bootstrap_is_the_metrics_of_its_draws_for_every_method_and_data_set():
    known, unknown = make_methods(np.random.default_rng(0), 3, 40, 25, 31)
    counts = [draws(n, 9, rng) for n, rng in zip((40, 25, 31), generators(7, 3), strict=True)]
    scores = SortedScores(known, unknown)
    got = scores.bootstrap(9, generators(7, 3))
    assert tuple(got) == METRICS
    for method in range(3):
        for dataset in range(2):
            one = {name: values[method, dataset] for name, values in got.items()}
            assert_equal_to_repeated(one, known[method], unknown[method][dataset], counts[0], counts[1 + dataset])
    for name in METRICS:
        alone = scores.bootstrap(9, generators(7, 3), names=[name])
        assert list(alone) == [name]
        assert np.array_equal(alone[name], got[name])


def test_a_draw_has_as_many_images_as_there_are_and_each_is_as_likely():
    counts = draws(50, 4000, np.random.default_rng(0))
    assert counts.shape == (4000, 50)
    assert (counts.sum(axis=1) == 50).all()
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=5 / np.sqrt(4000))
    assert counts.var() == pytest.approx(1 - 1 / 50, rel=0.05)


def test_memory_does_not_grow_with_the_replicates():
    rng = np.random.default_rng(0)
    scores = SortedScores(*make_methods(rng, 1, 50_000, 70_000, decimals=9))
    tracemalloc.start()
    scores.bootstrap(40, generators(0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 128e6


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(0, 1), st.sampled_from([0.5, 0.95]))
def test_an_interval_holds_the_estimate_and_the_middle_of_the_replicates(replicates, estimate, level):
    low, high = percentile_interval(estimate, np.array(replicates), level)
    assert low <= estimate <= high
    ends = np.percentile(replicates, [50 - 50 * level, 50 + 50 * level])
    assert (low, high) == pytest.approx((min(ends[0], estimate), max(ends[1], estimate)), abs=1e-12)


def test_a_rate_of_0_or_1_gets_the_exact_binomial_bound():
    for n in (1, 20, 5000):
        low, high = rate_interval(0.0, n)
        assert low == 0
        assert (1 - high) ** n == pytest.approx(0.025), n
        assert rate_interval(1.0, n) == pytest.approx((1 - high, 1)), n
        assert rate_interval(0.25, n) == (0.25, 0.25), n


def test_the_formula_of_a_spoilt_ranking_gives_the_area_of_an_actual_one():
    for share, positives, negatives in ((0.01, 20_000, 20_000), (0.1, 30_000, 6_000)):
        first = round(share * negatives)
        others = np.concatenate([np.full(first, 3.0), np.full(negatives - first, 1.0)])
        hits = np.linspace(2, 2.5, positives)
        assert worst_case_aupr(share, positives, negatives) == pytest.approx(aupr(others, hits), abs=2e-4), share


def test_scores_without_a_rank_are_refused():
    assert_refused(ValueError, "NaN", SortedScores, [np.array([0.0, np.nan])], [[np.arange(2.0)]])


def test_methods_with_other_images_are_refused():
    known, unknown = make_methods(np.random.default_rng(0), 2, 5, 4, 3)
    assert_refused(ValueError, "same images", SortedScores, [known[0], known[1][1:]], unknown)
    assert_refused(ValueError, "same images", SortedScores, known, [unknown[0], unknown[1][::-1]])
