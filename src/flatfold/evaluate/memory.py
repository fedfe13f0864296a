"""How much memory a piece of work takes beyond what was in use before it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

MEGABYTE = 1e6
RESET = Path("/proc/self/clear_refs")  # writing 5 there forgets the peak
STATUS = Path("/proc/self/status")


@dataclass
class Peak:
    """Filled in when the work is done: megabytes, or None where the system does not tell."""

    megabytes: float | None = None


@contextmanager
def peak_memory(device: str = "cpu") -> Iterator[Peak]:
    """Measure the peak of a block: of the process on Linux, of the GPU when the work is done there.

    Memory that was freed before and is used again does not count on the CPU, so a small figure may be 0.

    Args:
        device: Where the work is done.
    """
    peak = Peak()
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.megabytes = (torch.cuda.max_memory_allocated(device) - before) / MEGABYTE
        return
    start = None
    with suppress(OSError):
        RESET.write_text("5")
        start = _resident("VmRSS")
    yield peak
    if start is not None:
        peak.megabytes = max(0.0, _resident("VmHWM") - start) / MEGABYTE


def _resident(name: str) -> float:
    """Return a size of this process in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024.0 * int(line.split()[1])
    raise OSError(f"the system does not tell {name}")
