"""Settings for loading data in batches, shared by all functions that read data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .inputs import Preparation, make_batches
from .sources import Source, check_batch_size
from .transform import Transform


@dataclass(frozen=True)
class Loading:
    """Settings for loading data in batches.

    Args:
        transform: Converts images to tensors, for paths and for data sets of images: a :class:`Transform`, or the
            preprocessing of published weights, as :meth:`Transform.of` accepts it.
        collate: A function that joins a list of data-set items into a batch, or a tokeniser of transformers, with
            options as ``functools.partial(tokenizer, max_length=64)``.
        batch_size: Inputs per batch, for data that is not batched yet.
        workers: Threads that prefetch images, for data that is a source such as ``FolderImages``; by default one per
            core, up to four; 0 reads each batch when it is needed. A ``DataLoader`` has ``num_workers``.
        max_unreadable: Largest fraction of the images of a source that may be skipped as unreadable, from 0 to 1.
        labels: Name of the column or array of labels, if it is not found by its name (``label``, ``labels``, ``y``,
            ``target``) or by its type.
        masks: Folder with a mask for each image file, for models with logits at every position
            (:class:`~flatfold.data.MaskedImages`).

    Example:
        >>> import torch
        >>> print(*(len(x) for x in Loading(batch_size=3).batches(torch.zeros(5, 2))))
        3 2
    """

    transform: Any = None
    collate: Any = None
    batch_size: int = 64
    workers: int | None = None
    max_unreadable: float = 0.0
    labels: str | None = None
    masks: Path | str | None = None

    def __post_init__(self) -> None:
        check_batch_size(self.batch_size)
        if self.transform is not None:
            object.__setattr__(self, "transform", Transform.of(self.transform))
        workers = self.workers
        if self.labels is not None and not isinstance(self.labels, str):
            raise TypeError(
                f"labels must be the name of a column, got {type(self.labels).__name__}. Give labels with the data, "
                "as a pair (X, y)."
            )
        if self.masks is not None and not isinstance(self.masks, (str, Path)):
            raise TypeError(
                f"masks must be the folder of the masks, got {type(self.masks).__name__}. Give masks in tensors with "
                "the data, as a pair (X, y)."
            )
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
            raise ValueError(f"workers must be 0 or the number of threads that read images, got {workers!r}.")
        if not 0 <= self.max_unreadable <= 1:
            raise ValueError(f"max_unreadable must be a fraction between 0 and 1, got {self.max_unreadable!r}.")

    def batches(self, data: Any, labels: bool = True, dtype: torch.dtype | None = None) -> Iterable[Any]:
        """Return batches of any data that :func:`as_batches` accepts.

        Args:
            data: Any data that :func:`as_batches` accepts.
            labels: False to drop labels of any kind.
            dtype: As in :func:`as_batches`.
        """
        how = Preparation(self.batch_size, self.transform, self.collate, labels, self.labels, dtype, self.masks)
        batches = make_batches(data, how)
        if self.workers and not isinstance(batches, Source):
            raise ValueError(
                f"workers={self.workers} needs a source such as FolderImages, not {type(batches).__name__}. "
                "For a DataLoader, set num_workers."
            )
        return batches
