"""Features of a whole data set in one run of the model, in memory or on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.bank import FeatureBank, Head
from ..core.validation import check_finite
from ..data.banks import BankWriter
from ..data.batch import Batch, split_batch
from ..data.fingerprint import data_key
from ..data.inputs import as_batches
from ..data.sources import BatchResult, Source, read_batches
from ..data.transform import InputSizes, join_sizes
from ..errors import UnreadableImageError
from ..io.progress import track
from ..network.calls import evaluating
from ..network.evidence import InputSpec
from ..network.fingerprint import weights_hash
from ..network.heads import FoundHead, probe, warn_of_other_logits
from ..network.runtime import FastestRuntime, RuntimeName, TorchRuntime

log = logging.getLogger(__name__)

TITLE = "extracting features"
SHOWN = 3  # unreadable images that a message names
FEW = 2  # inputs by which the head of a model is found


class Extraction(NamedTuple):
    """What a pass over a data set gives."""

    bank: FeatureBank
    found: FoundHead
    unreadable: dict[int, str]
    """The images that could not be read, by row, and why."""
    runtime: FastestRuntime
    """What ran the model; it has chosen nothing if all features were there already."""
    shape: tuple[int, ...]
    """That of one input, ``(c, h, w)`` for images."""
    predicted: Tensor | None
    """The class of the largest logit of each row, as the model gave it; None for a bank on disk."""
    inputs: InputSpec | None
    """How the model was called; None where inputs like them cannot be made up."""
    sizes: InputSizes | None
    """Those of all inputs of this pass, None if some have more dimensions than others."""


def extract(
    model: nn.Module,
    loader: Any,
    *,
    device: torch.device | str | None = None,
    head: str | None = None,
    out: Path | str | None = None,
    key: str | None = None,
    shard_rows: int = 4096,
    workers: int | None = None,
    unreadable: float = 0.0,
    runtime: RuntimeName = "torch",
    dtype: torch.dtype | None = None,
    batch_size: int = 64,
    transform: Any = None,
    collate: Any = None,
) -> tuple[FeatureBank, Head]:
    """Run a data set through a model once and return the inputs of its last linear layer, and that layer.

    The model runs in evaluation mode without gradients and is left as it was: modes, hooks, gradients, device.

    Args:
        model: Any classifier that ends in a linear layer.
        loader: Any data that :func:`~flatfold.data.inputs.as_batches` takes: a ``DataLoader`` or another iterable of
            batches, a data set of torch or Hugging Face, a path of images, or arrays ``(X, y)``.
        device: Where to run; by default where the model is.
        head: Name of the last layer, when it cannot be found by itself (see ``find_head``).
        out: A directory to write to during the run. After an interruption the same call continues and loses at most
            one file of rows; damaged files are found by their checksums and redone. Of a finished bank only a few
            inputs run, to find the head and to check that the model still gives what is stored.
        key: With ``out``, a string that identifies the data and its preparation. Sources such as ``FolderImages``
            know theirs.
        shard_rows: With ``out``, rows in a file. A bank that is continued keeps the number it was begun with.
        workers: Threads that read images ahead, when ``loader`` is a source such as ``FolderImages``; by default one
            for each core, up to four.
        unreadable: Share of the images of a source that may be left out because they cannot be read, between 0 and 1.
            They have no row in the bank, and a bank on disk names them; they stay out of it until the directory is
            deleted.
        runtime: ``"torch"``, ``"torch-compile"``, ``"onnx"``, or ``"auto"`` for the fastest of them, measured on the
            first batch (:mod:`flatfold.network.runtime`).
        dtype: ``torch.bfloat16`` for mixed precision.
        batch_size: Inputs in a batch, for data that does not come in batches.
        transform: How images become tensors, for paths and for data sets of images.
        collate: A function that makes a batch of a list of items of a data set, or a tokeniser.

    Returns:
        The bank, on the CPU in float32 (float64 for a float64 model), with labels if the loader gives them, and the
        head.

    Raises:
        UnsupportedHeadError: The logits do not come out of one linear layer.
        UnreadableImageError: More than that share cannot be read.
        ValueError: The data is empty or has labels only in part, the model cannot take it, or ``out`` holds features
            of something else: other weights, data, head, or a model that does something else with the same weights.
        OSError: An image could not be read because of the system and not of the image, or another process writes to
            ``out``.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> extract(model, [torch.zeros(5, 4), torch.zeros(2, 4)])
        (FeatureBank(7 rows, 8 features, no labels, torch.float32), Head(3 classes, 8 features, bias, torch.float32))
    """
    result = extract_features(
        model,
        as_batches(loader, batch_size, transform=transform, collate=collate),
        device,
        head,
        workers,
        unreadable,
        out=out,
        key=key,
        shard_rows=shard_rows,
        runtime=runtime,
        dtype=dtype,
    )
    return result.bank, result.found.head


def extract_features(
    model: nn.Module,
    loader: Iterable[Any],
    device: torch.device | str | None = None,
    head: str | None = None,
    workers: int | None = None,
    unreadable: float = 0.0,
    *,
    out: Path | str | None = None,
    key: str | None = None,
    shard_rows: int = 4096,
    runtime: RuntimeName | FastestRuntime = "torch",
    dtype: torch.dtype | None = None,
    graph: Path | None = None,
) -> Extraction:
    """Extract as ``extract`` does, and also return the layer, the images that could not be read, and the runtime.

    The runtime of an extraction can be given to the next one of the same model. A graph that is exported for the
    runtime ``onnx`` is kept in the file ``graph``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model must be a torch.nn.Module, not {type(model).__name__}. Call extract(model, loader)."
        )
    check_workers(loader, workers)
    data = None if out is None else data_key(loader, key)
    rows = loader.rows if isinstance(loader, Source) else 0
    with evaluating(model, device) as place:
        batches = _split(loader)
        first, first_rows = first_inputs(loader) if isinstance(loader, Source) else (next(batches, None), [])
        if first is None:
            raise ValueError("the loader gave no input at all. Is the data set empty, or the generator used up?")
        found, (features, logits) = probe(model, first.to(place), head)
        if not isinstance(runtime, FastestRuntime):
            runtime = FastestRuntime(
                runtime, model, found, rows=rows or _count_rows(loader, first), cache=graph, dtype=dtype
            )
        small = TorchRuntime(model, found, dtype=dtype)  # of a few inputs, on which no runtime is chosen
        if dtype is not None:
            features, logits = small(first.to(place))
        warn_of_other_logits(found, stacklevel=4)  # towards the caller of extract or Guard.fit

        key_of_bank = {} if data is None else {"weights": weights_hash(model), "data": data, "head": found.name}
        if key_of_bank and dtype is not None:
            key_of_bank["computed_in"] = str(dtype)
        sink = BankWriter(
            out,
            key_of_bank,
            width=found.head.width,
            dtype=found.head.weight.dtype,
            labels=first.labels is not None,
            shard_rows=shard_rows,
            computed_in=logits.dtype,
        )
        predicted: list[Tensor] = []
        sizes: InputSizes | None = _sizes_of(first)
        with closing(sink):
            if isinstance(loader, Source):
                sink.confirm(first_rows, features)
                results = missing_batches(loader, sink, lambda few: small(few.to(place)).features, TITLE, workers)
            else:
                results = _missing_of_loader(first, batches, sink)
            for rows_read, batch, reasons in results:
                if batch is None:
                    features, logits = (found.head.weight.new_empty(0, n) for n in (found.head.width, 1))
                elif batch is not first:
                    sizes = join_sizes(sizes, _sizes_of(batch))
                    features, logits = runtime(batch.to(place))
                features = features.cpu()
                if out is None:
                    predicted.append(logits.argmax(dim=-1).cpu())
                check_finite(features, "features", first=rows_read.start)
                sink.add(rows_read, features, None if batch is None else batch.labels, reasons)
                if reasons:
                    _check_share(sink.unreadable, rows, unreadable)
            _check_share(sink.unreadable, rows, unreadable)  # those of an earlier run, which allowed for more
            if sink.unreadable:
                count, why = len(sink.unreadable), _numbered(sink.unreadable.values())
                log.warning("%d of %d images could not be read and are left out. %s", count, rows, why)
            return Extraction(
                sink.finish(),
                found,
                sink.unreadable,
                runtime,
                tuple(first.first_tensor.shape[1:]),
                torch.cat(predicted) if out is None else None,
                InputSpec.of(first),
                sizes,
            )


