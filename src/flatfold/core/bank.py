"""The inputs of every feature-based method: the last linear layer of a model, and the features of a data set."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import MethodRefusedError
from .class_statistics import ClassMoments, LazyRows, Rows, SharedMoments, class_moments
from .hessian import entry_chunks
from .validation import as_matrix, as_tensor, check_labels


@dataclass(frozen=True, eq=False)
class Head:
    """Weight and bias of the layer that turns features into logits, ``z = W h + b``.

    A single row is the head of a binary model with one logit z, whose probability of class 1 is ``sigmoid(z)``. It
    becomes the head of two classes with the same probabilities (:func:`as_two_classes`).

    Args:
        weight: ``(c, d)``, one row per class; a tensor or a numpy array, float32 or float64.
        bias: ``(c,)``, or None for a head without one.

    Example:
        >>> head = Head(torch.eye(2), torch.tensor([0.0, 1.0]))
        >>> head(torch.tensor([[3.0, 4.0]]))
        tensor([[3., 5.]])
    """

    weight: Tensor
    bias: Tensor | None = None

    def __init__(self, weight: Tensor | np.ndarray, bias: Tensor | np.ndarray | None = None) -> None:
        weight = as_matrix(weight, "the head's weight")
        if bias is not None:
            bias = as_tensor(bias, "the head's bias")
            if bias.shape != weight.shape[:1] or bias.dtype != weight.dtype:
                raise ValueError(
                    f"the head's bias must have shape ({weight.shape[0]},) and type {weight.dtype} like its weight, "
                    f"got {tuple(bias.shape)} and {bias.dtype}."
                )
            bias = as_two_classes(as_matrix(bias[:, None], "the head's bias")[:, 0], dim=0)
        object.__setattr__(self, "weight", as_two_classes(weight, dim=0))
        object.__setattr__(self, "bias", bias)

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """Number of features d."""
        return self.weight.shape[1]

    def __call__(self, h: Tensor) -> Tensor:
        """Return the logits ``(n, c)`` of features ``(n, d)``."""
        return torch.nn.functional.linear(h, self.weight, self.bias)

    def predict(self, h: Rows) -> Tensor:
        """Return the class with the largest logit of each row of features, ``(n,)``; logits are computed in chunks."""
        predicted = torch.empty(len(h), dtype=torch.int64, device=h[:1].device)
        for part in entry_chunks(len(h), self.n_classes):
            # Not concatenated at the end: small tensors kept in between would fragment the memory of the next logits.
            predicted[part] = self(h[part]).argmax(dim=-1)
        return predicted

    def to(self, target: torch.device | torch.dtype | str) -> Head:
        """Return this head on another device or in another floating-point type."""
        return Head(self.weight.to(target), None if self.bias is None else self.bias.to(target))

    def __repr__(self) -> str:
        bias = "no bias" if self.bias is None else "bias"
        return f"Head({self.n_classes} classes, {self.width} features, {bias}, {self.weight.dtype})"


def as_two_classes(values: Tensor, dim: int) -> Tensor:
    """Convert a single logit z, or the weights of one, to two classes, (-z/2, z/2); return others unchanged.

    Probabilities depend only on differences of logits, so (0, z) would give the same ones. But the energy and the
    largest logit would then be high for class 1 only, and every input of class 0 would look like OOD data. With -z/2
    and z/2 no score depends on which of the classes is called 1.

    Example:
        >>> z = torch.tensor([[2.0], [-4.0]])
        >>> as_two_classes(z, dim=1)
        tensor([[-1.,  1.],
                [ 2., -2.]])
        >>> torch.allclose(as_two_classes(z, dim=1).softmax(dim=1)[:, 1:], z.sigmoid())
        True
    """
    return torch.cat([-values / 2, values / 2], dim) if values.shape[dim] == 1 else values


SHAPED_AT_ONCE = 2**30  # bytes of shaped features that are stored rather than computed again for each pass
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class FeatureBank:
    """Features of a data set and, optionally, their class labels.

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
    _shared: ClassVar[SharedMoments | None] = None

    def __init__(self, features: Tensor | np.ndarray, labels: Tensor | np.ndarray | None = None) -> None:
        features = as_matrix(features, "features")
        if labels is not None:
            labels = as_tensor(labels, "labels")
            labels = labels.long() if labels.dtype in INTEGERS else labels
            check_labels(labels, len(features))
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.features)

    def sharing_moments(self) -> FeatureBank:
        """Return this bank with moments that are computed once, for a benchmark that fits several methods to it.

        Its features must not be modified afterwards.
        """
        bank = copy(self)
        object.__setattr__(bank, "_shared", SharedMoments())
        return bank

    def moments(self, by_class: bool) -> ClassMoments:
        """Return counts, means and scatter of the classes, for which labels are needed, or of all rows together."""
        if self._shared is not None:
            return self._shared.get(self.rows, self.labels, by_class)
        return class_moments(self.rows, self.labels if by_class else None)

    @property
    def seconds_saved(self) -> float:
        """The time that shared moments have saved until now."""
        return 0.0 if self._shared is None else self._shared.saved

    @property
    def width(self) -> int:
        """Number of features d."""
        return self.features.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the features."""
        return self.features.dtype

    @property
    def rows(self) -> Rows:
        """The features, to be read in chunks: ``bank.rows[start:stop]`` computes those of a large shaped bank."""
        return self.features

    def shaped(self, shaping: Callable[[Tensor], Tensor]) -> FeatureBank:
        """Return this bank with features shaped by a function of rows, when they are first used."""
        return ShapedBank(self, shaping)

    def __getitem__(self, rows: slice | Tensor) -> FeatureBank:
        """Return the rows selected by a slice, an index tensor or a boolean mask."""
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


class ShapedBank(FeatureBank):
    """A bank whose features are a function of those of another bank.

    ``rows`` computes those of more than a gigabyte a chunk at a time, whenever they are read; ``features`` are computed
    once and stored.
    """

    _lazy: LazyRows
    _whole: Tensor

    def __init__(self, bank: FeatureBank, shaping: Callable[[Tensor], Tensor]) -> None:
        object.__setattr__(self, "labels", bank.labels)
        object.__setattr__(self, "_lazy", LazyRows(bank.features, shaping))
        object.__setattr__(self, "_whole", bank.features)

    @cached_property
    def features(self) -> Tensor:  # a field of the base class
        """All shaped features: one copy, written in chunks."""
        shaped = torch.empty_like(self._whole)
        for part in entry_chunks(*shaped.shape):
            shaped[part] = self._lazy[part]
        return as_matrix(shaped, "shaped features")

    @property
    def rows(self) -> Rows:
        """The shaped features, to be read in chunks."""
        return self.features if self._whole.nbytes <= SHAPED_AT_ONCE else self._lazy

    @property
    def width(self) -> int:
        """Number of features d."""
        return self._whole.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the features."""
        return self._whole.dtype

    def __len__(self) -> int:
        return len(self._lazy)


def without_class(bank: FeatureBank, head: Head, label: int) -> tuple[FeatureBank, Head]:
    """Return a bank and a head without one class; labels above it move down by one."""
    if head.n_classes < 3:
        raise MethodRefusedError("leaving out a class needs a head of at least three classes, but this one has two.")
    others = torch.arange(head.n_classes, device=head.weight.device) != label
    smaller = Head(head.weight[others], None if head.bias is None else head.bias[others])
    if bank.labels is None:
        return bank, smaller
    kept = bank.labels != label
    if not bool(kept.any()):
        raise MethodRefusedError("leaving out a class needs samples of at least two classes, but this bank has one.")
    labels = bank.labels[kept]
    return FeatureBank(bank.features[kept], labels - (labels > label).long()), smaller
