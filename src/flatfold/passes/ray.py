"""Executor on a Ray cluster: each worker loads the job once; a part that is lost with its worker is computed again."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from math import inf
from pathlib import Path
from socket import create_connection
from typing import Any

import torch

from .. import errors
from ..io.progress import track
from ..io.store import Part
from .passes import Job, Parts

PATIENCE = 5  # seconds to wait for an answer at an address
TRIES = 3  # times that a part is begun: a machine may fail twice, but then it is the part that ends workers

# Names of the modules that were loaded from files, with networks and methods. Workers cannot import them by name.
FROM_FILES = ("flatfold_suite_", "flatfold_own_")
# What a worker may raise, from the particular to the general: each can be made again from its message alone.
KINDS = (
    *(
        errors.UnsupportedHeadError,
        errors.UnreadableImageError,
        errors.UnreadableTextError,
        errors.MethodRefusedError,
        errors.DamagedFileError,
    ),
    *(ModuleNotFoundError, FileNotFoundError, OSError, MemoryError, TypeError, ValueError, RuntimeError, Exception),
)


def run_on_ray(job: Job, parts: Parts, actors: int | None = None, gpus: float = 0.0) -> Iterator[tuple[int, Part]]:
    """Compute parts on a Ray cluster and yield them as they are done, in any order.

    The cluster is the one that this process has joined, that ``RAY_ADDRESS`` names, or that ``ray start`` has started
    on this machine; all of these are left running. Where there is none, one is started, and ended with the last part.
    Workers read the data themselves: they must see the same files, or a copy of the current folder that Ray sends
    (``ray job submit --working-dir .``), which is thrown away afterwards. Arrays in memory travel with the job.

    At most ``actors`` workers run, each with a model, one CPU and one thread; by default as many as fit. With a
    fraction of ``gpus`` several share one. What a worker raises is raised here, with the nearest type of ours or of
    Python.
    """
    with join_cluster() as ray:
        size = int(min(actors or inf, count_workers(ray.nodes(), gpus), len(parts)))
        # Workers find relative paths in this folder, unless Ray has sent them a copy of one.
        folder = None if ray.get_runtime_context().runtime_env.get("working_dir") else os.getcwd()
        make = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=TRIES - 1)(Worker).remote
        workers = [make(folder) for _ in range(size)]
        for name, module in list(sys.modules.items()):
            if name.startswith(FROM_FILES):
                ray.cloudpickle.register_pickle_by_value(module)
        try:
            yield from track(_distribute(ray, workers, ray.put(job), parts), job.title, len(parts))
        finally:
            for worker in workers:
                ray.kill(worker)


def _distribute(ray: Any, workers: Iterable[Any], job: Any, parts: Parts) -> Iterator[tuple[int, Part]]:
    """Give each worker that has started a part, and the next when it is done."""
    remaining, done = iter(parts.items()), 0
    running: dict[Any, tuple[int | None, Any]] = {worker.__ray_ready__.remote(): (None, worker) for worker in workers}
    try:
        while done < len(parts):
            (reference,), _ = ray.wait(list(running))
            number, worker = running.pop(reference)
            try:
                result = ray.get(reference)
            except ray.exceptions.RayError as error:
                raise RuntimeError(
                    f"{TRIES} workers, one after the other, died over part {number}. If they ran out of memory, use "
                    "smaller batches or fewer actors; otherwise the model crashes while it loads, or on one of these "
                    "inputs. All finished parts are kept."
                ) from error
            if isinstance(result, Exception):
                raise result
            for following, which in islice(remaining, 1):
                running[worker.compute.remote([job], which)] = following, worker
            if number is not None:
                yield number, result
                done += 1
    finally:
        for reference in running:  # or Ray prints that it tries again what ends with the workers
            ray.cancel(reference)


class Worker:
    """A process on the cluster: it loads the job once, when the first part comes, and computes parts."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder  # where relative paths start; None for the folder of the process
        self.loaded: tuple[Job, Any] | None = None

    def compute(self, job: list[Any], which: Any) -> Part | Exception:
        """Return a part, or the error: Ray would bury its message in two tracebacks.

        The job is a reference in Ray's object store; in a list, or Ray would unpickle the job before :meth:`load`.
        """
        try:
            self.loaded = self.loaded or self.load(job[0])
            task, loaded = self.loaded
            return task.part(loaded, which)
        except Exception as error:
            return next(kind for kind in KINDS if isinstance(error, kind))(str(error))

    def load(self, reference: Any) -> tuple[Job, Any]:
        """Load the job; not in the constructor, whose errors Ray takes for those of the machine."""
        import ray

        if self.folder is not None:
            if not Path(self.folder).is_dir():
                raise FileNotFoundError(
                    f"the workers must see the same files, but on {os.uname().nodename} there is no folder "
                    f"{self.folder}. Use storage that all machines share, or: "
                    "ray job submit --working-dir . -- flatfold ..."
                )
            os.chdir(self.folder)
            sys.path.insert(0, self.folder)  # as for a command that runs there: the model's class may be in a module
        torch.set_num_threads(1)  # as many as CPUs were asked for, whatever the environment of this machine says
        job: Job = ray.get(reference)
        return job, job.load()


def count_workers(nodes: Iterable[Mapping[str, Any]], gpus: float) -> int:
    """Return how many workers fit into a cluster, at least 1."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    fit = sum(int(min(node.get("CPU", 0), node.get("GPU", 0) / gpus if gpus else inf)) for node in alive)
    if not fit:
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in alive)
        raise ValueError(
            f"a worker needs 1 CPU and {gpus:g} GPUs of one machine, but those of the cluster have {have or 'none'}. "
            "Ask for fewer GPUs per worker with gpus=, or add a machine to the cluster."
        )
    return fit


@contextmanager
def join_cluster() -> Iterator[Any]:
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
