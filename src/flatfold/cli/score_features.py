"""Rows of features to a table: which of them a classifier does not know."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from .score_detector import Fitting, opened_with

if TYPE_CHECKING:
    from ..scoring.writers import Columns


def score_features(features: Path, judged_by: Path | Fitting, fpr: float | None, out: Path | None) -> None:
    """Write a row for each row of features, and print a line about them on stderr.

    Args:
        features: File of the features.
        judged_by: File of a guard, or what a detector is made from.
        fpr: The false-alarm rate, unless the default or that of the guard.
        out: File of the table; None writes CSV to the standard output.
    """
    from ..scoring.rows import score_features as scored

    opened, detector, calibrated = opened_with(features, judged_by, fpr)
    tally = Tally(None if calibrated is None else calibrated.fpr)
    _write(tally.follow(scored(opened, detector, calibrated)), opened.rows, out)
    typer.echo(f"{tally.summary()}{'' if out is None else f' -> {out}'}", err=True)


@dataclass
class Tally:
    """What goes by: rows, alarms and seconds.

    Args:
        fpr: The false-alarm rate, if there is a decision.
    """

    fpr: float | None
    rows: int = 0
    alarms: int = 0
    start: float = field(default_factory=perf_counter)

    def follow(self, chunks: Iterable[Columns]) -> Iterator[Columns]:
        """Yield chunks of rows as they are."""
        for columns in chunks:
            self.rows += len(columns["score"])
            self.alarms += int(columns["is_ood"].sum()) if "is_ood" in columns else 0
            yield columns

    def summary(self) -> str:
        """Return what has gone by in a line."""
        from .bench import counted

        seconds = perf_counter() - self.start
        alarms = ""
        if self.fpr is not None:
            share = 100 * self.alarms / self.rows
            alarms = f", {counted(self.alarms, 'alarm')} ({share:.2f} %) at a false-alarm rate of {self.fpr:g}"
        return f"{counted(self.rows, 'row')}{alarms}; {seconds:.1f} s, {self.rows / seconds:.0f} rows per second"


def _write(chunks: Iterator[Columns], rows: int, out: Path | None) -> None:
    """Write rows as they come, with a bar on stderr unless they go to the same terminal."""
    from ..detectors.base import ROWS_AT_ONCE
    from ..progress import track
    from ..scoring.writers import csv_text, write_rows

    if out is not None or not sys.stdout.isatty():
        chunks = track(chunks, "scoring", -(-rows // ROWS_AT_ONCE))
    try:
        if out is not None:
            write_rows(chunks, out)
            return
        sys.stdout.writelines(csv_text(chunks))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or closing the pipe would fail once more
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        left = "" if out is None else f": nothing was written to {out}"
        typer.echo(f"flatfold: stopped{left}", err=True)
        raise typer.Exit(130) from None
