"""Features of a whole data set in one run of the model, in memory or on disk."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.bank import FeatureBank, Head
from ..core.validation import check_finite, check_tensor
from ..data.banks import BankWriter
from ..data.batch import Batch, split_batch
from ..data.fingerprint import data_key
from ..data.labels import class_indices, indices_or_masks
from ..data.loading import Loading
from ..data.sources import BatchResult, NamedSource, Source, read_batches
from ..data.transform import InputSizes
from ..display.numbers import count
from ..errors import UnreadableInputError, UnsupportedHeadError
from ..io.progress import track
from ..io.store import Part
from ..network.calls import check_model, evaluating, weights_dtype
from ..network.execution import Execution
from ..network.heads import Pass
from ..network.network import Network
from .passes import RowJob, cut, run

log = logging.getLogger(__name__)

TITLE = "extracting features"
SHOWN = 3  # unreadable images that a message names
FEW = 2  # inputs by which the head of a model is found


class Extraction(NamedTuple):
    """Result of a pass over a data set that keeps the features."""

    network: Network
    """The model, its head, and the sizes of all inputs; its runtime is chosen only if something was computed."""
    bank: FeatureBank
    unreadable: dict[int, str]
    """The images that could not be read, by row, and why."""
    predicted: Tensor | None
    """The class of the largest logit of each row, as the model gave it; None for a bank on disk."""
    runtime: str
    """How the model was run, empty if nothing had to be computed."""
    first: Batch
    """A few inputs, those of the first rows of the bank."""

    def __repr__(self) -> str:
        return f"Extraction({self.network}, {self.bank}, {count(len(self.unreadable), 'unreadable input')})"


class EveryPositionError(UnsupportedHeadError):
    """A model has logits at every position, and so no row of features per input.

    Attributes:
        network: The model with its head.
        batches: The batches of the data, from the first one on; labels may be masks.
    """

    def __init__(self, network: Network, batches: Iterator[Batch]) -> None:
        super().__init__(
            f"flatfold needs one row of features per input here, but {network.found.relation}, and so are its "
            "features. Such a model can have a guard: Guard.fit(model, data)."
        )
        self.network, self.batches = network, batches


@dataclass(frozen=True)
class Features(RowJob):
    """Features, predicted classes and labels of the inputs of a source."""

    source: Source
    known: Network
    execution: Execution
    title: str = TITLE

    def load(self, rows: int | None = None) -> Network:
        """Return the network; in a worker, which has a copy, on the device to compute on."""
        if not self.execution.distributed:
            return self.known
        self.known.to(self.execution.device).use_runtime(self.execution.on_worker().runtime)
        return self.known

    def network(self, loaded: Network) -> Network:
        """Return the network."""
        return loaded

    def batch(self, loaded: Network, read: BatchResult) -> Part:
        """Return features, predicted classes and labels of one batch."""
        if read.batch is None:
            return Part({"unreadable": read.unreadable}, {})
        return _kept(read, read.batch, loaded.run(read.batch))


def _kept(read: BatchResult, batch: Batch, result: Pass) -> Part:
    """Return what is kept of the result of a batch."""
    check_finite(result.features, "features", first=read.rows.start)
    tensors = {"features": result.features.cpu(), "predicted": result.logits.argmax(dim=-1).cpu()}
    labels = {} if batch.labels is None else {"labels": batch.labels}
    return Part({"unreadable": read.unreadable, "sizes": [list(batch.first_tensor.shape[1:])]}, tensors | labels)


def extract(
    model: nn.Module,
    data: Any,
    *,
    out: Path | str | None = None,
    key: str | None = None,
    shard_rows: int = 4096,
    loading: Loading | None = None,
    execution: Execution | None = None,
) -> tuple[FeatureBank, Head]:
    """Run a data set through a model once and return the inputs of its last linear layer, and that layer.

    The model runs in evaluation mode without gradients and is left as it was: modes, hooks, gradients, device.

    Args:
        model: Any classifier whose logits come from linear layers (:func:`~flatfold.network.heads.find_head`).
        data: Any data that :func:`~flatfold.as_batches` accepts: a ``DataLoader`` or another iterable of batches, a
            data set of torch or Hugging Face, a path of images, or arrays ``(X, y)``. Floating-point arrays and data
            frames are converted to the type of the model's weights; tensors are not.
        out: A directory to write to during the run. After an interruption the same call continues and loses at most
            one file of rows; damaged files are found by their checksums and redone. For a finished bank only a few
            inputs run, to find the head and to check that the model still gives what is stored.
        key: With ``out``, a string that identifies the data and its preparation. Sources such as ``FolderImages``
            know theirs.
        shard_rows: With ``out``, rows in a file. A bank that is continued keeps the number it was begun with.
        loading: How data becomes batches. Images that cannot be read, up to the share ``max_unreadable``, have no row
            in the bank, and a bank on disk names them; they stay out of it until the directory is deleted.
        execution: What runs the model.

    Returns:
        The bank, on the CPU in float32 (float64 for a float64 model), with labels if the data has them, and the head.

    Raises:
        UnsupportedHeadError: The logits are not z = W h + b for features that can be found.
        UnreadableInputError: More than that share cannot be read.
        ValueError: The data is empty or has labels only in part, the model cannot take it, or ``out`` holds features
            of something else: other weights, data, head, or a model that does something else with the same weights.
        OSError: An image could not be read because of the system and not of the image, or another process writes to
            ``out``.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> extract(model, [torch.zeros(5, 4), torch.zeros(2, 4)])
        (FeatureBank(7 rows, 8 features, no labels, torch.float32), Head(3 classes, 8 features, bias, torch.float32))
    """
    check_model(model)
    loading = loading or Loading()
    batches = loading.batches(data, dtype=weights_dtype(model))
    result = extract_features(model, batches, loading, execution, out=out, key=key, shard_rows=shard_rows)
    return result.bank, result.network.found.head


def extract_features(
    model: nn.Module | Network,
    batches: Iterable[Any],
    loading: Loading | None = None,
    execution: Execution | None = None,
    *,
    out: Path | str | None = None,
    key: str | None = None,
    shard_rows: int = 4096,
    rows: int | None = None,
) -> Extraction:
    """Extract as ``extract`` does, and return all that the pass has found.

    The network of an extraction can be given to the next one, which then uses the same head and runtime. ``rows`` is
    the number of inputs of all of these passes, by which a runtime is chosen; by default of this one.
    """
    loading, execution = loading or Loading(), execution or Execution()
    network = model if isinstance(model, Network) else None
    module = model.model if isinstance(model, Network) else model
    check_model(module)
    source = batches if isinstance(batches, Source) else None
    if source is None and execution.distributed:
        raise ValueError(
            f"the engine {execution.engine!r} needs data that can be read from any row on: a path of images, a data "
            f"set of images or arrays, not {type(batches).__name__}. Use the engine 'local'."
        )
    data = None if out is None else data_key(batches, key)
    here = execution.here()
    with evaluating(module, here.device) as place:
        loader = iter(()) if source is not None else iter(track(batches, TITLE, count_batches(batches)))
        first, first_rows = (next(_split(loader, True), None), []) if source is None else first_inputs(source)
        if first is None:
            raise ValueError("the loader gave no input at all. Is the data set empty, or the generator used up?")
        if network is None:
            total = rows or (source.rows if source is not None else _count_rows(batches, first))
            network, result = Network.of(module, first.to(place), here, total)
        else:
            shape = tuple(first.first_tensor.shape[1:])
            network.add_sizes(InputSizes(shape, shape))
            result = network.run_few(first)
        if network.dense:
            others = _split(loader, True) if source is None else labelled_batches(source, loading)
            raise EveryPositionError(network, chain([first], others) if source is None else others)
        if first.labels is not None and first.labels.ndim > 1:
            indices, classes = class_indices(first.labels, first.rows)
            first = first._replace(labels=indices, label_classes=classes)
        head = network.found.head
        _check_label_classes(first.label_classes if source is None else source.label_classes, head)
        key_of_bank = {} if data is None else {"weights": network.weights, "data": data, "head": network.found.key}
        if key_of_bank and network.dtype is not None:
            key_of_bank["computed_in"] = str(network.dtype)
        sink = BankWriter(
            out,
            key_of_bank,
            width=head.width,
            dtype=head.weight.dtype,
            labels=first.labels is not None,
            shard_rows=shard_rows,
            computed_in=result.logits.dtype,
        )
        predicted: dict[int, Tensor] = {}
        runtime = ""
        with closing(sink):
            if source is not None:
                sink.confirm(first_rows, result.features)
                parts = _missing_parts(Features(source, network, execution), sink, loading.workers)
            else:
                parts = _missing_of_loader(network, first, result, _split(loader), sink)
            for covered, part in parts:
                runtime = f"{part.info['runtime']} on Ray" if execution.distributed else str(network.runtime)
                for shape in part.info.get("sizes", ()):
                    network.add_sizes(InputSizes(tuple(shape), tuple(shape)))
                features = part.tensors.get("features", head.weight.new_empty(0, head.width))
                if out is None and "predicted" in part.tensors:
                    predicted[covered.start] = part.tensors["predicted"]
                reasons = {int(row): reason for row, reason in part.info["unreadable"].items()}
                sink.add(covered, features, part.tensors.get("labels"), reasons)
                if reasons and source is not None:
                    check_share(sink.unreadable, source, loading.max_unreadable)
            if source is not None:  # those of an earlier run, which allowed for more, count too
                check_share(sink.unreadable, source, loading.max_unreadable)
                warn_unreadable(sink.unreadable, source)
            in_order = [predicted[start] for start in sorted(predicted)]
            return Extraction(
                network,
                sink.finish(),
                sink.unreadable,
                torch.cat(in_order) if in_order else None,
                runtime,
                first.part(0, FEW),
            )


def _check_label_classes(classes: int | None, head: Head) -> None:
    """Raise if one-hot rows or booleans are labels of another number of classes than the model's."""
    if classes not in (None, head.n_classes):
        form = "booleans, or one-hot rows of 2 columns," if classes == 2 else f"one-hot rows of {classes} columns"
        raise ValueError(
            f"the model has {head.n_classes} classes, but {form} are labels of {classes}. Give class indices in the "
            "order of the model's outputs."
        )


