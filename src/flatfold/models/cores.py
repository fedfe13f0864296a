"""How many cores and how much memory this process may use, and how much of both other processes leave free."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter, sleep

GLANCE = 0.1  # seconds to look at the load of a machine
QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


def usable_cores() -> int:
    """Return how many cores this process may use: those it is bound to, within the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for file in map(Path, QUOTAS):
        try:
            quota, period = (*file.read_text().split(), "100000")[:2]
        except OSError:  # another system, or another version of cgroups
            continue
        if quota.isdecimal() and int(quota) > 0:
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return max(1, cores)


def free_cores() -> int:
    """Return how many of these cores other processes leave free, at least 1; this takes a tenth of a second.

    A network that computes with more threads than there are free cores is several times slower, not only by the share
    that is taken: at the end of each layer all of its threads wait for the one that has to share its core.
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
    """Return the time that all cores of the machine have worked since it was started; None where that is not known."""
    try:
        words = Path("/proc/stat").read_text().partition("\n")[0].split()
        user, nice, system, _, _, interrupt, soft_interrupt, *_ = map(int, words[1:])
        return (user + nice + system + interrupt + soft_interrupt) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def free_memory() -> int | None:
    """Return how many bytes can be taken without swapping, None where that is not known."""
    return _kilobytes("/proc/meminfo", "MemAvailable")


def own_memory() -> int | None:
    """Return how many bytes of memory this process occupies, None where that is not known."""
    return _kilobytes("/proc/self/status", "VmRSS")


def _kilobytes(file: str, name: str) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in Path(file).read_text().splitlines() if ":" in line)
        return 1024 * int(lines[name].split()[0])
    except (OSError, KeyError, ValueError):
        return None
