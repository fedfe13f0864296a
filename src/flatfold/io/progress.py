"""Progress bar on stderr: shown on a terminal unless hidden, silent in a pipe, a log file or a test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress


T = TypeVar("T")

hidden = False  # set by --quiet

_shown: list[Progress] = []


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` and show a progress bar with the remaining time on stderr."""
    import sys

    if hidden or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if total is None:
        total = len(items) if isinstance(items, Sized) else None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    if _shown:  # nested: add a line to the outer bar
        yield from _advance(_shown[-1], items, description, total)
        return
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        _shown.append(bar)
        try:
            yield from _advance(bar, items, description, total)
        finally:
            _shown.pop()


def _advance(bar: Progress, items: Iterable[T], description: str, total: int | None) -> Iterator[T]:
    task = bar.add_task(description, total=total)
    try:
        for item in items:
            yield item
            bar.advance(task)
    finally:
        bar.remove_task(task)
