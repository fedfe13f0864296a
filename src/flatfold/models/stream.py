"""Which batches of a loader have to be run, where their rows belong, and which rows cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..core.errors import UnreadableImage
from ..progress import track
from .batches import Batch, split_batch
from .sources import Source
from .writer import Sink

FEW = 2  # inputs by which the head of a model is found


class Opening(NamedTuple):
    """The first inputs, by which the head of a model is found, and their rows in the data."""

    batch: Batch
    rows: Sequence[int]


class Piece(NamedTuple):
    """Some rows of the data: those that could be read as a batch, and why not the others."""

    rows: range
    batch: Batch | None
    unreadable: dict[int, str]


def check_loader(loader: Iterable[Any], workers: int = 0) -> None:
    """Raise unless ``loader`` gives batches, and can be read by several processes if that is wanted."""
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise TypeError(
            f"the loader must give batches, but {type(loader).__name__} is a data set of single items. "
            "Wrap it: torch.utils.data.DataLoader(dataset, batch_size=64)."
        )
    if _is_pair(loader) or isinstance(loader, (Tensor, Mapping, str)) or not isinstance(loader, Iterable):
        raise TypeError(
            f"the loader must be an iterable of batches, not {type(loader).__name__}. "
            "Wrap a single batch in a list, [batch]; read a folder with FolderImages(path, transform), an .npz with "
            "NpzImages."
        )
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ValueError(f"workers must be 0 or the number of processes that read images, got {workers!r}.")
    if workers and not isinstance(loader, Source):
        raise ValueError(
            f"workers={workers} needs a source such as FolderImages, not {type(loader).__name__}. "
            "A DataLoader has num_workers for that."
        )


def _is_pair(loader: object) -> bool:
    """Tell whether this is one batch (x, y), where a list of batches was meant: labels go into no network."""
    if not isinstance(loader, tuple) or len(loader) != 2 or not all(isinstance(part, Tensor) for part in loader):
        return False
    x, y = loader
    return x.ndim > 1 and y.ndim == 1 and len(x) == len(y) and not y.is_floating_point()


def split(loader: Iterable[Any], title: str) -> Iterator[Batch]:
    """Yield the batches of a loader that hold an input."""
    return (batch for batch in map(split_batch, track(loader, title, _length(loader))) if batch.rows)


def first_batch(batches: Iterator[Batch]) -> Opening:
    """Return the first batch."""
    for batch in batches:
        return Opening(batch, range(batch.rows))
    raise ValueError("the loader gave no input at all. Is the data set empty, or the generator used up?")


def a_few(source: Source, start: int = 0) -> Opening:
    """Return the first inputs from row ``start`` on that can be read, fewer than a batch: enough to look at a model."""
    first = ""
    for row in range(start, source.rows, FEW):
        rows = range(row, min(row + FEW, source.rows))
        raw, unreadable = source.attempt(rows)
        if raw is not None:
            return Opening(split_batch(raw), [row for row in rows if row not in unreadable])
        first = first or unreadable[row]
    raise UnreadableImage(f"not a single image could be read. The first: {first}")


def attempts(source: Source, ranges: list[range], title: str | None = None, workers: int = 0) -> Iterator[Piece]:
    """Yield what can be read of some batches of a source, in order.

    Args:
        source: The data.
        ranges: The rows of each batch.
        title: Of the progress bar; None shows none.
        workers: Processes that read ahead; 0 reads in this one.
    """
    batches = _Attempts(source, ranges)
    each: Iterable[Any] = (
        DataLoader(batches, batch_size=None, num_workers=min(workers, len(ranges)), collate_fn=_as_it_is)
        if workers and len(ranges) > 1
        else map(batches.__getitem__, range(len(ranges)))
    )
    answers = zip(ranges, each, strict=True)
    for rows, answer in answers if title is None else track(answers, title, len(ranges)):
        if isinstance(answer, Exception):
            raise answer
        raw, unreadable = answer
        yield Piece(rows, None if raw is None else split_batch(raw), unreadable)


class _Attempts(Dataset[Any]):
    """The batches of a source by number. An error is an answer too: torch would drown its sentence in a traceback."""

    def __init__(self, source: Source, ranges: list[range]) -> None:
        self.source, self.ranges = source, ranges

    def __getitem__(self, index: int) -> Any:
        try:
            return self.source.attempt(self.ranges[index])
        except (ValueError, TypeError, OSError, MemoryError) as error:
            return error

    def __len__(self) -> int:
        return len(self.ranges)


def _as_it_is(answer: Any) -> Any:
    return answer


def remaining(
    loader: Iterable[Any], batches: Iterator[Batch], first: Batch, sink: Sink, title: str, workers: int = 0
) -> Iterator[Piece]:
    """Yield the pieces that hold a row ``sink`` misses, and tell it where the data ends.

    A source reads only these. Of any other loader all batches are drawn, up to the last that is needed.

    Args:
        loader: What the user gave.
        batches: What is left of ``split(loader)`` behind the first batch; of no use for a source.
        first: The first batch; of no use for a source.
        sink: Where the rows go.
        title: Of the progress bar.
        workers: As in ``attempts``.
    """
    if isinstance(loader, Source):
        yield from needed(loader, sink, title, workers)
        return
    start = 0
    for batch in chain([first], batches):
        rows = range(start, start + batch.rows)
        if sink.missing(rows.start, rows.stop):
            yield Piece(rows, batch, {})
        start = rows.stop
        if sink.rows is not None and not sink.missing(start, sink.rows):
            return  # an earlier pass has seen the end of the data, and nothing behind here is missing
    sink.end(start)


def needed(source: Source, sink: Sink, title: str, workers: int = 0) -> Iterator[Piece]:
    """Yield the pieces of a source that hold a row ``sink`` misses, and tell it where the data ends."""
    yield from attempts(source, source.touched(sink.missing(0, source.rows)), title, workers)
    sink.end(source.rows)


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader)  # type: ignore[arg-type]  # tried
    except TypeError:  # no length, or a DataLoader over an iterable data set, which says so only when asked
        return None
