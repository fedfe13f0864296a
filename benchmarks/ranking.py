"""AUROC against scikit-learn."""

import numpy as np
from sklearn.metrics import roc_auc_score

import flatfold as ff

from .ratio import report, seconds, time_ratio


def run() -> list[bool]:
    """Rank a million scores, half of them unknown, in both float types; then ten million once."""
    rng = np.random.default_rng(0)
    results = []
    for dtype in (np.float32, np.float64):
        known, unknown = rng.normal(size=500_000).astype(dtype), rng.normal(1, 1, size=500_000).astype(dtype)
        truth, scores = np.r_[np.zeros(500_000), np.ones(500_000)], np.r_[known, unknown]
        assert abs(ff.auroc(known, unknown) - roc_auc_score(truth, scores)) < 1e-9
        ratio = time_ratio(lambda k=known, u=unknown: ff.auroc(k, u), lambda s=scores, t=truth: roc_auc_score(t, s))
        results.append(report(f"auroc at 1e6 scores, {dtype.__name__}, against scikit-learn", ratio, "times faster", 5))
    known, unknown = rng.normal(size=5_000_000), rng.normal(1, 1, size=5_000_000)
    for metric in (ff.auroc, ff.fpr_at_tpr, ff.aupr):
        print(f"      {metric.__name__} at 1e7 scores: {seconds(lambda metric=metric: metric(known, unknown)):.2f} s")
    return results
