"""Cores and memory: cores available to this process, free memory, and the number of threads torch uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import sleep

import torch

from .clock import time_call, time_in_turn

GLANCE = 0.1  # seconds over which the load of the machine is measured
TRIALS, TRIAL_SECONDS = 5, 2.0  # maximum number of timing rounds, and seconds after which no new round starts
WORTHWHILE = 0.9  # more threads must take less than this fraction of the time with fewer threads
CGROUP = Path("/sys/fs/cgroup")
QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


def usable_cores() -> int:
    """Return the number of cores this process may use: its CPU affinity, limited by the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for file in map(Path, QUOTAS):
        try:
            quota, period = (*file.read_text().split(), "100000")[:2]
        except OSError:  # another operating system or cgroup version
            continue
        if quota.isdecimal() and int(quota) > 0:
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return max(1, cores)


def free_cores() -> int:
    """Return the number of usable cores that are idle, at least 1; this takes a tenth of a second.

    A network that uses more threads than there are free cores is several times slower, not just proportionally: at
    the end of each layer all its threads wait for the one that shares its core.
    """
    cores = usable_cores()
    before = _busy_seconds()
    if cores == 1 or before is None:
        return cores
    own = sum(os.times()[:2])
    elapsed = time_call(lambda: sleep(GLANCE))
    own = sum(os.times()[:2]) - own
    busy = ((_busy_seconds() or before) - before - own) / elapsed
    return max(1, min(cores, round((os.cpu_count() or cores) - busy)))


def _busy_seconds() -> float | None:
    """Return the busy time of all cores since boot, or None if unknown."""
    try:
        words = Path("/proc/stat").read_text().partition("\n")[0].split()
        user, nice, system, _, _, interrupt, soft_interrupt, *_ = map(int, words[1:])
        return (user + nice + system + interrupt + soft_interrupt) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def free_memory() -> int | None:
    """Return the number of bytes that can be allocated without swapping, or None if unknown.

    A container may have a limit of its own.
    """
    free = _kilobytes("/proc/meminfo", "MemAvailable")
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # another operating system or cgroup version, or no container
        return free
    if free is None or not limit.isdecimal():
        return free
    return min(free, max(0, int(limit) - int(used) + int(statistics.get("inactive_file", 0))))


def own_memory() -> int | None:
    """Return the resident memory of this process in bytes, or None if unknown."""
    return _kilobytes("/proc/self/status", "VmRSS")


def _kilobytes(file: str, name: str) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in Path(file).read_text().splitlines() if ":" in line)
        return 1024 * int(lines[name].split()[0])
    except (OSError, KeyError, ValueError):
        return None


@contextmanager
def torch_threads(threads: int | None = None) -> Iterator[None]:
    """Let torch use ``threads`` threads in the block, by default as many as before; afterwards those of before."""
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(before)


def free_threads(cores: int | None = None) -> int:
    """Return the number of free cores as a number of threads; that of torch if ``OMP_NUM_THREADS`` is set.

    In that case the user has decided.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    return free_cores() if cores is None else cores


def fastest_threads(work: Callable[[], object], cores: int | None = None) -> int:
    """Return the number of threads with which torch is fastest at ``work``.

    The candidates are 1, half of the free cores and all of them, timed in turn for up to five rounds or two seconds
    and compared by their medians. More threads must be faster by a tenth: next to other busy processes, and for small
    networks, they often wait for each other. If ``OMP_NUM_THREADS`` is set, nothing is timed.
    """
    most = free_threads(cores)
    counts = sorted({1, max(1, most // 2), most})
    if len(counts) == 1 or "OMP_NUM_THREADS" in os.environ:
        return most

    def run(threads: int) -> None:
        with torch_threads(threads):
            work()

    run(1)  # warm-up, never very slow: the first call allocates
    times = time_in_turn([partial(run, count) for count in counts], TRIALS, TRIAL_SECONDS)
    best, least = 1, median(times[0])
    for count, seconds in zip(counts, times, strict=True):
        if median(seconds) < WORTHWHILE * least:
            best, least = count, median(seconds)
    return best
