"""Images inside tables: parquet files, and what Hugging Face ``datasets`` keeps on disk."""

from __future__ import annotations

import hashlib
import io
import json
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

from PIL import Image

from ..core.errors import UnreadableImage
from .folders import read_image
from .samples import feed_files, feed_samples
from .sources import ImageSource
from .table_files import Piece, class_indices, column_of, described, table_files
from .table_paths import leads_out, outside_paths
from .transform import Transform


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
        feed_samples(digest, self.files)
        outside = [place for place in outside_paths(self._pieces, self.image) if not leads_out(place)]
        feed_files(digest, self._folder, outside)

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
