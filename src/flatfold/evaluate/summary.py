"""Compute means, standard deviations and intervals over networks that differ only by seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, pstdev, variance
from typing import Any, ClassVar

from scipy.special import ndtr, ndtri, stdtrit

from ..core.intervals import paired_difference, smallest, student_quantile
from ..errors import DamagedFileError
from ..io.artifacts import encode, read_json
from ..io.files import write_atomically
from .compare import SIGNIFICANT, Change, column_influence
from .latex import LatexCell, deviation_after, latex_table
from .metrics import SHOWN, find_metrics, rank
from .results import ID, METRICS, Results, as_csv, load_results, remove_pages

NORMAL = float(ndtri(0.975))  # half the width of a 95 % interval, in standard errors of a normal distribution
NAMED = 3  # largest number of methods in a sentence, or one more


@dataclass(frozen=True)
class SummaryRow:
    """Metrics of a method in one column, over the networks of a family, which differ only by seed."""

    family: str
    method: str
    column: str  # a data set, or near, far or all for an average
    n: int  # number of networks
    means: dict[str, float]
    stds: dict[str, float]  # population standard deviations (divided by n), as in OpenOOD
    intervals: dict[str, tuple[float, float]]  # 95 % intervals of the mean, for metrics with an interval in every run


@dataclass(frozen=True)
class _Summary:
    """The content of ``summary.json``: the sub-folders of the runs, and their means."""

    FORMAT: ClassVar[str] = "flatfold-summary"
    VERSION: ClassVar[int] = 1

    runs: list[str]
    rows: list[SummaryRow]


def load_runs(folder: Path | str) -> dict[Path, Results]:
    """Load the runs of a folder by path: its own run, else those of its summary, else all in direct sub-folders."""
    folder = Path(folder)
    if (folder / "results.json").exists():
        return {folder: load_results(folder)}
    path = folder / "summary.json"
    names = read_json(path, _Summary).runs if path.exists() else []
    if not all(name == Path(name).name for name in names):  # a page is written into each of them
        raise DamagedFileError(f"{path} cannot be read: its runs are not all folders next to it.")
    places = [folder / name for name in names]
    places = places or [path.parent for path in sorted(folder.glob("*/results.json"))]
    if not places:
        raise ValueError(
            f"no results.json in {folder} or in its sub-folders. Run `flatfold bench` first, or pass its output folder."
        )
    return {place: load_results(place) for place in places}


def save_summary(rows: Sequence[SummaryRow], folder: Path | str, runs: Sequence[str]) -> None:
    """Write ``summary.csv`` and ``summary.json``, and remove an outdated page; ``runs`` are the sub-folders."""
    folder = Path(folder)
    text = encode(_Summary(list(runs), list(rows)))  # raises before anything is written
    write_atomically(folder / "summary.csv", as_csv(map(_flatten, rows)))
    write_atomically(folder / "summary.json", text)
    remove_pages(folder, "report.html")


def family_of(run: Results) -> str:
    """Return the name shared by networks that differ only by seed, by default the network's own name."""
    return str(run.suite.get("family") or run.suite.get("network") or run.suite["name"])


def families(runs: Iterable[Results]) -> dict[str, list[Results]]:
    """Group runs by family; all runs of a family must use the same suite."""
    groups: dict[str, list[Results]] = {}
    for run in runs:
        groups.setdefault(family_of(run), []).append(run)
    for family, group in groups.items():
        suites = list(dict.fromkeys(run.suite["name"] for run in group))
        if len(suites) > 1:
            raise ValueError(
                f"the runs of {family} must use one suite, got {' and '.join(suites)}. Summarise each suite separately."
            )
    return groups


def summarise(runs: Iterable[Results]) -> list[SummaryRow]:
    r"""Compute means over the networks of each family, in the order of its first run.

    Methods and columns that are not in every run of the family are omitted, and so are averages over data sets that
    differ from the first run. The 95 % interval of a mean of :math:`n` runs is

    .. math:: \bar x \pm \sqrt{1.96^2\, \bar v + t_{n-1}^2\, s^2 / n}

    All networks are evaluated on the same images, so the uncertainty due to the images, the mean
    :math:`\bar v` of the variances of the runs' own intervals, does not shrink with :math:`n`. The uncertainty due to
    the seed, the sample variance :math:`s^2`, does; :math:`t` is Student's. A single run keeps its own interval.
    Intervals are clipped to [0, 1].
    """
    rows = []
    for family, group in families(runs).items():
        first = group[0]
        for method in (run.method for run in first.methods):
            for column, members in first.members.items():
                if all(run.members.get(column) == members and (method, column) in run.cells for run in group):
                    rows.append(_row(family, method, column, group))
    return rows


