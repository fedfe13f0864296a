"""Which batches of a loader have to be run, where their rows belong, and which rows cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..core.errors import UnreadableImage
from ..progress import track
from .batches import Batch, split_batch
from .sources import Source
from .writer import Sink

SHOWN = 3  # unreadable images that a message names


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
    if isinstance(loader, (Tensor, Mapping, str)) or not isinstance(loader, Iterable):
        raise TypeError(
            f"the loader must be an iterable of batches, not {type(loader).__name__}. "
            "Wrap a single batch in a list, [batch]; read a folder with FolderImages(path, transform)."
        )
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ValueError(f"workers must be 0 or the number of processes that read images, got {workers!r}.")
    if workers and not isinstance(loader, Source):
        raise ValueError(
            f"workers={workers} needs a source such as FolderImages, not {type(loader).__name__}. "
            "A DataLoader has num_workers for that."
        )


def drawn(loader: Iterable[Any], title: str) -> Iterator[Piece]:
    """Yield all of a loader, piece by piece."""
    if isinstance(loader, Source):
        yield from attempts(loader, loader.touched([range(loader.rows)]))
        return
    start = 0
    for raw in track(loader, title, _length(loader)):
        batch = split_batch(raw)
        if batch.rows:
            yield Piece(range(start, start + batch.rows), batch, {})
        start += batch.rows


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
        except (ValueError, TypeError, OSError) as error:
            return error

    def __len__(self) -> int:
        return len(self.ranges)


def _as_it_is(answer: Any) -> Any:
    return answer


def first_pieces(pieces: Iterator[Piece]) -> tuple[list[Piece], Batch]:
    """Return the pieces up to the first that holds an input, and that input's batch."""
    seen = []
    for piece in pieces:
        seen.append(piece)
        if piece.batch is not None:
            return seen, piece.batch
    if any(piece.unreadable for piece in seen):
        reason = next(reason for piece in seen for reason in piece.unreadable.values())
        raise UnreadableImage(f"not a single image could be read. The first: {reason}")
    raise ValueError("the loader gave no input at all. Is the data set empty, or the generator used up?")


def remaining(
    loader: Iterable[Any], pieces: Iterator[Piece], start: int, sink: Sink, title: str, workers: int = 0
) -> Iterator[Piece]:
    """Yield the pieces from row ``start`` on that hold a row ``sink`` misses, and tell it where the data ends.

    A source reads only these batches. Of any other loader all are drawn, up to the last that is needed.

    Args:
        loader: What the user gave.
        pieces: What is left of ``drawn(loader)``, from row ``start`` on.
        start: Number of rows already drawn.
        sink: Where the rows go.
        title: Of the progress bar.
        workers: As in ``attempts``.
    """
    if isinstance(loader, Source):
        yield from attempts(loader, loader.touched(sink.missing(start, loader.rows)), title, workers)
        sink.end(loader.rows)
        return
    if _nothing_after(start, sink):
        return
    for piece in pieces:
        if sink.missing(piece.rows.start, piece.rows.stop):
            yield piece
        start = piece.rows.stop
        if _nothing_after(start, sink):
            return
    sink.end(start)


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader)  # type: ignore[arg-type]  # tried
    except TypeError:  # no length, or a DataLoader over an iterable data set, which says so only when asked
        return None


def check_share(unreadable: Mapping[int, str], rows: int, most: float) -> None:
    """Raise if more than a share of the rows could not be read."""
    if len(unreadable) <= most * rows:
        return
    reasons = list(unreadable.values())
    if most == 0:
        raise UnreadableImage(reasons[0])
    raise UnreadableImage(
        f"{len(reasons)} of {rows} images could not be read, more than the {100 * most:g} % that may be left out. "
        + " ".join(f"({number}) {reason}" for number, reason in zip(count(1), reasons[:SHOWN], strict=False))
    )


def _nothing_after(start: int, sink: Sink) -> bool:
    """Tell whether an earlier pass has seen the end of the data and no row from ``start`` on is missing."""
    return sink.rows is not None and not sink.missing(start, sink.rows)
