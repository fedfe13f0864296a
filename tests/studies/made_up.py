"""A small made-up network with known and unknown features, for the tests of the studies."""

import torch

from flatfold.core.bank import FeatureBank
from flatfold.core.head import Head
from flatfold.evaluate.banks import Banks
from studies.autofold.cases import reduced

CLASSES, WIDTH = 4, 6


def make_banks(seed=0, n=32):
    """Return classes around their weights; unknown inputs lie between them, and `long` ones are long as well."""
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(CLASSES, WIDTH, generator=g)
    head = Head(weight, 0.1 * torch.randn(CLASSES, generator=g))

    def known(count):
        labels = torch.arange(count) % CLASSES
        noise = torch.randn(count, WIDTH, generator=g)
        return FeatureBank(weight[labels] * (1 + torch.rand(count, 1, generator=g)) + 0.7 * noise, labels)

    between = torch.randn(n, WIDTH, generator=g)
    ood = {"between": FeatureBank(between), "long": FeatureBank(4 * torch.randn(n // 2, WIDTH, generator=g))}
    return Banks(head, None, known(n), known(n + 4), ood)


def make_case(seed=0, n=32, role="development", suite="made-up"):
    return reduced(make_banks(seed, n), suite, f"net{seed}", role)
