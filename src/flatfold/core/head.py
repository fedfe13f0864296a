"""The last linear layer of a classifier: everything a feature-based method needs of the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .check import as_tensor, check_matrix


@dataclass(frozen=True, eq=False)
class Head:
    """Weight and bias of the layer that turns features into logits, ``z = W h + b``.

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
        weight = as_tensor(weight, "the head's weight").detach()
        check_matrix(weight, "the head's weight")
        if weight.shape[0] < 2:
            raise ValueError(
                "a head needs at least two classes, got one row of weights. "
                "For a binary model with one output use the two logits (0, z): a zero row on top of the weight."
            )
        if bias is not None:
            bias = as_tensor(bias, "the head's bias").detach()
            if bias.shape != weight.shape[:1] or bias.dtype != weight.dtype:
                raise ValueError(
                    f"the head's bias must have shape ({weight.shape[0]},) and type {weight.dtype} like its weight, "
                    f"got {tuple(bias.shape)} and {bias.dtype}."
                )
            check_matrix(bias[:, None], "the head's bias")
        object.__setattr__(self, "weight", weight)
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

    def to(self, target: torch.device | torch.dtype | str) -> Head:
        """Return this head on another device or in another floating-point type."""
        return Head(self.weight.to(target), None if self.bias is None else self.bias.to(target))

    def __repr__(self) -> str:
        bias = "no bias" if self.bias is None else "bias"
        return f"Head({self.n_classes} classes, {self.width} features, {bias}, {self.weight.dtype})"
