"""Batches: model inputs and their labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.validation import check_tensor
from .labels import LABEL_KEYS, ClassIndices, are_labels, class_indices

INPUT_KEYS = ("x", "image", "images", "input", "inputs")
_PREPARED = (
    "Convert images, arrays and paths to one tensor: torch.stack([transform(image) for image in images]); texts with "
    'tokenizer(texts, padding=True, return_tensors="pt").'
)
_KNOWN = "Use a tensor, a pair (x, y), or a dict such as {'pixel_values': x, 'labels': y}."


class Batch(NamedTuple):
    """One batch of ``rows`` inputs: call the model as ``model(*args, **kwargs)``; labels are ``(n,)`` int64 or None.

    ``label_classes`` is the number of classes that the form of the labels implies, as in
    :class:`~flatfold.data.labels.ClassIndices`. ``columns`` has values ``(n,)`` of each input for tables.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    labels: Tensor | None
    rows: int
    label_classes: int | None = None
    columns: Mapping[str, Tensor] | None = None

    @property
    def first_tensor(self) -> Tensor:
        """The first tensor among the inputs."""
        return next(value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor))

    def to(self, device: torch.device | str) -> Batch:
        """Return this batch with its inputs on ``device``; labels are not moved."""
        return self.with_each(lambda value: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value)

    def one_per_input(self, value: Any) -> bool:
        """Return whether an argument is a tensor with one entry per input."""
        return isinstance(value, Tensor) and value.ndim > 0 and len(value) == self.rows

    def part(self, start: int, stop: int) -> Batch:
        """Return inputs ``start`` to ``stop``; arguments without a batch axis are passed unchanged."""
        part = self.with_each(lambda value: value[start:stop] if self.one_per_input(value) else value)
        labels = None if self.labels is None else self.labels[start:stop]
        columns = {name: values[start:stop] for name, values in (self.columns or {}).items()} or None
        return part._replace(labels=labels, rows=len(range(self.rows)[start:stop]), columns=columns)

    def with_each(self, change: Callable[[Any], Any]) -> Batch:
        """Return this batch with ``change`` applied to each argument."""
        kwargs = {name: change(value) for name, value in self.kwargs.items()}
        return self._replace(args=tuple(map(change, self.args)), kwargs=kwargs)


def split_batch(batch: Any, read_labels: Callable[[Any, int], ClassIndices] = class_indices) -> Batch:
    """Split a batch into inputs and labels.

    Args:
        batch: A tensor; ``(x,)`` or ``(x, y)``, where x may be a dict of keyword arguments; or a dict. A
            :class:`Batch` is returned unchanged. In a dict the
            entry under ``labels``, ``label``, ``y``, ``target`` or ``targets`` holds the labels. A single other entry
            under ``x``, ``image``, ``images``, ``input`` or ``inputs`` is passed by position, anything else by name.
        read_labels: How labels of a number of inputs are converted; ``indices_or_masks`` also takes masks.

    Example:
        >>> batch = split_batch({"image": torch.zeros(2, 3), "label": torch.tensor([4, 5])})
        >>> batch.args, batch.kwargs, batch.labels, batch.rows
        ((tensor([[0., 0., 0.], [0., 0., 0.]]),), {}, tensor([4, 5]), 2)
    """
    if isinstance(batch, Batch):
        return batch
    inputs, labels = batch, None
    if isinstance(batch, Mapping):
        names = [name for name in LABEL_KEYS if name in batch]
        if len(names) > 1:
            raise ValueError(f"a batch must have one labels entry, got {' and '.join(map(repr, names))}. Drop one.")
        inputs = {name: value for name, value in batch.items() if name not in names}
        labels = batch[names[0]] if names else None
    elif isinstance(batch, (tuple, list)):
        if len(batch) not in (1, 2):
            raise ValueError(f"a batch must be (x,) or (x, y), got {len(batch)} entries. {_KNOWN} {_PREPARED}")
        inputs, labels = batch if len(batch) == 2 else (batch[0], None)
    args: tuple[Any, ...] = (inputs,)
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        by_position = len(inputs) == 1 and inputs.keys() <= set(INPUT_KEYS)
        args = tuple(inputs.values()) if by_position else ()
        kwargs = {} if by_position else {str(name): value for name, value in inputs.items()}
    elif not isinstance(inputs, Tensor):
        raise TypeError(f"a batch must hold a tensor, got {type(inputs).__name__}. {_KNOWN} {_PREPARED}")
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if not tensors:
        raise TypeError(f"a batch must hold a tensor for the model, got {sorted(kwargs) or 'none'}. {_KNOWN}")
    for tensor in tensors:
        check_tensor(tensor, "inputs", sparse=True)
    if tensors[0].ndim == 0:
        raise ValueError("a batch must have a batch axis first, got a tensor without dimensions.")
    rows = len(tensors[0])
    indices, classes = (None, None) if labels is None else read_labels(labels, rows)
    return Batch(args, kwargs, indices, rows, classes)


def is_batch(data: Any) -> bool:
    """Return whether ``data`` is a preprocessed batch: a tensor, a dict of tensors, or such inputs with labels."""
    if isinstance(data, Tensor):
        return True
    if isinstance(data, (tuple, list)) and len(data) in (1, 2):
        inputs = data[0]
        if not isinstance(inputs, (Tensor, Mapping)) or not is_batch(inputs):
            return False
        return len(data) == 1 or data[1] is None or are_labels(data[1], inputs)
    if not isinstance(data, Mapping):
        return False
    values = [value for name, value in data.items() if name not in LABEL_KEYS]
    arrays = any(isinstance(value, np.ndarray) for value in values)
    return not arrays and any(isinstance(value, Tensor) and value.ndim for value in values)
