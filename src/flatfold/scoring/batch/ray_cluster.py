"""A Ray cluster: the one that is there, or one for the time being; how many workers fit into it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from socket import create_connection
from typing import Any

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
