"""Features of known and unknown inputs, and a suite whose network sees images, for tests of reproductions."""

from collections import OrderedDict

import numpy as np
import torch
from torch import nn

import flatfold as ff
from flatfold.data.images import ArrayImages
from flatfold.evaluate.banks import Banks
from flatfold.evaluate.suites.suite import OodSet, Suite


def make_banks(classes=5, width=12, per_class=16, seed=0):
    """Return banks in which known features lie near the weight of their class, and unknown ones are noise."""
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, width, generator=g)

    def known(n):
        labels = torch.arange(classes).repeat(n)
        noise = torch.randn(len(labels), width, generator=g)
        return ff.FeatureBank((1.5 * weight[labels] + noise).relu() + 0.01, labels)

    def unknown(n, size):
        return ff.FeatureBank((size * torch.randn(n, width, generator=g)).relu() + 0.01)

    return Banks(
        ff.Head(weight, 0.1 * torch.randn(classes, generator=g)),
        known(40),
        known(per_class),
        known(20),
        {"near-set": unknown(30, 2.0), "far-set": unknown(40, 0.8)},
        unknown(25, 1.2),
    )


def make_network():
    """Return a network that sees which of three channels is bright."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        convolutions = nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        return nn.Sequential(OrderedDict(body=nn.Sequential(*convolutions, nn.Flatten()), head=nn.Linear(8, 3))).eval()


def make_suite(network="", siblings=(), ood_val=True):
    """Return a suite of small images; the network was never trained, which nothing here depends on."""
    rng = np.random.default_rng(0)

    def images(n, labelled=False):
        x, y = rng.integers(0, 130, (n, 4, 4, 3)), np.arange(n) % 3
        if labelled:
            x[np.arange(n), :, :, y] += 120
        return ArrayImages(x.astype(np.uint8), y if labelled else None, ff.Transform(), batch_size=8)

    ood = (OodSet("near-set", "near", images(20), "Near."), OodSet("far-set", "far", images(15), "Far."))
    known = images(45, labelled=True), images(30, labelled=True), images(24, labelled=True)
    unknown = images(18) if ood_val else None
    return Suite("toy", "Toys.", make_network(), *known, ood, 0, unknown, network, siblings=siblings)
