"""Convert common data containers to batches: loaders, data sets, folders and files of images, texts, arrays."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from ..errors import UnreadableImageError
from .arrays import ArrayRows, split_arrays, to_tensors
from .batch import INPUT_KEYS, is_batch
from .decoding import read_image
from .fingerprint import evenly_spaced
from .images import ArrayImages, PathImages, Pictures, open_images
from .labels import LABEL_KEYS, are_labels, class_indices
from .masks import with_masks
from .sources import ImageSource, Source, check_batch_size
from .text_files import holds_texts, open_texts
from .texts import NotStored, Tokeniser
from .transform import Transform

Collate = Callable[[list[Any]], Any]

TAKEN = (
    "a DataLoader or another iterable of batches, a torch or Hugging Face data set, a path of images (a folder, an "
    "image, .npz, .parquet or a list), a list of images, paths or texts, or arrays (X, y) with a row of X and a class "
    "index of y for each input"
)
_NEEDS_TRANSFORM = (
    "Pass transform=, the preprocessing used in training: a Transform(resize=..., crop=..., mean=..., std=...), or "
    "the preprocessing published with the weights."
)
_NEEDS_TOKENISER = (
    "For texts, pass collate=, the tokeniser of the model, or tokenise them: tokenizer(texts, padding=True, "
    'return_tensors="pt").'
)

SHOWN = 60  # characters of an input in a message

log = logging.getLogger(__name__)


class Preparation(NamedTuple):
    """How data becomes batches; the arguments of :func:`as_batches`, checked."""

    batch_size: int = 64
    transform: Transform | None = None
    collate: Any = None
    labels: bool = True
    column: str | None = None
    dtype: torch.dtype | None = None
    masks: Path | str | None = None

    @property
    def reads_texts(self) -> bool:
        """Whether a string is a text, not the path of images."""
        return self.collate is not None and (self.transform is None or Tokeniser.of(self.collate) is not None)


def as_batches(
    data: Any,
    batch_size: int = 64,
    *,
    transform: Any = None,
    collate: Any = None,
    labels: bool | str = True,
    dtype: torch.dtype | None = None,
    masks: Path | str | None = None,
) -> Iterable[Any]:
    """Convert any data that ``extract``, ``Guard.fit`` and a guard accept to batches.

    Data in batches is returned unchanged: a source, a ``DataLoader``, a generator, a list of batches. All other data
    is split into batches of ``batch_size``, in order.

    Args:
        data: One of

            - a ``DataLoader`` or any other iterable of batches (see ``split_batch``), or a source such as
              ``FolderImages``;
            - a ``torch.utils.data.Dataset`` of items ``x``, ``(x, y)`` or dicts, or a list of pairs ``(x, 3)``;
            - a ``datasets.Dataset`` of Hugging Face, or a row or a list of rows of one, with a column of images, or
              with columns named like the model's arguments, or with any columns and ``collate``;
            - the path of a folder of images, of an image, of an ``.npz`` or ``.parquet`` file, or of a list of images;
            - with a tokeniser, the ``pathlib.Path`` of a file of texts, ``.csv``, ``.jsonl``, ``.parquet`` or ``.txt``;
            - an image, a text, or a list of images, of their paths or of texts, or such a list with labels,
              ``(texts, y)``;
            - ``(X, y)``, ``X`` alone, or a dict of them: tensors, numpy arrays or data frames of pandas with one row
              per input. Labels are class indices, booleans of two classes, or one-hot rows.
        batch_size: Inputs per batch, for data that is not batched yet.
        transform: Converts images to tensors: a :class:`Transform`, or anything :meth:`Transform.of` accepts. It is
            applied to paths, to PIL images and to uint8 arrays ``(n, h, w)`` or ``(n, h, w, 3)``, not to tensors.
        collate: Joins a list of data-set items into a batch: a function such as ``DataCollatorWithPadding``, or a
            tokeniser of transformers, for rows with one text each; ``functools.partial(tokenizer, max_length=64)``
            sets its options.
        labels: False to drop labels of any kind (OOD data often has labels that are not classes). A string names the
            column or array of labels.
        dtype: Type to which arrays with a floating-point type and data frames are converted, such as that of the
            model's weights. Tensors and arrays of integers are not converted.
        masks: Folder with a mask for each image file, instead of labels (:class:`~flatfold.data.MaskedImages`).

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
    column = labels if isinstance(labels, str) else None
    return make_batches(data, Preparation(batch_size, transform, collate, bool(labels), column, dtype, masks))


def make_batches(data: Any, how: Preparation) -> Iterable[Any]:
    """Convert data to batches as :func:`as_batches` does."""
    if how.masks is not None and how.labels:
        return with_masks(_batches(data, how._replace(labels=False)), how.masks)
    batches = _batches(data, how)
    return batches if how.labels else _without_labels(batches)


