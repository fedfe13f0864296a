"""Features of a whole data set in one pass, in memory or on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..core.bank import FeatureBank, Head
from ..core.validation import UnreadableImage, check_finite
from ..io.progress import track
from .bank_files import Manifest
from .bank_writer import BankWriter, MemoryBank, Sink, check_features
from .batches import Batch, split_batch
from .eval_mode import evaluating
from .fingerprint import data_key, weights_hash
from .heads import FoundHead, Pass, probe, run, warn_of_other_logits
from .sources import Source

# Images that could not be read: how many may be left out, and how a message names them.


SHOWN = 3  # unreadable images that a message names


def check_share(unreadable: Mapping[int, str], rows: int, most: float) -> None:
    """Raise if more than a share of the rows could not be read."""
    if len(unreadable) <= most * rows:
        return
    if most == 0:
        raise UnreadableImage(next(iter(unreadable.values())))
    raise UnreadableImage(
        f"{len(unreadable)} of {rows} images could not be read, more than the {100 * most:g} % that may be left out. "
        + some_of(unreadable.values())
    )


def some_of(reasons: Iterable[str]) -> str:
    """Return the first reasons with numbers, each once: a list may name an image again.

    Example:
        >>> some_of(["a is cut.", "b is empty.", "a is cut."])
        '(1) a is cut. (2) b is empty.'
    """
    return " ".join(f"({number}) {reason}" for number, reason in enumerate(islice(dict.fromkeys(reasons), SHOWN), 1))


# Which batches of a loader have to be run, where their rows belong, and which rows cannot be read.


FEW = 2  # inputs by which the head of a model is found


class Opening(NamedTuple):
    """The first inputs, by which the head of a model is found, and their rows in the data."""

    batch: Batch
    rows: Sequence[int]


class BatchResult(NamedTuple):
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


def first_inputs(source: Source, start: int = 0) -> Opening:
    """Return the first inputs from row ``start`` on that can be read, fewer than a batch: enough to look at a model."""
    first = ""
    for row in range(start, source.rows, FEW):
        rows = range(row, min(row + FEW, source.rows))
        raw, unreadable = source.attempt(rows)
        if raw is not None:
            return Opening(split_batch(raw), [row for row in rows if row not in unreadable])
        first = first or unreadable[row]
    raise UnreadableImage(f"not a single image could be read. The first: {first}")


def read_batches(
    source: Source, ranges: list[range], title: str | None = None, workers: int = 0
) -> Iterator[BatchResult]:
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
        yield BatchResult(rows, None if raw is None else split_batch(raw), unreadable)


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
) -> Iterator[BatchResult]:
    """Yield the pieces that hold a row ``sink`` misses, and tell it where the data ends.

    A source reads only these. Of any other loader all batches are drawn, up to the last that is needed.

    Args:
        loader: What the user gave.
        batches: What is left of ``split(loader)`` behind the first batch; of no use for a source.
        first: The first batch; of no use for a source.
        sink: Where the rows go.
        title: Of the progress bar.
        workers: As in ``read_batches``.
    """
    if isinstance(loader, Source):
        yield from needed(loader, sink, title, workers)
        return
    start = 0
    for batch in chain([first], batches):
        rows = range(start, start + batch.rows)
        if sink.missing(rows.start, rows.stop):
            yield BatchResult(rows, batch, {})
        start = rows.stop
        if sink.rows is not None and not sink.missing(start, sink.rows):
            return  # an earlier pass has seen the end of the data, and nothing behind here is missing
    sink.end(start)


def needed(source: Source, sink: Sink, title: str, workers: int = 0) -> Iterator[BatchResult]:
    """Yield the pieces of a source that hold a row ``sink`` misses, and tell it where the data ends."""
    yield from read_batches(source, source.batch_ranges(sink.missing(0, source.rows)), title, workers)
    sink.end(source.rows)


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader)  # type: ignore[arg-type]  # tried
    except TypeError:  # no length, or a DataLoader over an iterable data set, which says so only when asked
        return None


log = logging.getLogger(__name__)


TITLE = "extracting features"


def extract(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    head: str | None = None,
    out: Path | str | None = None,
    key: str | None = None,
    shard_rows: int = 4096,
    workers: int = 0,
    unreadable: float = 0.0,
) -> tuple[FeatureBank, Head]:
    """Run a data set through a model once and return the inputs of its last linear layer, and that layer.

    The model runs in evaluation mode without gradients and is left as it was: modes, hooks, gradients, device.

    Args:
        model: Any classifier that ends in a linear layer.
        loader: Any iterable of batches, a generator too: tensors, ``(x, y)`` or dicts (see ``split_batch``).
        device: Where to run; by default where the model is.
        head: Name of the last layer, when it cannot be found by itself (see ``find_head``).
        out: A directory to write to while the pass goes on. After an interruption the same call goes on where it was
            and loses at most one shard; damaged shards are found by their checksums and redone. Of a finished bank
            only a few inputs run, to find the head and to see that the model still gives what is stored.
        key: With ``out``, a string that identifies the data and its preparation. Sources such as ``FolderImages``
            know theirs.
        shard_rows: With ``out``, rows in a file. A bank that is continued keeps the number it was begun with.
        workers: Processes that read images ahead, when ``loader`` is a source such as ``FolderImages``.
        unreadable: Share of the images of a source that may be left out because they cannot be read, between 0 and 1.
            They have no row in the bank, and the manifest of a bank on disk names them; they stay out of it until
            the directory is deleted.

    Returns:
        The bank, on the CPU in float32 (float64 for a float64 model), with labels if the loader gives them, and the
        head.

    Raises:
        UnsupportedHead: The logits do not come out of one linear layer.
        UnreadableImage: More than that share cannot be read.
        ValueError: The data is empty or has labels only in part, the model cannot take it, or ``out`` holds features
            of something else: other weights, data, head, or a model that does something else with the same weights.
        OSError: An image could not be read for a reason that lies in the system and not in the image.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> extract(model, [torch.zeros(5, 4), torch.zeros(2, 4)])
        (FeatureBank(7 rows, 8 features, no labels, torch.float32), Head(3 classes, 8 features, bias, torch.float32))
    """
    data = None if out is None else data_key(loader, key)

    def sink(found: FoundHead, first: Batch) -> Sink:
        if out is None:
            return MemoryBank()
        identity = {"weights": weights_hash(model), "data": str(data), "head": found.name}
        return BankWriter(out, _blank(identity, found, first, shard_rows))

    bank, found = one_pass(model, loader, device, head, sink, workers, unreadable)
    return bank, found.head


def one_pass(
    model: nn.Module,
    loader: Iterable[Any],
    device: torch.device | str | None = None,
    head: str | None = None,
    make_sink: Callable[[FoundHead, Batch], Sink] = lambda found, first: MemoryBank(),
    workers: int = 0,
    unreadable: float = 0.0,
) -> tuple[FeatureBank, FoundHead]:
    """Run a data set through a model once; return its features and which layer the head is.

    Args:
        model: As in ``extract``.
        loader: As in ``extract``.
        device: As in ``extract``.
        head: As in ``extract``.
        make_sink: Says where the rows go, once the head and the first batch are known.
        workers: As in ``extract``.
        unreadable: As in ``extract``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model must be a torch.nn.Module, not {type(model).__name__}. Call extract(model, loader)."
        )
    check_loader(loader, workers)
    rows = loader.rows if isinstance(loader, Source) else 0
    with evaluating(model, device) as place:
        drawn = split(loader, TITLE)
        opening = first_inputs(loader) if isinstance(loader, Source) else first_batch(drawn)
        first = opening.batch
        found, result = probe(model, first.to(place), head)
        warn_of_other_logits(found, stacklevel=4)  # towards the caller of extract or Guard.fit
        sink = make_sink(found, first)
        if isinstance(sink, BankWriter):
            _check_stored(sink, loader, opening, result, lambda batch: run(model, found, batch.to(place)))
        for piece in remaining(loader, drawn, first, sink, TITLE, workers):
            known = result.features if piece.batch is first else None
            _keep(sink, piece, _features(model, found, piece, first, place) if known is None else known)
            if piece.unreadable:
                check_share(sink.unreadable, rows, unreadable)
    check_share(sink.unreadable, rows, unreadable)  # those of an earlier pass, which allowed for more
    if sink.unreadable:
        named = some_of(sink.unreadable.values())
        log.warning("%d of %d images could not be read and are left out. %s", len(sink.unreadable), rows, named)
    return sink.finish(), found


