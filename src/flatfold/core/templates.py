"""One mean per class over the samples that the network gets right."""

from typing import NamedTuple

import torch
from torch import Tensor

from .gaussian import class_means


class Templates(NamedTuple):
    """The mean of each class and the samples it was taken over."""

    means: Tensor
    """``(c, d)``, float64."""
    used: Tensor
    """``(n,)`` bool."""
    note: str
    """A sentence about classes without a correct sample, empty if there are none."""


def class_templates(values: Tensor, labels: Tensor, predicted: Tensor, n_classes: int, who: str) -> Templates:
    """Return the mean of each class over its correctly classified samples.

    A class that the network never gets right is averaged over all its samples, which the note says. A class without
    any sample is refused.

    Args:
        values: What is averaged, ``(n, d)``.
        labels: ``(n,)``.
        predicted: ``(n,)``.
        n_classes: c.
        who: The method, for the messages.
    """
    absent = _classes(labels.bincount(minlength=n_classes) == 0)
    if absent:
        raise ValueError(
            f"{who} needs samples of every class, but the bank has none of {absent}. Give training data of all "
            "classes, or a head with the rows of those you have: Head(weight[rows], bias[rows])."
        )
    correct = labels == predicted
    never = labels[correct].bincount(minlength=n_classes) == 0
    used = correct | never[labels]
    note = f"{who} found no correctly classified sample of {_classes(never)} and takes all its samples instead."
    return Templates(class_means(values[used], labels[used])[1], used, note if bool(never.any()) else "")


def _classes(chosen: Tensor) -> str:
    """Return the first few classes of a mask as words."""
    numbers = torch.nonzero(chosen).flatten().tolist()
    shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"class {shown}" if numbers else ""
