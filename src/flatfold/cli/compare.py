"""``flatfold compare``: what changed between two runs, or from one method to another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import open_console

if TYPE_CHECKING:
    from rich.table import Table

    from ..evaluate.compare import Change
    from ..evaluate.results import Results


UNITS = "In percent; differences B - A in percentage points. FPR95 counts OOD as positive: less is better."

PAIRED = "Paired: both judged the same images. AUROC by DeLong's test, FPR95 on the same redrawn images."

UNPAIRED = (
    "Not paired: the images differ, or it is not known that they are the same, so both sides vary on their own and a "
    "change must be larger to show."
)

MIXED = "p with ~ is not paired: there the images differ, or it is not known that they are the same."

CAUTION = (
    "* the 95 % interval leaves out 0. Intervals and p are not corrected for many comparisons: "
    "of 20 without any change, one has a star by chance."
)

HEADS = {
    "auroc": ("AUROC A", "B", "B - A", "95 % interval", "", "p"),
    "fpr95_ood_positive": ("FPR95 A", "B", "B - A", "95 % interval", ""),
}

ENDLESS = 10_000  # columns of text: no table is wider


def compare(
    a: Annotated[Path, typer.Argument(help="Folder that `flatfold bench` wrote.")],
    b: Annotated[Path | None, typer.Argument(help="Another one. Without it, two methods of A are compared.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Comma-separated labels, as the table of the run shows them. Default with B: all in both."),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Where every figure goes, with intervals and p-values.")] = None,
) -> None:
    """Compare two runs, or two methods of one, and say which differences chance alone would hardly give.

    Runs that judged the same images are compared image by image, which finds smaller differences.

    Example: flatfold compare out/before out/after --csv changes.csv

    Example: flatfold compare out/digits --methods msp,autofold
    """
    from ..evaluate.compare import check_labels, compare_methods, only_one_has
    from ..evaluate.compare import compare as compare_runs

    labels = [] if methods is None else [label.strip() for label in re.split(r",(?![^\[(]*[\])])", methods)]
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
    print_changes(changes, remarks)
    if csv is not None:
        _write(changes, csv)


def _load(folder: Path) -> Results:
    """Read the run of a folder; one that holds runs in folders of their own is refused with their names."""
    from ..evaluate.results import load_results

    inside = sorted(path.parent.name for path in folder.glob("*/results.json"))
    if inside and not (folder / "results.json").exists():
        many = len(inside) > 1
        raise ValueError(
            f"{folder} holds {'several runs' if many else 'a run inside'}: {', '.join(inside)}. "
            f"Name {'one of them' if many else 'it'}, as in {folder / inside[0]}."
        )
    return load_results(folder)


def deviations(runs: Mapping[str, Results]) -> list[str]:
    """Return what was not as the suite says, each sentence once, with the runs that it is about."""
    about: dict[str, list[str]] = {}
    for name, run in runs.items():
        for sentence in run.suite.get("deviations") or ():
            about.setdefault(str(sentence).rstrip("."), []).append(name)
    return [f"{' and '.join(names)}: {sentence}." for sentence, names in about.items()]


def print_changes(changes: Sequence[Change], remarks: Sequence[str] = ()) -> None:
    """Print a line per method and column, how it was computed, and what could not be compared.

    A narrow terminal gets AUROC only, which a line below the table says; a pipe has no width to respect.
    """
    console = open_console()
    whole = _table(changes, ("auroc", "fpr95_ood_positive"))
    fits = console.measure(whole, options=console.options.update(width=ENDLESS)).maximum <= console.width
    console.print(whole if fits else _table(changes, ("auroc",)))
    kinds = {change.paired for change in changes}
    how = MIXED if len(kinds) == 2 else PAIRED if kinds == {True} else UNPAIRED
    for line in (UNITS, how, CAUTION, *remarks):
        console.print(line, markup=False, highlight=False)
    if not fits and any(change.metric != "auroc" for change in changes):
        console.print("The terminal is too narrow for FPR95; --csv writes it too.")


def _table(changes: Sequence[Change], metrics: Sequence[str]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("method", "data set"):
        table.add_column(name, overflow="fold")
    for head in (head for metric in metrics for head in HEADS[metric]):
        table.add_column(head, justify="right", no_wrap=True)
    mixed = len({change.paired for change in changes}) == 2
    told = {(change.method, change.column, change.metric): change for change in changes}
    for method, column in dict.fromkeys((change.method, change.column) for change in changes):
        here = [told[method, column, metric] for metric in metrics if (method, column, metric) in told]
        cells = (cell for change in here for cell in _cells(change, mixed))
        table.add_row(escape(method), escape(_heading(column)), *cells)
    return table


def _cells(change: Change, mixed: bool) -> list[str]:
    """Return a figure of A and of B, the difference, its interval, a star, and p where there is one."""
    digits = _digits(change)
    difference, low, high = (f"{100 * x:+z.{digits}f}" for x in (change.difference, change.low, change.high))
    numbers = [f"{100 * change.a:.2f}", f"{100 * change.b:.2f}", difference]
    cells = [*numbers, f"{low}..{high}", "*" if change.significant else ""]
    if change.p_value is None:
        return cells
    p = "<0.001" if change.p_value < 0.001 else f"{change.p_value:.3f}"
    return [*cells, f"{p}~" if mixed and not change.paired else p]


def _digits(change: Change) -> int:
    """Return how many digits show that an interval leaves out 0: two, or up to four where its end would read 0.00."""
    nearest = 100 * min(abs(change.low), abs(change.high))
    return next((digits for digits in (2, 3) if not change.significant or round(nearest, digits) > 0), 4)


def _heading(column: str) -> str:
    return "average" if column == "all" else column


def _write(changes: Sequence[Change], path: Path) -> None:
    from dataclasses import asdict

    from ..evaluate.results import as_csv
    from ..io.files import write_atomically

    write_atomically(path, as_csv(asdict(change) | {"significant": change.significant} for change in changes))
    typer.echo(f"{len(changes)} lines -> {path}")