def _batches(data: Any, how: Preparation) -> Iterable[Any]:
    if isinstance(data, (Source, DataLoader)):
        return data
    # From Hugging Face, which may not be installed; several splits are a dict without features.
    if hasattr(data, "column_names") and (hasattr(data, "features") or isinstance(data, Mapping)):
        return _from_columns(data, how)
    if isinstance(data, Path) or (isinstance(data, str) and not how.reads_texts):
        if how.transform is None and Tokeniser.of(how.collate) is not None and holds_texts(Path(data)):
            return open_texts(data, how.collate, how.batch_size, labels=how.labels and (how.column or True))
        if how.transform is None:
            raise ValueError(_preparation_of(str if isinstance(data, str) else Path, str(data)[:SHOWN]))
        return open_images(data, how.transform, how.batch_size, labels=how.labels and (how.column or True))
    if (raw := _raw_inputs(data, how)) is not None:
        return _from_raw(*raw, how)
    if (arrays := split_arrays(data)) is not None:
        return _from_arrays(*arrays, how)
    items = how.collate is not None or not isinstance(data, IterableDataset)
    if (isinstance(data, Dataset) and items) or _is_list_of_items(data, how.collate):
        return _load_items(data, how.batch_size, _join_function(how))
    if isinstance(data, (Mapping, bytes)) or not isinstance(data, Iterable):
        raise TypeError(f"data must be {TAKEN}, not {type(data).__name__}.")
    return data


def _load_items(data: Any, batch_size: int, collate: Collate) -> DataLoader[Any]:
    # A separate generator: the loader would otherwise draw from the caller's.
    return DataLoader(data, batch_size, collate_fn=collate, generator=torch.Generator())


def _from_arrays(x: Any, y: Any, how: Preparation) -> Iterable[Any]:
    y = y if how.labels else None
    if how.transform is not None and isinstance(x, np.ndarray) and x.dtype == np.uint8:
        if x.ndim == 2 or (x.ndim == 3 and x.shape[-1] == 3):
            raise ValueError(f"got one image of shape {x.shape} without a batch axis: use x[None].")
        return ArrayImages(x, y, how.transform, how.batch_size)
    inputs = to_tensors(x, how.dtype)
    return ArrayRows(inputs if y is None else (inputs, y), how.batch_size)


def _raw_inputs(data: Any, how: Preparation) -> tuple[Sequence[Any], Any] | None:
    """Return the images, paths, texts or rows that data consists of, and their labels; None if it is other data."""
    if _is_raw(data):
        return [data], None
    if isinstance(data, Mapping):
        return (rows, None) if (rows := _rows_of(data)) else None
    if _is_column(data):
        first = next(iter(data), None)
        if isinstance(first, str):
            return [*data], None
        return (data, None) if isinstance(first, Image.Image) else None
    if not isinstance(data, (tuple, list)) or not data:
        return None
    pixels = how.transform is not None
    if all(_is_raw(value, pixels) for value in data):
        return [*data], None
    if all(_is_pair(value) and _is_raw(value[0], pixels) for value in data):
        inputs, labels = map(list, zip(*data, strict=True))
        return inputs, labels
    if len(data) == 2 and are_labels(data[1], data[0]) and not _is_raw(data[0]):
        raw = _raw_inputs(data[0], how)
        return None if raw is None else (raw[0], data[1])
    return None


def _is_column(data: Any) -> bool:
    """Return whether this is an array, a series or another sequence of single values, as of a column of a data set."""
    if isinstance(data, (str, bytes, tuple, list)) or getattr(data, "ndim", 1) != 1:
        return False
    return hasattr(data, "dtype") or isinstance(data, Sequence)


