"""A whole run: parts that are missing are computed, noted in a journal, and put together as a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...files import sha256_of, sweep
from ...models.samples import evenly_spaced
from ...models.sources import ImageSource
from ..judge import Judge
from ..monitor import Monitor
from ..writers import Columns, check_out, write_rows
from .engine import Engine
from .journal import Journal
from .local import score_here
from .record import Record
from .shard import Shard
from .summary import Summary, check_name, journal_of, summary_of, unreadable_of
from .task import Task

WHOLE = Shard()


def score_images(
    task: Task, out: Path | str, *, shard: Shard = WHOLE, engine: Engine = score_here, restart: bool = False
) -> Summary:
    """Write one row for each image: path, predicted class, score, p-value and decision.

    Memory does not grow with the number of images, but for their names. A run that was stopped, even killed, goes on
    where it was when it is called again; one that is complete is not done again.

    Args:
        task: What to score.
        out: A file ``*.csv``, ``*.jsonl`` or ``*.parquet``. Beside it lie ``OUT.summary.json``, and
            ``OUT.unreadable.csv`` if an image could not be scored; ``OUT.journal`` as long as it is not complete.
        shard: Which share of the images to score.
        engine: What computes parts; by default this process.
        restart: Forget what an earlier run has done.

    Returns:
        What it has come to.

    Raises:
        ValueError: An earlier run to this place was of another job, or the guard is not that of the model; or ``out``
            is no name for a table.
        BlockingIOError: Another process is writing to this place.
    """
    out = Path(out)
    check_out(out)
    check_name(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    judge = task.judge()
    job = _job(task, judge)
    if not restart and (done := _finished(out, job, shard)) is not None:
        return done
    parts = dict(enumerate(shard.parts(task.source.rows, task.source.batch_size)))
    with Journal(journal_of(out), job | {"shard": str(shard)}, restart) as journal:
        missing = {number: rows for number, rows in parts.items() if number not in journal}
        for number, text in engine(task, missing) if missing else ():
            journal.add(number, text)
        if lost := [number for number in parts if number not in journal]:
            raise RuntimeError(f"{len(lost)} of {len(parts)} parts did not come back; the others are kept.")
        summary = _written(out, job, shard, judge, lambda: (Record.from_json(journal.read(part)) for part in parts))
        journal.discard()
    return summary


def _job(task: Task, judge: Judge) -> dict[str, Any]:
    """Return what tells a run from others, whatever its shard."""
    return {
        "guard": sha256_of(task.guard),
        "fpr": judge.calibration.fpr,
        "data": task.source.fingerprint,
        "place": _place(task.source),
        "batch_size": task.source.batch_size,
        "rows": task.source.rows,
    }


def _place(source: ImageSource) -> str:
    """Return a sha256 of what a table calls some of the images, so that it does not name copies in several folders."""
    names = [source.name(row) for row in evenly_spaced(range(source.rows))]
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _finished(out: Path, job: dict[str, Any], shard: Shard) -> Summary | None:
    """Return what an earlier run has come to, if it was this one and all that it wrote is still there."""
    if not out.is_file() or not summary_of(out).is_file() or journal_of(out).exists():
        return None
    try:
        summary = Summary.load(out)
    except ValueError:
        return None
    same = (summary.job, summary.shard, summary.table) == (job, shard, sha256_of(out))
    listed = not summary.unreadable or unreadable_of(out).is_file()
    return summary if same and listed else None


def _written(
    out: Path, job: dict[str, Any], shard: Shard, judge: Judge, records: Callable[[], Iterator[Record]]
) -> Summary:
    """Write the table, the list of images that are not in it, and the summary, which says that both are complete."""
    sweep(out.parent, out.name)
    monitor, unreadable = Monitor.of(judge), 0

    def counted() -> Iterator[Columns]:
        nonlocal unreadable
        for record in records():
            monitor.count(*(record.columns[name] for name in ("predicted", "score", "is_ood")))
            unreadable += len(record.unreadable["path"])
            yield record.columns

    write_rows(chain([_no_rows(judge)], counted()), out)
    if unreadable:
        write_rows((record.unreadable for record in records()), unreadable_of(out))
    else:
        unreadable_of(out).unlink(missing_ok=True)
    summary = Summary(job, shard, unreadable, monitor, sha256_of(out))
    summary.save(out)
    return summary


def _no_rows(judge: Judge) -> Columns:
    """Return a table of the right form that is empty: even if nothing could be read, its columns have names."""
    digits = judge.calibration.scores.numpy().dtype
    kinds: dict[str, DTypeLike] = {"predicted": np.int64, "score": digits, "p_value": digits, "is_ood": np.bool_}
    return {name: np.zeros(0, kind) for name, kind in ({"path": np.str_} | kinds).items()}