def _row(family: str, method: str, column: str, group: Sequence[Results]) -> SummaryRow:
    cells = [run.cells[method, column] for run in group]
    intervals = [cell.certainty.intervals if cell.certainty is not None else {} for cell in cells]
    values = {metric: [float(getattr(cell, metric)) for cell in cells] for metric in METRICS}
    return SummaryRow(
        family,
        method,
        column,
        len(cells),
        means={metric: fmean(numbers) for metric, numbers in values.items()},
        stds={metric: pstdev(numbers) for metric, numbers in values.items()},
        intervals={
            metric: _clip(*_interval(numbers, [ends[metric] for ends in intervals]))
            for metric, numbers in values.items()
            if all(metric in ends for ends in intervals)
        },
    )


def answer(group: Sequence[Results]) -> str:
    """Return one sentence that names the best method of the runs of a family, by mean average AUROC.

    It also names the methods without a significant difference: zero lies in the interval of the mean difference,
    which is computed as in :func:`summarise`, from paired differences, at a level of 5 % with Bonferroni correction.
    """
    rows = {row.method: row for row in summarise(group) if row.column == "all"}
    if not rows:
        return "No method is in every run."
    best = max(rows.values(), key=lambda row: row.means["auroc"])
    leads = sum(max(rows, key=lambda name: run.cells[name, "all"].auroc) == best.method for run in group)
    text = f"{best.method} has the best average AUROC, {100 * best.means['auroc']:.2f} %"
    if "auroc" in best.intervals:
        text += " (95 % interval {:.2f} to {:.2f})".format(*(100 * end for end in best.intervals["auroc"]))
    if best.n > 1:
        text += f", as the mean of {best.n} runs; it is the best in {leads if leads < best.n else 'all'} of them"
    others = [method for method in rows if method != best.method]
    if others and all(f"{method}/{ID}" in run.scores for method in rows for run in group):
        level = 1 - SIGNIFICANT / len(others)
        rivals = [method for method in others if not _differs(group, best.method, method, level)]
        rivals.sort(key=lambda method: -rows[method].means["auroc"])
        more = f" and {len(rivals) - NAMED} others" if len(rivals) > NAMED + 1 else ""
        names = rivals[:NAMED] if more else rivals
        joined = ", ".join(names) if more else " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
        text += f"; no significant difference from {joined}{more}" if rivals else "; all others are significantly worse"
    return f"{text}."


def summary_latex(
    group: Sequence[Results],
    metrics: Sequence[str] = SHOWN,
    caption: str = "",
    label: str = "",
    columns: Sequence[str] | None = None,
) -> str:
    """Format the means over the runs of a family in LaTeX, with population standard deviations.

    The arguments are those of :meth:`Results.to_latex`.
    """
    rows = {(row.method, row.column): row for row in summarise(group)}
    first, (metric, *_) = group[0], find_metrics(metrics)
    shown = [column for column in first.find_columns(columns) if any(key[1] == column for key in rows)]
    methods = [run for run in first.methods if all((run.method, column) in rows for column in shown)]
    if shown:
        key = "all" if all((run.method, "all") in rows for run in methods) else shown[-1]
        methods.sort(key=lambda run: rank(metric, rows[run.method, key].means[metric]))
    lines = [
        (
            run.printed,
            [
                LatexCell(row.means, {name: deviation_after(deviation) for name, deviation in row.stds.items()})
                for row in (rows[run.method, column] for column in shown)
            ],
        )
        for run in methods
    ]
    notes = dict.fromkeys(f"{run.suite['name']}: {note}" for run in group for note in run.suite.get("deviations", ()))
    spread = f"mean and population standard deviation over {len(group)} runs"
    return latex_table([first.title_of(column) for column in shown], lines, metrics, caption, label, [spread, *notes])


def _differs(group: Sequence[Results], first: str, second: str, level: float) -> bool:
    """Return whether the mean difference of two methods over the runs is significant."""
    differences = []
    for run in group:
        members = run.members["all"]
        influences = [column_influence(run.scores, method, members) for method in (first, second)]
        differences.append(paired_difference(influences[0], influences[1], level))
    ends = [(difference.low, difference.high) for difference in differences]
    low, high = _interval([difference.value for difference in differences], ends, level)
    return not low <= 0 <= high


def _clip(low: float, high: float) -> tuple[float, float]:
    return max(0.0, low), min(1.0, high)