def _blank(identity: dict[str, str], found: FoundHead, first: Batch, shard_rows: int) -> Manifest:
    if isinstance(shard_rows, bool) or not isinstance(shard_rows, int) or shard_rows < 1:
        raise ValueError(f"shard_rows must be a positive whole number, got {shard_rows!r}. 4096 is the default.")
    dtype = str(found.head.weight.dtype).removeprefix("torch.")
    return Manifest(identity, found.head.width, dtype, first.labels is not None, shard_rows)


def _check_stored(
    sink: BankWriter, loader: Iterable[Any], opening: Opening, result: Pass, again: Callable[[Batch], Pass]
) -> None:
    """Raise if the model does not give what an earlier pass stored for the same inputs."""
    stored = sink.stored()
    if stored.rows and isinstance(loader, Source) and stored.rows[0] not in opening.rows:  # an earlier shard is damaged
        opening = first_inputs(loader, stored.rows[0])
        result = again(opening.batch)
    places, there = stored.among(opening.rows)
    check_features(sink.folder, there, result.features.cpu()[places], result.logits.dtype)


def _features(model: nn.Module, found: FoundHead, piece: BatchResult, first: Batch, place: torch.device) -> Tensor:
    """Return the features of what could be read of a piece, ``(0, d)`` if nothing could."""
    if piece.batch is None:
        return found.head.weight.new_empty(0, found.head.width)
    _check_labelled(piece.batch, first, piece.rows.start)
    return run(model, found, piece.batch.to(place)).features


def _keep(sink: Sink, piece: BatchResult, features: Tensor) -> None:
    features = features.cpu()
    check_finite(features, "features", first=piece.rows.start)
    sink.add(piece.rows, (features, None if piece.batch is None else piece.batch.labels), piece.unreadable)


def _check_labelled(batch: Batch, first: Batch, start: int) -> None:
    if (batch.labels is None) != (first.labels is None):
        here, before = ("has none", "has labels") if batch.labels is None else ("has labels", "has none")
        raise ValueError(
            f"either all batches have labels or none has, but the first {before} and the one that starts at row "
            f"{start} {here}. Give labels with every batch, or leave them out everywhere."
        )
