"""Which batches of a loader have to be run, and where their rows belong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from ..progress import track
from .batches import Batch, split_batch
from .sources import Source
from .writer import Sink


def check_loader(loader: Iterable[Any]) -> None:
    """Raise unless ``loader`` gives batches."""
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise TypeError(
            f"the loader must give batches, but {type(loader).__name__} is a data set of single items. "
            "Wrap it: torch.utils.data.DataLoader(dataset, batch_size=64)."
        )
    if isinstance(loader, (Tensor, Mapping, str)) or not isinstance(loader, Iterable):
        raise TypeError(
            f"the loader must be an iterable of batches, not {type(loader).__name__}. "
            "Wrap a single batch in a list, [batch]; read a folder with FolderImages(path, transform)."
        )


def first_batch(batches: Iterator[Any]) -> Batch:
    """Return the first batch that holds an input."""
    for raw in batches:
        batch = split_batch(raw)
        if batch.rows:
            return batch
    raise ValueError("the loader gave no input at all. Is the data set empty, or the generator used up?")


def remaining(
    loader: Iterable[Any], batches: Iterator[Any], start: int, sink: Sink, title: str = "extracting features"
) -> Iterator[tuple[int, Batch]]:
    """Yield the batches from row ``start`` on that hold a row ``sink`` misses, and tell it where the data ends.

    A source reads only these batches. Of any other loader all are drawn, up to the last that is needed.

    Args:
        loader: What the user gave.
        batches: Its iterator, standing before the batch that begins at row ``start``.
        start: Number of rows already drawn.
        sink: Where the rows go.
        title: Of the progress bar.

    Yields:
        The number of the batch's first row, and the batch.
    """
    if isinstance(loader, Source):
        wanted = sink.missing(start, loader.rows)
        for first, raw in track(loader.touching(wanted), title, len(loader.touched(wanted))):
            yield first, split_batch(raw)
        sink.end(loader.rows)
        return
    if _nothing_after(start, sink):
        return
    for raw in track(batches, title, _length(loader)):
        batch = split_batch(raw)
        if sink.missing(start, start + batch.rows):
            yield start, batch
        start += batch.rows
        if _nothing_after(start, sink):
            return
    sink.end(start)


def _nothing_after(start: int, sink: Sink) -> bool:
    """Tell whether an earlier pass has seen the end of the data and no row from ``start`` on is missing."""
    return sink.rows is not None and not sink.missing(start, sink.rows)


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader) - 1  # type: ignore[arg-type]  # the first batch is already through
    except TypeError:  # no length, or a DataLoader over an iterable data set, which says so only when asked
        return None
