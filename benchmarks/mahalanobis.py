"""MDS against the reference's way: a (B, B) product for every class, of which the diagonal is kept."""

import torch
from torch import Tensor

import flatfold as ff

from .ratio import report, seconds

C, D, QUERIES, PER_CLASS = 1000, 2048, 5000, 4


def reference_scores(h: Tensor, means: Tensor, precision: Tensor) -> Tensor:
    """Return the distance to the nearest mean, with the products that OpenOOD forms."""
    distances = []
    for mean in means:
        moved = h - mean
        distances.append((moved @ precision @ moved.T).diag())
    return torch.stack(distances).amin(dim=0)


def run() -> list[bool]:
    """Time the reference for some of the classes and a part of the queries, and scale it up to all of them.

    Its time grows with the classes, and with the queries faster than they do: scaling by their number is kind to it.
    """
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(C).repeat(PER_CLASS)
    centres = 3 * torch.randn(C, D, generator=g)
    features = centres[labels] + torch.randn(len(labels), D, generator=g)
    h = features[torch.randint(len(labels), (QUERIES,), generator=g)] + torch.randn(QUERIES, D, generator=g)
    mds = ff.detectors.Mds().fit(ff.FeatureBank(features, labels), ff.Head(torch.randn(C, D, generator=g)))
    classes, queries = 2, 1000
    means = mds.centre.float() + mds.means[:classes].float() @ torch.linalg.pinv(mds.whitening).float()
    precision = (mds.whitening @ mds.whitening.T).float()
    reference_scores(h[:10], means, precision)
    slow = seconds(lambda: reference_scores(h[:queries], means, precision)) * C / classes * QUERIES / queries
    mds(h[:10])
    fast = min(seconds(lambda: mds(h)) for _ in range(3))
    print(f"      MDS of {QUERIES:,} samples: {fast:.2f} s; the reference {slow:.0f} s, scaled from {classes} classes")
    what = f"MDS against (B, B) products per class, C={C}, d={D}, {QUERIES:,} queries"
    return [report(what, slow / fast, "times faster", 50)]
