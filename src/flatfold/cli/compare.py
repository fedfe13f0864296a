"""``flatfold compare``: differences between two runs, or between two methods of one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from .options import TableOptions
from .output import open_console, print_json, print_table, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..evaluate.compare import Change
    from ..evaluate.results import Results

UNITS = "Differences B - A in percentage points."

PAIRED = "Paired: both sides scored the same images. AUROC by DeLong's test, other metrics by a paired bootstrap."

UNPAIRED = "Not paired: the images differ, or may differ, so only larger differences are significant."

MIXED = "p with ~ is not paired: the images of that data set differ, or may differ."

CAUTION = (
    "* the 95 % interval does not contain 0. Intervals and p are not corrected for multiple comparisons: "
    "without any true difference, about one in 20 has a star."
)

SEEDS = (
    "Intervals hold the uncertainty of the images and of the seeds: mean ± sqrt(1.96² v + t² s² / n), with the mean "
    "variance v due to the images, the standard deviation s of the n differences, and Student's t of n - 1 degrees."
)


def compare(
    a: Annotated[Path, Argument(help="Output folder of `flatfold bench`.")],
    b: Annotated[Path | None, Argument(help="Another such folder. Default: compare two methods of A.")] = None,
    methods: Annotated[
        str | None, Option(help="Methods to compare, separated by commas. Default: all in both.")
    ] = None,
    csv: Annotated[Path | None, Option(help="File for every difference, with interval and p-value.")] = None,
    *,
    table: TableOptions,
) -> None:
    """Compare two runs, or two methods of one run.

    Differences have intervals and p-values. Runs that scored the same images are compared by paired tests, which detect
    smaller differences. A folder with several seeds gives the mean difference over the seeds, with an interval for the
    uncertainty of the images and of the seeds; two such folders are compared seed by seed.

    Example: flatfold compare out/before out/after --csv changes.csv

    Example: flatfold compare out/digits --methods msp,autofold
    """
    from ..evaluate.compare import check_labels, compare_methods, only_one_has
    from ..evaluate.compare import compare as compare_runs
    from ..evaluate.methods import split_methods
    from ..evaluate.results import as_csv
    from ..evaluate.summary import compare_over_seeds, load_seeds, pair_runs
    from ..io.files import write_atomically

    labels = [] if methods is None else split_methods(methods)
    if b is None and len(labels) != 2:
        raise typer.BadParameter("without a second folder, --methods must name two methods of the first.")
    metrics = table.metrics()
    folders = [folder for folder in (a, b) if folder is not None]
    runs = [load_seeds(folder) for folder in folders]
    for folder, families in zip(folders, runs, strict=True):
        for run in (run for group in families.values() for run in group):
            check_labels(run, labels, str(folder))
    found: dict[str, list[list[Change]]] = {}
    if b is None:
        for family, group in runs[0].items():
            found[family] = [compare_methods(run, labels[0], labels[1], metrics=metrics) for run in group]
        remarks = deviations(("Both", run) for group in runs[0].values() for run in group)
    else:
        pairs = pair_runs(*runs)
        for family, both in pairs.items():
            found[family] = [compare_runs(x, y, labels or None, metrics=metrics) for x, y in both]
        couples = [couple for both in pairs.values() for couple in both]
        remarks = list(dict.fromkeys(remark for x, y in couples for remark in only_one_has(x, y)))
        remarks += deviations(side for x, y in couples for side in (("A", x), ("B", y)))
    lines = []
    for family, group in runs[0].items():
        chosen = table.columns(group[0].members)
        changes = [it for it in compare_over_seeds(found[family]) if chosen is None or it.column in chosen]
        shown = [it for it in changes if chosen is not None or it.column in group[0].columns]
        names = ", ".join(str(run.suite["network"]) for run in group) if len(group) > 1 else ""
        title = f"{family}: mean of {len(group)} runs, {names}." if names else f"{family}:" if len(found) > 1 else ""
        print_changes(shown, remarks if family == list(found)[-1] else (), title)
        lines += [{"family": family} | asdict(it) | {"significant": it.significant} for it in changes]
    if csv is not None:
        write_atomically(csv, as_csv(lines))
        say(f"{len(lines)} lines -> {csv}")
    print_json(changes=lines, remarks=remarks, csv=csv)


def deviations(runs: Iterable[tuple[str, Results]]) -> list[str]:
    """Return the distinct deviations from the suite, with the names of the runs that have them."""
    names: dict[str, dict[str, None]] = {}
    for name, run in runs:
        for sentence in run.suite.get("deviations") or ():
            names.setdefault(str(sentence).rstrip("."), {})[name] = None
    return [f"{' and '.join(runs)}: {sentence}." for sentence, runs in names.items()]


def print_changes(changes: Sequence[Change], remarks: Sequence[str] = (), title: str = "") -> None:
    """Print one line per method and data set, and the tests used; print one metric only if the terminal is narrow."""
    from ..evaluate.metrics import METRICS, describe_metrics

    console = open_console(listing=True)
    metrics = list(dict.fromkeys(change.metric for change in changes))
    if title:
        console.print(title, markup=False, highlight=False)
    fits = print_table(console, _table(changes, metrics), _table(changes, metrics[:1])) == 0
    kinds = {change.paired for change in changes}
    how = MIXED if len(kinds) == 2 else PAIRED if kinds == {True} else UNPAIRED
    seeds = [SEEDS] * any(change.runs > 1 for change in changes)
    for line in (f"{describe_metrics(metrics)} {UNITS}", how, *seeds, CAUTION, *remarks):
        console.print(line, markup=False, highlight=False)
    if not fits and len(metrics) > 1:
        others = " and ".join(METRICS[metric].title for metric in metrics[1:])
        console.print(f"The terminal is too narrow for {others}: use --metric, or --csv to write it to a file.")


def _table(changes: Sequence[Change], metrics: Sequence[str]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from ..evaluate.metrics import METRICS

    table = Table(box=None, pad_edge=False)
    for name in ("method", "data set"):
        table.add_column(name, no_wrap=True)
    tested = {change.metric for change in changes if change.p_value is not None}
    for metric in metrics:
        for head in (f"{METRICS[metric].title} A", "B", "B - A", "95 % interval", "", *["p"] * (metric in tested)):
            table.add_column(head, justify="right", no_wrap=True)
    mixed = len({change.paired for change in changes}) == 2
    by_key = {(change.method, change.column, change.metric): change for change in changes}
    for method, column in dict.fromkeys((change.method, change.column) for change in changes):
        row = [by_key[method, column, metric] for metric in metrics if (method, column, metric) in by_key]
        cells = (cell for change in row for cell in _cells(change, mixed))
        table.add_row(escape(method), escape("average" if column == "all" else column), *cells)
    return table


def _cells(change: Change, mixed: bool) -> list[str]:
    """Format both values, the difference with its interval, a star, and p if available."""
    nearest = 100 * min(abs(change.low), abs(change.high))
    # Two digits, or up to four if the end of a significant interval would be printed as 0.00.
    digits = next((digits for digits in (2, 3) if not change.significant or round(nearest, digits) > 0), 4)
    difference, low, high = (f"{100 * x:+z.{digits}f}" for x in (change.difference, change.low, change.high))
    star = "*" if change.significant else ""
    cells = [f"{100 * change.a:.2f}", f"{100 * change.b:.2f}", difference, f"{low}..{high}", star]
    if change.p_value is None:
        return cells
    p = "<0.001" if change.p_value < 0.001 else f"{change.p_value:.3f}"
    return [*cells, f"{p}~" if mixed and not change.paired else p]
