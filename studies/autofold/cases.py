"""The networks and data sets of the study, each reduced to what FOLD needs of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from flatfold.core.bank import FeatureBank, Head
from flatfold.evaluate.banks import Banks, accuracy, extract_all
from flatfold.evaluate.suites.library import load_suites
from flatfold.evaluate.suites.suite import Suite

from .development import development_suites
from .view import Classes, View, classes_of, view_of

CIFAR = Path(__file__).parents[2] / "examples" / "cifar10.toml"
SEEDS = (0, 1, 2)

Role = Literal["development", "held out"]


@dataclass(frozen=True, eq=False)
class Validation:
    """Everything that a rule may look at.

    Attributes:
        features: In-distribution validation features, ``(n, d)``, float64.
        labels: ``(n,)``.
        head: Of the network.
        view: Of the features.
        classes: Of the head.
    """

    features: Tensor
    labels: Tensor
    head: Head
    view: View
    classes: Classes

    @classmethod
    def of(cls, bank: FeatureBank, head: Head) -> "Validation":
        """Return what a rule may see of a labelled bank and a head."""
        if bank.labels is None:
            raise ValueError("rules mask the class of each sample, but the validation bank has no labels. Give them.")
        return cls(bank.features.double(), bank.labels, head, view_of(bank.features, head), classes_of(bank, head))


@dataclass(frozen=True, eq=False)
class Case:
    """A network with its data: one row of the tables for every set of unknown images.

    Attributes:
        suite: Name of the suite.
        network: Name of the network.
        role: Whether rules may be chosen on it.
        accuracy: On the test images.
        val: What rules may see.
        test: In-distribution test images.
        ood: Unknown images by the name of their data set.
    """

    suite: str
    network: str
    role: Role
    accuracy: float
    val: Validation
    test: View
    ood: dict[str, View]

    @property
    def name(self) -> str:
        """Suite and network."""
        return f"{self.suite} {self.network}".rstrip()


def suites_of(out: Path, data: Path | None, seeds: tuple[int, ...] = SEEDS) -> Iterator[tuple[Suite, Role]]:
    """Yield every suite with its role; without ``data`` there is only what needs no files.

    Args:
        out: Folder for whatever is made on the way.
        data: Folder of real images and pretrained networks, or None.
        seeds: Of the built-in suite.
    """
    for suite in load_suites("digits", out / "digits", seeds):
        yield suite, "development"
    if data is not None:
        letters = out / "digits" / "data" / f"seed{seeds[0]}" / "letters.npz"
        for suite in development_suites(data, letters, out / "networks"):
            yield suite, "development"
        for suite in load_suites(str(CIFAR), out):
            yield suite, "held out"


def case_of(suite: Suite, role: Role, out: Path) -> Case:
    """Return a suite as a case; features come from ``out`` where they are there already."""
    banks = extract_all(replace(suite, train=None), out / "banks")  # no rule learns from training data
    return reduced(banks, suite.name, suite.network, role)


@torch.no_grad()
def reduced(banks: Banks, suite: str, network: str, role: Role) -> Case:
    """Return the case of a suite's features."""
    head = banks.head
    return Case(
        suite,
        network,
        role,
        accuracy(banks.test, head),
        Validation.of(banks.fitted_on("val"), head),
        view_of(banks.test.features, head),
        {name: view_of(bank.features, head) for name, bank in banks.ood.items()},
    )
