"""Images inside tables: parquet files, and what Hugging Face ``datasets`` keeps on disk."""

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
from torch import Tensor

from ..core.validation import UnreadableImage
from .decoding import read_image
from .fingerprint import hash_files, hash_samples
from .sources import ImageSource
from .transform import Transform

# The files behind a table of images: which they are, what their columns hold, one piece of a column at a time.


_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # without it a stream that was cut between two batches looks whole

_NULL = -(2**63)  # what an empty label is read as


Column = NDArray[np.int64]


class Piece(NamedTuple):
    """Rows that are read together: a row group of a parquet file, or a whole Arrow file."""

    file: Path
    group: int | None
    rows: int


def table_files(path: Path) -> tuple[tuple[Path, ...], bool]:
    """Return the files of a table, and whether they are Arrow files and not parquet."""
    if path.is_file():
        return (path,), False
    if not path.is_dir():
        raise FileNotFoundError(f"there is no table {path}. Check the path.")
    if (path / "dataset_dict.json").is_file():
        splits = _said(path / "dataset_dict.json").get("splits")
        names = ", ".join(map(repr, splits)) if isinstance(splits, list) else "of a damaged dataset_dict.json"
        raise ValueError(f"{path} must be one table, but it holds the splits {names}. Pass the folder of one of them.")
    if (path / "state.json").is_file():
        return tuple(path / name for name in _arrow_names(path / "state.json")), True
    found = sorted(file for file in path.glob("*.parquet") if file.is_file() and not file.name.startswith("."))
    if not found:
        raise ValueError(
            f"{path} holds no table: neither files *.parquet nor a state.json of datasets. Pass the folder in which "
            "they lie."
        )
    return tuple(found), False


def _said(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: {error}. Write the data set again with save_to_disk.") from error
    return values if isinstance(values, dict) else {}


def _arrow_names(state: Path) -> list[str]:
    """Return the names of the Arrow files that ``state.json`` lists; nothing in it is trusted."""
    values = _said(state)
    entries = values.get("_data_files")
    names = [_own_name(entry) for entry in entries] if isinstance(entries, list) else []
    if not all(names) or not names:
        raise ValueError(
            f"{state} must list files of its own folder under '_data_files', got {entries!r}. "
            "Write the data set again with save_to_disk."
        )
    if any(value for key, value in values.items() if key.startswith("_indices")):
        raise ValueError(
            f"{state} picks rows by a table of indices, as early versions of datasets did. "
            "Load and save the data set with a newer version."
        )
    return names


def _own_name(entry: Any) -> str:
    """Return the name of a file, or nothing if it is none or leads out of the folder."""
    name = entry.get("filename") if isinstance(entry, dict) else None
    return name if isinstance(name, str) and name == Path(name).name else ""


@contextmanager
def opened(file: Path, mapped: bool) -> Iterator[Any]:
    """Yield a parquet file, or the table in an Arrow file; say which file it was when it cannot be read."""
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]
    except ImportError as error:
        raise ModuleNotFoundError(
            "tables are read by pyarrow, which is not installed. Run: pip install 'flatfold[parquet]'", name="pyarrow"
        ) from error
    try:
        if mapped:
            yield _mapped(arrow, file)
        else:
            with ParquetFile(file) as table:
                yield table
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read as a table: {error}. Copy or write it again.") from error


def _mapped(arrow: Any, file: Path) -> Any:
    """Return the table in an Arrow file; its memory stays mapped as long as it is used, the file is closed."""
    with arrow.memory_map(str(file)) as memory:
        memory.seek(max(0, memory.size() - len(_STREAM_END)))
        if memory.read() != _STREAM_END:
            raise arrow.ArrowInvalid("it has no end, as if it were cut short")
        memory.seek(0)
        with arrow.ipc.open_stream(memory) as stream:
            return stream.read_all()


def described(file: Path, mapped: bool, image: str, label: str | None) -> tuple[list[Piece], Column | None]:
    """Return the pieces of a file and the labels in it."""
    with opened(file, mapped) as table:
        schema = table.schema if mapped else table.schema_arrow
        _check_column(file, schema, image, "encoded images", _holds_images)
        if label is not None:
            _check_column(file, schema, label, "whole numbers", _holds_integers)
        if mapped:
            pieces = [Piece(file, None, table.num_rows)]
        else:
            sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
            pieces = [Piece(file, group, size) for group, size in enumerate(sizes)]
        if label is None:
            return pieces, None
        column = _checked(table if mapped else table.read([label], use_threads=False), label)
        return pieces, column.cast("int64").fill_null(_NULL).to_numpy()


def column_of(piece: Piece, image: str) -> Any:
    """Return the images of a piece, still encoded."""
    mapped = piece.group is None
    with opened(piece.file, mapped) as table:
        column = _checked(table if mapped else table.read_row_group(piece.group, [image], use_threads=False), image)
    if len(column) != piece.rows:
        raise ValueError(f"{piece.file} was changed while it was in use. Begin again.")
    return column


def _checked(table: Any, name: str) -> Any:
    """Return a column whose every value lies inside of the file; a damaged one could lead anywhere in memory."""
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


def _holds_integers(kind: Any) -> bool:
    return str(kind).removeprefix("u") in ("int8", "int16", "int32", "int64")


def _holds_images(kind: Any) -> bool:
    if not str(kind).startswith("struct<"):
        return str(kind) in ("binary", "large_binary")
    parts = {part.name: str(part.type) for part in kind}
    return (
        len(parts) == kind.num_fields  # a value with two parts of one name cannot be read
        and parts.get("bytes") in ("binary", "large_binary")
        and parts.get("path", "string") in ("string", "large_string")
    )


