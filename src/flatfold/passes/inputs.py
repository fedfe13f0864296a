"""Scores of inputs by functions of a model, for methods that run the network themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.validation import check_finite
from ..data.banks import BankWriter
from ..data.batch import Batch
from ..data.sources import Source, read_batches
from ..network.calls import evaluating, input_errors
from .extract import missing_batches

SHARD_ROWS = 1024


def score_inputs(
    function: Callable[[Tensor], Tensor],
    model: nn.Module,
    source: Source,
    out: Path,
    key: dict[str, str],
    device: torch.device | str | None = None,
    title: str = "scoring",
    workers: int | None = None,
) -> Tensor:
    """Return the score of every input that can be read, ``(n,)`` in float32, and keep them in a directory as a bank.

    ``function`` may take gradients of ``model``, which is in evaluation mode; ``key`` is what the scores depend on
    apart from the data. An interrupted run continues in ``out`` if the model still gives what is stored.
    """
    with evaluating(model, device) as place:

        def score(batch: Batch) -> Tensor:
            inputs = batch.to(place).args[0]
            with input_errors(inputs):
                return function(inputs).detach().float().cpu()[:, None]

        full_key = {**key, "data": source.fingerprint}
        with closing(BankWriter(out, full_key, width=1, labels=False, shard_rows=SHARD_ROWS, scores=True)) as sink:
            for rows, batch, unreadable in missing_batches(source, sink, score, title, workers):
                scores = torch.empty(0, 1) if batch is None else score(batch)
                check_finite(scores, "scores", first=rows.start)
                sink.add(rows, scores, None, unreadable)
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
