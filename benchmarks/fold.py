"""FOLD's closed form against the matrices it avoids, and against the form that cancels."""

import torch

import flatfold as ff
from flatfold.core.hessian import class_distances, feature_hessian_trace

from .ratio import report, time_ratio


def explicit(h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Build (B, C, C) and (B, d, d) and sum the diagonal."""
    p = (h @ weight.T + bias).softmax(-1)
    logit_hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    feature_hessian = weight.T @ (logit_hessian @ weight)
    return feature_hessian.diagonal(dim1=1, dim2=2).sum(-1)


def speed() -> bool:
    """Score 256 samples with 1000 classes and 2048 features; the reference gets 2 of them and is scaled up."""
    b, small, c, d = 256, 2, 1000, 2048
    g = torch.Generator().manual_seed(0)
    h, weight, bias = (torch.randn(*shape, generator=g) for shape in ((b, d), (c, d), (c,)))
    detector = ff.Fold(0.0).fit(ff.FeatureBank(h), ff.Head(weight / d**0.5, bias))
    ratio = time_ratio(lambda: detector(h), lambda: explicit(h[:small], weight / d**0.5, bias), rounds=3)
    what = f"FOLD against explicit (B,C,C) and (B,d,d), B={b} C={c} d={d}, reference extrapolated from B={small}"
    return report(what, ratio * b / small, "times faster", 1000)


def accuracy() -> bool:
    """Compare relative errors at 1 - max p = 1e-10 in float32, with float64 as the truth."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(10, 64, generator=g) / 8
    h = 23 * weight[torch.arange(100) % 10] + 0.05 * torch.randn(100, 64, generator=g)
    h = h * (23 / (h @ weight.T).topk(2).values.diff().abs())
    p = (h.double() @ weight.double().T).softmax(-1)
    truth = feature_hessian_trace(p, class_distances(weight.double()))
    ours = ff.Fold(0.0).fit(ff.FeatureBank(h), ff.Head(weight))(h)
    p = p.float()
    gram = p @ weight.square().sum(-1) - (p @ weight).square().sum(-1)
    for name, got in (("Gram form", gram), ("FOLD", ours)):
        print(f"      {name}: median relative error {float(((got - truth) / truth).abs().median()):.2g} in float32")
    return report(
        "FOLD's largest relative error, confident samples", float(((ours - truth) / truth).abs().max()), "", 1e-5, False
    )


def run() -> list[bool]:
    """Measure both."""
    return [speed(), accuracy()]