def _interval(values: Sequence[float], ends: Sequence[tuple[float, float]], level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean of ``values`` from their intervals; see :func:`summarise`."""
    return ends[0] if len(values) == 1 else mean_interval(values, [(high - low) / 2 for low, high in ends], level)


def mean_interval(values: Sequence[float], halves: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return the interval of a mean over seeds from the half-widths of the values' intervals; see :func:`summarise`."""
    n = len(values)
    images = fmean(half**2 for half in halves)  # 1.96^2 times the variance
    seeds = student_quantile(level, n - 1) ** 2 * variance(values) / n if n > 1 else 0.0
    return fmean(values) - sqrt(images + seeds), fmean(values) + sqrt(images + seeds)


def mean_p_value(values: Sequence[float], halves: Sequence[float]) -> float:
    """Return 1 minus the level at which the interval of a mean over seeds just reaches 0; see :func:`summarise`.

    ``halves`` are the half-widths of the 95 % intervals of the values.
    """
    n, mean = len(values), abs(fmean(values))
    images, seeds = fmean(half**2 for half in halves) / NORMAL**2, variance(values) / n
    if images + seeds == 0:
        return 1.0 if mean == 0 else 0.0

    def reaches_0(z: float) -> bool:
        """Return whether the interval of ``z`` standard errors of a normal distribution contains 0."""
        t = -float(stdtrit(n - 1, ndtr(-z))) if seeds else 0.0
        return z**2 * images + t**2 * seeds >= mean**2

    return float(2 * ndtr(-smallest(reaches_0)))


def compare_over_seeds(runs: Sequence[Sequence[Change]]) -> list[Change]:
    r"""Return the mean differences of paired comparisons over runs that differ by their seed.

    The interval of a mean difference is that of :func:`summarise`: with the differences :math:`d_i` of :math:`n` runs,
    their sample variance :math:`s^2`, and the mean :math:`\bar v` of the variances of their own intervals,

    .. math:: \bar d \pm \sqrt{1.96^2\, \bar v + t_{n-1}^2\, s^2 / n}

    Without the first term, which is due to the images that all runs share, this is the paired t interval over seeds.
    For AUROC, 1 - p is the level at which the interval just reaches 0. Differences that are not in every run are left
    out, and a single run keeps its own.
    """
    if len(runs) == 1:
        return list(runs[0])
    tables = [{(change.method, change.column, change.metric): change for change in run} for run in runs]
    means = []
    for key, first in tables[0].items():
        if not all(key in table for table in tables):
            continue
        changes = [table[key] for table in tables]
        values, halves = [it.difference for it in changes], [(it.high - it.low) / 2 for it in changes]
        low, high = mean_interval(values, halves)
        mean = replace(
            first,
            a=fmean(it.a for it in changes),
            b=fmean(it.b for it in changes),
            difference=fmean(values),
            low=max(-1.0, low),
            high=min(1.0, high),
            p_value=None if first.p_value is None else mean_p_value(values, halves),
            paired=all(it.paired for it in changes),
            runs=len(changes),
        )
        means.append(mean)
    return means


def load_seeds(folder: Path | str) -> dict[str, list[Results]]:
    """Load the runs of a folder by family; the runs of a family must have networks of different names."""
    folder = Path(folder)
    runs = load_runs(folder)
    groups = families(runs.values())
    for group in groups.values():
        names = [run.suite.get("network") for run in group]
        if len(group) > 1 and (len(set(names)) < len(names) or not all(names)):
            places = [place.relative_to(folder) for place in runs]
            raise ValueError(
                f"{folder} holds several runs: {', '.join(map(str, places))}. Pass one, such as {folder / places[0]}."
            )
    return groups


def pair_runs(
    a: Mapping[str, Sequence[Results]], b: Mapping[str, Sequence[Results]]
) -> dict[str, list[tuple[Results, Results]]]:
    """Return the runs of two folders in pairs, by family; several runs are paired by the names of their networks."""
    ours, theirs = ([run for group in runs.values() for run in group] for runs in (a, b))
    if len(ours) == len(theirs) == 1:
        return {next(iter(a)): [(ours[0], theirs[0])]}
    by_name = {str(run.suite.get("network")): run for run in theirs}
    names = [str(run.suite.get("network")) for run in ours]
    if sorted(names) != sorted(by_name):
        raise ValueError(
            f"several runs are compared in pairs of one name, but A has {', '.join(names)} and B {', '.join(by_name)}. "
            "Pass folders with the same networks and seeds, or the folder of one run each."
        )
    return {family: [(run, by_name[str(run.suite.get("network"))]) for run in group] for family, group in a.items()}


def _flatten(row: SummaryRow) -> dict[str, Any]:
    """Return a row as columns of a table; missing intervals are empty."""
    columns: dict[str, Any] = {"family": row.family, "method": row.method, "column": row.column, "n": row.n}
    for metric in METRICS:
        low, high = row.intervals.get(metric, (None, None))
        columns |= {metric: row.means[metric], f"{metric}_std": row.stds[metric]}
        columns |= {f"{metric}_low": low, f"{metric}_high": high}
    return columns
