"""Cores and memory: cores available to this process, free memory, and the number of threads torch uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import torch

GLANCE = 0.1  # seconds over which the load of the machine is measured
TRIALS, TRIAL_SECONDS = 5, 2.0  # maximum number of timing rounds, and seconds after which no new round starts
WORTHWHILE = 0.9  # more threads must take less than this fraction of the time with fewer threads
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
    start, own = perf_counter(), sum(os.times()[:2])
    sleep(GLANCE)
    elapsed, own = perf_counter() - start, sum(os.times()[:2]) - own
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
    """Return the number of bytes that can be allocated without swapping, or None if unknown."""
    return _kilobytes("/proc/meminfo", "MemAvailable")


def own_memory() -> int | None:
    """Return the resident memory of this process in bytes, or None if unknown."""
    return _kilobytes("/proc/self/status", "VmRSS")


def _kilobytes(file: str, name: str) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in Path(file).read_text().splitlines() if ":" in line)
        return 1024 * int(lines[name].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def use_free_cores(cores: int | None = None) -> int:
    """Set torch's number of threads to the number of free cores, and return the number it uses.

    If ``OMP_NUM_THREADS`` is set, nothing is changed: the user has decided.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(free_cores() if cores is None else cores)
    return torch.get_num_threads()


def choose_threads(work: Callable[[], object], cores: int | None = None) -> int:
    """Set torch's number of threads to the fastest one for ``work``, and return it.

    The candidates are 1, half of the free cores and all of them, timed in turn for up to five rounds or two seconds
    and compared by their medians. More threads must be faster by a tenth: next to other busy processes, and for small
    networks, they often wait for each other. If ``OMP_NUM_THREADS`` is set, nothing is timed or changed.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    most = free_cores() if cores is None else cores
    counts = sorted({1, max(1, most // 2), most})
    if len(counts) > 1:
        torch.set_num_threads(1)  # never very slow
        work()  # warm-up: the first call allocates
    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(TRIALS if len(counts) > 1 else 0):
        for count, seconds in times.items():
            torch.set_num_threads(count)
            start = perf_counter()
            work()
            seconds.append(perf_counter() - start)
        if sum(map(sum, times.values())) > TRIAL_SECONDS:
            break
    best = 1
    for count, seconds in times.items():
        if seconds and median(seconds) < WORTHWHILE * median(times[best]):
            best = count
    torch.set_num_threads(best)
    return best
