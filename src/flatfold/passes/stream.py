"""A data set through a network, batch by batch, where nothing is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..core.validation import check_finite
from ..data.batch import Batch, split_batch
from ..data.loading import Loading
from ..data.sources import BatchResult, NamedSource, Source, read_batches
from ..io.progress import track
from ..network.heads import Pass
from ..network.network import Network
from .extract import check_share, count_batches, unreadable_kind, warn_unreadable

TITLE = "scoring"


class Streamed(NamedTuple):
    """The result of one batch, the names of its inputs, None if they have none, and the batch itself."""

    output: Pass
    names: list[str] | None
    batch: Batch


def run_batches(network: Network, batches: Iterable[Any], loading: Loading) -> Iterator[Streamed]:
    """Yield the result of each batch with the names of its inputs; inputs that cannot be read have no row.

    Memory use does not grow with the number of batches. Raises `UnreadableInputError` if more than the share
    ``loading.max_unreadable`` cannot be read.
    """
    unreadable: dict[int, str] = {}
    rows_read = 0
    for rows, batch, reasons in _read(batches, loading):
        unreadable |= reasons
        if reasons and isinstance(batches, Source):
            check_share(unreadable, batches, loading.max_unreadable)
        if batch is None:
            continue
        rows_read += batch.rows
        output = network.run(batch)
        check_finite(output.features, "features", first=rows.start)
        names = [batches.name(row) for row in rows if row not in reasons] if isinstance(batches, NamedSource) else None
        yield Streamed(output, names, batch)
    if unreadable and not rows_read and isinstance(batches, Source):
        kind, noun = unreadable_kind(batches)
        raise kind(f"not a single {noun} could be read. The first: {next(iter(unreadable.values()))}")
    if not rows_read:
        raise ValueError("the data gave no input at all. Is the data set empty, or the generator used up?")
    if isinstance(batches, Source):
        warn_unreadable(unreadable, batches)


def _read(batches: Iterable[Any], loading: Loading) -> Iterator[BatchResult]:
    """Yield the batches of a source or of a loader, with the numbers of their rows."""
    if isinstance(batches, Source):
        yield from read_batches(batches, title=TITLE if len(batches) > 1 else None, workers=loading.workers)
        return
    start = 0
    for batch in map(split_batch, track(batches, TITLE, count_batches(batches))):
        yield BatchResult(range(start, start + batch.rows), batch, {})
        start += batch.rows
