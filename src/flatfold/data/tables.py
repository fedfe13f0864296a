"""Columns of parquet files, read by row groups: random access to the values of one column, and whole columns."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import brief
from ..io.files import check_regular

NULL = -(2**63)  # stands for a missing label
LARGEST_GROUP = 2**28  # bytes of a row group in memory, or else ...
EXPANSION = 20  # ... this multiple of its bytes in the file: encoded images hardly compress
ROWS_AT_ONCE = 4096

_SMALLER = f"Write row groups of less than {LARGEST_GROUP // 10**6} MB."
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_SIZES = ("total_uncompressed_size", "total_compressed_size")


class ParquetColumn:
    """The values of a column of a parquet file, or of a folder of them in the order of their names.

    Rows have random access. Each reader thread caches one decoded row group, and no file stays open, so a column can be
    copied to other processes.

    Args:
        path: A parquet file, or a folder of parquet files.
        name: The column.
        kind: What it holds, in messages.
        fits: Whether it may have a type of Arrow.
        advice: The end of the error about a missing column.
    """

    def __init__(self, path: Path, name: str, kind: str, fits: Callable[[Any], bool], advice: str) -> None:
        self.path, self.name, self._advice = path, name, advice
        if not path.exists():
            raise FileNotFoundError(f"no table {path}. Check the path.")
        self.files = parquet_files(path) if path.is_dir() else (path,)
        if not self.files:
            raise ValueError(f"{path} holds no table: no file ends in .parquet. Pass the folder of the parquet files.")
        self._groups: list[_RowGroup] = []
        for file in self.files:
            self._examine(file, kind, fits)
        self._stops = list(accumulate(group.rows for group in self._groups))
        self.rows = sum(group.rows for group in self._groups)
        if not self.rows:
            raise ValueError(f"{path} must hold at least one row, but its tables are empty. Check the path.")
        self._last = _LastGroup()

    def value(self, row: int) -> Any:
        """Return the value in one row."""
        index = bisect_right(self._stops, row)
        group = self._groups[index]
        if self._last.index != index:
            self._last.index, self._last.column = -1, None  # release it first, so that only one is in memory
            with _open_parquet(group.file, group.dictionaries) as table:
                column = _validated(table.read_row_group(group.number, [self.name], use_threads=False), self.name)
            if len(column) != group.rows:
                raise ValueError(f"{group.file} was changed while it was in use. Start again.")
            self._last.index, self._last.column = index, column
        return self._last.column[row - self._stops[index] + group.rows].as_py()

    def whole_numbers(self, name: str) -> NDArray[np.int64]:
        """Return another column of whole numbers, with ``NULL`` for missing ones."""
        columns = []
        for file in self.files:
            with _open_parquet(file) as table:
                check_expansion(file, f"column {name!r}", 8 * table.metadata.num_rows, file.stat().st_size)
                whole = lambda kind: str(kind) in _INTEGERS  # noqa: E731
                _check_column(file, table.schema_arrow, name, "whole numbers", whole, self._advice)
                column = _validated(table.read([name], use_threads=False), name)
                columns.append(column.cast("int64").fill_null(NULL).to_numpy())
        return np.concatenate(columns)

    def others(self, name: str) -> Iterator[Any]:
        """Yield the values of another column, of any type, in memory that does not grow."""
        for file in self.files:
            with _open_parquet(file) as table:
                _check_column(file, table.schema_arrow, name, "labels", lambda kind: True, self._advice)
                for batch in table.iter_batches(ROWS_AT_ONCE, columns=[name], use_threads=False):
                    yield from _validated(batch, 0).to_pylist()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_last"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _last=_LastGroup())

    def _examine(self, file: Path, kind: str, fits: Callable[[Any], bool]) -> None:
        """Record the row groups of a file."""
        with _open_parquet(file) as table:
            _check_column(file, table.schema_arrow, self.name, kind, fits, self._advice)
            for number in range(table.num_row_groups):
                group = table.metadata.row_group(number)
                chunks = _chunks(group, self.name)
                expanded, stored = (sum(getattr(it, size) for it in chunks) for size in _SIZES)
                check_expansion(file, f"column {self.name!r} of row group {number}", expanded, stored)
                dictionaries = [it.path_in_schema for it in chunks if it.has_dictionary_page]
                self._groups.append(_RowGroup(file, number, group.num_rows, dictionaries))


class _LastGroup(threading.local):
    """The row group that a thread read last, and its values."""

    index = -1
    column: Any = None


class _RowGroup(NamedTuple):
    """Rows of a parquet file that are read together."""

    file: Path
    number: int
    rows: int
    dictionaries: list[str]  # dictionary-encoded parts of the column, kept so in memory


def parquet_files(folder: Path) -> tuple[Path, ...]:
    """Return the parquet files of a folder except hidden ones, sorted by name."""
    return tuple(sorted(file for file in folder.glob("*.parquet") if file.is_file() and file.name[0] != "."))


@contextmanager
def _open_parquet(file: Path, dictionaries: Sequence[str] = ()) -> Iterator[Any]:
    """Open a parquet file, with some columns read as dictionaries; errors raised in the block name the file."""
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]
    except ImportError as error:
        raise ModuleNotFoundError(
            "reading tables needs pyarrow, which is not installed. Run: pip install 'flatfold[parquet]'", name="pyarrow"
        ) from error
    check_regular(file)
    try:
        with ParquetFile(file, read_dictionary=list(dictionaries)) as table:
            yield table
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read as a table: {brief(error)}. Copy or write it again.") from error


def _chunks(group: Any, column: str) -> list[Any]:
    """Return the metadata of the parts of a column in a row group."""
    chunks = (group.column(index) for index in range(group.num_columns))
    return [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(f"{column}.")]


def check_expansion(file: Path, what: str, expanded: int, stored: int, advice: str = _SMALLER) -> None:
    """Raise if what a file holds would take far more memory than the file: it may be built to exhaust memory."""
    if expanded > max(LARGEST_GROUP, EXPANSION * stored):
        raise ValueError(
            f"{file}: {what} would expand from {stored / 1e6:.3g} MB in the file to {expanded / 1e6:,.0f} MB in "
            f"memory. {advice}"
        )


def _validated(table: Any, name: str | int) -> Any:
    """Return a column after validating it: damaged offsets could point outside of its memory."""
    column = table.column(name)
    column.validate(full=True)
    return column


def _check_column(file: Path, schema: Any, name: str, kind: str, fits: Callable[[Any], bool], advice: str) -> None:
    index = schema.get_field_index(name)  # -1 also if there are several
    if index < 0 or not fits(schema.field(index).type):
        columns = ", ".join(f"{field.name!r} ({field.type})" for field in schema) or "none"
        raise ValueError(f"{file} must have one column {name!r} of {kind}; its columns are {columns}. {advice}")
