"""Batches of a data loader, split into arguments for the model and labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.validation import check_labels

LABEL_KEYS = ("labels", "label", "y", "target", "targets")
INPUT_KEYS = ("x", "image", "images", "input", "inputs")
_PREPARED = "Images, arrays and paths become one tensor first: torch.stack([transform(image) for image in images])."
_KNOWN = "Use a tensor, a pair (x, y), or a dict such as {'pixel_values': x, 'labels': y}."


class Batch(NamedTuple):
    """One batch of ``rows`` inputs: call the model as ``model(*args, **kwargs)``; labels are ``(n,)`` int64 or None."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    labels: Tensor | None
    rows: int

    @property
    def first_tensor(self) -> Tensor:
        """The first of the inputs."""
        return next(value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor))

    def to(self, device: torch.device | str) -> Batch:
        """Return this batch with its inputs on ``device``; labels stay where they are."""

        def move(value: Any) -> Any:
            return value.to(device) if isinstance(value, Tensor) else value

        kwargs = {name: move(value) for name, value in self.kwargs.items()}
        return self._replace(args=tuple(map(move, self.args)), kwargs=kwargs)

    def one_per_input(self, value: Any) -> bool:
        """Return whether an argument is a tensor with an entry for each input."""
        return isinstance(value, Tensor) and value.ndim > 0 and len(value) == self.rows

    def part(self, start: int, stop: int) -> Batch:
        """Return inputs ``start`` to ``stop``; an argument that does not come once per input goes with any of them."""

        def cut(value: Any) -> Any:
            return value[start:stop] if self.one_per_input(value) else value

        kwargs = {name: cut(value) for name, value in self.kwargs.items()}
        labels = None if self.labels is None else self.labels[start:stop]
        return Batch(tuple(map(cut, self.args)), kwargs, labels, len(range(self.rows)[start:stop]))


def split_batch(batch: Any) -> Batch:
    """Split a batch into inputs and labels.

    Args:
        batch: A tensor; ``(x,)`` or ``(x, y)``, where x may be a dict of keyword arguments; or a dict. In a dict the
            entry under ``labels``, ``label``, ``y``, ``target`` or ``targets`` holds the labels. A single other entry
            under ``x``, ``image``, ``images``, ``input`` or ``inputs`` is passed by position, anything else by name.

    Example:
        >>> split_batch({"image": torch.zeros(2, 3), "label": torch.tensor([4, 5])})
        Batch(args=(tensor([[0., 0., 0.], [0., 0., 0.]]),), kwargs={}, labels=tensor([4, 5]), rows=2)
    """
    inputs, labels = _inputs_and_labels(batch)
    args, kwargs = _arguments(inputs)
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if not tensors:
        raise TypeError(f"a batch must hold a tensor for the model, got {sorted(kwargs) or 'none'}. {_KNOWN}")
    if tensors[0].ndim == 0:
        raise ValueError("a batch must have a first dimension that counts its inputs, got a tensor without dimensions.")
    rows = len(tensors[0])
    return Batch(args, kwargs, None if labels is None else _class_indices(labels, rows), rows)


def _inputs_and_labels(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        names = [name for name in LABEL_KEYS if name in batch]
        if len(names) > 1:
            raise ValueError(f"a batch must have one entry of labels, got {' and '.join(map(repr, names))}. Drop one.")
        inputs = {str(name): value for name, value in batch.items() if name not in names}
        return inputs, batch[names[0]] if names else None
    if isinstance(batch, (tuple, list)):
        if len(batch) not in (1, 2):
            raise ValueError(f"a batch must be (x,) or (x, y), got {len(batch)} entries. {_KNOWN} {_PREPARED}")
        return batch[0], batch[1] if len(batch) == 2 else None
    return batch, None


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        kwargs = {str(name): value for name, value in inputs.items()}
        return (tuple(kwargs.values()), {}) if len(kwargs) == 1 and kwargs.keys() <= set(INPUT_KEYS) else ((), kwargs)
    if not isinstance(inputs, Tensor):
        raise TypeError(f"a batch must hold a tensor, got {type(inputs).__name__}. {_KNOWN} {_PREPARED}")
    return (inputs,), {}


def _class_indices(labels: Any, rows: int) -> Tensor:
    if isinstance(labels, (list, tuple, np.ndarray)):
        labels = torch.as_tensor(labels)
    kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex() or kind == torch.bool:
        raise TypeError(
            f"labels must be integer class indices, one per input, got {kind}. "
            "Turn one-hot rows into indices with .argmax(1); leave out targets that are no classes; join "
            "a list of inputs with torch.stack."
        )
    indices: Tensor = labels.detach().cpu().long()
    check_labels(indices, rows)
    return indices
