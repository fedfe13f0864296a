"""What a benchmark is made of: a network, in-distribution splits, and data sets it has never met."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from ..models.sources import ImageSource

Group = Literal["near", "far"]


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
    images: ImageSource
    about: str


@dataclass(frozen=True)
class Suite:
    """A network with everything it is judged on.

    Args:
        name: As on the command line.
        about: One sentence for the report.
        model: The trained classifier.
        train, val, test: In-distribution splits. Methods learn from the first two and are judged on the last.
        ood: Data sets of unknown inputs.
        seed: Of the data and of the training.
    """

    name: str
    about: str
    model: nn.Module
    train: ImageSource
    val: ImageSource
    test: ImageSource
    ood: tuple[OodSet, ...]
    seed: int
