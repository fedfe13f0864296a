"""One number per input of a data set, by a function that runs a model; on disk as it goes, like a bank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.check import check_finite
from ..progress import track
from .batches import split_batch
from .forward import as_it_was
from .manifest import Manifest
from .sources import Source
from .stream import remaining
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
) -> Tensor:
    """Return the score of every input, ``(n,)`` in float32.

    Args:
        function: Scores a batch of inputs, ``(n,)``; it may take gradients.
        model: What it runs; put into evaluation mode, on ``device``, for as long as it takes.
        source: The data.
        out: A directory for the scores. An interrupted pass goes on where it was, a finished one is only read.
        key: What the scores depend on; the data is added.
        device: As in ``extract``.
        title: Of the progress bar.
    """
    sink = BankWriter(out, Manifest({**key, "data": source.fingerprint}, 1, "float32", False, SHARD_ROWS))
    with as_it_was(model, device) as place:
        for start, batch in remaining(source, iter(()), 0, sink, title):
            scores = function(batch.to(place).args[0]).detach().float().cpu()[:, None]
            check_finite(scores, "scores", first=start)
            sink.add(start, scores, None)
    return sink.finish().features.squeeze(-1)


def labelled_batches(source: Source, device: torch.device | str, title: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a labelled source as pairs, the inputs on ``device``."""
    for raw in track(source, title, len(source)):
        batch = split_batch(raw).to(device)
        if batch.labels is None:
            raise ValueError("labels are needed to fit this method, but the data has none.")
        yield batch.args[0], batch.labels
