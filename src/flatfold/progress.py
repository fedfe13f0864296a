"""A progress bar on stderr: shown on a terminal, silent in a pipe, a log file or a test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` one by one while a bar with the time left follows on stderr.

    Args:
        items: Anything that can be iterated once.
        description: What is going on, in a few words.
        total: How many items there will be; taken from ``len(items)`` when that exists.
    """
    import sys

    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if total is None:
        total = len(items) if isinstance(items, Sized) else None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, total=total, description=description)
