"""Where tables are printed."""

from __future__ import annotations

import csv
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ..scoring.batch import Engine, Parts, Summary, Task


PIPE = 200  # columns of text, for something that has no width to respect


def open_console() -> Console:
    """Return the terminal, or a pipe that is wide enough for any table."""
    from rich.console import Console  # late: --help needs none

    console = Console()
    if not console.is_terminal:
        console.width = PIPE
    return console


# What the library remarks while it works, as lines on stderr.


@contextmanager
def noted() -> Iterator[None]:
    """Print what is logged at once, and at the end what was warned of, each sentence once and as a note."""
    log, handler = logging.getLogger("flatfold"), _Notes(logging.WARNING)
    log.addHandler(handler)
    propagated, log.propagate = log.propagate, False  # or a root that prints too would say everything twice
    try:
        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("ignore")  # what libraries say to programmers
            warnings.simplefilter("always", UserWarning)
            yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated
        for sentence in dict.fromkeys(str(remark.message) for remark in remarks):
            typer.echo(f"note: {sentence}", err=True)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"note: {record.getMessage()}", err=True)


# What a run over images has come to, as lines on stderr and as an exit code.


SHOWN = 3  # images that could not be scored and are named

SOME_LEFT_OUT = 3  # the exit code when there is such an image


@dataclass
class Stopwatch:
    """An engine that also says how many images it was given, and since when.

    Args:
        engine: What computes.
    """

    engine: Engine
    images: int = 0
    start: float = 0.0

    def __call__(self, task: Task, parts: Parts) -> Iterator[tuple[int, str]]:
        """Yield what the engine does."""
        self.images, self.start = sum(map(len, parts.values())), perf_counter()
        return self.engine(task, parts)

    def sentence(self, total: int) -> str:
        """Return how long it took, of ``total`` images those that were not done before."""
        there = total - self.images
        if not self.images:
            return "nothing to do: all of it was there already"
        seconds = perf_counter() - self.start
        speed = f"{seconds:.1f} s, {self.images / seconds:.0f} images per second"
        if not there:
            return speed
        verb = "was" if there == 1 else "were"
        return f"{there:,} {verb} there already, {self.images:,} were left: {speed}"


def print_summary(summary: Summary, out: Path, watch: Stopwatch | None = None) -> None:
    """Print what is in a table and what is not; leave with code 3 if there is such an image."""
    total = summary.scored + summary.unreadable
    shard = "" if summary.shard.of == 1 else f"shard {summary.shard}: "
    scored = "all scored" if not summary.unreadable else f"{summary.scored:,} scored"
    things = f"{total:,} {'image' if total == 1 else 'images'}"
    lines = [f"{shard}{things}, {scored if total else 'nothing to score'} -> {out}"]
    if summary.scored:
        lines.append(str(summary.monitor))
    if watch is not None and total:
        lines.append(watch.sentence(total))
    if summary.unreadable:
        lines += _left_out(summary.unreadable, out)
    typer.echo("\n".join(lines), err=True)
    if summary.unreadable:
        raise typer.Exit(SOME_LEFT_OUT)


def _left_out(count: int, out: Path) -> Iterator[str]:
    """Yield a line about the images that could not be scored, and one for each of the first."""
    from ..scoring.batch import unreadable_of

    path = unreadable_of(out)
    yield f"{count:,} {'image' if count == 1 else 'images'} could not be scored -> {path}"
    with path.open(encoding="utf-8", newline="") as file:
        for row in islice(csv.DictReader(file), SHOWN):
            line = row["reason"] if row["path"] in row["reason"] else f"{row['path']}: {row['reason']}"
            yield f"  {' '.join(line.split())}"  # the name of a file may have a line break
    if count > SHOWN:
        yield f"  and {count - SHOWN:,} more"
