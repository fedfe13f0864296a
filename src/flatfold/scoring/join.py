"""Tables of all shards of a run to the table that one run would have written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..io.files import replacing, sha256_of, sweep
from .batch import Summary, check_name, unreadable_of
from .tables import check_out, write_tables

ROWS = 1024  # of a parquet file that are read at once

SHOWN = 5  # shards that a message names


def join_tables(tables: Sequence[Path | str], out: Path | str) -> Summary:
    """Write the tables of all shards as one, and beside it what they have come to.

    Args:
        tables: What ``score_images`` wrote for each shard, in any order, with their summaries.
        out: Where to, with the ending of the tables.

    Returns:
        What the whole run has come to: the same as that of one process that scored everything.

    Raises:
        FileNotFoundError: A table or its summary is not there.
        ValueError: Shards are missing, come twice, are of different runs, or have changed since.
    """
    out, paths = Path(out), [Path(table) for table in tables]
    check_out(out)
    check_name(out)
    _check_names(paths, out)
    found = sorted(((Summary.load(path), path) for path in paths), key=lambda pair: pair[0].shard.number)
    _check_complete(found)
    out.parent.mkdir(parents=True, exist_ok=True)
    sweep(out.parent, out.name)
    ordered = [path for _, path in found]
    with replacing(out) as partial:
        JOINED[out.suffix.lower()](ordered, partial)
    _join_unreadable([unreadable_of(path) for summary, path in found if summary.unreadable], unreadable_of(out))
    summary = Summary.added([summary for summary, _ in found], out)
    summary.save(out)
    return summary


def _check_names(paths: Sequence[Path], out: Path) -> None:
    if not paths:
        raise ValueError("joining takes the tables of all shards, got none. Name them: scores-*.csv, for example.")
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"there is no table {path}. Check the path.")
        if path.suffix.lower() != out.suffix.lower():
            raise ValueError(f"tables are joined as they are, but {path} does not end in {out.suffix}. Rename --out.")
        if path.resolve() == out.resolve():
            raise ValueError(f"{out} is one of the tables to be joined. Choose another --out.")


def _check_complete(found: Sequence[tuple[Summary, Path]]) -> None:
    """Raise unless these are all shards of one run, each once and as it was written."""
    first, where = found[0]
    for summary, path in found:
        if _run_of(summary) != _run_of(first):
            raise ValueError(f"{path} and {where} are not shards of one run. Score all of them in the same way.")
        if sha256_of(path) != summary.table:
            raise ValueError(f"{path} is not as it was written: its checksum is another. Score this shard again.")
        if summary.unreadable and not unreadable_of(path).is_file():
            raise FileNotFoundError(
                f"{path} has no list {unreadable_of(path).name} of what could not be scored beside it. "
                "Keep the two together, or score this shard again."
            )
    numbers = [summary.shard.number for summary, _ in found]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise ValueError(f"shard {twice[0]}/{first.shard.of} is there {numbers.count(twice[0])} times. Give each once.")
    if missing := sorted(set(range(1, first.shard.of + 1)) - set(numbers)):
        named = ", ".join(map(str, missing[:SHOWN])) + (" ..." if len(missing) > SHOWN else "")
        raise ValueError(f"{len(missing)} of {first.shard.of} shards are missing: {named}. Score them first.")


def _run_of(summary: Summary) -> tuple[dict[str, Any], int]:
    """Return what all shards of a run share; each machine may see the images at a place of its own."""
    return {name: value for name, value in summary.job.items() if name != "place"}, summary.shard.of


def _join_unreadable(paths: Sequence[Path], out: Path) -> None:
    if not paths:
        out.unlink(missing_ok=True)
        return
    with replacing(out) as partial:
        _join_csv(paths, partial)


def _join_csv(paths: Sequence[Path], out: Path) -> None:
    with out.open("wb") as file:
        for number, path in enumerate(paths):
            with path.open("rb") as table:
                names = table.readline()
                file.writelines(chain([names] if number == 0 else [], table))


def _join_json(paths: Sequence[Path], out: Path) -> None:
    with out.open("wb") as file:
        for path in paths:
            with path.open("rb") as table:
                file.writelines(table)


def _join_parquet(paths: Sequence[Path], out: Path) -> None:
    write_tables(chain.from_iterable(map(_tables, paths)), out)


def _tables(path: Path) -> Iterator[Any]:
    """Yield a parquet file piece by piece, and even of an empty one its columns."""
    import pyarrow as arrow  # type: ignore[import-untyped]
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    with ParquetFile(path) as file:
        yield file.schema_arrow.empty_table()
        for batch in file.iter_batches(ROWS):
            yield arrow.Table.from_batches([batch])


JOINED = {".csv": _join_csv, ".jsonl": _join_json, ".parquet": _join_parquet}
