"""Parts one after the other in this process, with images read ahead by others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ...models.stream import attempts
from .engine import Parts
from .task import Task


def score_here(task: Task, parts: Parts, workers: int = 0) -> Iterator[tuple[int, str]]:
    """Yield each part as it is done: its number and its record as text.

    Args:
        task: What to score.
        parts: Those that are wanted: by number, the rows of each.
        workers: Processes that read images ahead; 0 reads in this one.
    """
    scorer, source = task.scorer(), task.source
    pieces = attempts(source, source.touched(parts.values()), "scoring", workers)
    for number, rows in parts.items():
        yield number, scorer(islice(pieces, len(source.touched([rows])))).to_json()
