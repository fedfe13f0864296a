"""A small network with ID and OOD features, and measurements with known regrets and gains."""

import numpy as np
import torch

from flatfold import FeatureBank, Head
from flatfold.evaluate.banks import Banks
from studies.autofold.cases import reduced
from studies.autofold.families import ALPHAS
from studies.autofold.measure import ORACLES, REFERENCES, Measured
from studies.autofold.results import Found
from studies.autofold.rules import RULES

CLASSES, WIDTH = 4, 6
METHODS = [*RULES, *REFERENCES, *ORACLES]


def make_banks(seed=0, n=32):
    """Return classes around their weights; OOD features lie between them, and those of `long` are long as well."""
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


def invented(gains, role="development", name="net", replicates=4, spread=0.0, regret=0.01):
    """Return a network on which `paired` has an AUROC of 0.9 and other methods are ahead of it by ``gains``.

    In the replicates of the bootstrap ``spread`` is added to the gains and taken from them in turns.
    """
    ahead = np.array([{"oracle": regret, **gains}.get(method, 0.0) for method in METHODS])
    turns = np.array([0.0, *(spread * (-1) ** b for b in range(replicates))])
    redrawn = 0.9 + ahead[:, None] + np.where(ahead[:, None] != 0, turns, 0.0)
    redrawn = np.repeat(redrawn[:, :, None], 2, axis=2)
    alphas = np.full_like(redrawn, 0.5)
    alphas[len(RULES) : -len(ORACLES)] = np.nan
    curve = np.zeros((len(ALPHAS), 2))
    measured = Measured(METHODS, ["far", "mean"], alphas, redrawn - 0.1, redrawn, curve, curve.T, np.asarray(0.8))
    return Found("suite", name, role, measured)
