"""``flatfold compare``: differences between two runs, or between two methods of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from .output import open_console, print_json, print_table, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..evaluate.compare import Change
    from ..evaluate.results import Results

UNITS = "In percent; differences B - A in percentage points. FPR95 counts OOD as positive: less is better."

PAIRED = "Paired: both runs scored the same images. AUROC by DeLong's test, FPR95 by a paired bootstrap."

UNPAIRED = "Not paired: the images differ, or may differ, so only larger differences are significant."

MIXED = "p with ~ is not paired: the images of that data set differ, or may differ."

CAUTION = (
    "* the 95 % interval does not contain 0. Intervals and p are not corrected for multiple comparisons: "
    "without any true difference, about one in 20 has a star."
)

HEADS = {
    "auroc": ("AUROC A", "B", "B - A", "95 % interval", "", "p"),
    "fpr95_ood_positive": ("FPR95 A", "B", "B - A", "95 % interval", ""),
}


def compare(
    a: Annotated[Path, Argument(help="Output folder of `flatfold bench`.")],
    b: Annotated[Path | None, Argument(help="Another such folder. Default: compare two methods of A.")] = None,
    methods: Annotated[
        str | None, Option(help="Methods to compare, separated by commas. Default: all in both.")
    ] = None,
    csv: Annotated[Path | None, Option(help="File for every difference, with interval and p-value.")] = None,
) -> None:
    """Compare two runs, or two methods of one run.

    Differences have intervals and p-values. Runs that scored the same images are compared by paired tests, which detect
    smaller differences.

    Example: flatfold compare out/before out/after --csv changes.csv

    Example: flatfold compare out/digits --methods msp,autofold
    """
    from ..evaluate.compare import check_labels, compare_methods, only_one_has
    from ..evaluate.compare import compare as compare_runs
    from ..evaluate.methods import split_methods
    from ..evaluate.results import as_csv
    from ..io.files import write_atomically

    labels = [] if methods is None else split_methods(methods)
    if b is None and len(labels) != 2:
        raise typer.BadParameter("without a second folder, --methods must name two methods of the first.")
    runs = {folder: _load(folder) for folder in (a, b) if folder is not None}
    for folder, run in runs.items():
        check_labels(run, labels, str(folder))
    if b is None:
        changes, remarks = compare_methods(runs[a], labels[0], labels[1]), deviations({"Both": runs[a]})
    else:
        changes = compare_runs(runs[a], runs[b], labels or None)
        remarks = only_one_has(runs[a], runs[b]) + deviations({"A": runs[a], "B": runs[b]})
    print_changes([change for change in changes if change.column in runs[a].columns], remarks)
    lines = [asdict(change) | {"significant": change.significant} for change in changes]
    if csv is not None:
        write_atomically(csv, as_csv(lines))
        say(f"{len(changes)} lines -> {csv}")
    print_json(changes=lines, remarks=remarks, csv=csv)


def _load(folder: Path) -> Results:
    """Load the run of a folder; raise if there are several runs."""
    from ..evaluate.results import load_results

    runs = sorted(path.parent.name for path in folder.glob("*/results.json"))
    if runs and not (folder / "results.json").exists():
        raise ValueError(f"{folder} holds several runs: {', '.join(runs)}. Pass one, such as {folder / runs[0]}.")
    return load_results(folder)


def deviations(runs: Mapping[str, Results]) -> list[str]:
    """Return the distinct deviations from the suite, with the runs that have them."""
    names: dict[str, list[str]] = {}
    for name, run in runs.items():
        for sentence in run.suite.get("deviations") or ():
            names.setdefault(str(sentence).rstrip("."), []).append(name)
    return [f"{' and '.join(runs)}: {sentence}." for sentence, runs in names.items()]


def print_changes(changes: Sequence[Change], remarks: Sequence[str] = ()) -> None:
    """Print one line per method and data set, and the tests used; print AUROC only if the terminal is narrow."""
    console = open_console(listing=True)
    fits = print_table(console, _table(changes, tuple(HEADS)), _table(changes, ("auroc",)))
    kinds = {change.paired for change in changes}
    how = MIXED if len(kinds) == 2 else PAIRED if kinds == {True} else UNPAIRED
    for line in (UNITS, how, CAUTION, *remarks):
        console.print(line, markup=False, highlight=False)
    if not fits and any(change.metric != "auroc" for change in changes):
        console.print("The terminal is too narrow for FPR95; use --csv to write it to a file.")


def _table(changes: Sequence[Change], metrics: Sequence[str]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("method", "data set"):
        table.add_column(name, overflow="fold")
    for head in (head for metric in metrics for head in HEADS[metric]):
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
