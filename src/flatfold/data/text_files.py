"""Texts in files: CSV, JSON lines, parquet and plain lines, read and tokenised when they are needed.

Only the position of each row is kept in memory, eight bytes, and its label. Rows that hold no text are unreadable, each
with a reason, as broken images are.
"""

from __future__ import annotations

import csv
import hashlib
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from ..core.validation import listed
from ..errors import UnreadableTextError
from ..io.files import check_regular
from .batch import Batch, split_batch
from .fingerprint import hash_files
from .sources import NamedSource
from .tables import ParquetColumn, parquet_files
from .texts import Tokeniser

SUFFIXES = (".csv", ".jsonl", ".parquet", ".txt")
TEXT, LABEL = "text", "label"  # columns by default
MOST_BYTES = 2**22  # of a row in a file
MOST_CLASSES = 2**16  # distinct labels that are names
NO_LABEL = -1
SHOWN = 80  # characters of an error of a parser
_BOM = b"\xef\xbb\xbf"
_ADVICE = "Pass text='...' for the texts and labels='...' (or labels=False) for the labels."


def open_texts(
    place: Path | str,
    tokeniser: Any,
    batch_size: int = 64,
    *,
    labels: bool | str = True,
    text: str | None = None,
    classes: Mapping[str, int] | None = None,
) -> TextSource:
    """Open the texts of a ``.csv``, ``.jsonl``, ``.parquet`` or ``.txt`` file, or of a folder of parquet files.

    Args:
        place: The file. A ``.csv`` file has the names of its columns in the first line, a ``.jsonl`` file one object on
            each line, and a ``.txt`` file one text, without labels. Blank lines are skipped.
        tokeniser: A tokeniser of transformers, with options as ``functools.partial(tokenizer, max_length=64)``.
        batch_size: Texts in a batch.
        labels: Name of the column of labels, by default ``label``; False to read no labels. Class indices, or names of
            classes, which are numbered by ``classes``, or else in sorted order.
        text: Name of the column of texts, by default ``text``.
        classes: Class index by name, such as the ``config.label2id`` of a model.

    Raises:
        FileNotFoundError: ``place`` does not exist.
        ValueError: Its format is not supported, or it has no such columns.
    """
    own = Tokeniser.of(tokeniser)
    if own is None:
        raise TypeError(f"texts need a tokeniser of transformers, got {type(tokeniser).__name__}. Pass tokeniser=.")
    rows = _open_rows(Path(place), text, (labels if isinstance(labels, str) else LABEL) if labels else None)
    indices = None if rows.label is None else torch.from_numpy(_class_indices(rows, classes))
    return TextSource(rows, own, batch_size, indices)


def holds_texts(place: Path) -> bool:
    """Return whether a path can hold texts, by its suffix, or for a folder by the parquet files in it."""
    return bool(parquet_files(place)) if place.is_dir() else place.suffix.lower() in SUFFIXES


