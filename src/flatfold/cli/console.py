"""Output that several commands share: tables, warnings and log lines."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

PIPE = 200  # columns of text where the output is not a terminal


def open_console() -> Console:
    """Return the terminal, or a pipe that is wide enough for any table."""
    from rich.console import Console  # late: --help needs none

    console = Console()
    if not console.is_terminal:
        console.width = PIPE
    return console


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> count(1, "row"), count(1200, "row")
        ('1 row', '1,200 rows')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def log_progress() -> None:
    """Print what the library logs about the work of a suite to stderr."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("flatfold").setLevel(logging.INFO)
    logging.getLogger("flatfold.models").setLevel(logging.ERROR)  # the suite's runner logs the same with the data set


@contextmanager
def captured_warnings() -> Iterator[None]:
    """Print log messages at once and warnings at the end, each once, as notes on stderr."""
    log, handler = logging.getLogger("flatfold"), _NoteHandler(logging.WARNING)
    log.addHandler(handler)
    propagated, log.propagate = log.propagate, False  # a root logger that prints would repeat everything
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")  # deprecations of other libraries
            warnings.simplefilter("always", UserWarning)
            yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated
        for message in dict.fromkeys(str(warning.message) for warning in caught):
            typer.echo(f"note: {message}", err=True)


class _NoteHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"note: {record.getMessage()}", err=True)


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Print a message and exit with code 130 when the work is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"flatfold: {message}", err=True)
        raise typer.Exit(130) from None


def resumable(folder: Path) -> AbstractContextManager[None]:
    """Say how to resume when the work is interrupted."""
    return interruptible(f"stopped. Run the same command again to resume from {folder}.")
