"""Parts on a Ray cluster: each worker loads the model once, and a part that was lost with its worker is done again."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from math import inf
from pathlib import Path
from socket import create_connection
from typing import Any

import torch

from ..io.progress import track
from ..models.extract import read_batches
from .batch import Parts, Scorer, Task

# A Ray cluster: the one that is there, or one for the time being; how many workers fit into it.


PATIENCE = 5  # seconds until somebody answers at an address


@contextmanager
def cluster() -> Iterator[Any]:
    """Give Ray, connected to a cluster: to the one that is there, or else to one for the time being."""
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
    # Ray Data makes its workers in a way that another part of Ray reports as an error, at every start. What is left is
    # a line that says so.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        # Not address="auto": that would also join the cluster of another run, which ends with that run. Who may join
        # ours is Ray's own default: since 2.59 only processes that have this user's token.
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        yield ray
    finally:
        ray.shutdown()  # ends what was started here, and only leaves what was joined


def _check_answer(address: str) -> None:
    """Raise if nobody listens at ``host:port``: Ray would try for minutes. Other addresses are Ray's affair."""
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


def room(nodes: Iterable[Mapping[str, Any]], gpus: float) -> int:
    """Return how many workers fit into a cluster."""
    there = [node["Resources"] for node in nodes if node["Alive"]]
    fit = sum(int(min(node.get("CPU", 0), node.get("GPU", 0) / gpus if gpus else inf)) for node in there)
    if not fit:
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in there)
        raise ValueError(
            f"a worker needs 1 CPU and {gpus:g} GPUs of one machine, but those of the cluster have {have or 'none'}. "
            "Give fewer --gpus, or add a machine to the cluster."
        )
    return fit


@contextmanager
def quiet() -> Iterator[None]:
    """Let Ray Data neither draw bars nor tell its plans: there is a bar already, and pipes are read by programs."""
    from ray.data import DataContext

    context, loggers = DataContext.get_current(), [logging.getLogger("ray.data"), logging.getLogger("ray.data.dataset")]
    was, levels = (context.enable_progress_bars, context.print_on_execution_start), [each.level for each in loggers]
    context.enable_progress_bars = context.print_on_execution_start = False
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.enable_progress_bars, context.print_on_execution_start = was
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


TRIES = 3  # times that a part is begun: a machine may fail twice, but then it is the part that ends workers

# What a worker may raise, from the particular to the general: each can be made again from its words alone.
KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (ModuleNotFoundError, FileNotFoundError, OSError, MemoryError, TypeError, ValueError, RuntimeError)
} | {"Exception": Exception}

MOST_BLOCKS = 10_000  # what Ray keeps account of; beyond that, several parts go together