class TextSource(NamedSource):
    """Texts and their tokeniser, as batches of tokens padded to the longest text; see :func:`open_texts`.

    Every batch has the same texts in every run, so their padding, and with it each score, are the same to the last
    digit. Texts are truncated as the tokeniser says, and the column ``truncated`` of a batch says which were.
    """

    noun = "text"
    unreadable = UnreadableTextError
    columns = MappingProxyType({"truncated": np.bool_})

    def __init__(
        self, texts: TextRows, tokeniser: Tokeniser, batch_size: int = 64, labels: torch.Tensor | None = None
    ) -> None:
        super().__init__(batch_size)
        self.texts, self.tokeniser, self.labels, self.rows = texts, tokeniser, labels, texts.rows
        self._chosen: NDArray[np.int64] | None = None

    def name(self, row: int) -> str:
        """Return the file and the number of the row, ``reviews.csv:7``."""
        return f"{self.texts.path}:{self._row(row)}"

    def text(self, row: int) -> str:
        """Return one text; raise `UnreadableTextError` if the row does not hold one."""
        return self.texts.text(self._row(row))

    def attempt(self, rows: range) -> tuple[Batch | None, dict[int, str]]:
        """Tokenise the texts; report rows that hold no text, no label or no token."""
        kept, unreadable = dict[int, str](), dict[int, str]()
        for row in rows:
            try:
                kept[row] = self.text(row)
                if self.labels is not None and self.labels[row] == NO_LABEL:
                    raise self.texts.error(self._row(row), f"has no label in column {self.texts.label!r}")
            except UnreadableTextError as error:
                kept.pop(row, None)
                unreadable[row] = str(error)
        while kept:
            arguments, truncated = self.tokeniser.encode([*kept.values()])
            mask = arguments.get("attention_mask")
            empty = [] if mask is None else [row for row, one in zip(kept, mask, strict=True) if not one.any()]
            if not empty:
                break
            for row in empty:  # which no model can classify
                del kept[row]
                unreadable[row] = str(self.texts.error(self._row(row), "holds a text without any token"))
        if not kept:
            return None, dict(sorted(unreadable.items()))
        batch = split_batch(arguments)
        labels = None if self.labels is None else self.labels[list(kept)]
        batch = batch._replace(labels=labels, columns={"truncated": torch.tensor(truncated)})
        return batch, dict(sorted(unreadable.items()))

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the tokeniser, the file and the labels."""
        digest = hashlib.sha256(self.tokeniser.fingerprint.encode())
        digest.update(json.dumps([self.texts.column, self.texts.label]).encode())
        files = self.texts.files
        hash_files(digest, files[0].parent, [file.name for file in files])
        digest.update(b"no labels" if self.labels is None else self.labels.numpy().tobytes())
        digest.update(b"all" if self._chosen is None else self._chosen.astype("<i8").tobytes())
        return digest.hexdigest()

    def subset(self, rows: NDArray[np.integer]) -> TextSource:
        """Return the given texts, in that order, as a source."""
        part = copy(self)
        vars(part).pop("fingerprint", None)
        part._chosen = rows.astype(np.int64) if self._chosen is None else self._chosen[rows]
        part.labels = None if self.labels is None else self.labels[torch.from_numpy(rows.astype(np.int64))]
        part.rows = len(rows)
        return part

    def _row(self, row: int) -> int:
        """Return the number of a row in the file."""
        row = range(self.rows)[row]
        return row if self._chosen is None else int(self._chosen[row])


class TextRows(ABC):
    """The rows of a file with texts: random access to their values."""

    rows: int

    def __init__(self, path: Path, column: str, label: str | None) -> None:
        self.path, self.column, self.label = path, column, label

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the rows."""
        return (self.path,)

    @abstractmethod
    def value(self, row: int) -> Any:
        """Return the value of the column of texts in a row; raise `UnreadableTextError` if the row is broken."""

    @abstractmethod
    def label_values(self) -> Iterator[Any]:
        """Yield the label of each row, None if it has none."""

    def text(self, row: int) -> str:
        """Return one text."""
        value = self.value(row)
        if not isinstance(value, str):
            held = "null" if value is None else f"a value of type {type(value).__name__}"
            raise self.error(row, f"holds {held} in column {self.column!r}, not a text")
        if not value.strip():
            raise self.error(row, "holds an empty text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.error(row, "holds half of a surrogate pair, which no text in UTF-8 has") from None
        return value

    def error(self, row: int, problem: str) -> UnreadableTextError:
        """Return the error about a row."""
        return UnreadableTextError(f"{self.path}, row {row} {problem}. Correct the row or remove it.")


class _Lines(TextRows):
    """The lines of a text file that are not blank, found by their positions."""

    starts: NDArray[np.int64]  # of each row, in bytes; the last one is the end of the file

    def __init__(self, path: Path, column: str = TEXT, label: str | None = None) -> None:
        super().__init__(path, column, label)
        with path.open("rb") as file:
            first = 0 if file.read(len(_BOM)) != _BOM else len(_BOM)
            file.seek(first)
            starts = array("q", self._find(file, first))
            starts.append(file.seek(0, 2))
        self.starts, self.rows = np.frombuffer(starts, np.int64), len(starts) - 1
        if not self.rows:
            raise ValueError(f"{path} must hold at least one text, but has none. Check the path.")

    def value(self, row: int) -> Any:
        """Return the text of a row."""
        with self.path.open("rb") as file:
            return self._value(file, row)

    def label_values(self) -> Iterator[Any]:
        """Yield the label of each row."""
        with self.path.open("rb") as file:
            for row in range(self.rows):
                try:
                    yield self._label(file, row)
                except UnreadableTextError:
                    yield None

    def _find(self, file: BinaryIO, start: int) -> Iterator[int]:
        """Yield the position of each row, from ``start`` on."""
        fresh = True  # a line longer than a row may be is read in pieces
        while line := file.readline(MOST_BYTES):
            if fresh and not line.isspace():
                yield start
            start, fresh = start + len(line), line.endswith(b"\n")

    def _content(self, file: BinaryIO, row: int) -> str:
        """Return the bytes of a row as text."""
        start, stop = map(int, self.starts[row : row + 2])
        if stop - start > MOST_BYTES:
            raise self.error(row, f"has {(stop - start) / 1e6:.1f} MB, and a text at most {MOST_BYTES / 1e6:.1f} MB")
        file.seek(start)
        try:
            return file.read(stop - start).decode()
        except UnicodeDecodeError:
            raise self.error(row, f"(at byte {start}) is not in UTF-8") from None

    def _value(self, file: BinaryIO, row: int) -> Any:
        return self._content(file, row).partition("\n")[0].rstrip("\r")

    def _label(self, file: BinaryIO, row: int) -> Any:
        return None


class _JsonLines(_Lines):
    """Objects of JSON, one on each line."""

    def __init__(self, path: Path, column: str, label: str | None) -> None:
        super().__init__(path, column, label)
        with path.open("rb") as file:
            try:
                first = self._object(file, 0)
            except UnreadableTextError:
                return
        for name in (column, *([] if label is None else [label])):
            if name not in first:
                names = listed([repr(key) for key in first])
                raise ValueError(f"the first object of {path} has no entry {name!r}; it has {names}. {_ADVICE}")

    def _object(self, file: BinaryIO, row: int) -> dict[str, Any]:
        try:
            found = msgspec.json.decode(self._content(file, row))
        except (msgspec.DecodeError, RecursionError) as error:
            raise self.error(row, f"is not valid JSON ({str(error)[:SHOWN]})") from None
        if not isinstance(found, dict):
            raise self.error(row, "is not an object of JSON")
        return found

    def _value(self, file: BinaryIO, row: int) -> Any:
        found = self._object(file, row)
        if self.column not in found:
            raise self.error(row, f"has no entry {self.column!r}")
        return found[self.column]

    def _label(self, file: BinaryIO, row: int) -> Any:
        return self._object(file, row).get(self.label or "")


class _Csv(_Lines):
    """Records of a CSV file with the names of its columns in the first line; a quoted text may have line breaks."""

    def __init__(self, path: Path, column: str, label: str | None) -> None:
        self._names: list[str] = []
        super().__init__(path, column, label)
        for name in (column, *([] if label is None else [label])):
            if self._names.count(name) != 1:
                columns = listed(list(map(repr, self._names)))
                raise ValueError(f"{path} must have one column {name!r}; its columns are {columns}. {_ADVICE}")

    def _find(self, file: BinaryIO, start: int) -> Iterator[int]:
        position = start

        def lines() -> Iterator[str]:
            nonlocal position
            while line := file.readline(MOST_BYTES):
                position += len(line)
                whole = line.endswith(b"\n")
                while not whole and (rest := file.readline(MOST_BYTES)):  # too long to be kept: unreadable
                    position, line, whole = position + len(rest), b"too long\n", rest.endswith(b"\n")
                yield line.decode("latin-1")  # any byte; commas, quotes and line breaks are never part of another sign

        records = csv.reader(lines(), strict=True)
        while True:
            start = position
            try:
                record = next(records)
            except StopIteration:
                return
            except csv.Error:  # reading the row raises it again
                record = [""]
            if record and not self._names:
                self._names = [name.encode("latin-1").decode(errors="replace").strip() for name in record]
            elif record:
                yield start

    def _record(self, file: BinaryIO, row: int) -> list[str]:
        lines = (f"{line}\n" for line in self._content(file, row).split("\n"))  # not at form feeds, as splitlines does
        try:
            return next(csv.reader(lines, strict=True), [])
        except csv.Error as error:
            raise self.error(row, f"is not valid CSV ({str(error)[:SHOWN]}). Is a quotation mark missing?") from None

    def _entry(self, file: BinaryIO, row: int, name: str) -> str:
        record, place = self._record(file, row), self._names.index(name)
        if place >= len(record):
            raise self.error(row, f"has {len(record)} columns, too few for {name!r}")
        return record[place]

    def _value(self, file: BinaryIO, row: int) -> Any:
        return self._entry(file, row, self.column)

    def _label(self, file: BinaryIO, row: int) -> Any:
        return self._entry(file, row, self.label or "") or None


class _Parquet(TextRows):
    """A column of texts in parquet files."""

    def __init__(self, path: Path, column: str, label: str | None) -> None:
        super().__init__(path, column, label)
        texts = lambda kind: str(kind) in ("string", "large_string", "string_view")  # noqa: E731
        self._column = ParquetColumn(path, column, "texts", texts, _ADVICE)
        self.rows = self._column.rows

    @property
    def files(self) -> tuple[Path, ...]:
        """The parquet files."""
        return self._column.files

    def value(self, row: int) -> Any:
        """Return the text of a row."""
        return self._column.value(row)

    def label_values(self) -> Iterator[Any]:
        """Yield the label of each row."""
        return self._column.others(self.label or "")


def _open_rows(place: Path, text: str | None, label: str | None) -> TextRows:
    if not place.exists():
        raise FileNotFoundError(f"no texts at {place}: it does not exist. Check the path.")
    if not place.is_dir():
        check_regular(place)
    column, suffix = text or TEXT, place.suffix.lower()
    if place.is_dir() or suffix == ".parquet":
        return _Parquet(place, column, label)
    if suffix == ".txt":
        if text is not None:
            raise ValueError(f"{place} holds a text on each line, without columns, got text={text!r}. Leave it out.")
        return _Lines(place)
    if suffix not in SUFFIXES:
        raise ValueError(f"texts must be in a file that ends in {', '.join(SUFFIXES)}, got {place}. Convert it.")
    return (_Csv if suffix == ".csv" else _JsonLines)(place, column, label)


def _class_indices(rows: TextRows, classes: Mapping[str, int] | None) -> NDArray[np.int64]:
    """Return the class index of each row, ``NO_LABEL`` where there is none."""
    codes: dict[str, int] = {}
    found = array("q")
    for value in rows.label_values():
        value = int(value) if isinstance(value, bool) else value
        usable = isinstance(value, (str, int)) and value != ""
        found.append(codes.setdefault(str(value), len(codes)) if usable else -1)
        if len(codes) > MOST_CLASSES:
            raise ValueError(
                f"column {rows.label!r} of {rows.path} has more than {MOST_CLASSES:,} different labels. Is it the "
                "column of labels? Pass labels='...', or labels=False."
            )
    numbers = _numbers_of(codes, classes, rows)
    return np.array([*numbers, NO_LABEL], np.int64)[np.frombuffer(found, np.int64)]


def _numbers_of(names: Iterable[str], classes: Mapping[str, int] | None, rows: TextRows) -> list[int]:
    """Return the class index of each name: the number that it is, that of ``classes``, or its place when sorted."""
    names = list(names)
    where = f"column {rows.label!r} of {rows.path}"
    if classes and all(name in classes for name in names):
        return [int(classes[name]) for name in names]
    if all(name.removeprefix("-").isdecimal() for name in names):
        if any(int(name) < 0 or int(name) >= 2**31 for name in names):
            raise ValueError(f"{where} must hold class indices from 0, got {min(names)}. Number the classes from 0.")
        return list(map(int, names))
    if classes and not all(name == f"LABEL_{index}" for name, index in classes.items()):
        unknown = [name for name in names if name not in classes]
        raise ValueError(
            f"{where} has labels that are no classes of the model: {listed(list(map(repr, unknown)))}. Its classes are "
            f"{listed(list(map(repr, classes)))}. Rename the labels, or give class indices."
        )
    order = {name: place for place, name in enumerate(sorted(names))}
    return [order[name] for name in names]