def first_inputs(source: Source, start: int = 0) -> tuple[Batch, list[int]]:
    """Return a few inputs from row ``start`` on that can be read, and their rows: enough to examine a model."""
    first = ""
    for row in range(start, source.rows, FEW):
        rows = range(row, min(row + FEW, source.rows))
        raw, unreadable = source.attempt(rows)
        if raw is not None:
            return split_batch(raw, indices_or_masks), [row for row in rows if row not in unreadable]
        first = first or unreadable[row]
    kind, noun = unreadable_kind(source)
    raise kind(f"not a single {noun} could be read. The first: {first}")


def _missing_parts(job: Features, sink: BankWriter, workers: int | None) -> Iterator[tuple[range, Part]]:
    """Yield the parts of a source that hold a row ``sink`` misses, and tell it where the data ends.

    Before that, ``sink`` compares features of inputs that an earlier run has left.
    """
    source = job.source
    if not sink.confirmed:
        stored, rows = first_inputs(source, sink.first_stored or 0)
        sink.confirm(rows, job.known.run_few(stored).features)
    parts = cut(source, sink.missing(0, source.rows), sink.shard_rows)
    for number, part in run(job, parts, job.execution, workers):
        yield parts[number], part
    sink.end(source.rows)


def _missing_of_loader(
    network: Network, first: Batch, result: Pass, others: Iterator[Batch], sink: BankWriter
) -> Iterator[tuple[range, Part]]:
    """Yield the batches of a loader that hold a row ``sink`` misses or has yet to confirm, up to the last of them.

    ``result`` is that of the ``first`` batch.
    """
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
            yield rows, _kept(BatchResult(rows, batch, {}), batch, result if batch is first else network.run(batch))
        start = rows.stop
        if sink.confirmed and sink.rows is not None and not sink.missing(start, sink.rows):
            return  # an earlier run has met the end of the data, and nothing after this row is missing
    sink.end(start)


