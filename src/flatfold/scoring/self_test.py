"""Self-test of a guard's file: features that were scored when it was written are scored again when it is read.

A checksum finds bytes that have changed. The self-test also finds parts of two files that were put together, and
another version or machine on which the same parts give other scores. The features are made from the weights of the
head, so they reveal nothing about any input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.bank import Head
from .calibrated import CalibratedDetector

COUNT = 8
TOLERANCE = 1e-5
_CLASSES, _SIZES = 8, 16
_NARROWEST, _WIDEST = 1.0, 40.0  # float32 holds e^-40 on every machine
_NUDGE = 1e-6  # what float32 may lose in a sum of thousands of products


@torch.no_grad()
def make_probes(calibrated: CalibratedDetector, head: Head) -> tuple[Tensor, Tensor]:
    """Return ``COUNT`` rows of features and their scores, ``(8, d)`` and ``(8,)``, the same for the same detector.

    They are chosen from :func:`candidates`, without those whose score jumps when they hardly move: another machine
    might score them on the other side. Half are taken at even steps of the rank of their score and half at even steps
    of the score itself: where a score has reached its bound it does not show what a method has learnt.
    """
    rows = candidates(head)
    scores = calibrated(rows)[0]
    moved = calibrated(rows * (1 + _NUDGE * torch.linspace(-1, 1, rows.shape[1]).to(rows)))[0]
    steady = scores.isfinite() & ((moved - scores).abs() <= TOLERANCE / 2 * _scale(scores))
    if int(steady.sum()) < COUNT:
        raise ValueError(
            f"a file is tested when it is read, which takes {COUNT} rows of features with a steady, finite score, but "
            f"this detector has {int(steady.sum())} among {len(rows)} that were tried. Look at its hyper-parameters."
        )
    features = rows[steady][_spread_out(scores[steady])].contiguous()
    return features, calibrated(features)[0]


@torch.no_grad()
def check_probes(calibrated: CalibratedDetector, features: Tensor, scores: Tensor) -> None:
    r"""Raise unless a detector still gives the scores :math:`s` for probes, up to rounding in float32.

    .. math:: |s'_i - s_i| \le 10^{-5} \max(|s_i|, \tfrac1{10} \max_j |s_j|)
    """
    again, scale = calibrated(features)[0], _scale(scores)
    error = (again - scores).abs()
    if not (error <= TOLERANCE * scale).all():  # a NaN is not a score either
        worst = int((error / scale).nan_to_num(torch.inf).argmax())
        raise ValueError(
            f"its detector gives a score of {float(again[worst]):.7g} where it gave {float(scores[worst]):.7g} when "
            "the file was written"
        )


def candidates(head: Head) -> Tensor:
    """Return features that are a little like those of several classes, in several sizes; all entries are above 0.

    A class is the positive part of its weights, and noise from 0.05 on, so that no two entries are equal and nothing
    depends on how ties are broken. Sizes are such that the largest and the smallest logit are 1 to 40 apart.
    """
    weight = head.weight.cpu()
    chosen = torch.linspace(0, head.n_classes - 1, min(_CLASSES, head.n_classes), device="cpu").long()
    towards = weight[chosen].relu()
    smallest = torch.finfo(weight.dtype).tiny
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(towards.shape, generator=generator, dtype=weight.dtype, device="cpu") + 0.05
    rows = towards / towards.mean(dim=-1, keepdim=True).clamp_min(smallest) + noise
    logits = rows @ weight.mT
    span = logits.amax(dim=-1, keepdim=True) - logits.amin(dim=-1, keepdim=True)
    rows = rows / torch.where(span > smallest, span, 1.0)
    steps = torch.linspace(0, 1, _SIZES, dtype=weight.dtype, device="cpu")
    sizes = _NARROWEST * (_WIDEST / _NARROWEST) ** steps
    return (rows[:, None] * sizes[:, None]).flatten(0, 1)


def _scale(scores: Tensor) -> Tensor:
    """Return what the errors of scores are relative to: a score near 0 need not be more precise than others."""
    sizes = scores.abs()
    return torch.maximum(sizes, sizes.nan_to_num(0.0, posinf=0.0).amax() / 10)


def _spread_out(scores: Tensor) -> Tensor:
    """Return the positions of ``COUNT`` different scores."""
    order = scores.argsort(stable=True)
    ordered = scores[order]
    half = COUNT // 2
    by_rank = ordered[torch.linspace(0, len(scores) - 1, half).long()]
    low, high = ordered[0], ordered[-1]
    by_value = low + (high - low) * (torch.arange(half).to(scores) + 0.5) / half
    taken: list[int] = []
    for target in torch.cat([by_rank, by_value]):
        nearest = (ordered - target).abs().argsort(stable=True).tolist()
        taken.append(next(place for place in nearest if place not in taken))
    return order[torch.tensor(sorted(taken))]
