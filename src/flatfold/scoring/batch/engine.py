"""What computes parts: a function, so that where it does is nobody else's affair."""

from collections.abc import Callable, Iterator

from .task import Task

Parts = dict[int, range]
"""By number, the rows of a part: whole batches."""
Engine = Callable[[Task, Parts], Iterator[tuple[int, str]]]
"""Yields each part once, in any order: its number, and its record as text."""
