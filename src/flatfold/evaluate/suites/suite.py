"""A suite: a network, in-distribution splits, and OOD data sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Literal, get_args

from ...display.numbers import count

if TYPE_CHECKING:  # completion in the shell reads the names of suites, without torch
    from torch import nn

    from ...data.sources import Source

Group = Literal["near", "far"]
GROUPS = get_args(Group)

NAME = re.compile(r"[\w+-][\w.+-]{0,63}")  # names become folders, with a method and a hash in 255 bytes
LETTERS = "at most 64 letters, digits and -_.+"
FOLDERS = ("banks", "scores", "figures", "data", "curvature", "exhibits", "full-scale")  # reserved: next to results
RESERVED = ("train", "val", "test", "ood_val", "id", "near", "far", "all", "average")  # in folders and tables


@dataclass(frozen=True)
class OodSet:
    """An OOD data set with a sentence about it; near-OOD resembles the training data, far-OOD does not."""

    name: str
    group: Group
    images: Source
    about: str
    printed: str = ""  # its name in tables for papers, if that is another one
    anomalies: tuple[int, ...] = (1,)  # values of OOD pixels in the masks of its images, if they have some


@dataclass(frozen=True)
class Suite:
    """A network and the data sets on which detectors are fitted and evaluated."""

    name: str  # as on the command line
    about: str  # one sentence for the report
    model: nn.Module  # the trained classifier
    train: Source | None  # without training images, methods that need them are left out
    val: Source | None  # ID images that the network was not trained on: methods learn and choose parameters from them
    test: Source  # ID images for the evaluation
    ood: tuple[OodSet, ...]
    seed: int  # of the data and of the training
    ood_val: Source | None = None  # OOD images for tuning, never for the evaluation
    network: str = ""  # name of the network among those evaluated on the same data
    head: str | None = None  # name of the last layer, if `find_head` cannot find it
    family: str = ""  # networks that differ by their seed only; results are averaged over a family
    siblings: tuple[str, ...] = ()  # names of all networks of the suite; each has its own folder of results
    classes: tuple[str, ...] = ()  # names of the classes, if known
    accuracy: float | None = None  # expected accuracy on the test data in percent, if known
    architecture: str = ""  # factory or published name of the network
    protocol: str = ""  # the published benchmark whose data and transform these are
    deviations: tuple[str, ...] = ()  # one sentence per departure from the protocol
    ignored: tuple[int, ...] = (255, -100)  # values of pixels that do not count in masks

    def __repr__(self) -> str:
        network = f", network {self.network}" if self.network else ""
        return f"Suite({self.name}{network}, {count(len(self.ood), 'OOD data set')})"

    @property
    def masked(self) -> bool:
        """Whether the images have masks, and methods are evaluated on pixels."""
        return self.test.masked

    def __post_init__(self) -> None:
        given = [source for source in (self.train, self.val, self.test) if source is not None]
        given += [each.images for each in self.ood]
        if len({source.masked for source in given}) > 1:
            raise ValueError(
                "either all data sets have masks or none has, but some have and some have not. Give masks = in [test], "
                "[val], [train] and every [[ood]], or remove them."
            )
        if self.masked and self.ood_val is not None:
            raise ValueError("methods cannot be tuned on OOD images with masks yet. Remove [ood_val].")
        check_names([ood.name for ood in self.ood])
        pairs = [("test", self.test, "val", self.val), ("test", self.test, "train", self.train)]
        pairs += [(ood.name, ood.images, "ood_val", self.ood_val) for ood in self.ood]
        for name, tested, other, learnt in pairs:
            if learnt is not None and (
                tested is learnt or (tested.rows == learnt.rows and tested.fingerprint == learnt.fingerprint)
            ):
                raise ValueError(
                    f"{name} and {other} hold the same images: methods would be evaluated on what they learn from. "
                    "Divide them."
                )

    @property
    def sources(self) -> dict[str, Source]:
        """All data sets by name, in the order of extraction."""
        splits = {"train": self.train, "val": self.val, "test": self.test, "ood_val": self.ood_val}
        return {name: source for name, source in splits.items() if source is not None} | {
            ood.name: ood.images for ood in self.ood
        }

    def sources_for(self, tuning: bool) -> dict[str, Source]:
        """Return the data sets that a benchmark reads: OOD validation data is only needed for tuning."""
        return {name: source for name, source in self.sources.items() if tuning or name != "ood_val"}


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError unless these are valid names of OOD data sets."""
    for name in names:
        if name in RESERVED or names.count(name) > 1 or not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(
                f"an OOD data set cannot be called {shortened(name)}. Use unique names of {LETTERS}, and none of "
                f"{', '.join(RESERVED)}."
            )
