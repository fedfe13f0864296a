"""Class labels in the forms in which people have them, converted to class indices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.validation import check_labels, check_tensor

LABEL_KEYS = ("labels", "label", "y", "target", "targets")
SHOWN = 40  # characters of a label in a message
_SCALARS = (Integral, float, str, np.generic)


class ClassIndices(NamedTuple):
    """Class indices ``(n,)`` in int64, and the number of classes that their form implies.

    One-hot rows have one class per column and booleans are of two classes; None for indices, which may have any number.
    """

    indices: Tensor
    classes: int | None


def class_indices(labels: Any, rows: int) -> ClassIndices:
    """Convert the labels of ``rows`` inputs to class indices.

    Accepted are whole numbers of any type, booleans, and exact one-hot rows, in tensors, arrays, lists, data frames and
    series; a column ``(n, 1)`` counts as ``(n,)``.

    Example:
        >>> class_indices([[0, 1], [1, 0]], rows=2)
        ClassIndices(indices=tensor([1, 0]), classes=2)
    """
    values = _as_tensor(labels)
    classes = 2 if values.dtype == torch.bool else None
    if is_one_hot(values):
        values, classes = values.long().argmax(dim=1), values.shape[1]
    elif values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.is_floating_point() or values.is_complex() or (values.ndim == 2 and len(values)):
        kind = f"{str(values.dtype).removeprefix('torch.')} of shape {tuple(values.shape)}"
        if values.ndim == 2:
            advice = "A one-hot row has a single 1, and 0 elsewhere. Join a list of inputs with torch.stack."
        elif values.isnan().any():
            advice = "Leave out inputs without a class."
        elif not values.is_complex() and (values == values.round()).all():
            advice = "Convert them to whole numbers: labels.astype(int), or labels.long()."
        else:
            advice = "Leave out targets that are not classes."
        raise _error(kind, advice, ValueError if values.ndim == 2 else TypeError)
    indices = values.long()
    check_labels(indices, rows)
    return ClassIndices(indices, classes)


def indices_or_masks(labels: Any, rows: int) -> ClassIndices:
    """Convert labels as :func:`class_indices` does, but leave masks of whole numbers, ``(n, H, W)``, as they are."""
    values = _as_tensor(labels)
    several = values.ndim > 1 and values.shape[1:] != (1,)
    if several and len(values) == rows and not values.is_floating_point() and not values.is_complex():
        return ClassIndices(values, None)
    return class_indices(labels, rows)


def is_one_hot(values: Tensor) -> bool:
    """Return whether a tensor has rows of several columns with a single 1 each, and 0 elsewhere."""
    if values.ndim != 2 or values.shape[1] < 2 or not len(values) or values.is_complex() or values.is_sparse:
        return False
    ones = values == 1
    return bool((ones | (values == 0)).all() and (ones.sum(dim=1) == 1).all())


def are_labels(values: Any, inputs: Any) -> bool:
    """Return whether the second of a pair holds labels of the first, not inputs of another batch.

    Two batches for one model have the same number of dimensions and the same type. So values of another kind are
    labels, and so are one-hot rows of another width.
    """
    if isinstance(values, (tuple, list)):
        return bool(values) and isinstance(values[0], _SCALARS)
    if _is_column(values):  # which is never one of several batches
        return True
    if not isinstance(values, (Tensor, np.ndarray)) or values.ndim == 0:
        return False
    if not isinstance(inputs, Tensor) and not (isinstance(inputs, np.ndarray) and _is_number(inputs)):
        return True
    if values.ndim != inputs.ndim or _is_float(values) != _is_float(inputs):
        return True
    wide = values.ndim == 2 and values.shape[1] != inputs.shape[1] and len(values) == len(inputs)
    return wide and _is_number(values) and is_one_hot(torch.as_tensor(values))


def _is_column(values: Any) -> bool:
    """Return whether this is a data frame, a series or an array of pandas, or a column of another library."""
    if isinstance(values, (Tensor, np.ndarray, np.generic)) or not hasattr(values, "__array__"):
        return False
    return hasattr(values, "dtype") or hasattr(values, "iloc")


def _as_tensor(labels: Any) -> Tensor:
    """Return labels as a tensor on the CPU; raise if they are not numbers."""
    if isinstance(labels, Tensor):
        check_tensor(labels, "labels")
        return labels.detach().cpu()
    if _is_column(labels):
        labels = np.asarray(labels)
    if isinstance(labels, (list, tuple)) and any(isinstance(label, Tensor) for label in labels):
        labels = [label.tolist() if isinstance(label, Tensor) else label for label in labels]
    if not isinstance(labels, (list, tuple, np.ndarray)):
        raise _error(type(labels).__name__, "Give one for each input.")
    try:
        values = np.asarray(labels)
    except ValueError:  # rows of several lengths
        raise _error("rows of several lengths", "Give one for each input.", ValueError) from None
    if np.ma.is_masked(labels):
        raise _error("an array with masked values", "Leave out inputs without a class.", ValueError)
    if values.dtype.kind == "O":
        values = _of_objects(values)
    if values.dtype.kind in "US":
        raise _error(
            f"texts such as {str(values.flat[0])[:SHOWN]!r}",
            "Number them in the order of the model's outputs: [names.index(label) for label in labels].",
        )
    if not _is_number(values):
        raise _error(str(values.dtype), "Give one for each input.")
    dtype = np.dtype(np.float64) if values.dtype.kind == "f" else values.dtype.newbyteorder("=")
    return torch.from_numpy(np.require(values.astype(dtype), requirements=["C", "W"]))


def _of_objects(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of Python objects as one of booleans, integers or texts."""
    flat: Sequence[Any] = values.ravel().tolist()
    for kind, dtype in (((bool, np.bool_), np.bool_), (Integral, np.int64), (str, np.str_)):
        if flat and all(isinstance(value, kind) for value in flat):
            with suppress(OverflowError):
                return values.astype(dtype)
    other = next((value for value in flat if not isinstance(value, Integral)), flat[0] if flat else None)
    raise _error(f"values such as {repr(other)[:SHOWN]} ({type(other).__name__})", "Leave out inputs without a class.")


def _is_float(values: Tensor | NDArray[Any]) -> bool:
    return values.is_floating_point() if isinstance(values, Tensor) else values.dtype.kind == "f"


def _is_number(values: Tensor | NDArray[Any]) -> bool:
    return isinstance(values, Tensor) or values.dtype.kind in "fiub"


def _error(given: str, advice: str, error: type[Exception] = TypeError) -> Exception:
    return error(
        f"labels must be integer class indices, one per input (or booleans of two classes, or one-hot rows), got "
        f"{given}. {advice}"
    )
