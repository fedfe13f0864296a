"""A suite: a network, in-distribution splits, and OOD data sets."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

from ...data.sources import Source

Group = Literal["near", "far"]
GROUPS = get_args(Group)

NAME = re.compile(r"[\w+-][\w.+-]*")  # names become folders
FOLDERS = ("banks", "scores", "figures", "data", "curvature", "exhibits", "full-scale")  # next to results
RESERVED = ("train", "val", "test", "ood_val", "id", "near", "far", "all")  # taken, in folders and tables


@dataclass(frozen=True)
class OodSet:
    """An OOD data set with one sentence about it; it is near when it resembles the training data."""

    name: str
    group: Group
    images: Source
    about: str


@dataclass(frozen=True)
class Suite:
    """A network with everything it is evaluated on.

    Args:
        name: As on the command line.
        about: One sentence for the report.
        model: The trained classifier.
        train: ID images to learn from; without them the methods that need them are left out.
        val: ID images that the network was not trained on, to learn and choose from.
        test: ID images on which methods are evaluated.
        ood: OOD data sets.
        seed: Of the data and of the training.
        ood_val: OOD images by which hyper-parameters may be chosen, or None. No method is evaluated on them.
        network: Name of the network, to tell it from others that are evaluated on the same data.
        head: Name of the network's last layer, where it cannot be found automatically (see ``find_head``).
        family: Networks of one family differ by their seed only; results are averaged over them.
        siblings: Names of all networks that are evaluated on this suite, this one included; each has its own folder.
        classes: Names of the classes, where they are known.
        accuracy: Expected accuracy of the network on the test data, in per cent, where it is known.
        architecture: What the network was made by.
        protocol: Of a published benchmark, where data and preparation are exactly its own.
        deviations: One sentence for everything in which they are not.
    """

    name: str
    about: str
    model: nn.Module
    train: Source | None
    val: Source
    test: Source
    ood: tuple[OodSet, ...]
    seed: int
    ood_val: Source | None = None
    network: str = ""
    head: str | None = None
    family: str = ""
    siblings: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    accuracy: float | None = None
    architecture: str = ""
    protocol: str = ""
    deviations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_names([ood.name for ood in self.ood])
        rivals = [("test", self.test, "val", self.val), ("test", self.test, "train", self.train)]
        rivals += [(ood.name, ood.images, "ood_val", self.ood_val) for ood in self.ood]
        for name, tested, other, learnt in rivals:
            if learnt is not None and (
                tested is learnt or (tested.rows == learnt.rows and tested.fingerprint == learnt.fingerprint)
            ):
                raise ValueError(
                    f"{name} and {other} hold the same images: methods would be evaluated on what they learn from. "
                    "Divide them."
                )

    @property
    def sources(self) -> dict[str, Source]:
        """All data sets by name, in the order in which they are extracted."""
        splits = {"train": self.train, "val": self.val, "test": self.test, "ood_val": self.ood_val}
        return {name: source for name, source in splits.items() if source is not None} | {
            ood.name: ood.images for ood in self.ood
        }


def check_names(names: Sequence[str]) -> None:
    """Raise unless these can be the names of OOD data sets."""
    for name in names:
        if name in RESERVED or names.count(name) > 1 or not NAME.fullmatch(name):
            raise ValueError(
                f"an OOD data set cannot be called {name!r}. Names are unique, made of letters, digits and -_.+, and "
                f"none of {', '.join(RESERVED)}."
            )
