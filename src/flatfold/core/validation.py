"""Validation of arguments."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import MethodRefusedError
from .hessian import row_chunks

if TYPE_CHECKING:
    from .bank import FeatureBank, Head

FLOATS = (torch.float32, torch.float64)
LARGEST = 2**53  # of whole numbers; floating-point numbers hold them exactly


def as_tensor(values: Tensor | np.ndarray, name: str) -> Tensor:
    """Return ``values`` as a tensor, which shares their memory unless they have another byte order."""
    if isinstance(values, Tensor):
        check_tensor(values, name)
        return values
    if not isinstance(values, np.ndarray):
        raise TypeError(
            f"{name} must be a torch tensor or a numpy array, not {type(values).__name__}. Wrap it in "
            "torch.tensor(...)."
        )
    check_unmasked(values, name)
    if values.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be numbers, got {values.dtype}. Convert them, as in array.astype('float32').")
    return torch.from_numpy(values.astype(values.dtype.newbyteorder("="), copy=False))


def check_tensor(values: Tensor, name: str, sparse: bool = False) -> None:
    """Raise unless a tensor holds its values, one after the other; with ``sparse`` it may leave out zeros."""
    if values.is_meta:
        raise ValueError(f"{name} on the device 'meta' have a shape but no values. Create them on 'cpu'.")
    if values.is_nested:
        raise ValueError(f"{name} must have rows of one length, got a nested tensor. Pad it: x.to_padded_tensor(0.0).")
    if values.is_quantized:
        raise TypeError(f"{name} must not be quantised, got {values.dtype}. Convert them with .dequantize().")
    if values.layout is not torch.strided and not (sparse and "sparse" in str(values.layout)):
        raise ValueError(f"{name} must be dense, got {values.layout}. Convert them with .to_dense().")


def check_unmasked(values: np.ndarray, name: str) -> None:
    """Raise if an array has masked values: the numbers below the mask mean nothing."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"{name} must not have masked values, got {int(np.ma.getmaskarray(values).sum())} of {values.size}. "
            "Fill them as in training, array.filled(0), or leave out these rows."
        )


def as_matrix(values: Tensor | np.ndarray, name: str) -> Tensor:
    """Return ``values`` as a tensor without a graph; raise unless it is a non-empty, finite float matrix."""
    values = as_tensor(values, name).detach()
    if values.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, got {tuple(values.shape)}. Reshape it first.")
    if values.shape[0] == 0 or values.shape[1] == 0:
        raise ValueError(f"{name} must not be empty, got shape {tuple(values.shape)}. Was the data loader empty?")
    if values.dtype not in FLOATS:
        raise TypeError(f"{name} must be float32 or float64, got {values.dtype}. Convert with .float() or .double().")
    check_finite(values, name)
    return values


def check_finite(values: Tensor, name: str, first: int = 0) -> None:
    """Raise if ``values`` holds a NaN or an infinity, and name the first row that does, counted from ``first``."""
    for part in row_chunks(len(values)):
        if isfinite(values[part].detach().sum().item()):
            continue  # one pass: a sum with a non-finite entry is not finite, and finite entries rarely overflow
        finite = values[part].isfinite()
        if not finite.all():
            row = first + part.start + int((~finite).flatten(1).any(dim=1).nonzero()[0])
            raise ValueError(
                f"{name} must be finite, but row {row} has a NaN or infinite entry. "
                "Check this input and the model's weights; rows are not dropped automatically."
            )


def check_scores(scores: Tensor, n: int, who: str) -> None:
    """Raise unless the scores that the method ``who`` returned are ``n`` floating-point numbers."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        kind = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"score() of {who} must return a floating-point tensor, got {kind}.")
    if scores.shape != (n,):
        raise ValueError(
            f"score() of {who} must return one number per row, shape ({n},), got {tuple(scores.shape)}. "
            "Reduce the other dimensions, for example with .amax(dim=-1) or .squeeze(-1)."
        )


def check_labels(labels: Tensor, n: int) -> None:
    """Raise unless ``labels`` are ``n`` non-negative class indices in int64."""
    if labels.dtype != torch.int64:
        raise TypeError(f"labels must be integer class indices, got {labels.dtype}. Convert one-hot with .argmax(1).")
    if labels.shape != (n,):
        raise ValueError(f"labels must have shape ({n},), one per feature row, got {tuple(labels.shape)}.")
    if n and int(labels.min()) < 0:
        raise ValueError(
            f"labels must be class indices from 0, got {int(labels.min())}. "
            "A bank holds in-distribution data only: drop the rows of OOD samples."
        )


def check_width(width: int, weight: Tensor) -> None:
    """Raise unless rows of this width are as wide as the head's input."""
    if width != weight.shape[-1]:
        raise ValueError(
            f"features have d={width} columns but the head expects d={weight.shape[-1]}. "
            "Were they taken from the input of this model's last linear layer?"
        )


