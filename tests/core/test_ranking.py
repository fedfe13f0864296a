"""AUROC, AUPR and FPR at a TPR against scikit-learn and counting."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve

from flatfold import aupr, auroc, fpr_at_tpr
from tests.refusals import assert_refused

# Halves of small integers: plenty of ties, and no rounding in the comparison.
scores = st.lists(st.integers(-4, 4).map(lambda x: x / 2), min_size=1, max_size=40).map(np.array)


def labelled(id_scores, ood_scores):
    return np.r_[np.zeros(len(id_scores)), np.ones(len(ood_scores))], np.r_[id_scores, ood_scores]


@given(scores, scores, st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]))
def test_all_metrics_are_scikit_learns(id_scores, ood_scores, tpr):
    y, s = labelled(id_scores, ood_scores)
    assert auroc(id_scores, ood_scores) == pytest.approx(roc_auc_score(y, s), abs=1e-12)
    for positive, truth, score in (("ood", y, s), ("id", 1 - y, -s)):
        precision, recall, _ = precision_recall_curve(truth, score)
        assert aupr(id_scores, ood_scores, positive=positive) == pytest.approx(auc(recall, precision), abs=1e-12)
        fprs, tprs, _ = roc_curve(truth, score, drop_intermediate=False)
        expected = fprs[np.argmax(tprs >= tpr)]  # the first point that reaches the TPR
        assert fpr_at_tpr(id_scores, ood_scores, tpr=tpr, positive=positive) == pytest.approx(expected, abs=1e-12)


def test_long_vectors_are_ranked_like_short_ones():
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(size=80_000).round(2), rng.normal(1, 1, size=30_000).round(2)
    assert auroc(id_scores, ood_scores) == pytest.approx(roc_auc_score(*labelled(id_scores, ood_scores)), abs=1e-12)


def test_the_tpr_is_reached_by_exactly_as_many_positives_as_needed():
    """0.95 n is not always a whole number in floating point."""
    for n in range(1, 400):
        ood_scores = np.arange(n, dtype=float)
        id_scores = ood_scores - 0.5  # FPR then counts the flagged positives, less those below every negative
        flagged = round(fpr_at_tpr(id_scores, ood_scores) * n) + 1
        assert (flagged - 1) / n < 0.95 <= flagged / n, n
    assert 0.07 * 100 > 7
    assert fpr_at_tpr(np.arange(100) - 0.5, np.arange(100.0), tpr=0.07) == 0.06


@given(scores, scores)
def test_only_the_order_of_the_scores_matters(id_scores, ood_scores):
    for metric in (auroc, fpr_at_tpr, aupr):
        assert metric(np.exp(id_scores), np.exp(ood_scores)) == metric(id_scores, ood_scores)
    assert auroc(id_scores, ood_scores) == pytest.approx(1 - auroc(ood_scores, id_scores))
    assert fpr_at_tpr(id_scores, ood_scores, positive="id") == fpr_at_tpr(-ood_scores, -id_scores, positive="ood")


def test_torch_and_numpy_scores_of_any_type_are_taken_and_left_unchanged():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64):
        low, high = torch.tensor([0, 1, 2]).to(dtype), torch.tensor([1, 2, 3]).to(dtype)
        assert auroc(low, high) == auroc(low.double().numpy(), high.double().numpy()) == 7 / 9, dtype
    id_scores, ood_scores = np.array([3.0, 1.0, 2.0]), torch.tensor([2.0, 1.0], dtype=torch.float64)
    for metric in (auroc, fpr_at_tpr, aupr):
        metric(id_scores, ood_scores)
        assert (id_scores.tolist(), ood_scores.tolist()) == ([3, 1, 2], [2, 1]), metric
    assert auroc(np.array([0.1], dtype=np.float32), np.array([0.1])) == 0.0  # float32 rounds 0.1 up
    assert auroc(np.array([-np.inf, 0.0]), np.array([np.inf, 1.0])) == 1.0


def test_scores_without_a_rank_are_refused():
    for bad, keyword in ((np.array([0.0, np.nan]), "NaN"), (np.array([]), "non-empty"), (np.zeros((2, 2)), "vector")):
        for metric in (auroc, fpr_at_tpr, aupr):
            assert_refused(ValueError, f"^id_scores.*{keyword}", metric, bad, np.zeros(3))
            assert_refused(ValueError, f"ood_scores.*{keyword}", metric, np.zeros(3), bad)
    for tpr in (0.0, -0.1, 1.1, float("nan")):
        assert_refused(ValueError, "tpr", fpr_at_tpr, np.zeros(3), np.ones(3), tpr=tpr)
    assert_refused(ValueError, "positive", fpr_at_tpr, np.zeros(3), np.ones(3), positive="in")