def _rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a dict of columns with images or texts, such as a slice of a data set; none of other dicts."""
    lists = all(isinstance(values, list) for values in columns.values())
    if not lists or len({len(values) for values in columns.values()}) != 1:
        return []
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows if rows and _is_raw(rows[0]) else []


def _is_raw(value: Any, pixels: bool = False) -> bool:
    """Return whether this is one image, path or text, or one row of a data set with an image, a text or tokens.

    With ``pixels``, an image may also be an array.
    """
    if isinstance(value, Mapping):
        tokens = value.get("input_ids")
        is_tokenised = isinstance(tokens, list) and bool(tokens) and isinstance(tokens[0], int)
        is_row = is_tokenised or any(isinstance(part, str) or _is_image(part) for part in value.values())
        return is_row and not is_batch(value)
    if pixels and isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim in (2, 3)
    return isinstance(value, (str, Path, Image.Image))


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[1], (int, np.integer))


def _from_raw(inputs: Sequence[Any], labels: Any, how: Preparation) -> Iterable[Any]:
    """Return batches of a list of images, paths, texts or rows, which may have labels."""
    if labels is not None and len(labels) != len(inputs):
        raise ValueError(f"there must be a label for each input, got {len(inputs)} inputs and {len(labels)} labels.")
    classes = None
    if labels is not None and how.labels:
        labels, classes = class_indices(labels, len(inputs))
    first = inputs[0]
    if isinstance(first, Mapping):
        return _from_columns(_Rows(inputs), how)
    if how.collate is not None and (how.transform is None or (how.reads_texts and isinstance(first, str))):
        items = inputs if labels is None else [*zip(inputs, torch.as_tensor(labels).tolist(), strict=True)]
        return _load_items(items, how.batch_size, _join_function(how))
    kind = next(kind for kind in (str, Path, Image.Image, np.ndarray) if isinstance(first, kind))
    if how.transform is None:
        raise ValueError(_preparation_of(kind, str(first)[:SHOWN]))
    paths = kind in (str, Path)
    if isinstance(inputs, list) and any(isinstance(value, (str, Path)) != paths for value in inputs):
        raise TypeError("a list of inputs must hold either images or paths, got both. Open the images, or pass paths.")
    source = (PathImages if paths else Pictures)(inputs, how.transform, how.batch_size, labels if how.labels else None)
    source.label_classes = classes
    return source


def _preparation_of(kind: type, example: str) -> str:
    """Return an error message about images, paths or texts that cannot be prepared."""
    if kind is str:
        return (
            f"{example!r} is the path of images, which must be converted to tensors, or a text, which needs a "
            f"tokeniser. {_NEEDS_TOKENISER} For images: {_NEEDS_TRANSFORM[0].lower()}{_NEEDS_TRANSFORM[1:]}"
        )
    what = {Path: f"the images at {example}", Image.Image: "PIL images"}.get(kind, "images")
    return f"{what} must be converted to tensors. {_NEEDS_TRANSFORM}"


class _Rows:
    """Rows as dicts, with the interface of a data set of Hugging Face."""

    features = None

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    @property
    def column_names(self) -> list[str]:
        return [*self._rows[0]]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    def __getitem__(self, key: int | str) -> Any:
        return [row[key] for row in self._rows] if isinstance(key, str) else self._rows[key]

    def select_columns(self, names: Sequence[str]) -> _Rows:
        return _Rows([{name: row[name] for name in names} for row in self._rows])


def _is_list_of_items(data: Any, collate: Any) -> bool:
    """Return whether this is a list of single items: pairs of an input and an integer, or items to collate."""
    return isinstance(data, (tuple, list)) and bool(data) and (collate is not None or _is_pair(data[0]))


def _join_function(how: Preparation, label: str | None = None) -> Collate:
    """Return the function that joins items into a batch: the user's ``collate``, or the default one."""
    collate = how.collate
    if collate is None:
        return partial(_join_items, how)
    if isinstance(collate, NotStored):
        collate([])  # raises
    tokeniser = Tokeniser.of(collate)
    if tokeniser is not None:
        tokeniser.load()  # whose errors are not those of the rows
        return partial(_call_collate, partial(tokeniser, label=label), label)
    if not callable(collate):
        raise TypeError(
            f"collate= must be a function of a list of items, or a tokeniser, not {type(collate).__name__}."
        )
    return partial(_call_collate, collate, label)


def _call_collate(collate: Collate, label: str | None, items: list[Any]) -> Any:
    """Join items by the user's function; the entry under the name of the column of labels becomes ``labels``."""
    try:
        batch = collate(items)
    except Exception as error:  # of the user's function
        first = items[0]
        held = f"columns {', '.join(map(repr, first))}" if isinstance(first, Mapping) else type(first).__name__
        hint = ""
        if isinstance(first, Mapping):
            hint = " Remove columns that the model does not accept, as in data.remove_columns(['text'])."
        elif isinstance(first, (str, Image.Image)):
            hint = " Give items as in fit, or inputs that are prepared already."
        raise ValueError(
            f"collate= failed on {len(items)} items ({held}): {type(error).__name__}: {str(error).rstrip('.')}.{hint}"
        ) from error
    if not isinstance(batch, Mapping):
        return batch
    batch = {**batch}
    if label in batch and not any(name in batch for name in LABEL_KEYS):
        batch["labels"] = batch.pop(label)
    if isinstance(batch.get("labels"), list):
        with suppress(TypeError, ValueError):  # texts, which are refused with the batch
            batch["labels"] = torch.as_tensor(batch["labels"])
    return batch


