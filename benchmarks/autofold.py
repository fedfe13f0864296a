"""AutoFold over all classes against a loop that masks one class at a time."""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import flatfold as ff
from flatfold.detectors.autofold import GRID

from .ratio import report, time_ratio

N, C, D, NAIVE_CLASSES = 2000, 200, 512, 20


def naive_curve(bank: ff.FeatureBank, head: ff.Head, classes: range) -> list[float]:
    """Mask a class, take the Gram form of the trace, ask scikit-learn: for each class and each exponent."""
    h, labels = bank.features, bank.labels.numpy()
    norm = h.norm(dim=-1, keepdim=True)
    gram = head.weight @ head.weight.T
    curve = []
    for alpha in GRID:
        logits = head(h / norm**alpha)
        aurocs = []
        for k in classes:
            masked = logits.clone()
            masked[:, k] = -1e9
            p = masked.softmax(-1)
            trace = p @ gram.diagonal() - (p @ gram * p).sum(-1)
            aurocs.append(roc_auc_score(labels == k, trace.numpy()))
        curve.append(float(np.mean(aurocs)))
    return curve


def run() -> list[bool]:
    """Fit on 2000 samples, 200 classes, 512 features; the loop gets 20 of the classes."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(C, D, generator=g) / D**0.5
    labels = torch.arange(C).repeat(N // C)
    features = (4 * weight[labels] + 0.5 * torch.randn(N, D, generator=g)).relu()
    bank, head = ff.FeatureBank(features, labels), ff.Head(weight)
    results = []
    for criterion in ("one_vs_rest", "paired"):
        ratio = time_ratio(
            lambda criterion=criterion: ff.AutoFold(criterion).fit(bank, head),
            lambda: naive_curve(bank, head, range(NAIVE_CLASSES)),
            rounds=1,
        )
        what = f"AutoFold {criterion}, all {C} classes, against a loop over {NAIVE_CLASSES}, N={N} C={C} d={D}"
        results.append(report(what, ratio, "times faster", 10))
    return results
