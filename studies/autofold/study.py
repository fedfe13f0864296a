"""The study from beginning to end."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

import flatfold
from flatfold.display.figure import adaptive
from flatfold.evaluate.suites.suite import Suite
from flatfold.io.files import write_atomically
from flatfold.io.progress import track

from .cases import Role, case_of, suites_of
from .families import ALPHAS
from .figures import figures
from .measure import measure
from .results import Found, as_csv, rows_of
from .selection import LIMIT, verdicts
from .store import key_of, load_measured, save_measured

REPLICATES = 300


def run(out: Path, data: Path | None, replicates: int = REPLICATES, seeds: tuple[int, ...] = (0, 1, 2)) -> list[Found]:
    """Measure every network under every rule and write ``study.json``, ``autofold.csv`` and the figures.

    Args:
        out: Where everything goes; what is there already is not done again.
        data: Folder of real images and pretrained networks; None leaves the built-in suite alone.
        replicates: Bootstraps of all images.
        seeds: Of the built-in suite.
    """
    if replicates < 2:
        raise ValueError(f"an interval needs at least 2 replicates, got {replicates}. 300 are the default.")
    found = []
    for suite, role in track(suites_of(out, data, seeds), "networks"):
        found.append(_found(suite, role, out, replicates))
    write(found, out, replicates)
    return found


def write(found: Sequence[Found], out: Path, replicates: int) -> None:
    """Write the tables and the figures of a study."""
    rows = [row for each in found for row in rows_of(each)]
    write_atomically(out / "autofold.csv", as_csv(rows))
    write_atomically(out / "study.json", json.dumps(_summary(found, replicates), indent=1) + "\n")
    for drawing in figures(found):
        write_atomically(out / f"{drawing.name}.svg", adaptive(drawing.svg()))


def _found(suite: Suite, role: Role, out: Path, replicates: int) -> Found:
    """Return a measured case, from disk where it was measured before."""
    name = "-".join(filter(None, (suite.name, suite.network)))
    path = out / "measured" / f"{name}-{key_of(suite, replicates)}.npz"
    measured = load_measured(path)
    if measured is None:
        case = case_of(suite, role, out)
        measured = measure(case, replicates)
        save_measured(measured, path)
    return Found(suite.name, suite.network, role, measured)


def _summary(found: Sequence[Found], replicates: int) -> dict[str, object]:
    return {
        "versions": {"flatfold": flatfold.__version__, "torch": torch.__version__, "numpy": np.__version__},
        "python": platform.python_version(),
        "replicates": replicates,
        "alphas": ALPHAS,
        "limit": LIMIT,
        "networks": [
            {
                "suite": each.suite,
                "network": each.network,
                "role": each.role,
                "accuracy": float(each.measured.accuracy),
                "ood": each.measured.datasets[:-1],
                "criterion": each.measured.criterion.tolist(),
                "truth": each.measured.truth.tolist(),
            }
            for each in found
        ],
        "verdicts": [
            asdict(verdict) | {"kept": verdict.kept, "confirmed": verdict.confirmed} for verdict in verdicts(found)
        ],
    }