def check_features(h: Tensor, weight: Tensor) -> None:
    """Raise unless features ``h`` match a head's ``weight``; values are not checked while a graph is traced."""
    if not isinstance(h, Tensor):
        raise TypeError(
            f"features must be a torch tensor, not {type(h).__name__}. Use bank.features, or torch.as_tensor(array)."
        )
    if not torch.compiler.is_compiling():
        check_tensor(h, "features")
    if h.ndim != 2:
        raise ValueError(f"features must have shape (n, d), got {tuple(h.shape)}. A single row needs h[None].")
    check_width(h.shape[-1], weight)
    if h.dtype != weight.dtype:
        raise TypeError(
            f"features are {h.dtype} but the detector was fitted in {weight.dtype}. "
            "Convert one of them: features.to(dtype) or detector.to(dtype)."
        )
    if not torch.compiler.is_compiling():
        check_finite(h, "features")


def check_fit(bank: FeatureBank, head: Head) -> None:
    """Raise unless ``bank`` and ``head`` belong together."""
    if not hasattr(bank, "labels") or not hasattr(head, "n_classes"):
        raise TypeError(
            f"fit takes a FeatureBank and a Head, in this order, got {type(bank).__name__} and {type(head).__name__}."
        )
    check_width(bank.width, head.weight)
    if bank.dtype != head.weight.dtype:
        raise TypeError(
            f"the bank is {bank.dtype} but the head is {head.weight.dtype}. "
            "Convert both to the same type, float32 or float64."
        )
    if bank.labels is not None and int(bank.labels.max()) >= head.n_classes:
        raise ValueError(
            f"labels go up to {int(bank.labels.max())} but the head has {head.n_classes} classes (0 to "
            f"{head.n_classes - 1}). Do the labels follow the order of the model's outputs?"
        )


def require_labels(bank: FeatureBank, who: str) -> Tensor:
    """Return the labels of ``bank``; raise if it has none, naming the method ``who`` that needs them."""
    if bank.labels is None:
        raise MethodRefusedError(
            f"{who} needs the class labels of the samples. Pass FeatureBank(features, labels), or batches (x, y)."
        )
    return bank.labels


def check_not_negative(h: Tensor, who: str) -> None:
    """Raise if a feature is negative; not checked while a graph is traced."""
    if not torch.compiler.is_compiling() and h.numel() and float(h.amin()) < 0:
        raise MethodRefusedError(
            f"{who} needs non-negative activations, but the smallest is {float(h.amin()):.3g}. "
            "Use features after a ReLU, or another method."
        )


def check_choice(name: str, value: object, choices: Collection[str | bool | None]) -> None:
    """Raise unless an argument is one of the allowed values."""
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):  # 1 is not True
        raise MethodRefusedError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_above_zero(name: str, value: float, customary: str, or_zero: bool = False) -> None:
    """Raise unless a hyper-parameter is above 0, or 0 where that is allowed."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    most = LARGEST if isinstance(value, int) else sys.float_info.max
    if not number or not 0 <= value <= most or (value == 0 and not or_zero):
        limit = "of at least 0" if or_zero else "above 0"
        given = f"{value!r:.60}"
        raise MethodRefusedError(f"{name} must be a finite number {limit}, got {given}. {customary} is customary.")


def check_count(name: str, value: int, most: int | None = None, of: str = "") -> None:
    """Raise unless a hyper-parameter is a positive integer, and at most ``most``, the number of ``of``."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= (LARGEST if most is None else most):
        limit = "of at least 1" if most is None else f"from 1 to {most}, the number of {of}"
        raise MethodRefusedError(f"{name} must be a whole number {limit}, got {value!r:.60}.")


def check_seed(seed: int | None) -> None:
    """Raise unless a seed is a whole number that generators take."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise MethodRefusedError(f"seed must be a whole number of at most 63 bits, got {seed!r:.60}.")


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names and the number of others: a network has hundreds of weights."""
    return (", ".join(names[:most]) or "none") + (f" and {len(names) - most} more" if len(names) > most else "")
