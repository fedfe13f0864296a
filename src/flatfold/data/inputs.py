"""Convert common data containers to batches: loaders, data sets, folders and files of images, arrays."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from ..core.validation import check_labels
from ..errors import UnreadableImageError
from .batch import LABEL_KEYS, Batch, split_batch
from .decoding import read_image
from .fingerprint import evenly_spaced
from .images import ArrayImages, open_images
from .sources import ImageSource, Source, check_batch_size
from .transform import Transform

Collate = Callable[[list[Any]], Any]

TAKEN = (
    "a DataLoader or another iterable of batches, a torch or Hugging Face data set, a path of images (a folder, .npz, "
    ".parquet or a list), or arrays (X, y) with a row of X and a class index of y for each input"
)
_NEEDS_TRANSFORM = (
    "Pass transform=, the preprocessing used in training: a Transform(resize=..., crop=..., mean=..., std=...), or "
    "the preprocessing published with the weights."
)


def as_batches(
    data: Any,
    batch_size: int = 64,
    *,
    transform: Any = None,
    collate: Any = None,
    labels: bool | str = True,
) -> Iterable[Any]:
    """Convert any data that ``extract`` and ``Guard.fit`` accept to batches.

    Data in batches is returned unchanged: a source, a ``DataLoader``, a generator, a list of batches. All other data
    is split into batches of ``batch_size``, in order.

    Args:
        data: One of

            - a ``DataLoader`` or any other iterable of batches (see ``split_batch``), or a source such as
              ``FolderImages``;
            - a ``torch.utils.data.Dataset`` of items ``x``, ``(x, y)`` or dicts, or a list of pairs ``(x, 3)``;
            - a ``datasets.Dataset`` of Hugging Face, with a column of images, or with columns named like the model's
              arguments, or with any columns and ``collate``;
            - the path of a folder of images, of an ``.npz`` or ``.parquet`` file, or of a list of images;
            - ``(X, y)``, ``X`` alone, or a dict of them: tensors or numpy arrays with one row per input.
        batch_size: Inputs per batch, for data that is not batched yet.
        transform: Converts images to tensors: a :class:`Transform`, or anything :meth:`Transform.of` accepts. It is
            applied to paths, to PIL images of a data set and to uint8 arrays ``(n, h, w)`` or ``(n, h, w, 3)``, not to
            tensors.
        collate: Joins a list of data-set items into a batch: a function such as ``DataCollatorWithPadding``, or a
            tokeniser of transformers, for rows with one text each.
        labels: False to drop labels of any kind (OOD data often has labels that are not classes). A string names the
            column or array of labels.

    Raises:
        TypeError: The type of the data is not supported.
        ValueError: The type is supported, but a part is missing or invalid.

    Example:
        >>> batches = as_batches((torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64)), batch_size=3)
        >>> print(*(len(x) for x, y in batches))
        3 2
    """
    check_batch_size(batch_size)
    transform = None if transform is None else Transform.of(transform)
    if isinstance(data, (str, Path)):
        if transform is None:
            raise ValueError(f"the images at {data} must be converted to tensors. {_NEEDS_TRANSFORM}")
        return open_images(data, transform, batch_size, labels=labels)
    batches = _batches(data, batch_size, transform, collate, labels)
    return batches if labels else _without_labels(batches)


def _batches(
    data: Any, batch_size: int, transform: Transform | None, collate: Any, labels: bool | str
) -> Iterable[Any]:
    if isinstance(data, (Source, DataLoader)):
        return data
    if hasattr(data, "column_names") and hasattr(data, "features"):  # from Hugging Face, which may not be installed
        return _from_columns(data, batch_size, transform, collate, labels)
    if (arrays := _as_arrays(data)) is not None:
        x, y = arrays
        if transform is not None and isinstance(x, np.ndarray) and x.dtype == np.uint8:
            return ArrayImages(x, None if y is None else np.asarray(y), transform, batch_size)
        return ArrayRows(_as_tensors(x) if y is None else (_as_tensors(x), _as_tensors(y)), batch_size)
    items = collate is not None or not isinstance(data, IterableDataset)
    if (isinstance(data, Dataset) and items) or _is_list_of_items(data, collate):
        return _load_items(data, batch_size, _collate_function(collate) or partial(_join_items, transform))
    if isinstance(data, (Mapping, bytes)) or hasattr(data, "iloc") or not isinstance(data, Iterable):
        frame = " Convert a data frame with frame[columns].to_numpy('float32')." if hasattr(data, "iloc") else ""
        raise TypeError(f"data must be {TAKEN}, not {type(data).__name__}.{frame}")
    return data


def _load_items(data: Any, batch_size: int, collate: Collate) -> DataLoader[Any]:
    # A separate generator: the loader would otherwise draw from the caller's.
    return DataLoader(data, batch_size, collate_fn=collate, generator=torch.Generator())


class ArrayRows(Source):
    """Inputs in memory: one batch as ``split_batch`` accepts it, sliced into batches.

    Args:
        inputs: A tensor, a pair ``(x, y)``, or a dict, with one row per input.
        batch_size: Inputs in a batch.
    """

    def __init__(self, inputs: Any, batch_size: int = 64) -> None:
        super().__init__(batch_size)
        self._whole = split_batch(inputs)
        self.rows, self.labels = self._whole.rows, self._whole.labels
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
        return ArrayRows(_as_raw(chosen._replace(labels=labels, rows=len(index))), self.batch_size)


def _as_raw(batch: Batch) -> Any:
    inputs = batch.args[0] if batch.args else batch.kwargs
    return inputs if batch.labels is None else (inputs, batch.labels)


def _as_arrays(data: Any) -> tuple[Any, Any] | None:
    """Return inputs and labels if ``data`` has one row per input; None if it may be a list of batches."""
    if _is_array(data):
        return data, None
    if isinstance(data, Mapping):
        return (data, None) if data and all(_is_array(value) for value in data.values()) else None
    if not isinstance(data, (tuple, list)) or len(data) != 2 or not _is_array(data[0]):
        return None
    x, y = data
    if isinstance(y, (tuple, list)) and y and all(type(label) is int for label in y):
        y = np.asarray(y)  # the targets of a torchvision data set
    # Two batches for one model have the same number of dimensions and the same type; anything else is a pair.
    if not _is_array(y) or (x.ndim == y.ndim and _is_float(x) == _is_float(y)):
        return None
    if y.ndim != 1 or _is_float(y) or len(x) != len(y):
        raise ValueError(
            f"(X, y) must have a class index in y for each row of X, got X of shape {tuple(x.shape)} and y of shape "
            f"{tuple(y.shape)}, {y.dtype}. Convert 0.0 and 1.0 to whole numbers, one-hot rows with .argmax(1), a "
            "column with .ravel(); leave out targets that are not classes."
        )
    return x, y


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0


def _is_float(array: Tensor | NDArray[Any]) -> bool:
    return array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind == "f"


def _as_tensors(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _as_tensors(value) for name, value in values.items()}
    if isinstance(values, Tensor):
        return values
    if values.dtype.kind not in "fiub":
        raise TypeError(f"arrays must hold numbers, got {values.dtype}. Convert them, as in array.astype('float32').")
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))  # which torch can share


def _is_list_of_items(data: Any, collate: Any) -> bool:
    """Return whether this is a list of single items: pairs of an input and an integer, or items to collate."""
    if not isinstance(data, (tuple, list)) or not data:
        return False
    first = data[0]
    pair = isinstance(first, (tuple, list)) and len(first) == 2 and isinstance(first[1], (int, np.integer))
    return collate is not None or pair


def _collate_function(collate: Any) -> Collate | None:
    """Return a function that joins items by the user's ``collate``, None if there is none."""
    if collate is None:
        return None
    if not callable(collate):
        raise TypeError(
            f"collate= must be a function of a list of items, or a tokeniser, not {type(collate).__name__}."
        )
    is_tokeniser = hasattr(collate, "pad") and hasattr(collate, "decode")
    return partial(_call_collate, partial(_tokenise, collate) if is_tokeniser else collate)


