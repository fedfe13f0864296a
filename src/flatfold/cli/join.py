"""``flatfold join``: the tables of all shards of a run as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def join(
    tables: Annotated[
        list[Path],
        typer.Argument(help="The tables of all shards, in any order; their .unreadable.csv are passed over."),
    ],
    out: Annotated[Path, typer.Option(help="File to write, with the ending of the tables.")],
) -> None:
    """Put the tables that `flatfold score --shard` wrote together: the result is that of one run.

    Each table must have its .summary.json beside it, as it was written. All shards must be there, each once, of the
    same images, guard, --fpr and --batch-size. The joined table has a .summary.json too, and a .unreadable.csv if an
    image could not be scored.

    Exit codes: 0 all images are scored; 3 joined, but some images could not be scored; 1 a table was wrong; 2 the
    usage was.

    Example: flatfold join scores-1.csv scores-2.csv scores-3.csv --out scores.csv
    """
    from ..scoring.batch import unreadable_of
    from ..scoring.join import join_tables
    from .console import print_summary
    from .options import check_values

    check_values(None, out)
    beside = {unreadable_of(table) for table in tables}  # scores-*.csv takes in scores-1.csv.unreadable.csv
    print_summary(join_tables([table for table in tables if table not in beside], out), out)
