"""`core.ranking` against scikit-learn, counting, and the sentences of its docstrings."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve

from flatfold.core.ranking import aupr, auroc, fpr_at_tpr

# Halves of small integers: plenty of ties, and no rounding in the comparison.
scores = st.lists(st.integers(-4, 4).map(lambda x: x / 2), min_size=1, max_size=40).map(np.array)


def labelled(id_scores, ood_scores):
    return np.r_[np.zeros(len(id_scores)), np.ones(len(ood_scores))], np.r_[id_scores, ood_scores]


@given(scores, scores)
def test_auroc_is_scikit_learns(id_scores, ood_scores):
    assert auroc(id_scores, ood_scores) == pytest.approx(roc_auc_score(*labelled(id_scores, ood_scores)), abs=1e-12)


def test_long_vectors_are_ranked_like_short_ones():
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(size=120_000).round(2), rng.normal(1, 1, size=70_000).round(2)
    assert auroc(id_scores, ood_scores) == pytest.approx(roc_auc_score(*labelled(id_scores, ood_scores)), abs=1e-12)


@given(scores, scores)
def test_aupr_is_the_trapezoid_under_scikit_learns_curve(id_scores, ood_scores):
    y, s = labelled(id_scores, ood_scores)
    for positive, truth, score in (("ood", y, s), ("id", 1 - y, -s)):
        precision, recall, _ = precision_recall_curve(truth, score)
        assert aupr(id_scores, ood_scores, positive=positive) == pytest.approx(auc(recall, precision), abs=1e-12)


@given(scores, scores, st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]))
def test_fpr_is_the_first_point_of_the_full_roc_curve_that_reaches_the_tpr(id_scores, ood_scores, tpr):
    y, s = labelled(id_scores, ood_scores)
    for positive, truth, score in (("ood", y, s), ("id", 1 - y, -s)):
        fprs, tprs, _ = roc_curve(truth, score, drop_intermediate=False)
        expected = fprs[np.argmax(tprs >= tpr)]
        assert fpr_at_tpr(id_scores, ood_scores, tpr=tpr, positive=positive) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", range(1, 400))
def test_the_rate_is_reached_by_exactly_as_many_positives_as_needed(n):
    """0.95 n is not always a whole number in floating point."""
    ood_scores = np.arange(n, dtype=float)
    id_scores = ood_scores - 0.5  # FPR then counts the flagged positives, less those below every negative
    flagged = round(fpr_at_tpr(id_scores, ood_scores) * n) + 1
    assert flagged / n >= 0.95
    assert (flagged - 1) / n < 0.95


def test_a_rate_whose_product_is_rounded_up_is_not_overshot():
    assert 0.07 * 100 > 7
    assert fpr_at_tpr(np.arange(100) - 0.5, np.arange(100.0), tpr=0.07) == 0.06


def test_the_two_conventions_are_different_numbers():
    id_scores, ood_scores = np.arange(100.0), np.arange(90.0, 110.0)
    assert fpr_at_tpr(id_scores, ood_scores, positive="ood") == 0.09
    assert fpr_at_tpr(id_scores, ood_scores, positive="id") == 0.25


@given(scores, scores)
def test_only_the_order_of_the_scores_matters(id_scores, ood_scores):
    for metric in (auroc, fpr_at_tpr, aupr):
        assert metric(np.exp(id_scores), np.exp(ood_scores)) == metric(id_scores, ood_scores)


@given(scores, scores)
def test_swapping_the_sides_and_the_sign_changes_nothing(id_scores, ood_scores):
    assert auroc(id_scores, ood_scores) == pytest.approx(1 - auroc(ood_scores, id_scores))
    assert fpr_at_tpr(id_scores, ood_scores, positive="id") == fpr_at_tpr(-ood_scores, -id_scores, positive="ood")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_torch_and_numpy_scores_give_the_same(dtype):
    low, high = torch.tensor([0, 1, 2]).to(dtype), torch.tensor([1, 2, 3]).to(dtype)
    assert auroc(low, high) == auroc(low.double().numpy(), high.double().numpy()) == 7 / 9


def test_scores_of_two_types_are_compared_in_the_wider_one():
    assert auroc(np.array([0.1], dtype=np.float32), np.array([0.1])) == 0.0  # float32 rounds 0.1 up


def test_the_callers_scores_are_left_as_they_are():
    id_scores, ood_scores = np.array([3.0, 1.0, 2.0]), torch.tensor([2.0, 1.0])
    for metric in (auroc, fpr_at_tpr, aupr):
        metric(id_scores, ood_scores)
    assert id_scores.tolist() == [3, 1, 2]
    assert ood_scores.tolist() == [2, 1]


def test_infinite_scores_have_a_rank():
    assert auroc(np.array([-np.inf, 0.0]), np.array([np.inf, 1.0])) == 1.0


@pytest.mark.parametrize("metric", [auroc, fpr_at_tpr, aupr])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.array([0.0, np.nan]), r"has 1 NaN of 2"),
        (np.array([]), r"non-empty vector"),
        (np.zeros((2, 2)), r"non-empty vector, got shape \(2, 2\)"),
    ],
)
def test_scores_without_a_rank_are_refused(metric, bad, message):
    with pytest.raises(ValueError, match="id_scores.*" + message):
        metric(bad, np.zeros(3))
    with pytest.raises(ValueError, match="ood_scores.*" + message):
        metric(np.zeros(3), bad)


@pytest.mark.parametrize("tpr", [0.0, -0.1, 1.1, float("nan")])
def test_an_impossible_rate_is_refused(tpr):
    with pytest.raises(ValueError, match="tpr must be above 0 and at most 1"):
        fpr_at_tpr(np.zeros(3), np.ones(3), tpr=tpr)


def test_an_unknown_convention_is_refused():
    with pytest.raises(ValueError, match='"ood" or "id"'):
        fpr_at_tpr(np.zeros(3), np.ones(3), positive="in")
