"""Numbers behind the claims about scores, costs and the theorem, against slow sums in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatfold.curvature.theory import bayes_weight, logistic_risk, printed_loss
from flatfold.evaluate.reproduce.claims import exhibits
from flatfold.evaluate.reproduce.claims.costs import cost_of
from flatfold.evaluate.reproduce.claims.detection import FPR95, best, lead
from flatfold.evaluate.reproduce.claims.separation import difference, effect_size
from flatfold.evaluate.reproduce.claims.theorem import random_settings
from flatfold.evaluate.reproduce.claims.words import number
from flatfold.evaluate.reproduce.family import in_family
from tests.toy_ablations import make_ablations, make_material, make_results

EXHIBITS = {exhibit.number: exhibit for exhibit in exhibits()}


def cohens_d(known, unknown):
    """Slow and obvious: difference of the means over the pooled deviation."""
    n, m = len(known), len(unknown)
    pooled = ((n - 1) * np.var(known, ddof=1) + (m - 1) * np.var(unknown, ddof=1)) / (n + m - 2)
    return (np.mean(unknown) - np.mean(known)) / np.sqrt(pooled)


@given(n=st.integers(2, 40), m=st.integers(2, 40), seed=st.integers(0, 2**31))
def test_cohens_d_is_the_difference_of_means_over_the_pooled_deviation(n, m, seed):
    rng = np.random.default_rng(seed)
    known, unknown = rng.normal(size=n), rng.normal(1, 2, size=m)
    found = effect_size(known, unknown)
    assert found.d == pytest.approx(cohens_d(known, unknown), rel=1e-9)
    assert len(found.influence) == n + m
    assert abs(found.influence[:n].sum()) < 1e-9
    assert abs(found.influence[n:].sum()) < 1e-9


def test_the_paired_interval_is_that_of_a_bootstrap():
    rng = np.random.default_rng(0)
    x, y = rng.gamma(2, size=300), 1 + rng.gamma(3, size=200)
    a = effect_size(x, y)
    b = effect_size(x**0.5, y**0.5)
    value, low, high = difference(a, b)
    draws = []
    for _ in range(2000):
        i, j = rng.integers(0, 300, 300), rng.integers(0, 200, 200)
        draws.append(cohens_d(x[i] ** 0.5, y[j] ** 0.5) - cohens_d(x[i], y[j]))
    assert value == pytest.approx(b.d - a.d)
    assert (high - low) / 2 == pytest.approx(1.96 * np.std(draws), rel=0.1)
    assert low + high == pytest.approx(2 * value)


def test_scores_without_spread_have_no_effect():
    found = effect_size(np.ones(3), np.ones(4))
    assert (found.d, found.influence.tolist()) == (0.0, [0.0] * 7)


def test_cohens_d_must_rise_to_partial_and_be_lower_under_full():
    def holds(**shifts):
        material = make_material(ablations=make_ablations(shifts=shifts))
        return [check.holds for check in EXHIBITS["Figure 5"].verdict([material]).checks]

    assert holds(none=1.0, partial=1.6, full=0.3) == [True, True]
    assert holds(none=1.0, partial=0.6, full=1.3) == [False, False]
    assert holds(none=1.0, partial=1.0, full=1.0) == [None, None]


def test_the_d_that_is_told_is_that_of_the_ablations():
    ablations = make_ablations()
    stored = {each.normalisation: each.cohens_d for each in ablations.separations if each.dataset == "all"}
    shows = EXHIBITS["Figure 5"].verdict([make_material(ablations=ablations)]).shows
    assert shows == "Cohen's d " + ", ".join(f"{d:.3f} {kind}" for kind, d in stored.items()) + "."


def test_a_lead_is_the_difference_of_the_averages_and_lower_fpr95_is_better():
    results = make_results(better=0.7)
    auroc, rate = (lead(results, metric, "fold", "msp") for metric in ("auroc", FPR95))
    fold, msp = results.cells["fold", "all"], results.cells["msp", "all"]
    assert auroc.value == pytest.approx(fold.auroc - msp.auroc)
    assert rate.value == pytest.approx(msp.fpr95_ood_positive - fold.fpr95_ood_positive)
    for found in (auroc, rate):
        assert found.low < found.value < found.high
        assert found.value > 0
    back = lead(results, FPR95, "msp", "fold")
    assert (back.value, back.low, back.high) == pytest.approx((-rate.value, -rate.high, -rate.low), abs=0.01)


def test_the_best_is_looked_for_on_either_side():
    results = make_results()
    for metric, choose in (("auroc", max), (FPR95, min)):
        for ours in (True, False):
            names = [run.method for run in results.methods if ("fold" in run.method) == ours]
            expected = choose(names, key=lambda name: getattr(results.cells[name, "all"], metric))
            assert best(results, metric, ours) == expected
    assert best(make_results(methods=("msp",)), "auroc", ours=True) is None


def test_the_family_is_known_by_name():
    named = {run.method: in_family(run.method) for run in make_results().methods}
    assert [name for name, ours in named.items() if ours] == [name for name in named if "fold" in name]


def test_costs_are_found_however_a_method_was_tuned():
    assert cost_of(make_ablations(), "knn").method == "knn@ood"
    assert cost_of(make_ablations(), "odin") is None


def test_the_theorem_holds_exactly_where_its_condition_does():
    found = random_settings(60, seed=1)
    assert {each.holds for _, each in found} == {True, False}
    assert all((each.ood >= each.id) == each.holds for _, each in found)
    assert random_settings(3, seed=1) == found[:3]


def test_the_theorem_is_told_with_its_counts():
    told = EXHIBITS["Theorem 1"].verdict([make_material()])
    assert told.agreement == "agrees"
    found = random_settings(300)
    short = [each for c, each in found if c < 1]
    assert f"of {len(short)} with c < 1 the condition fails in {sum(not each.holds for each in short)}" in told.shows
    assert (
        f"Of {sum(each.holds for _, each in found)} random settings that meet the condition 0 contradict" in told.shows
    )


def test_what_the_note_says_of_the_papers_slips_is_so():
    mean, covariance = torch.tensor([1.0, 0.5], dtype=torch.float64), torch.tensor([[1.0, 0.3], [0.3, 0.8]]).double()
    risks = [logistic_risk(bayes_weight(mean, covariance, alpha), mean, covariance) for alpha in (1.0, 1.9, 2.0, 2.1)]
    assert min(risks) == risks[2]
    printed = [printed_loss(scale * bayes_weight(mean, covariance), mean, covariance) for scale in (1, 10, 100)]
    assert printed[0] > printed[1] > printed[2] < -100


def test_a_number_that_is_not_finite_is_told_as_it_is():
    assert (number(float("inf")), number(float("nan"))) == ("inf", "nan")