def _split(loader: Iterator[Any], masks: bool = False) -> Iterator[Batch]:
    """Yield the batches of a loader that hold an input; their labels may be masks if the caller takes them."""
    read_labels = indices_or_masks if masks else class_indices
    for raw in loader:
        batch = split_batch(raw, read_labels)
        for value in (*batch.args, *batch.kwargs.values()):
            if isinstance(value, Tensor):
                check_tensor(value, "inputs")
        if batch.rows:
            yield batch


def labelled_batches(batches: Iterable[Any], loading: Loading, title: str | None = TITLE) -> Iterator[Batch]:
    """Yield the batches that hold an input, whose labels may be masks; leave out what cannot be read."""
    if not isinstance(batches, Source):
        yield from _split(iter(batches), True)
        return
    unreadable: dict[int, str] = {}
    for _, batch, reasons in read_batches(batches, title=title, workers=loading.workers, masks=True):
        unreadable |= reasons
        if reasons:
            check_share(unreadable, batches, loading.max_unreadable)
        if batch is not None:
            yield batch
    warn_unreadable(unreadable, batches)


def count_batches(loader: Iterable[Any]) -> int | None:
    """Return the number of batches of a loader, None if it does not say."""
    try:
        return len(loader)  # type: ignore[arg-type]  # tried
    except TypeError:  # no length, or a DataLoader over an iterable data set, which says so only when asked
        return None


def _count_rows(loader: Iterable[Any], first: Batch) -> int | None:
    """Return about how many inputs a loader gives, None if it does not say."""
    batches = count_batches(loader)
    return None if batches is None else batches * first.rows


def unreadable_kind(source: Source) -> tuple[type[UnreadableInputError], str]:
    """Return the error for unreadable inputs of a source, and what one of them is called."""
    return (source.unreadable, source.noun) if isinstance(source, NamedSource) else (UnreadableInputError, "input")


def check_share(unreadable: Mapping[int, str], source: Source, most: float) -> None:
    """Raise if more than a share of the rows could not be read."""
    if len(unreadable) <= most * source.rows:
        return
    kind, noun = unreadable_kind(source)
    if most == 0:
        raise kind(next(iter(unreadable.values())))
    raise kind(
        f"{len(unreadable)} of {source.rows} {noun}s could not be read, more than the {100 * most:g} % that may be "
        f"left out. {_numbered(unreadable.values())}"
    )


def warn_unreadable(unreadable: Mapping[int, str], source: Source) -> None:
    """Log a warning if some of the inputs could not be read."""
    if unreadable:
        why, what = _numbered(unreadable.values()), f"{unreadable_kind(source)[1]}s"
        log.warning("%d of %d %s could not be read and are left out. %s", len(unreadable), source.rows, what, why)


def _numbered(reasons: Iterable[str]) -> str:
    """Return the first reasons with numbers, each once: a list may name an image again."""
    return " ".join(f"({number}) {reason}" for number, reason in enumerate(islice(dict.fromkeys(reasons), SHOWN), 1))
