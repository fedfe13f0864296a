"""``flatfold paper``: a run beside the numbers of the FOLD paper, or those numbers by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import open_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..evaluate.paper import Line, Number

LEGEND = (
    "Measured, and measured minus reported, in percent. FPR95 counts OOD as positive. "
    "* the reported number lies outside the 95 % interval of the measured one."
)
DAGGER = "† an average that is not the mean of its parts."
METRICS = {"auroc": "AUROC", "fpr95": "FPR95", "lambda_max": "largest eigenvalue", "trace": "trace"}
CELL = 16  # columns of text that "99.99 +99.99*" takes


def paper(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder that `flatfold bench` wrote, for one network or for several.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Table of the paper to compare with, by default the suite's; without a folder, to show."),
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare what is not comparable, and say so.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Where every line of the comparison goes, with intervals.")] = None,
) -> None:
    """Put a run beside the paper's AUROC and FPR95, and count which of them lie inside the intervals of the run.

    Several networks of one family are averaged, as in the paper. A run on other data, on part of it or with another
    network is refused unless --anyway is given. Without a folder, list the tables of the paper and where it
    contradicts itself; with --table alone, show one table.

    Example: flatfold paper out/cifar10 --csv beside.csv

    Example: flatfold paper --table cifar10
    """
    console = open_console()
    if folder is not None:
        _print_comparison(console, folder, table, anyway, csv)
    elif anyway or csv is not None:
        raise typer.BadParameter("--anyway and --csv need the folder of a run.")
    elif table is None:
        _print_list(console)
    else:
        _print_table(console, table)


def _print_comparison(console: Console, folder: Path, table: str | None, anyway: bool, csv: Path | None) -> None:
    from dataclasses import asdict

    from ..evaluate.paper import beside_paper
    from ..evaluate.results import as_csv
    from ..evaluate.summary import load_runs
    from ..files import write_atomically

    lines = beside_paper(list(load_runs(folder).values()), table, anyway)
    for place in dict.fromkeys((line.family, line.table) for line in lines):
        _print_block(console, [line for line in lines if (line.family, line.table) == place])
    if csv is not None:
        write_atomically(csv, as_csv(map(asdict, lines)))
        typer.echo(f"{len(lines)} lines -> {csv}")


def _print_block(console: Console, lines: Sequence[Line]) -> None:
    """Print the lines of one family: a table per metric, what must be said of them, and how many agree."""
    columns = list(dict.fromkeys(line.dataset for line in lines))
    methods = list(dict.fromkeys(line.method for line in lines))
    fits = max(map(len, methods)) + 3 + sum(max(CELL, len(column) + 3) for column in columns) <= console.width
    shown = columns if fits or "all" not in columns else ["all"]
    for metric in dict.fromkeys(line.metric for line in lines):
        console.print(_metric_table([line for line in lines if line.metric == metric], shown))
    console.print(LEGEND)
    if any("†" in line.remark for line in lines):
        console.print(DAGGER)
    if shown != columns:
        console.print("The terminal is too narrow for every data set; --csv writes them all.")
    for remark, about in _remarks(lines).items():
        who = "all" if len(about) == len(methods) else ", ".join(about)
        console.print(f"{who}: {remark}", markup=False)
    known = [line for line in lines if line.low is not None]
    inside = sum(line.inside for line in known)
    console.print(f"{inside} of {len(known)} reported numbers lie inside the 95 % interval of the measured ones.")
    if len(known) < len(lines):
        console.print(f"{len(lines) - len(known)} have no interval.")


def _remarks(lines: Sequence[Line]) -> dict[str, list[str]]:
    """Return every remark, with the methods that it is about."""
    from ..evaluate.paper import BETWEEN

    about: dict[str, list[str]] = {}
    for line in lines:
        for remark in filter(None, line.remark.split(BETWEEN)):
            methods = about.setdefault(remark, [])
            if line.method not in methods:
                methods.append(line.method)
    return about


def _metric_table(lines: Sequence[Line], columns: Sequence[str]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    metric = METRICS[lines[0].metric]
    title = f"{escape(lines[0].family)} beside the table {lines[0].table} of the paper: {metric}"
    title = title if all(line.comparable for line in lines) else f"NOT COMPARABLE: {title}"
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column("average" if column == "all" else escape(column), justify="right", no_wrap=True)
    cells = {(line.method, line.dataset): line for line in lines}
    for method in dict.fromkeys(line.method for line in lines):
        found = (cells.get((method, column)) for column in columns)
        table.add_row(escape(method), *("" if line is None else _cell(line) for line in found))
    return table


def _cell(line: Line) -> str:
    mark = "†" if "†" in line.remark else "*" if line.low is not None and not line.inside else " "
    return f"{line.measured:.2f} {line.difference:+z.2f}{mark}"  # z: no -0.00


def _print_list(console: Console) -> None:
    """Print which tables there are, and where the paper contradicts itself."""
    from rich.table import Table

    from ..evaluate.paper import NOTES, TABLES, contradictions, read_table

    listing = Table(box=None, pad_edge=False)
    for heading in ("table", "what it shows", "numbers"):
        listing.add_column(heading, justify="right" if heading == "numbers" else "left")
    for name, layout in TABLES.items():
        listing.add_row(name, layout.about, str(len(read_table(name))))
    console.print(listing)
    console.print("\nWhere the paper contradicts itself (an average is marked † in its table):")
    for contradiction in (*contradictions(), *NOTES):
        console.print(f"- {contradiction}", markup=False)
    console.print("\nflatfold paper --table cifar10 shows one.", highlight=False)


def _print_table(console: Console, name: str) -> None:
    """Print a table of the paper, and what is wrong in it."""
    from rich.table import Table

    from ..evaluate.paper import TABLES, contradictions, read_table

    numbers, layout = read_table(name), TABLES[name]
    wrong = {(c.row, c.column, c.metric): c for c in contradictions() if c.table == name}
    title, caption = f"{name}: {layout.about}", _caption([number.metric for number in numbers])
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column(", ".join(layout.row))
    columns = list(dict.fromkeys(number.column for number in numbers))
    for column in columns:
        table.add_column(column, justify="right")
    cells: dict[str, dict[str, list[str]]] = {}
    for number in numbers:
        mark = "†" if (number.row, number.column, number.metric) in wrong else ""
        cells.setdefault(number.row, {}).setdefault(number.column, []).append(_number(number, layout.digits) + mark)
    for row, found in cells.items():
        table.add_row(row, *(" / ".join(found.get(column, [])) for column in columns))
    console.print(table)
    for contradiction in wrong.values():
        console.print(f"† {contradiction}", markup=False)


def _caption(metrics: Sequence[str]) -> str:
    """Return what the figures of a cell are."""
    from .table import LEGEND

    shown = dict.fromkeys(metrics)
    if list(shown) == ["auroc", "fpr95"]:
        return LEGEND
    return " / ".join(METRICS[metric] for metric in shown) + (
        " in percent." if "auroc" in shown else " of the Hessian."
    )


def _number(number: Number, digits: int) -> str:
    spread = "" if number.std is None else f" ± {number.std:.{digits}f}"
    return f"{number.value:.{digits}f}{spread}"
