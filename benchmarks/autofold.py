"""AutoFold over all classes against the loop that masks one class at a time."""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import flatfold as ff
from flatfold.detectors.autofold import GRID

from .ratio import report, time_ratio

N, C, D, NAIVE_CLASSES = 2000, 200, 512, 20


def naive_curve(bank: ff.FeatureBank, head: ff.Head, score_norm: str | None) -> list[float]:
    """For each exponent and each of 20 classes mask it, take the Gram form of the trace, ask scikit-learn.

    The mean class weight is computed whether or not the score is divided by it, as the authors' code does.
    """
    h, labels = bank.features, bank.labels.numpy()
    norms = h.norm(dim=-1, keepdim=True)
    gram = head.weight @ head.weight.T
    curve = []
    for alpha in GRID:
        logits = head(h / norms**alpha)
        aurocs = []
        for k in range(NAIVE_CLASSES):
            masked = logits.clone()
            masked[:, k] = -1e9
            p = masked.softmax(-1)
            scores = p @ gram.diagonal() - (p @ gram * p).sum(-1)
            square_mean = (p @ head.weight).square().sum(-1)
            scores = scores / square_mean if score_norm == "weight" else scores
            aurocs.append(roc_auc_score(labels == k, scores.numpy()))
        curve.append(float(np.mean(aurocs)))
    return curve


def run() -> list[bool]:
    """Fit on 2000 samples, 200 classes, 512 features, with the authors' division and without."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(C, D, generator=g) / D**0.5
    labels = torch.arange(C).repeat(N // C)
    features = (4 * weight[labels] + 0.5 * torch.randn(N, D, generator=g)).relu()
    bank, head = ff.FeatureBank(features, labels), ff.Head(weight)
    results = []
    for criterion, score_norm in (("one_vs_rest", "weight"), ("one_vs_rest", None), ("paired", None)):
        ratio = time_ratio(
            lambda c=criterion, s=score_norm: ff.AutoFold(c, score_norm=s).fit(bank, head),
            lambda s=score_norm: naive_curve(bank, head, s),
            rounds=1,
        )
        what = f"AutoFold {criterion} score_norm={score_norm}, all {C} classes, against a loop over {NAIVE_CLASSES}"
        results.append(report(f"{what}, N={N} d={D}", ratio, "times faster", 10))
    return results