def _call_collate(collate: Collate, items: list[Any]) -> Any:
    try:
        return collate(items)
    except Exception as error:  # of the user's function
        first = items[0]
        held = f"columns {', '.join(map(repr, first))}" if isinstance(first, Mapping) else type(first).__name__
        hint = " Remove columns that the model does not accept, as in data.remove_columns(['text'])."
        raise ValueError(
            f"collate= failed on {len(items)} items ({held}): {type(error).__name__}: {str(error).rstrip('.')}."
            + (hint if isinstance(first, Mapping) else "")
        ) from error


def _tokenise(tokeniser: Any, items: list[Any]) -> dict[str, Any]:
    """Tokenise rows with one text, or pad rows that are tokenised, into a batch."""
    rows = [item if isinstance(item, Mapping) else dict(zip(("text", "label"), item, strict=True)) for item in items]
    first = rows[0]
    if "input_ids" in first:
        names = [name for name in first if name in tokeniser.model_input_names]
        batch = tokeniser.pad([{name: row[name] for name in names} for row in rows], return_tensors="pt")
    else:
        texts = [name for name, value in first.items() if isinstance(value, str)]
        if len(texts) != 1:
            raise ValueError(
                f"a tokeniser needs rows with one text, got {', '.join(map(repr, texts)) or 'none'}. Pass a function "
                "that joins a list of rows into a batch instead"
            )
        batch = tokeniser([row[texts[0]] for row in rows], padding=True, truncation=True, return_tensors="pt")
    return {**batch, **{name: torch.as_tensor([row[name] for row in rows]) for name in LABEL_KEYS if name in first}}