def score_on_ray(task: Task, parts: Parts, actors: int | None = None, gpus: float = 0.0) -> Iterator[tuple[int, str]]:
    """Yield each part as it is done, in any order: its number and its record as text.

    The cluster is the one that this process has joined, that ``RAY_ADDRESS`` names, or that ``ray start`` has started
    on this machine; all of these are left running. Where there is none, one is started on this machine, and ended with
    the last part.

    What goes over the network is the task, once to each machine, then numbers of rows one way and rows of the table
    the other. Workers read the images, the weights and the guard themselves, so all machines need flatfold and must
    see the same files. Relative paths, and modules in the current folder, mean for them what they mean here, if they
    see this folder. Where they do not, let Ray send it: ``ray job submit --working-dir . -- flatfold score ...``, or
    ``ray.init(runtime_env={"working_dir": "."})``; the table then belongs to an absolute path, for the copy of the
    folder is thrown away.

    A worker computes with one thread, and gives the same digits as one process that has ``torch.set_num_threads(1)``.
    With other numbers of threads torch may add in another order, which can change last digits.

    Args:
        task: What to score. Its ``device`` is that of a worker: ``"cuda"`` is the GPU that Ray gave to it.
        parts: Those that are wanted: by number, the rows of each.
        actors: Most workers, each with a model and one CPU; by default as many as fit into the cluster.
        gpus: Of which each worker needs so many. With a fraction several share one, and some read images meanwhile.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ConnectionError: Nothing answers at ``RAY_ADDRESS``.
        ValueError: Not a single worker fits into the cluster.
        RuntimeError: Workers have died again and again over the same part, or while they loaded.
        Exception: Whatever a worker raises, with its words and the nearest built-in type; no other worker tries again.
    """
    _check(actors, gpus)
    with cluster() as ray, quiet():
        from ray.data import ActorPoolStrategy, from_items

        size = min(actors or inf, room(ray.nodes(), gpus), len(parts))
        items = [{"part": number, "start": rows.start, "stop": rows.stop} for number, rows in parts.items()]
        records = from_items(items, override_num_blocks=min(len(items), MOST_BLOCKS)).map(
            Worker,  # type: ignore[arg-type]  # a class: Ray makes one in each process
            fn_constructor_args=(ray.put(task), ray.remote(num_cpus=0)(Ledger).remote(), _folder(ray)),
            compute=ActorPoolStrategy(size=int(size), max_tasks_in_flight_per_actor=2),
            num_cpus=1,
            num_gpus=gpus,
        )
        # Blocks as they come: rows and batches of a size of their own would be held back until the next are there.
        blocks: Iterable[Any] = records.iter_batches(batch_size=None, prefetch_batches=0, batch_format="pyarrow")
        for row in track(chain.from_iterable(block.to_pylist() for block in blocks), "scoring", len(parts)):
            if row["raised"]:
                raise KINDS[row["raised"]](row["record"])
            yield row["part"], row["record"]


class Ledger:
    """Counts how often each part was begun, where the death of a worker does not reach: Ray itself tries for ever."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, part: int) -> int:
        """Return how often a part has been begun, this time included."""
        self._begun[part] += 1
        return self._begun[part]


class Worker:
    """A process on the cluster: it loads the model once, when the first part comes, and scores what it is given.

    Args:
        task: Where Ray has put the task.
        ledger: A :class:`Ledger` on the cluster.
        folder: In which relative paths start, or None for that of the process.
    """

    def __init__(self, task: Any, ledger: Any, folder: str | None) -> None:
        self.task, self.ledger, self.folder = task, ledger, folder
        self.scorer: Scorer | None = None

    def load(self) -> Scorer:
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
        task: Task = ray.get(self.task)
        return task.scorer()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the record of a part, or what was raised: Ray would drown its sentence in two tracebacks."""
        try:
            return {"part": row["part"], "record": self.record(**row), "raised": ""}
        except Exception as error:
            kind = next(name for name, each in KINDS.items() if isinstance(error, each))
            return {"part": row["part"], "record": str(error), "raised": kind}

    def record(self, part: int, start: int, stop: int) -> str:
        """Return what was found out about the images of a part, as text."""
        import ray

        if ray.get(self.ledger.begin.remote(part)) > TRIES:
            raise RuntimeError(
                f"{TRIES} workers, one after the other, died over part {part}. If it is the memory, take a smaller "
                "--batch-size or fewer --actors; otherwise the model ends its process while it loads, or at one of "
                "these images. All parts that are done are kept."
            )
        self.scorer = self.scorer or self.load()
        source = self.scorer.source
        return self.scorer(read_batches(source, source.batch_ranges([range(start, stop)]))).to_json()


def _folder(ray: Any) -> str | None:
    """Return where workers find what is here: in this folder, unless Ray has sent them a copy of one."""
    return None if ray.get_runtime_context().runtime_env.get("working_dir") else os.getcwd()


def _check(actors: int | None, gpus: float) -> None:
    if actors is not None and actors < 1:
        raise ValueError(f"actors must be at least 1, got {actors}. Without a number, as many run as fit.")
    if not 0 <= gpus <= 1:
        raise ValueError(f"gpus must be from 0 to 1, since a model runs on one device, got {gpus:g}.")
