"""A feature bank: the penultimate features of a data set, extracted once and used by every method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .check import as_tensor, check_labels, check_matrix
from .head import Head

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class FeatureBank:
    """Features of a data set and, when known, their classes.

    Args:
        features: ``(n, d)``, finite, float32 or float64; a tensor or a numpy array, which is not copied.
        labels: ``(n,)`` class indices of any integer type, kept as int64, or None.

    Example:
        >>> bank = FeatureBank(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
        >>> len(bank), bank.width
        (3, 2)
        >>> bank[bank.labels == 1]
        FeatureBank(2 rows, 2 features, 1 class, torch.float32)
    """

    features: Tensor
    labels: Tensor | None = None

    def __init__(self, features: Tensor | np.ndarray, labels: Tensor | np.ndarray | None = None) -> None:
        features = as_tensor(features, "features").detach()
        check_matrix(features, "features")
        if labels is not None:
            labels = as_tensor(labels, "labels")
            labels = labels.long() if labels.dtype in INTEGERS else labels
            check_labels(labels, len(features))
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        """Number of features d."""
        return self.features.shape[1]

    def __getitem__(self, rows: slice | Tensor) -> FeatureBank:
        """Return the rows that a slice, an index tensor or a boolean mask picks."""
        return FeatureBank(self.features[rows], None if self.labels is None else self.labels[rows])

    def to(self, device: torch.device | str) -> FeatureBank:
        """Return this bank on another device."""
        return FeatureBank(self.features.to(device), None if self.labels is None else self.labels.to(device))

    def __repr__(self) -> str:
        if self.labels is None:
            classes = "no labels"
        else:
            count = len(torch.unique(self.labels))
            classes = f"{count} class{'es' if count > 1 else ''}"
        return f"FeatureBank({len(self)} rows, {self.width} features, {classes}, {self.features.dtype})"


def without_class(bank: FeatureBank, head: Head, label: int) -> tuple[FeatureBank, Head]:
    """Return what there would be had the network never been taught a class.

    Args:
        bank: Labelled; its samples of that class are left out and labels above it move down by one.
        head: Its row of that class is left out.
        label: The class.
    """
    if head.n_classes < 3:
        raise ValueError("leaving out a class takes at least three of them, but this head has two.")
    others = torch.arange(head.n_classes, device=head.weight.device) != label
    smaller = Head(head.weight[others], None if head.bias is None else head.bias[others])
    if bank.labels is None:
        return bank, smaller
    kept = bank.labels != label
    if not bool(kept.any()):
        raise ValueError("leaving out a class takes samples of at least two classes, but this bank has one only.")
    labels = bank.labels[kept]
    return FeatureBank(bank.features[kept], labels - (labels > label).long()), smaller
