"""Executor on a Ray cluster: each worker loads the model once; a part that is lost with its worker is done again."""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from socket import create_connection
from typing import Any

import numpy as np
import torch

from ..io.progress import track
from ..models.extract import read_batches
from ..models.sources import ImageSource
from .batch import Parts, ScoredRows, ScoringJob, score_batches
from .guard import Guard
from .tables import Columns

PATIENCE = 5  # seconds to wait for an answer at an address
TRIES = 3  # times that a part is begun: a machine may fail twice, but then it is the part that ends workers
MOST_BLOCKS = 10_000  # that Ray keeps account of; beyond that, several parts share a block

# What a worker may raise, from the particular to the general: each can be made again from its message alone.
KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (ModuleNotFoundError, FileNotFoundError, OSError, MemoryError, TypeError, ValueError, RuntimeError)
} | {"Exception": Exception}


def run_on_ray(
    job: ScoringJob, parts: Parts, actors: int | None = None, gpus: float = 0.0
) -> Iterator[tuple[int, ScoredRows]]:
    """Score parts on a Ray cluster and yield them as they are done, in any order.

    The cluster is the one that this process has joined, that ``RAY_ADDRESS`` names, or that ``ray start`` has started
    on this machine; all of these are left running. Where there is none, one is started, and ended with the last part.
    Workers read images, weights and guard themselves: they must see the same files, or a copy of the current folder
    that Ray sends (``ray job submit --working-dir .``), which is thrown away afterwards.

    At most ``actors`` workers run, each with a model, one CPU and one thread; by default as many as fit. With a
    fraction of ``gpus`` several share one. What a worker raises is raised here, with the nearest built-in type.
    """
    if actors is not None and actors < 1:
        raise ValueError(f"actors must be at least 1, got {actors}. Without a number, as many run as fit.")
    if not 0 <= gpus <= 1:
        raise ValueError(f"gpus must be from 0 to 1, since a model runs on one device, got {gpus:g}.")
    with _join_cluster() as ray, _without_ray_output():
        from ray.data import ActorPoolStrategy, from_items

        size = min(actors or inf, count_workers(ray.nodes(), gpus), len(parts))
        items = [{"part": number, "start": rows.start, "stop": rows.stop} for number, rows in parts.items()]
        # Workers find relative paths in this folder, unless Ray has sent them a copy of one.
        folder = None if ray.get_runtime_context().runtime_env.get("working_dir") else os.getcwd()
        results = from_items(items, override_num_blocks=min(len(items), MOST_BLOCKS)).map_batches(
            Worker,
            batch_size=1,
            fn_constructor_args=(ray.put(job), ray.remote(num_cpus=0)(Ledger).remote(), folder),
            compute=ActorPoolStrategy(size=int(size), max_tasks_in_flight_per_actor=2),
            num_cpus=1,
            num_gpus=gpus,
        )
        # Blocks as they come: batches of another size would be held back until the next blocks are there.
        blocks: Iterable[Columns] = results.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy")
        yield from track(collect_parts(blocks, parts), "scoring", len(parts))


def pack_rows(part: int, scored: ScoredRows) -> Columns:
    """Return a part as columns of equal length, with a reason in each row that could not be scored."""
    count, failed = len(scored.columns["row"]), len(scored.unreadable)
    columns = {name: np.concatenate([v, np.zeros(failed, v.dtype)]) for name, v in scored.columns.items()}
    columns["row"][count:] = list(scored.unreadable)
    reasons = np.array([*[""] * count, *scored.unreadable.values()], dtype=object)
    return {"part": np.full(count + failed, part), "raised": np.full(count + failed, ""), "reason": reasons, **columns}


def collect_parts(blocks: Iterable[Columns], parts: Parts) -> Iterator[tuple[int, ScoredRows]]:
    """Yield each part once all its rows have come, in blocks that may hold several parts or a piece of one."""
    pieces: dict[int, list[ScoredRows]] = defaultdict(list)
    for block in blocks:
        for kind, message in zip(block["raised"], block["reason"], strict=True):
            if kind:
                raise KINDS[kind](message)
        for part in np.unique(block["part"]).tolist():
            columns = {name: values[block["part"] == part] for name, values in block.items()}
            _, _, reasons = (columns.pop(name) for name in ("part", "raised", "reason"))
            scored = reasons == ""
            failed = zip(columns["row"][~scored].tolist(), reasons[~scored].tolist(), strict=True)
            pieces[part].append(ScoredRows({name: v[scored] for name, v in columns.items()}, dict(failed)))
            if sum(len(piece.columns["row"]) + len(piece.unreadable) for piece in pieces[part]) == len(parts[part]):
                yield part, ScoredRows.concatenate(pieces.pop(part))