def _sizes_of(batch: Batch) -> InputSizes:
    shape = tuple(batch.first_tensor.shape[1:])
    return InputSizes(shape, shape)


def check_workers(loader: Iterable[Any], workers: int | None) -> None:
    """Raise unless ``loader`` can be read by so many threads."""
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise ValueError(f"workers must be 0 or the number of threads that read images, got {workers!r}.")
    if workers and not isinstance(loader, Source):
        raise ValueError(
            f"workers={workers} needs a source such as FolderImages, not {type(loader).__name__}. "
            "A DataLoader has num_workers for that."
        )


def first_inputs(source: Source, start: int = 0) -> tuple[Batch, list[int]]:
    """Return a few inputs from row ``start`` on that can be read, and their rows: enough to examine a model."""
    first = ""
    for row in range(start, source.rows, FEW):
        rows = range(row, min(row + FEW, source.rows))
        raw, unreadable = source.attempt(rows)
        if raw is not None:
            return split_batch(raw), [row for row in rows if row not in unreadable]
        first = first or unreadable[row]
    raise UnreadableImageError(f"not a single image could be read. The first: {first}")


def missing_batches(
    source: Source, sink: BankWriter, compute: Callable[[Batch], Tensor], title: str, workers: int | None = None
) -> Iterator[BatchResult]:
    """Yield the batches of a source that hold a row ``sink`` misses, and tell it where the data ends.

    Before that, ``sink`` compares what ``compute`` gives for an input that an earlier run has left.
    """
    if not sink.confirmed:
        stored, rows = first_inputs(source, sink.first_stored or 0)
        sink.confirm(rows, compute(stored))
    yield from read_batches(source, source.batch_ranges(sink.missing(0, source.rows)), title, workers)
    sink.end(source.rows)


