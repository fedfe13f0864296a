"""Stopwatch: how many seconds calls take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter

import torch


def time_call(call: Callable[[], object], device: torch.device | str = "cpu") -> float:
    """Return the seconds of one call, including the work that it leaves to a GPU."""
    start = perf_counter()
    call()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - start


def time_in_turn(calls: Sequence[Callable[[], object]], rounds: int, limit: float = inf) -> list[list[float]]:
    """Return the seconds of each call in every round, at least one; a round runs each of them once.

    Calls in turn are slowed alike by other processes. No round starts once the calls have taken ``limit`` seconds. A
    first call may allocate memory and compile code: the caller runs it once before if that should not count.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    while len(seconds[0]) < rounds and sum(map(sum, seconds)) < limit:
        for call, times in zip(calls, seconds, strict=True):
            times.append(time_call(call))
    return seconds