class Ledger:
    """Counts how often each part was begun, in an actor that outlives dead workers: Ray itself would try for ever."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, part: int) -> int:
        """Return how often a part has been begun, this time included."""
        self._begun[part] += 1
        return self._begun[part]


class Worker:
    """A process on the cluster: it loads the model once, when the first part comes, and scores parts."""

    def __init__(self, job: Any, ledger: Any, folder: str | None) -> None:
        self.job, self.ledger = job, ledger  # references in Ray's object store
        self.folder = folder  # where relative paths start; None for the folder of the process
        self.loaded: tuple[Guard, ImageSource] | None = None

    def __call__(self, item: Columns) -> Columns:
        """Return the columns of a part, or the error: Ray would bury its message in two tracebacks."""
        part, start, stop = (int(item[name][0]) for name in ("part", "start", "stop"))
        try:
            return pack_rows(part, self.score(part, range(start, stop)))
        except Exception as error:
            kind = next(name for name, base in KINDS.items() if isinstance(error, base))
            return {"part": np.array([part]), "raised": np.array([kind]), "reason": np.array([str(error)], object)}

    def score(self, part: int, rows: range) -> ScoredRows:
        """Return the scores of a part."""
        import ray

        if ray.get(self.ledger.begin.remote(part)) > TRIES:
            raise RuntimeError(
                f"{TRIES} workers, one after the other, died over part {part}. If it is the memory, take a smaller "
                "--batch-size or fewer --actors; otherwise the model ends its process while it loads, or at one of "
                "these images. All parts that are done are kept."
            )
        self.loaded = self.loaded or self.load()
        return self.score_rows(rows)

    def score_rows(self, rows: range) -> ScoredRows:
        """Return the scores of some rows, with the model that was loaded."""
        assert self.loaded is not None
        guard, source = self.loaded
        return score_batches(guard, source, read_batches(source, source.batch_ranges([rows])))

    def load(self) -> tuple[Guard, ImageSource]:
        """Load the model and its guard; not in the constructor, whose errors Ray takes for those of the machine."""
        import ray

        if self.folder is not None:
            if not Path(self.folder).is_dir():
                raise FileNotFoundError(
                    f"the workers must see the same files, but on {os.uname().nodename} there is no folder "
                    f"{self.folder}. Use storage that all machines share, or: "
                    "ray job submit --working-dir . -- flatfold score ..."
                )
            os.chdir(self.folder)
        torch.set_num_threads(1)  # as many as CPUs were asked for, whatever the environment of this machine says
        job: ScoringJob = ray.get(self.job)
        return job.load(), job.source


def count_workers(nodes: Iterable[Mapping[str, Any]], gpus: float) -> int:
    """Return how many workers fit into a cluster, at least 1."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    fit = sum(int(min(node.get("CPU", 0), node.get("GPU", 0) / gpus if gpus else inf)) for node in alive)
    if not fit:
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in alive)
        raise ValueError(
            f"a worker needs 1 CPU and {gpus:g} GPUs of one machine, but those of the cluster have {have or 'none'}. "
            "Give fewer --gpus, or add a machine to the cluster."
        )
    return fit


@contextmanager
def _join_cluster() -> Iterator[Any]:
    """Give Ray, connected to the cluster that is there, or else to one that ends with this context."""
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(
            "the engine `ray` needs Ray, which is not installed. Run: pip install 'flatfold[ray]'", name="ray"
        ) from None
    if ray.is_initialized():
        yield ray
        return
    _check_answer(os.environ.get("RAY_ADDRESS", ""))
    # Ray Data makes its workers in a way that another part of Ray reports as an error, at every start.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        # Not address="auto": that would also join the cluster of another run, which ends with that run. Who may join
        # ours is Ray's own default: since 2.59 only processes that have this user's token.
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        yield ray
    finally:
        ray.shutdown()  # ends what was started here, and only leaves what was joined


def _check_answer(address: str) -> None:
    """Raise if nothing listens at ``host:port``: Ray would try for minutes. Other addresses are left to Ray."""
    host, _, port = address.rpartition(":")
    if "/" in host or not host or not port.isdecimal():
        return
    try:
        create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except OSError as error:
        raise ConnectionError(
            f"RAY_ADDRESS is {address}, but no cluster answers there: {error}. "
            "Start one with `ray start --head`, or unset RAY_ADDRESS to use this machine alone."
        ) from error


@contextmanager
def _without_ray_output() -> Iterator[None]:
    """Keep Ray Data from drawing bars and printing plans: there is a bar already, and pipes are read by programs."""
    from ray.data import DataContext

    context, loggers = DataContext.get_current(), [logging.getLogger("ray.data"), logging.getLogger("ray.data.dataset")]
    bars, levels = (context.enable_progress_bars, context.print_on_execution_start), [log.level for log in loggers]
    context.enable_progress_bars = context.print_on_execution_start = False
    for log in loggers:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.enable_progress_bars, context.print_on_execution_start = bars
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)