def _join_items(how: Preparation, items: list[Any]) -> Any:
    """Transform the images of data-set items and join the items into a batch."""
    prepared = [_prepare(how, item) for item in items]
    try:
        return default_collate(prepared)
    except (RuntimeError, TypeError, KeyError) as error:  # other sizes, types or names
        raise ValueError(
            f"the items of the data set cannot be joined into a batch: {error}. Pass collate=, a function that joins a "
            "list of items into a batch; images of several sizes need a transform with a resize and a crop."
        ) from error


def _prepare(how: Preparation, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _prepare(how, part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_prepare(how, part) for part in value) if type(value) in (tuple, list) else value
    if isinstance(value, Image.Image):
        if how.transform is None:
            raise ValueError(f"the data set yields PIL images, which must be converted to tensors. {_NEEDS_TRANSFORM}")
        return how.transform(value)
    if not isinstance(value, np.ndarray):
        return value
    if how.transform is not None and value.dtype == np.uint8 and value.ndim in (2, 3):
        return how.transform(value)
    return to_tensors(value, how.dtype) if value.dtype.kind == "f" else value


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
            self.labels, self.label_classes = class_indices(data[label][:], self.rows)

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


def _from_columns(data: Any, how: Preparation) -> Iterable[Any]:
    """Return batches of a Hugging Face data set."""
    if isinstance(data, Mapping):
        raise TypeError(
            f"data must be one data set, got a dict of {', '.join(map(repr, data))}. "
            f"Select one: data[{next(iter(data))!r}]."
        )
    first = next(iter(data), None)
    if first is None:
        raise ValueError("the data set must have at least one row, got none. Were all rows filtered out?")
    candidates = _label_columns(data, first, how)
    own_function = how.collate is not None and Tokeniser.of(how.collate) is None  # it may choose the labels itself
    if how.labels and len(candidates) > 1 and not own_function:
        raise ValueError(
            f"the data set has several columns of labels, {', '.join(map(repr, candidates))}. "
            f"Name the one of the model's classes: Loading(labels={candidates[0]!r})."
        )
    label = candidates[0] if len(candidates) == 1 else None
    if how.labels and label is None and not own_function:
        numbers = [name for name, value in first.items() if isinstance(value, int)]
        log.warning(
            "no labels were found: none of the columns %s is called label or has classes as its type. If one holds "
            "them, name it: Loading(labels=%r).",
            *(", ".join(map(repr, first)), (numbers or [*first])[-1]),
        )
    if how.collate is not None:
        return _load_items(data, how.batch_size, _join_function(how, label))
    wanted = label if how.labels else None
    images = [name for name, value in first.items() if _is_image(value)]
    if len(images) > 1:
        raise ValueError(
            f"the data set has several columns of images, {', '.join(map(repr, images))}. "
            f"Keep one: data.remove_columns([{images[1]!r}])."
        )
    if images and how.transform is None:
        raise ValueError(f"the images in column {images[0]!r} must be converted to tensors. {_NEEDS_TRANSFORM}")
    if images and how.transform is not None and hasattr(data, "__len__"):
        columns = data.select_columns([images[0], *([] if wanted is None else [wanted])])
        return ColumnImages(columns, images[0], wanted, how.transform, how.batch_size)
    # An image is the one argument of its model, whatever its column is called; numbers are arguments by name.
    inputs = {INPUT_KEYS[0]: images[0]} if images else {name: name for name in _input_columns(first, candidates)}
    return _load_items(data, how.batch_size, partial(_join_columns, how, inputs, wanted))


def _is_image(value: Any) -> bool:
    return isinstance(value, Image.Image) or (isinstance(value, Mapping) and value.keys() == {"bytes", "path"})


def _label_columns(data: Any, first: Mapping[str, Any], how: Preparation) -> list[str]:
    """Return the label columns: the one that the user has named, or found by name, or by type."""
    if how.column is not None and how.column in first:
        return [how.column]
    if how.column is not None and how.labels:
        raise ValueError(f"the data set has no column {how.column!r}; it has {', '.join(map(repr, first))}.")
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
    how: Preparation, inputs: Mapping[str, str], label: str | None, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Join rows into a batch of arguments, each from a column."""
    batch: dict[str, Any] = {}
    for argument, name in inputs.items():
        values = [_prepare(how, row[name]) for row in rows]
        try:
            batch[argument] = torch.stack([torch.as_tensor(value) for value in values])
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"the rows of column {name!r} cannot be joined into a batch: {error}. Pad tokens with collate=, a "
                "tokeniser or DataCollatorWithPadding; remove columns that the model does not accept."
            ) from error
    return batch if label is None else {**batch, "labels": class_indices([row[label] for row in rows], len(rows))[0]}


def _without_labels(batches: Iterable[Any]) -> Iterable[Any]:
    if isinstance(batches, ArrayRows):
        return batches.without_labels()
    if isinstance(batches, Source):
        same = copy(batches)
        same.labels, same.masked = None, False
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
