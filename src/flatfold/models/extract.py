"""Features of a whole data set in one pass, in memory or on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.bank import FeatureBank
from ..core.check import check_finite
from ..core.head import Head
from .batches import Batch
from .forward import as_it_was
from .heads import FoundHead, probe, run, warn_of_other_logits
from .identity import data_key, weights_hash
from .manifest import Manifest
from .stream import check_loader, first_batch, remaining
from .writer import BankWriter, MemoryBank, Sink


def extract(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    head: str | None = None,
    out: Path | str | None = None,
    key: str | None = None,
    shard_rows: int = 4096,
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
            only the first batch runs, to find the head.
        key: With ``out``, a string that identifies the data and its preparation. Sources such as ``FolderImages``
            know theirs.
        shard_rows: With ``out``, rows in a file. A bank that is continued keeps the number it was begun with.

    Returns:
        The bank, on the CPU in float32 (float64 for a float64 model), with labels if the loader gives them, and the
        head.

    Raises:
        UnsupportedHead: The logits do not come out of one linear layer.
        ValueError: The data is empty, has labels only in part, or ``out`` holds features of something else.

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

    bank, found = one_pass(model, loader, device, head, sink)
    return bank, found.head


def one_pass(
    model: nn.Module,
    loader: Iterable[Any],
    device: torch.device | str | None = None,
    head: str | None = None,
    make_sink: Callable[[FoundHead, Batch], Sink] = lambda found, first: MemoryBank(),
) -> tuple[FeatureBank, FoundHead]:
    """Run a data set through a model once; return its features and which layer the head is.

    Args:
        model: As in ``extract``.
        loader: As in ``extract``.
        device: As in ``extract``.
        head: As in ``extract``.
        make_sink: Says where the rows go, once the head and the first batch are known.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model must be a torch.nn.Module, not {type(model).__name__}. Call extract(model, loader)."
        )
    check_loader(loader)
    with as_it_was(model, device) as place:
        batches = iter(loader)
        first = first_batch(batches)
        found, result = probe(model, first.to(place), head)
        warn_of_other_logits(found, stacklevel=4)  # towards the caller of extract or Guard.fit
        sink = make_sink(found, first)
        _keep(sink, 0, first, result.features)
        for start, batch in remaining(loader, batches, first.rows, sink):
            _check_labelled(batch, first, start)
            _keep(sink, start, batch, run(model, found, batch.to(place)).features)
    return sink.finish(), found


def _blank(identity: dict[str, str], found: FoundHead, first: Batch, shard_rows: int) -> Manifest:
    if isinstance(shard_rows, bool) or not isinstance(shard_rows, int) or shard_rows < 1:
        raise ValueError(f"shard_rows must be a positive whole number, got {shard_rows!r}. 4096 is the default.")
    dtype = str(found.head.weight.dtype).removeprefix("torch.")
    return Manifest(identity, found.head.width, dtype, first.labels is not None, shard_rows)


def _keep(sink: Sink, start: int, batch: Batch, features: Tensor) -> None:
    features = features.cpu()
    check_finite(features, "features", first=start)
    sink.add(start, features, batch.labels)


def _check_labelled(batch: Batch, first: Batch, start: int) -> None:
    if (batch.labels is None) != (first.labels is None):
        here, before = ("has none", "has labels") if batch.labels is None else ("has labels", "has none")
        raise ValueError(
            f"either all batches have labels or none has, but the first {before} and the one that starts at row "
            f"{start} {here}. Give labels with every batch, or leave them out everywhere."
        )
