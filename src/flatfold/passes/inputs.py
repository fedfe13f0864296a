"""Scores of inputs by methods that run the network themselves, such as ODIN: a pass that keeps one number per input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.validation import check_finite
from ..data.banks import BankWriter
from ..data.sources import BatchResult, Source, read_batches
from ..io.store import Part
from ..network.calls import evaluating, input_errors, usable_device
from ..network.execution import Execution
from .extract import first_inputs
from .passes import RowJob, cut, run

SHARD_ROWS = 1024


@dataclass(frozen=True)
class InputScores(RowJob):
    """Scores of inputs by a function that may take gradients of a model."""

    source: Source
    function: Callable[[Tensor], Tensor]
    model: nn.Module
    execution: Execution
    title: str = "scoring"

    def load(self, rows: int | None = None) -> torch.device:
        """Put the model into evaluation mode; in a worker, which has a copy, on the device to compute on."""
        if self.execution.distributed:
            device = usable_device(self.execution.device or "cpu")
            self.model.eval().to(device)
            if isinstance(self.function, nn.Module):  # what a detector has learnt
                self.function.to(device)
            return device
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def batch(self, loaded: torch.device, read: BatchResult) -> Part:
        """Return the scores of one batch, ``(n, 1)``."""
        rows, batch, reasons = read
        if batch is None:
            return Part({"unreadable": reasons}, {})
        inputs = batch.to(loaded).args[0]
        with evaluating(self.model), input_errors(inputs):
            scores = self.function(inputs).detach().float().cpu()[:, None]
        check_finite(scores, "scores", first=rows.start)
        return Part({"unreadable": reasons}, {"features": scores})


def score_inputs(
    function: Callable[[Tensor], Tensor],
    model: nn.Module,
    source: Source,
    out: Path,
    key: dict[str, str],
    execution: Execution | None = None,
    title: str = "scoring",
    workers: int | None = None,
) -> Tensor:
    """Return the score of every input that can be read, ``(n,)`` in float32, and keep them in a directory as a bank.

    ``function`` may take gradients of ``model``, which is in evaluation mode; ``key`` is what the scores depend on
    apart from the data. An interrupted run continues in ``out`` if the model still gives what is stored.
    """
    execution = execution or Execution()
    full_key = {**key, "data": source.fingerprint}
    with (
        evaluating(model, execution.here().device) as place,
        closing(BankWriter(out, full_key, width=1, labels=False, shard_rows=SHARD_ROWS, scores=True)) as sink,
    ):
        job = InputScores(source, function, model, execution, title)
        if not sink.confirmed:
            batch, rows = first_inputs(source, sink.first_stored or 0)
            sink.confirm(
                rows, job.batch(place, BatchResult(range(rows[0], rows[-1] + 1), batch, {})).tensors["features"]
            )
        parts = cut(source, sink.missing(0, source.rows), sink.shard_rows)
        for number, part in run(job, parts, execution, workers):
            sink.add(parts[number], part.tensors.get("features", torch.empty(0, 1)), None, part.info["unreadable"])
        sink.end(source.rows)
        return sink.finish().features.squeeze(-1)


def labelled_batches(
    source: Source, device: torch.device | str, title: str, workers: int | None = None, needs_labels: bool = True
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the batches of a source as pairs, the inputs on ``device``, without what cannot be read."""
    for _, batch, _ in read_batches(source, None, title, workers):
        if batch is None:
            continue
        if batch.labels is None and needs_labels:
            raise ValueError("labels are needed to fit this method, but the data has none.")
        yield batch.to(device).args[0], batch.labels


def read_first_batch(source: Source) -> Tensor:
    """Return the inputs of the first batch of a source that holds one."""
    return next(batch.first_tensor for _, batch, _ in read_batches(source) if batch is not None)
