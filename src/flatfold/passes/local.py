"""Executor on this machine: in this process, with threads that read ahead, or in several processes."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from math import ceil
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import torch
from numpy.typing import NDArray

from ..data.batch import split_batch
from ..data.sources import MOST_READERS, map_ahead, read_batches
from ..io.clock import time_call
from ..io.cores import free_memory, own_memory, torch_threads, usable_cores
from ..io.progress import track
from ..io.store import Part
from ..network.network import Network
from .passes import Job, Parts, RowJob, join_batches

TRIED_BATCHES = 8  # in which an image is looked for on which to choose a runtime
TIMED_ROWS = 8  # images by which the time of a job is estimated
WORTH_PROCESSES = 15.0  # seconds that a job must take before other processes are started, which takes about four


def run_local(
    job: Job, parts: Parts, workers: int | None = None, processes: int | None = 1
) -> Iterator[tuple[int, Part]]:
    """Compute parts on this machine, in one process or in several, with the threads that torch has.

    One process computes while ``workers`` other threads read inputs ahead, by default one for each core, up to four, or
    as many as keep up with the network if the job is paced. In a paced job the runtime ``onnx`` computes a batch on
    each core, with one thread; torch, which runs one batch at a time because a model may not allow more, with all
    threads. Of several processes each reads and computes with its share of the threads: small networks do not gain from
    several. ``processes=None`` decides: one for each core, busy or not, for paced jobs of torch on a CPU that take more
    than a quarter of a minute, if the network fits into memory several times.
    """
    if not isinstance(job, RowJob):
        loaded = job.load()
        for number, which in track(parts.items(), job.title, len(parts)):
            yield number, job.part(loaded, which)
        return
    source, rows = job.source, sum(map(len, parts.values()))
    loaded = job.load(rows)
    network = job.network(loaded)
    threads = torch.get_num_threads()
    with ExitStack() as stack:
        if job.paced and network is not None:
            pace = Pace.of(network, job, parts)
            workers = pace.readers if workers is None else workers
            if processes is None:
                processes = _useful_processes(network, rows * pace.compute, min(usable_cores(), len(parts)))
        onnx = network.onnx if job.paced and network is not None else None
        if (processes or 1) > 1:
            assert processes is not None
            threads = max(1, threads // processes)
            used = f"{processes} processes of {_count_threads(threads)}"
            stack.enter_context(torch_threads(threads))
            if onnx is not None:
                onnx.use_threads(threads)
            results = track(_run_processes(job, loaded, parts, processes, threads), job.title, len(parts))
        else:
            ranges = source.batch_ranges(parts.values())
            reads = read_batches(source, ranges, job.title, workers)
            compute = partial(job.batch, loaded)
            if onnx is not None:
                threads = usable_cores()
                stack.enter_context(torch_threads(1))
                onnx.use_threads(1)
            computed = map(compute, reads) if onnx is None else map_ahead(compute, reads, threads)
            used = _count_threads(threads)
            results = (
                (number, join_batches(islice(computed, len(source.batch_ranges([part])))))
                for number, part in parts.items()
            )
        for number, part in results:
            if network is not None:
                part = part._replace(info={**part.info, "runtime": f"{network.runtime}; {used}"})
            yield number, part


def _count_threads(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


class Pace(NamedTuple):
    """About how many seconds it takes to read an image, and to compute its features with all threads."""

    read: float
    compute: float

    @property
    def readers(self) -> int:
        """How many threads read as fast as the network computes; more would only wait for each other."""
        most = min(MOST_READERS, usable_cores())
        return most if self.read >= most * self.compute else max(1, ceil(self.read / self.compute))

    @classmethod
    def of(cls, network: Network, job: RowJob, parts: Mapping[int, range]) -> Self:
        """Let a network choose its runtime on the first images of a job that can be read, and return their times."""
        source = job.source
        for rows in source.batch_ranges(parts.values())[:TRIED_BATCHES]:
            raw, _ = source.attempt(rows)
            if raw is None:
                continue
            first = split_batch(raw)
            few = first.part(0, TIMED_ROWS)
            with suppress(ValueError):  # computing this batch raises it again, with the names of the images
                network.warm_up(first)
                network.run(few)
                compute = time_call(partial(network.run, few))
                read = time_call(partial(source.attempt, rows[:TIMED_ROWS]))
                return cls(read / few.rows, compute / few.rows)
            break
        return cls(0.0, 0.0)


def _useful_processes(network: Network, seconds: float, most: int) -> int:
    """Return the number of processes that make a job faster which takes one process ``seconds``."""
    if seconds < WORTH_PROCESSES or network.device.type != "cpu" or network.onnx is not None:
        return 1
    free, own = free_memory(), own_memory()
    return most if free is None or own is None else max(1, min(most, 1 + int(free // (1.5 * own))))


def _run_processes(job: RowJob, loaded: Any, parts: Parts, processes: int, threads: int) -> Iterator[tuple[int, Part]]:
    """Compute parts in this process and in others, which load the job meanwhile; yield what is done."""
    remaining, running = deque(parts.items()), dict[Future[_PlainPart], int]()
    context = get_context("spawn")  # not fork: copies of this process would wait for threads that they do not have
    theirs, ours = context.Pipe(duplex=False)
    with ours, ProcessPoolExecutor(processes - 1, context, _start_process, (job, threads, theirs)) as pool:
        try:
            while remaining or running:
                while len(remaining) > 1 and len(running) < 2 * (processes - 1):
                    number, rows = remaining.popleft()
                    running[pool.submit(_compute_in_process, rows)] = number
                for number, rows in [remaining.popleft()] if remaining else ():
                    yield number, _part_of_share(job, loaded, rows)
                finished, _ = wait(running, 0 if remaining else None, FIRST_COMPLETED)
                for future in finished:
                    info, arrays = future.result()
                    yield running.pop(future), Part(info, {name: torch.from_numpy(a) for name, a in arrays.items()})
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a process ended before its work was done. If it ran out of memory, use fewer processes or smaller "
                "batches; otherwise the model crashes on one of these images. All finished parts are kept"
            ) from error
        except BaseException:
            ours.close()  # ends the others at once
            raise


def _part_of_share(job: RowJob, loaded: Any, rows: range) -> Part:
    """Return a part that is read without other threads, whose cores belong to other processes."""
    source = job.source
    return join_batches(
        job.batch(loaded, read) for read in read_batches(source, source.batch_ranges([rows]), workers=0)
    )


_PlainPart = tuple[dict[str, Any], dict[str, NDArray[Any]]]
_of_process: dict[str, Any] = {}  # the job of a process that computes parts for another, and what it has loaded


def _start_process(job: RowJob, threads: int, connection: Connection) -> None:
    """Prepare a process that computes parts for another one, and ends with it, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches all processes; the first one ends the others

    def end_with_parent() -> None:
        with suppress(EOFError, OSError):
            connection.recv()  # nothing is ever sent: this ends when the other side is closed
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _of_process["job"] = job


def _compute_in_process(rows: range) -> _PlainPart:
    job: RowJob = _of_process["job"]
    if "loaded" not in _of_process:  # not when it starts: errors would be lost
        _of_process["loaded"] = job.load()
    part = _part_of_share(job, _of_process["loaded"], rows)
    return part.info, {name: values.numpy() for name, values in part.tensors.items()}
