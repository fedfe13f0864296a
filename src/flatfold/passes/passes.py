"""A data set through a network in parts: what is computed is a job, and an executor decides where.

Extraction keeps features, scoring keeps verdicts, methods that run the network keep one score per input, and a
curvature study keeps its estimates. All of them resume, because finished parts are in a store, and all of them can be
distributed, because a job can be sent to another process. A part of a :class:`RowJob` is whole batches of its source,
so every input has the same neighbours in its batch, and the same result to the last digit, whoever computes the part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch

from ..data.sources import BatchResult, Source, read_batches
from ..io.store import Part
from ..network.execution import Execution
from ..network.network import Network

PART_ROWS = 1024  # maximum number of rows lost when a run is killed (at least one batch)


class Job(ABC):
    """What to compute. A job can be pickled; ``load`` prepares the process that computes, ``part`` computes a part."""

    title = "computing"

    @abstractmethod
    def load(self, rows: int | None = None) -> Any:
        """Load what the parts need, once in each process; ``rows`` is the number of inputs, None if it is unknown."""

    @abstractmethod
    def part(self, loaded: Any, which: Any) -> Part:
        """Return one part, given what ``load`` returned."""


Parts = Mapping[int, Any]
"""By number, what a job needs to know of a part; of a :class:`RowJob`, its rows."""


class RowJob(Job):
    """A job over the rows of a source, whose parts are ranges of whole batches."""

    source: Source
    paced = False  # whether to measure first how fast images are read and computed, to choose readers and processes

    @abstractmethod
    def batch(self, loaded: Any, read: BatchResult) -> Part:
        """Return the result of one batch: a row of each tensor for each input that could be read, in order.

        ``info["unreadable"]`` has the reasons of the others by row.
        """

    def network(self, loaded: Any) -> Network | None:
        """Return the network that runs the batches and chooses a runtime, None if there is no choice."""
        return None

    def part(self, loaded: Any, which: range) -> Part:
        """Return the result of some rows."""
        reads = read_batches(self.source, self.source.batch_ranges([which]))
        part = join_batches(self.batch(loaded, read) for read in reads)
        network = self.network(loaded)
        return part if network is None else part._replace(info={**part.info, "runtime": f"{network.runtime}; 1 thread"})


def join_batches(batches: Iterable[Part]) -> Part:
    """Return the results of consecutive batches as one part; a batch of which nothing could be read has no tensors."""
    infos, tensors = zip(*batches, strict=True)
    filled = [columns for columns in tensors if columns]
    names = filled[0] if filled else ()
    reasons = {row: reason for info in infos for row, reason in info["unreadable"].items()}
    sizes = dict.fromkeys(tuple(size) for info in infos for size in info.get("sizes", ()))
    texts: dict[str, list[str]] = {}  # columns of text, which no tensor holds
    for name, values in chain.from_iterable(info.get("texts", {}).items() for info in infos):
        texts.setdefault(name, []).extend(values)
    info: dict[str, Any] = {"unreadable": reasons} | ({"sizes": list(map(list, sizes))} if sizes else {})
    info |= {"texts": texts} if texts else {}
    return Part(info, {name: torch.cat([columns[name] for columns in filled]) for name in names})


def cut(source: Source, ranges: Iterable[range], rows: int) -> dict[int, range]:
    """Return parts of at most ``rows`` or ``PART_ROWS`` rows: the whole batches that hold a row of ``ranges``."""
    parts: list[range] = []
    rows = min(rows, PART_ROWS)
    for batch in source.batch_ranges(ranges):
        if parts and parts[-1].stop == batch.start and len(parts[-1]) + len(batch) <= rows:
            parts[-1] = range(parts[-1].start, batch.stop)
        else:
            parts.append(batch)
    return dict(enumerate(parts))


def session(execution: Execution) -> AbstractContextManager[object]:
    """Return a context that keeps the engine running, so that several passes start it once."""
    if not execution.distributed:
        return nullcontext()
    from .ray import join_cluster

    return join_cluster()


def run(
    job: Job, parts: Parts, execution: Execution, workers: int | None = None, processes: int | None = 1
) -> Iterator[tuple[int, Part]]:
    """Compute the parts of a job where ``execution`` says; yield each once, in any order, with its number.

    ``workers`` threads read ahead and ``processes`` compute on this machine (:func:`flatfold.passes.local.run_local`).
    """
    if not parts:
        return
    if execution.distributed:
        from .ray import run_on_ray  # late: Ray is an extra

        yield from run_on_ray(job, parts, execution.actors, execution.gpus)
    else:
        from .local import run_local

        yield from run_local(job, parts, workers, processes)
