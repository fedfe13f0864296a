"""Several networks that differ by their seed, as one: means, spread, and how far the mean can be trusted."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, pstdev, variance
from typing import Any

from ..core.intervals import student_quantile
from ..io.files import write_atomically
from .results import METRICS, Results, as_csv, load_results

FORMAT, VERSION = "flatfold-summary", 1


@dataclass(frozen=True)
class SummaryRow:
    """A method's figures in one column of a table, over all networks of a family.

    Attributes:
        family: What the networks have in common: everything but the seed.
        method: As tables call it.
        column: A data set, or ``near``, ``far`` or ``all`` for an average.
        n: How many networks.
        means: By metric, between 0 and 1.
        stds: Population standard deviation over the networks (divided by ``n``), as OpenOOD prints it.
        intervals: 95 % interval of the mean, for the metrics of which every run has one.
    """

    family: str
    method: str
    column: str
    n: int
    means: dict[str, float]
    stds: dict[str, float]
    intervals: dict[str, tuple[float, float]]


def load_runs(folder: Path) -> dict[Path, Results]:
    """Return the runs of a folder by the place of their files: its own, or those that its summary is about.

    Without either, all of its direct sub-folders that hold results are taken.
    """
    if (folder / "results.json").exists():
        return {folder: load_results(folder)}
    places = _summarised(folder) or [path.parent for path in sorted(folder.glob("*/results.json"))]
    if not places:
        raise ValueError(
            f"there is no results.json in {folder}, nor in a folder inside it. "
            "Run `flatfold bench` first, or name its --out folder."
        )
    return {place: load_results(place) for place in places}


def _summarised(folder: Path) -> list[Path]:
    """Return the places of the runs that a summary is about, none if there is no summary."""
    path = folder / "summary.json"
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError("it is of another kind")
        return [folder / str(name) for name in content["runs"]]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}. Run `flatfold bench` again.") from error


def family_of(run: Results) -> str:
    """Return what the network of a run shares with those that differ by their seed, or else the network's name."""
    return str(run.suite.get("family") or run.suite.get("network") or run.suite["name"])


def families(runs: Iterable[Results]) -> dict[str, list[Results]]:
    """Return the runs by family, which must have been judged on one suite."""
    groups: dict[str, list[Results]] = {}
    for run in runs:
        groups.setdefault(family_of(run), []).append(run)
    for family, group in groups.items():
        suites = list(dict.fromkeys(run.suite["name"] for run in group))
        if len(suites) > 1:
            raise ValueError(
                f"the runs of {family} must come from one suite, but they come from {' and '.join(suites)}. "
                "Summarise each suite by itself."
            )
    return groups


def summarise(runs: Iterable[Results]) -> list[SummaryRow]:
    r"""Return means over the networks of each family, in the order of its first run.

    A method or a column that is not in every run of the family is left out, and so is an average over other data sets
    than in the first run. The 95 % interval of a mean of :math:`n` runs holds two kinds of doubt:

    .. math:: \bar x \pm \sqrt{1.96^2\, \bar v + t_{n-1}^2\, s^2 / n}

    Networks of other seeds are judged on the same images, so what those leave open, the mean :math:`\bar v` of the
    variances behind the runs' own intervals, does not shrink with :math:`n`. What another seed would change, the sample
    variance :math:`s^2`, does; so few seeds tell little of it, hence Student's :math:`t`. A single run keeps its own
    interval. No interval goes beyond 0 or 1.
    """
    rows = []
    for family, group in families(runs).items():
        first = group[0]
        for method in (run.method for run in first.methods):
            for column in first.columns:
                members = [_members(run, method, column) for run in group]
                if members[0] and all(other == members[0] for other in members):
                    rows.append(_row(family, method, column, group))
    return rows


def _members(run: Results, method: str, column: str) -> set[str]:
    """Return the data sets on which a figure rests; none when the run does not have it."""
    return {r.dataset for r in run.rows if r.method == method and column in (r.dataset, r.group, "all")}


def _row(family: str, method: str, column: str, group: Sequence[Results]) -> SummaryRow:
    cells = [run.cells[method, column] for run in group]
    told = [cell.certainty.intervals if cell.certainty is not None else {} for cell in cells]
    values = {metric: [float(getattr(cell, metric)) for cell in cells] for metric in METRICS}
    return SummaryRow(
        family,
        method,
        column,
        len(cells),
        means={metric: fmean(numbers) for metric, numbers in values.items()},
        stds={metric: pstdev(numbers) for metric, numbers in values.items()},
        intervals={
            metric: _interval(numbers, [ends[metric] for ends in told])
            for metric, numbers in values.items()
            if all(metric in ends for ends in told)
        },
    )


def _interval(values: Sequence[float], ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of ``values`` from that of each; see :func:`summarise`."""
    n = len(values)
    if n == 1:
        return ends[0]
    images = fmean(((high - low) / 2) ** 2 for low, high in ends)  # 1.96^2 times the variance
    seeds = student_quantile(0.95, n - 1) ** 2 * variance(values) / n
    half = sqrt(images + seeds)
    return max(0.0, fmean(values) - half), min(1.0, fmean(values) + half)


def save_summary(rows: Sequence[SummaryRow], folder: Path, runs: Sequence[str]) -> None:
    """Write ``summary.csv`` and ``summary.json``, each of them at once or not at all.

    Args:
        rows: From ``summarise``.
        folder: Where they go.
        runs: The sub-folders with the results that were summarised.
    """
    content = {"format": FORMAT, "version": VERSION, "runs": list(runs), "rows": [asdict(row) for row in rows]}
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"  # which may refuse, before anything is written
    write_atomically(folder / "summary.csv", as_csv(map(_flat, rows)))
    write_atomically(folder / "summary.json", text)


def _flat(row: SummaryRow) -> dict[str, Any]:
    """Return a row as the columns of a table; an interval that does not exist leaves its two cells empty."""
    columns: dict[str, Any] = {"family": row.family, "method": row.method, "column": row.column, "n": row.n}
    for metric in METRICS:
        low, high = row.intervals.get(metric, (None, None))
        columns |= {metric: row.means[metric], f"{metric}_std": row.stds[metric]}
        columns |= {f"{metric}_low": low, f"{metric}_high": high}
    return columns
