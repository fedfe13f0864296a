"""`evaluate.reproduce.separation` against the textbook, scipy's ranks and a bootstrap that really draws images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

import flatfold as ff
from flatfold.core.bootstrap import draws
from flatfold.evaluate.reproduce import separation
from flatfold.evaluate.reproduce.separation import bootstrapped_d, cohens_d, separations, spearman

ALPHAS = {"none": 0.0, "partial": 0.4, "full": 1.0}


def textbook_d(known, unknown):
    n, m = len(known), len(unknown)
    pooled = ((n - 1) * np.var(known, ddof=1) + (m - 1) * np.var(unknown, ddof=1)) / (n + m - 2)
    return (np.mean(unknown) - np.mean(known)) / np.sqrt(pooled)


def rngs(seed=0):
    return np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])


@given(n=st.integers(2, 30), m=st.integers(2, 30), shift=st.floats(-1e6, 1e6), seed=st.integers(0, 2**31))
def test_cohens_d_is_the_textbooks(n, m, shift, seed):
    rng = np.random.default_rng(seed)
    known, unknown = rng.normal(size=n), rng.normal(1, 3, size=m)
    assert cohens_d(known, unknown) == pytest.approx(textbook_d(known, unknown))
    assert cohens_d(known + shift, unknown + shift) == pytest.approx(textbook_d(known, unknown), rel=1e-4, abs=1e-6)


def test_it_is_positive_where_unknown_scores_are_higher():
    assert cohens_d(np.array([0.0, 1.0]), np.array([5.0, 6.0])) > 0 > cohens_d(np.array([5.0, 6.0]), np.array([0.0, 1]))


def test_scores_that_do_not_vary_are_a_million_deviations_apart_or_none():
    same = np.full(7, 0.1)
    assert cohens_d(same, same[:3]) == 0
    assert cohens_d(same, same + 1) == 1e6
    assert cohens_d(same, same - 1) == -1e6


def test_the_bootstrap_draws_images_again():
    rng = np.random.default_rng(3)
    known, unknown = rng.gamma(2, size=(2, 13)), rng.gamma(3, size=(2, 17))
    got = bootstrapped_d(known, unknown, 50, rngs())
    ours, theirs = (draws(n, 50, g) for n, g in zip((13, 17), rngs(), strict=True))
    for row in range(2):
        expected = [
            textbook_d(np.repeat(known[row], a), np.repeat(unknown[row], b)) for a, b in zip(ours, theirs, strict=True)
        ]
        assert got[row] == pytest.approx(np.array(expected))


def test_the_bootstrap_does_not_depend_on_how_much_is_worked_on_at_once(monkeypatch):
    rng = np.random.default_rng(4)
    known, unknown = rng.normal(size=(1, 20)), rng.normal(size=(1, 9))
    whole = bootstrapped_d(known, unknown, 11, rngs())
    monkeypatch.setattr(separation, "CHUNK", 3 * 29)
    assert bootstrapped_d(known, unknown, 11, rngs()) == pytest.approx(whole)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=40))
def test_the_rank_correlation_is_scipys_ties_included(pairs):
    x, y = np.array(pairs, dtype=np.float64).T
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert spearman(x, y) == 0
    else:
        assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)


@pytest.fixture(scope="module")
def found(banks):
    return separations(banks, ALPHAS, seed=5)


def test_every_normalisation_has_every_data_set_and_all_images_together(found):
    rows = [(row.normalisation, row.alpha, row.dataset) for row in found.separations]
    assert rows == [(kind, alpha, name) for kind, alpha in ALPHAS.items() for name in ("near-set", "far-set", "all")]


def test_the_scores_are_folds_and_the_norms_those_of_the_features(found, banks):
    assert set(found.norms) == {"id", "near-set", "far-set"}
    assert set(found.scores) == {f"{kind}/{name}" for kind in ALPHAS for name in found.norms}
    for name, bank in banks.judged.items():
        assert found.norms[name] == pytest.approx(np.linalg.norm(bank.features.numpy(), axis=1))
        for kind, alpha in ALPHAS.items():
            expected = ff.Fold(alpha).fit(banks.val, banks.head)(bank.features)
            assert found.scores[f"{kind}/{name}"] == pytest.approx(expected.numpy())
    assert {values.dtype for values in (*found.scores.values(), *found.norms.values())} == {np.dtype(np.float32)}


def test_rows_are_made_of_these_arrays_all_being_the_union(found):
    for row in found.separations:
        names = ["near-set", "far-set"] if row.dataset == "all" else [row.dataset]
        known = found.scores[f"{row.normalisation}/id"].astype(np.float64)
        unknown = np.concatenate([found.scores[f"{row.normalisation}/{name}"] for name in names]).astype(np.float64)
        norms = np.concatenate([found.norms[name] for name in ("id", *names)])
        assert row.cohens_d == pytest.approx(textbook_d(known, unknown))
        assert row.correlation == pytest.approx(spearmanr(norms, np.concatenate([known, unknown])).statistic)


def test_intervals_hold_the_estimate_and_come_from_the_seed(found, banks):
    assert all(row.low < row.cohens_d < row.high for row in found.separations)
    assert separations(banks, ALPHAS, seed=5).separations == found.separations
    other = separations(banks, ALPHAS, seed=6).separations
    assert [row.cohens_d for row in other] == [row.cohens_d for row in found.separations]
    assert [row.low for row in other] != [row.low for row in found.separations]


def test_the_interval_is_as_wide_as_theory_has_it():
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(size=(1, 400)), rng.normal(1, size=(1, 300))
    low, high = np.quantile(bootstrapped_d(known, unknown, 2000, rngs()), [0.025, 0.975])
    d = cohens_d(known[0], unknown[0])
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(1 / 400 + 1 / 300 + d**2 / 1400), rel=0.1)
