"""Images inside parquet files."""

from __future__ import annotations

import hashlib
import io
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..core.validation import UnreadableImage
from .decoding import read_image
from .fingerprint import hash_files
from .sources import ImageSource
from .transform import Transform

_INTEGERS = ("int8", "int16", "int32", "int64")  # and their unsigned kinds
_NULL = -(2**63)  # what an empty label is read as


class TableImages(ImageSource):
    """The images in a column of a table, in the order of its rows.

    Any row can be read without the others. One decoded row group is kept and no file stays open, so a source can be
    copied to other processes and forked.

    The fingerprint holds the names of the files and of the columns, sizes and times of change, and bytes of some twenty
    files, not all pixels.

    Args:
        path: A parquet file, or a folder of parquet files, which are taken in the order of their names.
        transform: Applied to every image.
        batch_size: Images in a batch.
        image: Column of the images: encoded bytes, or a struct of ``bytes`` and ``path``, of which the path only serves
            as a name.
        label: Column of integer class indices, or None for no labels.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        FileNotFoundError: There is nothing at ``path``.
        ValueError: It is not a table, is damaged, or lacks these columns. A single bad image does no harm before it is
            read.
    """

    def __init__(
        self,
        path: Path | str,
        transform: Transform,
        batch_size: int = 64,
        image: str = "image",
        label: str | None = "label",
    ) -> None:
        super().__init__(transform, batch_size)
        self.path, self.image, self.label = Path(path), image, label
        if not self.path.exists():
            raise FileNotFoundError(f"there is no table {path}. Check the path.")
        self.files = parquet_files(self.path) if self.path.is_dir() else (self.path,)
        if not self.files:
            raise ValueError(f"{path} holds no table: no file ends in .parquet. Pass the folder in which they are.")
        tables = [_examine(file, image, label) for file in self.files]
        self._groups = [group for groups, _ in tables for group in groups]
        self._stops = list(accumulate(group.rows for group in self._groups))
        if not self.rows:
            raise ValueError(f"{path} must hold at least one row, but its tables are empty. Check the path.")
        if label is not None:
            values = np.concatenate([column for _, column in tables if column is not None])
            if values.min() < 0:
                row = int((values < 0).argmax())
                raise ValueError(
                    f"column {label!r} of {path} must hold a class index from 0 in every row, but row {row} has "
                    f"{'null' if values[row] == _NULL else values[row]}. Pass label=None to read the images without "
                    "labels."
                )
            self.labels = torch.from_numpy(values)
        self._column: tuple[int, Any] = (-1, None)  # the number and the images of the row group that was read last

    @property
    def rows(self) -> int:
        """Number of images."""
        return self._stops[-1] if self._stops else 0

    def name(self, row: int) -> str:
        """Return the table and the number of the row, ``photos.parquet:7``."""
        return f"{self.path}:{range(self.rows)[row]}"

    def picture(self, row: int) -> tuple[str, Image.Image]:
        """Return the number, with the path if there is one, and the decoded image of one row."""
        row = range(self.rows)[row]
        value = self._value(row)
        content, place = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        name = f"{self.path}, row {row}" + (f" ({place})" if place else "")
        if content is None:
            raise UnreadableImage(f"{name} does not hold the bytes of an image. Write them into the table.")
        return name, read_image(io.BytesIO(content), name)

    def identify(self, digest: hashlib._Hash) -> None:
        """Feed the names of the columns and of the files, sizes and times of change, and some bytes."""
        digest.update(json.dumps([self.image, self.label]).encode())
        hash_files(digest, self.files[0].parent, [file.name for file in self.files])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_column": (-1, None)}

    def _value(self, row: int) -> Any:
        """Return what the image column holds in one row: bytes, a dict, or None."""
        index = bisect_right(self._stops, row)
        group = self._groups[index]
        if self._column[0] != index:
            self._column = (-1, None)  # before the next is read, or there would be two of them
            with _open_parquet(group.file) as table:
                column = _validated(table.read_row_group(group.number, [self.image], use_threads=False), self.image)
            if len(column) != group.rows:
                raise ValueError(f"{group.file} was changed while it was in use. Begin again.")
            self._column = (index, column)
        return self._column[1][row - self._stops[index] + group.rows].as_py()


class _RowGroup(NamedTuple):
    """Rows of a parquet file that are read together."""

    file: Path
    number: int
    rows: int


def parquet_files(folder: Path) -> tuple[Path, ...]:
    """Return the parquet files of a folder in the order of their names, without hidden ones."""
    return tuple(sorted(file for file in folder.glob("*.parquet") if file.is_file() and file.name[0] != "."))


@contextmanager
def _open_parquet(file: Path) -> Iterator[Any]:
    """Yield an open parquet file; an error of the block names the file."""
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]
    except ImportError as error:
        raise ModuleNotFoundError(
            "tables are read by pyarrow, which is not installed. Run: pip install 'flatfold[parquet]'", name="pyarrow"
        ) from error
    try:
        with ParquetFile(file) as table:
            yield table
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read as a table: {error}. Copy or write it again.") from error


def _examine(file: Path, image: str, label: str | None) -> tuple[list[_RowGroup], NDArray[np.int64] | None]:
    """Return the row groups of a file and the labels in it."""
    with _open_parquet(file) as table:
        _check_column(file, table.schema_arrow, image, "encoded images", _holds_images)
        sizes = [table.metadata.row_group(number).num_rows for number in range(table.num_row_groups)]
        groups = [_RowGroup(file, number, size) for number, size in enumerate(sizes)]
        if label is None:
            return groups, None
        _check_column(
            file, table.schema_arrow, label, "whole numbers", lambda kind: str(kind).removeprefix("u") in _INTEGERS
        )
        column = _validated(table.read([label], use_threads=False), label)
        return groups, column.cast("int64").fill_null(_NULL).to_numpy()


def _validated(table: Any, name: str) -> Any:
    """Return a column after checking that its values are inside of it: damaged offsets could lead anywhere."""
    column = table.column(name)
    column.validate(full=True)
    return column


def _check_column(file: Path, schema: Any, name: str, kind: str, fits: Callable[[Any], bool]) -> None:
    index = schema.get_field_index(name)  # -1 also if there are several
    if index < 0 or not fits(schema.field(index).type):
        columns = ", ".join(f"{field.name!r} ({field.type})" for field in schema) or "none"
        raise ValueError(
            f"{file} must have one column {name!r} of {kind}; its columns are {columns}. "
            "Pass image='...' for the images and label='...' (or label=None) for the labels."
        )


def _holds_images(kind: Any) -> bool:
    if not str(kind).startswith("struct<"):
        return str(kind) in ("binary", "large_binary")
    parts = {part.name: str(part.type) for part in kind}
    return (
        len(parts) == kind.num_fields  # a value with two parts of one name cannot be read
        and parts.get("bytes") in ("binary", "large_binary")
        and parts.get("path", "string") in ("string", "large_string")
    )
