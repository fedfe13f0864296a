"""One number per input of a data set, by a function that runs a model; on disk as it goes, like a bank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.check import check_finite
from .at_rest import as_it_was
from .batches import Batch
from .manifest import Manifest
from .misfit import explained
from .resumed import check_scores
from .sources import Source
from .stream import a_few, attempts, needed
from .writer import BankWriter

SHARD_ROWS = 1024


def score_rows(
    function: Callable[[Tensor], Tensor],
    model: nn.Module,
    source: Source,
    out: Path,
    key: dict[str, str],
    device: torch.device | str | None = None,
    title: str = "scoring",
    workers: int = 0,
) -> Tensor:
    """Return the score of every input that can be read, ``(n,)`` in float32.

    Args:
        function: Scores a batch of inputs, ``(n,)``; it may take gradients.
        model: What it runs; put into evaluation mode, on ``device``, for as long as it takes.
        source: The data.
        out: A directory for the scores. An interrupted pass goes on where it was. Of a finished one only a few inputs
            run, to see that the model still gives the scores that are stored.
        key: What the scores depend on; the data is added.
        device: As in ``extract``.
        title: Of the progress bar.
        workers: As in ``extract``.

    Raises:
        ValueError: The model cannot take the inputs, a score is not finite, or ``out`` holds scores of something else.
    """
    sink = BankWriter(out, Manifest({**key, "data": source.fingerprint}, 1, "float32", False, SHARD_ROWS))
    with as_it_was(model, device) as place:

        def scored(batch: Batch) -> Tensor:
            inputs = batch.to(place).args[0]
            with explained(inputs):
                return function(inputs).detach().float().cpu()[:, None]

        _check_stored(sink, source, scored)
        for rows, batch, unreadable in needed(source, sink, title, workers):
            scores = torch.empty(0, 1) if batch is None else scored(batch)
            check_finite(scores, "scores", first=rows.start)
            sink.add(rows, (scores, None), unreadable)
    return sink.finish().features.squeeze(-1)


def _check_stored(sink: BankWriter, source: Source, scored: Callable[[Batch], Tensor]) -> None:
    """Raise if the first scores are not those that an earlier pass stored."""
    stored = sink.stored()
    if stored.rows:
        few = a_few(source, stored.rows[0])
        places, there = stored.among(few.rows)
        spread = float(stored.features.std(correction=0))
        check_scores(sink.folder, there, scored(few.batch)[places], spread)


def labelled_batches(
    source: Source, device: torch.device | str, title: str, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a labelled source as pairs, the inputs on ``device``, without what cannot be read."""
    for piece in attempts(source, source.touched([range(source.rows)]), title, workers):
        if piece.batch is None:
            continue
        if piece.batch.labels is None:
            raise ValueError("labels are needed to fit this method, but the data has none.")
        yield piece.batch.to(device).args[0], piece.batch.labels


def first_inputs(source: Source) -> Tensor:
    """Return the inputs of the first batch of a source that holds one."""
    pieces = attempts(source, source.touched([range(source.rows)]))
    inputs: Tensor = next(piece.batch.args[0] for piece in pieces if piece.batch is not None)
    return inputs
