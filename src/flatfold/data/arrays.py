"""Arrays with one row per input: tensors, numpy arrays and data frames, as a source of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.validation import check_tensor, check_unmasked
from .batch import Batch, split_batch
from .labels import LABEL_KEYS, ClassIndices, are_labels, class_indices, indices_or_masks
from .sources import Source

SHOWN = 3  # columns that a message names


class ArrayRows(Source):
    """Inputs in memory: one batch as ``split_batch`` accepts it, sliced into batches.

    Args:
        inputs: A tensor, a pair ``(x, y)``, or a dict, with one row per input.
        batch_size: Inputs in a batch.
    """

    def __init__(self, inputs: Any, batch_size: int = 64) -> None:
        super().__init__(batch_size)
        self._whole = split_batch(inputs, _labels_of_arrays)
        self.rows, self.labels = self._whole.rows, self._whole.labels
        self.label_classes = self._whole.label_classes
        if self.rows == 0:
            raise ValueError("the arrays must hold at least one input, got none. Is the data set empty?")

    @property
    def fingerprint(self) -> str:
        """The sha256 of all values, and of their names, shapes and types."""
        digest = hashlib.sha256()
        named = [*enumerate(self._whole.args), *self._whole.kwargs.items(), ("labels", self.labels)]
        for name, value in named:
            if isinstance(value, Tensor):
                digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
                digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
            else:
                digest.update(f"{name} {value!r}\n".encode())
        return digest.hexdigest()

    def read(self, rows: range) -> Any:
        """Return the batch that holds these rows."""
        return _as_raw(self._whole.part(rows.start, rows.stop))

    def subset(self, rows: NDArray[np.integer]) -> ArrayRows:
        """Return the given rows, in that order, as a source."""
        whole, index = self._whole, torch.from_numpy(rows.astype(np.int64))
        chosen = whole.with_each(lambda value: value[index] if whole.one_per_input(value) else value)
        labels = None if self.labels is None else self.labels[index]
        some = ArrayRows(_as_raw(chosen._replace(labels=labels, rows=len(index))), self.batch_size)
        some.label_classes = self.label_classes
        return some

    def without_labels(self) -> ArrayRows:
        """Return the same inputs without labels."""
        return ArrayRows(_as_raw(self._whole._replace(labels=None)), self.batch_size)


def _labels_of_arrays(labels: Any, rows: int) -> ClassIndices:
    """Convert labels to class indices; masks, and rows with a class for each token, are left as they are."""
    values, _ = read = indices_or_masks(labels, rows)
    tokens = values.ndim == 2 and values.numel() and (int(values.min()) < 0 or int(values.max()) > 1)
    return read if values.ndim > 2 or tokens else class_indices(labels, rows)


def _as_raw(batch: Batch) -> Any:
    inputs = batch.args[0] if batch.args else batch.kwargs
    return inputs if batch.labels is None else (inputs, batch.labels)


def split_arrays(data: Any) -> tuple[Any, Any] | None:
    """Return inputs and labels if ``data`` has one row per input; None if it may be a list of batches."""
    if is_array(data) or _is_dict_of_arrays(data):
        return data, None
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return None
    x, y = data
    if not (is_array(x) or _is_dict_of_arrays(x)) or not are_labels(y, x):
        return None
    for values in (x, y):
        if isinstance(values, Tensor):
            check_tensor(values, "tensors")  # a nested one has no shape
    shape, own = (tuple(np.shape(values)) for values in (next(iter(x.values())) if isinstance(x, Mapping) else x, y))
    if shape[0] != own[0]:
        raise ValueError(
            f"(X, y) must have a label in y for each row of X, got X of shape {shape} and y of shape {own}. "
            "Drop the same rows from both."
        )
    return x, y


def is_array(value: Any) -> bool:
    """Return whether a value is a tensor, an array, a data frame, a series or a sparse matrix."""
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim > 0
    return hasattr(value, "iloc") or hasattr(value, "toarray")  # of pandas and scipy, which may not be installed


def _is_dict_of_arrays(data: Any) -> bool:
    return (
        isinstance(data, Mapping)
        and any(is_array(value) for value in data.values())
        and all(is_array(value) or (name in LABEL_KEYS and are_labels(value, None)) for name, value in data.items())
    )


def to_tensors(values: Any, dtype: torch.dtype | None = None) -> Any:
    """Convert arrays to tensors: floating-point arrays and data frames to ``dtype``; tensors are not changed."""
    if isinstance(values, Mapping):
        return {name: value if name in LABEL_KEYS else to_tensors(value, dtype) for name, value in values.items()}
    if isinstance(values, Tensor):
        check_tensor(values, "tensors")
        return values
    if hasattr(values, "toarray"):
        raise TypeError(f"arrays must be dense, got {type(values).__name__}. Convert it with .toarray().")
    table = hasattr(values, "iloc")
    values = _numbers_of(values) if table else values
    check_unmasked(values, "arrays")
    if values.dtype.kind not in "fiub":
        texts = " For texts, set loading=Loading(collate=tokenizer)." if values.dtype.kind in "OU" else ""
        raise TypeError(
            f"arrays must hold numbers, got {values.dtype}. Convert them, as in array.astype('float32').{texts}"
        )
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:  # which torch does not have
        values = values.astype(np.float64)
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    tensor = torch.from_numpy(np.require(native, requirements=["C", "W"]))  # which torch can share
    return tensor.to(dtype) if dtype is not None and (table or tensor.is_floating_point()) else tensor


def _numbers_of(table: Any) -> NDArray[Any]:
    """Return the numbers of a data frame or a series of pandas, as one array."""
    dtypes = [(table.name, table.dtype)] if table.ndim == 1 else list(table.dtypes.items())
    others = [f"{name!r} ({dtype})" for name, dtype in dtypes if getattr(dtype, "kind", "O") not in "fiub"]
    if others:
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        raise TypeError(
            f"the columns of a data frame must hold numbers, got {', '.join(others[:SHOWN])}{more}. Encode them as in "
            "training, or leave them out: frame[columns]. Texts are one column: frame[name]."
        )
    values: NDArray[Any] = table.to_numpy()
    # Columns of several types, or with missing values, are one array of objects.
    return values if values.dtype.kind in "fiub" else table.to_numpy("float64", na_value=np.nan)
