"""Images that a table names and does not hold: their paths, without a look at the bytes of those that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .table_files import Piece, column_of, opened


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
