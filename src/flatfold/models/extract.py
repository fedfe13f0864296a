"""Features of a whole data set in one pass, in memory or on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.bank import FeatureBank
from ..core.check import check_finite
from ..core.head import Head
from .at_rest import as_it_was
from .batches import Batch
from .gaps import check_share, some_of
from .heads import FoundHead, Pass, probe, run, warn_of_other_logits
from .identity import data_key, weights_hash
from .manifest import Manifest
from .memory import MemoryBank
from .resumed import check_features
from .sources import Source
from .stream import Opening, Piece, a_few, check_loader, first_batch, remaining, split
from .writer import BankWriter, Sink

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
    with as_it_was(model, device) as place:
        drawn = split(loader, TITLE)
        opening = a_few(loader) if isinstance(loader, Source) else first_batch(drawn)
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
        opening = a_few(loader, stored.rows[0])
        result = again(opening.batch)
    places, there = stored.among(opening.rows)
    check_features(sink.folder, there, result.features.cpu()[places], result.logits.dtype)


def _features(model: nn.Module, found: FoundHead, piece: Piece, first: Batch, place: torch.device) -> Tensor:
    """Return the features of what could be read of a piece, ``(0, d)`` if nothing could."""
    if piece.batch is None:
        return found.head.weight.new_empty(0, found.head.width)
    _check_labelled(piece.batch, first, piece.rows.start)
    return run(model, found, piece.batch.to(place)).features


def _keep(sink: Sink, piece: Piece, features: Tensor) -> None:
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