def class_indices(path: Path, label: str, columns: list[Column]) -> Tensor:
    """Return the labels in the columns of all files, ``(n,)``; an empty or negative one is refused."""
    values = np.concatenate(columns)
    if values.min() < 0:
        row = int((values < 0).argmax())
        came = "null" if values[row] == _NULL else values[row]
        raise ValueError(
            f"column {label!r} of {path} must hold a class index from 0 in every row, but row {row} has {came}. "
            "Pass label=None to read the images without labels."
        )
    return torch.from_numpy(values)


# Images that a table names and does not hold: their paths, without a look at the bytes of those that it holds.


def leads_out(place: str) -> bool:
    """Tell whether a path does not lead downwards from a folder."""
    return bool(Path(place).anchor) or ".." in Path(place).parts


def outside_paths(pieces: list[Piece], image: str) -> list[str]:
    """Return the paths in those rows of a table that may have no bytes, in order.

    Of a row group of a parquet file these are all paths as soon as one row may have none: how many do is written in
    the file, but not which, and to find out all images would have to be read.

    Args:
        pieces: Of the table.
        image: Column of the images.
    """
    paths: list[str] = []
    for file in dict.fromkeys(piece.file for piece in pieces if piece.group is not None):
        with opened(file, mapped=False) as table:
            for group in range(table.num_row_groups):
                paths += _in_group(table, group, image)
    for piece in pieces:
        if piece.group is None:
            paths += _in_memory(column_of(piece, image))
    return paths


def _in_group(table: Any, group: int, image: str) -> list[str]:
    columns = [table.metadata.row_group(group).column(i) for i in range(table.metadata.num_columns)]
    by_name = {column.path_in_schema: column.statistics for column in columns}
    known = by_name.get(f"{image}.bytes")  # None also if the file was written without statistics
    if f"{image}.path" not in by_name or (known is not None and known.has_null_count and not known.null_count):
        return []
    values = table.read_row_group(group, [f"{image}.path"], use_threads=False).column(image).to_pylist()
    return [value["path"] for value in values if value and value["path"]]


def _in_memory(column: Any) -> list[str]:
    names = [part.name for part in column.type] if str(column.type).startswith("struct<") else []
    if "path" not in names:
        return []
    paths: list[str] = []
    for chunk in column.chunks:
        parts = dict(zip(names, chunk.flatten(), strict=True))  # a null among the structs is one in all of its parts
        if parts["bytes"].null_count:
            paths += [path for path in parts["path"].filter(parts["bytes"].is_null()).to_pylist() if path]
    return paths


class TableImages(ImageSource):
    """The images in a column of a table, in the order of its rows.

    Any row can be read without the others. Of parquet files one decoded row group is kept, Arrow files are mapped into
    memory; no file stays open, so a source can be copied to other processes and forked.

    The fingerprint holds the names of the files and of the columns, sizes and times of change, and bytes of some twenty
    files, not all pixels; those of images that lie outside of the table too.

    Args:
        path: A parquet file, a folder of parquet files (taken in the order of their names), or a folder that
            ``datasets`` wrote with ``save_to_disk``.
        transform: Applied to every image.
        batch_size: Images in a batch.
        image: Column of the images: encoded bytes, or a struct of ``bytes`` and ``path``. Where there are no bytes, the
            path says where the image lies below the table's folder.
        label: Column of whole class indices, or None for no labels.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        FileNotFoundError: There is nothing at ``path``.
        ValueError: It is no table, is damaged, or lacks these columns. A single bad image does no harm before it is
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
        self.files, mapped = table_files(self.path)
        tables = [described(file, mapped, image, label) for file in self.files]
        self._pieces = [piece for pieces, _ in tables for piece in pieces]
        self._stops = list(accumulate(piece.rows for piece in self._pieces))
        if not self.rows:
            raise ValueError(f"{path} must hold at least one row, but its tables are empty. Check the path.")
        columns = [column for _, column in tables if column is not None]
        self.labels = None if label is None else class_indices(self.path, label, columns)
        self._columns: dict[Piece, Any] = {}

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
        if content is not None:
            return name, read_image(io.BytesIO(content), name)
        if not place:
            raise UnreadableImage(f"{name} has neither the bytes of an image nor a path to one. Remove the row.")
        if leads_out(place):
            raise UnreadableImage(
                f"{name} has a path that does not lead downwards from {self._folder}. "
                "Write the table with the bytes of its images."
            )
        return name, read_image(self._folder / place, name)

    def identify(self, digest: hashlib._Hash) -> None:
        """Feed the names of the columns and of the files, sizes and times of change, and some bytes."""
        digest.update(json.dumps([self.image, self.label]).encode())
        for file in self.files:
            status = file.stat()
            digest.update(json.dumps([file.name, status.st_size, status.st_mtime_ns]).encode())
        hash_samples(digest, self.files)
        outside = [place for place in outside_paths(self._pieces, self.image) if not leads_out(place)]
        hash_files(digest, self._folder, outside)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_columns": {}}  # to pickle mapped memory is to copy all of it

    @property
    def _folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def _value(self, row: int) -> Any:
        """Return what the image column holds in one row: bytes, a dict, or None."""
        index = bisect_right(self._stops, row)
        piece = self._pieces[index]
        column = self._columns.get(piece)
        if column is None:
            if piece.group is not None:
                self._columns.clear()  # before the next is read, or there would be two of them
            column = self._columns[piece] = column_of(piece, self.image)
        return column[row - self._stops[index] + piece.rows].as_py()
