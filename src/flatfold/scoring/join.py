"""Join the tables of all shards of a run into the table that one run would have written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..io.artifacts import write_json
from ..io.files import replacing, sha256_of, sweep
from .batch import Shard, Summary, check_table, summary_path, unreadable_path
from .tables import write_tables

ROWS = 1024  # of a parquet file that are read at once
SHOWN = 5  # shards that a message names


def join_tables(tables: Sequence[Path | str], out: Path | str) -> Summary:
    """Write the tables of all shards, in any order, as one, and the sum of their counts next to it."""
    out, paths = Path(out), [Path(table) for table in tables]
    check_table(out)
    if not paths:
        raise ValueError("joining takes the tables of all shards, got none. Name them: scores-*.csv, for example.")
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"there is no table {path}. Check the path.")
        if path.suffix.lower() != out.suffix.lower():
            raise ValueError(f"tables are joined as they are, but {path} does not end in {out.suffix}. Rename --out.")
        if path.resolve() == out.resolve():
            raise ValueError(f"{out} is one of the tables to be joined. Choose another --out.")
    shards = sorted(((Summary.load(path), path) for path in paths), key=lambda shard: shard[0].shard.number)
    _check_complete(shards)
    out.parent.mkdir(parents=True, exist_ok=True)
    sweep(out.parent, out.name)
    with replacing(out) as partial:
        if out.suffix.lower() == ".parquet":
            write_tables(chain.from_iterable(_read_parquet(path) for _, path in shards), partial)
        else:
            _concatenate([path for _, path in shards], partial, header=out.suffix.lower() == ".csv")
    unreadable_path(out).unlink(missing_ok=True)
    if lists := [unreadable_path(path) for summary, path in shards if summary.unreadable]:
        with replacing(unreadable_path(out)) as partial:
            _concatenate(lists, partial, header=True)
    first, *others = (summary for summary, _ in shards)
    monitor = sum((summary.monitor for summary in others), first.monitor)
    joined = Summary(first.job, Shard(), sum(s.unreadable for s, _ in shards), sha256_of(out), monitor.to_dict())
    write_json(summary_path(out), joined)
    return joined


def _check_complete(shards: Sequence[tuple[Summary, Path]]) -> None:
    """Raise unless these are all shards of one run, each once and as it was written."""
    first, first_path = shards[0]
    for summary, path in shards:
        if _run_of(summary) != _run_of(first):
            raise ValueError(f"{path} and {first_path} are not shards of one run. Score all of them in the same way.")
        if sha256_of(path) != summary.table:
            raise ValueError(f"{path} has changed: its checksum differs from its summary. Score this shard again.")
        if summary.unreadable and not unreadable_path(path).is_file():
            raise FileNotFoundError(
                f"{path} has no list {unreadable_path(path).name} of unreadable images next to it. "
                "Keep the two together, or score this shard again."
            )
    numbers = [summary.shard.number for summary, _ in shards]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise ValueError(f"shard {twice[0]}/{first.shard.of} is there {numbers.count(twice[0])} times. Give each once.")
    if missing := sorted(set(range(1, first.shard.of + 1)) - set(numbers)):
        named = ", ".join(map(str, missing[:SHOWN])) + (" ..." if len(missing) > SHOWN else "")
        raise ValueError(f"{len(missing)} of {first.shard.of} shards are missing: {named}. Score them first.")


def _run_of(summary: Summary) -> tuple[dict[str, str], int]:
    """Return what all shards of a run share; each machine may see the images at another place."""
    return {name: value for name, value in summary.job.items() if name != "place"}, summary.shard.of


def _concatenate(paths: Sequence[Path], out: Path, header: bool) -> None:
    """Write text tables one after the other, their ``header`` line once."""
    with out.open("wb") as file:
        for number, path in enumerate(paths):
            with path.open("rb") as table:
                if header and number > 0:
                    table.readline()
                file.writelines(table)


def _read_parquet(path: Path) -> Iterator[Any]:
    """Yield a parquet file in pieces, and even of an empty one its columns."""
    import pyarrow as arrow  # type: ignore[import-untyped]
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    with ParquetFile(path) as file:
        yield file.schema_arrow.empty_table()
        for batch in file.iter_batches(ROWS):
            yield arrow.Table.from_batches([batch])