def _missing_of_loader(first: Batch, others: Iterator[Batch], sink: BankWriter) -> Iterator[BatchResult]:
    """Yield the batches of a loader that hold a row ``sink`` misses or has yet to confirm, up to the last of them."""
    start = 0
    for batch in chain([first], others):
        rows = range(start, start + batch.rows)
        if not sink.confirmed or sink.missing(rows.start, rows.stop):
            if (batch.labels is None) != (first.labels is None):
                here, before = ("has none", "has labels") if batch.labels is None else ("has labels", "has none")
                raise ValueError(
                    f"either all batches have labels or none has, but the first {before} and the one that starts at "
                    f"row {start} {here}. Give labels with every batch, or leave them out everywhere."
                )
            yield BatchResult(rows, batch, {})
        start = rows.stop
        if sink.confirmed and sink.rows is not None and not sink.missing(start, sink.rows):
            return  # an earlier run has met the end of the data, and nothing after this row is missing
    sink.end(start)


def _split(loader: Iterable[Any]) -> Iterator[Batch]:
    """Yield the batches of a loader that hold an input."""
    return (batch for batch in map(split_batch, track(loader, TITLE, _count_batches(loader))) if batch.rows)


def _count_batches(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader)  # type: ignore[arg-type]  # tried
    except TypeError:  # no length, or a DataLoader over an iterable data set, which says so only when asked
        return None


def _count_rows(loader: Iterable[Any], first: Batch) -> int | None:
    """Return about how many inputs a loader gives, None if it does not say."""
    batches = _count_batches(loader)
    return None if batches is None else batches * first.rows


def _check_share(unreadable: Mapping[int, str], rows: int, most: float) -> None:
    """Raise if more than a share of the rows could not be read."""
    if len(unreadable) <= most * rows:
        return
    if most == 0:
        raise UnreadableImageError(next(iter(unreadable.values())))
    raise UnreadableImageError(
        f"{len(unreadable)} of {rows} images could not be read, more than the {100 * most:g} % that may be left out. "
        + _numbered(unreadable.values())
    )


def _numbered(reasons: Iterable[str]) -> str:
    """Return the first reasons with numbers, each once: a list may name an image again."""
    return " ".join(f"({number}) {reason}" for number, reason in enumerate(islice(dict.fromkeys(reasons), SHOWN), 1))
