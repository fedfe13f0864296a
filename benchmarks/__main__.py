"""Run benchmarks by name, by default all that take minutes; leave with 1 if a figure is not what it should be."""

import platform
import sys

import numpy as np
import torch

from . import (
    alarms,
    autofold,
    curvature,
    eigenvalues,
    fold,
    growth,
    guard,
    mahalanobis,
    neighbours,
    onepass,
    pixels,
    precision,
    ranking,
    ray_overhead,
    serving,
    share,
    throughput,
)

BENCHMARKS = {
    "fold": fold.run,
    "autofold": autofold.run,
    "ranking": ranking.run,
    "share": share.run,
    "guard": guard.run,
    "neighbours": neighbours.run,
    "mahalanobis": mahalanobis.run,
    "onepass": onepass.run,
    "eigenvalues": eigenvalues.run,
    "curvature": curvature.run,
    "growth": growth.run,
    "rows": growth.rows,
    "throughput": throughput.run,
    "precision": precision.run,
    "alarms": alarms.run,
    "ray": ray_overhead.run,
    "serving": serving.run,
    "pixels": pixels.run,
}
ON_REQUEST = {"rows"}  # takes more than an hour


def main(names: list[str]) -> int:
    """Run the named benchmarks, all of them by default."""
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        print(f"no benchmark is called {', '.join(unknown)}. Known: {', '.join(BENCHMARKS)}.", file=sys.stderr)
        return 2
    versions = f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
    print(f"{versions}, {torch.get_num_threads()} threads, float32 unless said otherwise\n")
    chosen = names or [name for name in BENCHMARKS if name not in ON_REQUEST]
    passed = [ok for name in chosen for ok in BENCHMARKS[name]()]
    print(f"\n{sum(passed)} of {len(passed)} as wanted")
    return 0 if all(passed) else 1


sys.exit(main(sys.argv[1:]))