def _join_items(transform: Transform | None, items: list[Any]) -> Any:
    """Transform the images of data-set items and join the items into a batch."""
    prepared = [_prepare(transform, item) for item in items]
    try:
        return default_collate(prepared)
    except (RuntimeError, TypeError, KeyError) as error:  # other sizes, types or names
        raise ValueError(
            f"the items of the data set cannot be joined into a batch: {error}. Pass collate=, a function that joins a "
            "list of items into a batch; images of several sizes need a transform with a resize and a crop."
        ) from error


def _prepare(transform: Transform | None, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _prepare(transform, part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_prepare(transform, part) for part in value) if type(value) in (tuple, list) else value
    if isinstance(value, Image.Image):
        if transform is None:
            raise ValueError(f"the data set yields PIL images, which must be converted to tensors. {_NEEDS_TRANSFORM}")
        return transform(value)
    is_pixels = isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (2, 3)
    return transform(value) if transform is not None and is_pixels else value


class ColumnImages(ImageSource):
    """The images in a column of a Hugging Face data set.

    Args:
        data: The data set.
        image: Name of the column of images.
        label: Name of the column of class indices, or None.
        transform: Applied to every image.
        batch_size: Images in a batch.
    """

    def __init__(self, data: Any, image: str, label: str | None, transform: Transform, batch_size: int = 64) -> None:
        super().__init__(transform, batch_size)
        self._data, self._image, self.rows = data, image, len(data)
        if label is not None:
            self.labels = torch.as_tensor(np.asarray(data[label][:]))
            check_labels(self.labels, self.rows)

    def name(self, row: int) -> str:
        """Return the number of one image."""
        return f"row {range(self.rows)[row]}"

    def picture(self, row: int) -> tuple[str, Image.Image]:
        """Return the number and the decoded image of one row."""
        name = self.name(row)
        try:
            value = self._data[row][self._image]
        except (OSError, SyntaxError, ValueError) as error:  # the data set decodes the image
            raise UnreadableImageError(f"{name} could not be read as an image: {error}. Remove the row.") from error
        if isinstance(value, Mapping) and value.get("bytes") is not None:
            return name, read_image(io.BytesIO(value["bytes"]), name, draft=self.transform.draft_size)
        if isinstance(value, Mapping) and value.get("path") is not None:
            return name, read_image(value["path"], name, draft=self.transform.draft_size)
        if not isinstance(value, Image.Image):
            raise UnreadableImageError(f"{name} holds no image in column {self._image!r}, but {type(value).__name__}.")
        return name, value

    def _identify(self, digest: hashlib._Hash) -> None:
        digest.update(f"{getattr(self._data, '_fingerprint', '')} {self._image} {self.rows}".encode())
        for row in evenly_spaced(range(self.rows)):
            digest.update(self.picture(row)[1].tobytes())


def _from_columns(
    data: Any, batch_size: int, transform: Transform | None, collate: Any, labels: bool | str
) -> Iterable[Any]:
    """Return batches of a Hugging Face data set."""
    if isinstance(data, Mapping):
        raise TypeError(
            f"data must be one data set, got a dict of {', '.join(map(repr, data))}. "
            f"Select one: data[{next(iter(data))!r}]."
        )
    if collate is not None:
        return _load_items(data, batch_size, _collate_function(collate))  # type: ignore[arg-type]
    first = next(iter(data), None)
    if first is None:
        raise ValueError("the data set must have at least one row, got none. Were all rows filtered out?")
    candidates = _label_columns(data, first, labels)
    if labels and len(candidates) > 1:
        raise ValueError(
            f"the data set has several columns of labels, {', '.join(map(repr, candidates))}. "
            f"Rename one, data.rename_column({candidates[0]!r}, 'label'), and remove the others."
        )
    label = candidates[0] if labels and candidates else None
    images = [name for name, value in first.items() if _is_image(value)]
    if len(images) > 1:
        raise ValueError(
            f"the data set has several columns of images, {', '.join(map(repr, images))}. "
            f"Keep one: data.remove_columns([{images[1]!r}])."
        )
    if images and transform is None:
        raise ValueError(f"the images in column {images[0]!r} must be converted to tensors. {_NEEDS_TRANSFORM}")
    if images and transform is not None and hasattr(data, "__len__"):
        columns = data.select_columns([images[0], *([] if label is None else [label])])
        return ColumnImages(columns, images[0], label, transform, batch_size)
    inputs = images or _input_columns(first, candidates)
    return _load_items(data, batch_size, partial(_join_columns, transform, inputs, label))


def _is_image(value: Any) -> bool:
    return isinstance(value, Image.Image) or (isinstance(value, Mapping) and value.keys() == {"bytes", "path"})


def _label_columns(data: Any, first: Mapping[str, Any], labels: bool | str) -> list[str]:
    """Return the label columns: the one named by ``labels``, or found by name, or by type."""
    if isinstance(labels, str):
        if labels not in first:
            raise ValueError(f"the data set has no column {labels!r}; it has {', '.join(map(repr, first))}.")
        return [labels]
    features = data.features or {}
    classes = [name for name in first if type(features.get(name)).__name__ == "ClassLabel"]
    return [name for name in LABEL_KEYS if name in first] or classes


def _input_columns(first: Mapping[str, Any], labels: list[str]) -> list[str]:
    """Return the numeric columns, which a model can use as inputs."""
    names = [name for name in first if name not in labels]
    inputs = [name for name in names if not isinstance(first[name], (str, bytes, Mapping, type(None)))]
    if not inputs:
        raise ValueError(
            f"the data set must have a column of images or of numbers, got {', '.join(map(repr, names)) or 'none'}. "
            "For texts, pass collate=, the tokeniser of the model, or a function that joins rows into a batch."
        )
    return inputs


def _join_columns(
    transform: Transform | None, inputs: list[str], label: str | None, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    batch = {}
    for name in inputs:
        values = [_prepare(transform, row[name]) for row in rows]
        try:
            batch[name] = torch.stack([torch.as_tensor(value) for value in values])
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"the rows of column {name!r} cannot be joined into a batch: {error}. Pad tokens with collate=, a "
                "tokeniser or DataCollatorWithPadding; remove columns that the model does not accept."
            ) from error
    return batch if label is None else {**batch, "labels": torch.as_tensor([int(row[label]) for row in rows])}


def _without_labels(batches: Iterable[Any]) -> Iterable[Any]:
    if isinstance(batches, ArrayRows):
        return ArrayRows(_as_raw(batches._whole._replace(labels=None)), batches.batch_size)
    if isinstance(batches, Source):
        same = copy(batches)
        same.labels = None
        vars(same).pop("fingerprint", None)  # it covers the labels
        return same
    return _Unlabelled(batches)


class _Unlabelled:
    """The inputs of each batch, without labels of any kind."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            if isinstance(batch, Mapping):
                yield {name: value for name, value in batch.items() if name not in LABEL_KEYS}
            else:
                yield batch[0] if isinstance(batch, (tuple, list)) and len(batch) == 2 else batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # a TypeError means that it is unknown
