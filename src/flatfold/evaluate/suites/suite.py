"""What a benchmark is made of: a network, in-distribution splits, and data sets it has never met."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from ...models.sources import Source

Group = Literal["near", "far"]

NAME = re.compile(r"[\w+-][\w.+-]*")  # names become folders

FOLDERS = (
    "banks",
    "scores",
    "figures",
    "data",
    "curvature",
    "exhibits",
    "full-scale",
)  # beside the results of a network

RESERVED = ("train", "val", "test", "ood_val", "id", "near", "far", "all")  # taken, in folders and tables


@dataclass(frozen=True)
class OodSet:
    """A data set of unknown inputs.

    Args:
        name: Short, as in the tables.
        group: ``"near"`` when it resembles the training data, ``"far"`` otherwise.
        images: Where its images come from.
        about: One sentence for the report.
    """

    name: str
    group: Group
    images: Source
    about: str


@dataclass(frozen=True)
class Suite:
    """A network with everything it is judged on.

    Args:
        name: As on the command line.
        about: One sentence for the report.
        model: The trained classifier.
        train: In-distribution images to learn from; without them the methods that need them are left out.
        val: More of them, which the network was not trained on, to learn and choose from.
        test: More of them, on which methods are judged.
        ood: Data sets of unknown inputs.
        seed: Of the data and of the training.
        ood_val: Unknown images by which hyper-parameters may be chosen, or None. No method is judged on them.
        network: Name of the network, to tell it from others that are judged on the same data.
        head: Name of the network's last layer, where it cannot be found by itself (see ``find_head``).
        family: Networks of one family differ by their seed only; results are averaged over them.
        siblings: Names of all networks that are judged on this suite, this one included; each has a folder of its own.
        classes: Names of the classes, where they are known.
        accuracy: What the network should reach on the test data, in per cent, where that is known.
        architecture: What it was made by.
        protocol: Of a published benchmark, where data and preparation are exactly its own.
        deviations: One sentence for everything in which it is not.
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
        self._check_apart()

    @property
    def sources(self) -> dict[str, Source]:
        """All data sets by name, in the order in which they are extracted."""
        known = {"train": self.train, "val": self.val, "test": self.test, "ood_val": self.ood_val}
        return {name: source for name, source in known.items() if source is not None} | {
            ood.name: ood.images for ood in self.ood
        }

    def _check_apart(self) -> None:
        """Raise if methods would be judged on the very images that they learn from."""
        pairs = [("test", self.test, "val", self.val)]
        if self.train is not None:
            pairs += [("test", self.test, "train", self.train)]
        if self.ood_val is not None:
            pairs += [(ood.name, ood.images, "ood_val", self.ood_val) for ood in self.ood]
        for name, judged, other, learnt in pairs:
            if judged is learnt or (judged.rows == learnt.rows and judged.fingerprint == learnt.fingerprint):
                raise ValueError(
                    f"{name} and {other} hold the same images: methods would be judged on what they learn from. "
                    "Divide them."
                )


def check_names(names: Sequence[str]) -> None:
    """Raise unless these can be the names of unknown data sets."""
    for name in names:
        if name in RESERVED or names.count(name) > 1 or not NAME.fullmatch(name):
            raise ValueError(
                f"an unknown data set cannot be called {name!r}. Names are unique, made of letters, digits and -_.+, "
                f"and none of {', '.join(RESERVED)}."
            )
