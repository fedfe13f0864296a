"""``flatfold paper`` and ``flatfold reproduce``: compare runs with the FOLD paper, and repeat its experiments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from .options import ExecutionOptions, Limit, LimitFit, LoadingOptions, SuiteName, SuiteOptions, With, load_plugins
from .output import note, open_console, print_json, print_table, say, table_width

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..paper.comparison import Line
    from ..paper.run import Reproduction
    from ..paper.verdicts import ClaimVerdict

LEGEND = (
    "Measured, and measured minus reported, in percent. FPR95 counts OOD as positive. "
    "* the reported number lies outside the 95 % interval of the measured one."
)
DAGGER = "† an average that is not the mean of its parts."
CELL = 16  # columns of text that "99.99 +99.99*" takes
COLOURS = {"agrees": "green", "partly": "yellow", "disagrees": "red"}


def paper(
    folders: Annotated[
        list[Path] | None,
        Argument(
            help="Output folder of `flatfold bench`, of one network or several. Several folders: one per benchmark."
        ),
    ] = None,
    table: Annotated[
        str | None,
        Option(
            help="Table of the paper to compare with, by its number or name. Default: the suite's. Without a folder: "
            "table to print."
        ),
    ] = None,
    figure: Annotated[
        int | None, Option(min=1, help="Print what the paper claims with this figure, and how `reproduce` reads it.")
    ] = None,
    anyway: Annotated[bool, Option("--anyway", help="Compare a run that is not comparable, and mark it so.")] = False,
    csv: Annotated[Path | None, Option(help="File for all lines of the comparison, with intervals.")] = None,
) -> None:
    """Compare a run with the numbers of the paper.

    Compares AUROC and FPR95, and counts how many of the paper's numbers lie inside the run's intervals. Several
    networks of one family are averaged, as in the paper. Folders of several benchmarks are averaged too, as in the
    last column of the paper's Table 2 and its headline. A run on other data, on part of it or with another network is
    rejected unless --anyway is given. Without a folder, list the tables of the paper and its inconsistencies;
    with --table alone, print one table, and with --figure the claim about one figure.

    Example: flatfold paper out/cifar10 --csv comparison.csv

    Example: flatfold paper out/cifar10 out/cifar100 out/imagenet200 out/imagenet1k

    Example: flatfold paper --table 8
    """
    console = open_console(listing=True)
    if figure is not None and (folders or table is not None):
        raise typer.BadParameter("--figure is for a figure alone, without a folder and without --table.")
    if folders and len(folders) > 1 and table is not None:
        raise typer.BadParameter("--table applies to a single folder: several folders each have their own table.")
    if folders:
        _print_comparison(console, folders, table, anyway, csv)
    elif anyway or csv is not None:
        raise typer.BadParameter("--anyway and --csv need the folder of a run.")
    elif figure is not None:
        _print_figure(console, figure)
    elif table is None:
        _print_list(console)
    else:
        _print_table(console, table)


def reproduce(
    suite: SuiteName,
    options: SuiteOptions,
    loading: LoadingOptions,
    execution: ExecutionOptions,
    batch_size: Annotated[
        int, Option(min=1, help="Images per pass; second derivatives need several times the memory of bench.")
    ] = 64,
    samples: Annotated[int, Option(min=2, help="Largest number of images per data set for curvature.")] = 200,
    rounds: Annotated[int, Option(min=1, help="Timing rounds per method, on a batch of 256.")] = 11,
    alpha: Annotated[
        float | None, Option(min=0, max=1, help="Exponent of partial normalisation. Default: AutoFold's choice.")
    ] = None,
    bootstrap: Annotated[
        int, Option(min=0, help="Bootstrap samples for the intervals of the benchmark; 0 for AUROC only.")
    ] = 1000,
    limit: Limit = None,
    limit_fit: LimitFit = None,
    methods: Annotated[
        str | None, Option(help="As for bench. Default: the paper's, tuned as in the paper if the suite allows it.")
    ] = None,
    own: With = None,
) -> None:
    """Repeat the experiments of the paper on a suite.

    Measures everything that the paper reports, and evaluates the claim of every table and figure. For every network,
    runs a benchmark of the paper's methods, a curvature study, and the paper's ablations: the effect of normalisation
    on seven methods, the sensitivity to the exponent, the separation of scores, and the cost of each method. All of
    them use the same features, which are extracted once. An interrupted run resumes where it stopped.

    Writes to --out: a folder per network with the files of bench and curvature and ablations.json;
    reproduction.html, which has every table and figure under its number in the paper; and full-scale, with the
    commands and the data needed to run the paper's own benchmarks.

    Example: flatfold reproduce digits

    Example: flatfold reproduce cifar10 --data ~/OpenOOD --device cuda --workers 8
    """
    from ..evaluate.methods import split_methods
    from ..evaluate.runner import check_specs
    from ..evaluate.suites.digits import DIGIT_NETWORKS
    from ..evaluate.suites.schema import DIGITS
    from ..paper.full_scale import write_full_scale
    from ..paper.run import Plan, check_suite, conclude, forget_reproduction
    from ..paper.run import reproduce as run

    load_plugins(own)
    chosen = None if methods is None else check_specs(split_methods(methods))
    plan = Plan(samples=samples, rounds=rounds, methods=chosen, alpha=alpha)
    settings = execution.settings(loading, bootstrap)
    folder = options.out or Path("out") / "paper" / Path(suite).stem
    every = list(DIGIT_NETWORKS) if suite == DIGITS else None  # the paper has several networks
    suites = options.suites(suite, folder, batch_size, (limit, limit_fit), every)
    first = next(iter(suites.values()))
    names = [""] if folder in suites else first.siblings
    check_suite(folder, names, first.name)
    runs = []
    for place, network in suites.items():
        if not options.resume:
            forget_reproduction(network, place, plan)
        runs.append(run(network, place, settings, plan))
        if options.report:
            from ..report.page import write_curvature

            write_curvature(place)
        say(f"{network.network or network.name} -> {place}")
    reproduction = conclude(folder, names, runs)
    _finish(folder, reproduction, options.report)
    full_scale = write_full_scale(folder)
    say(f"commands and data of a full run -> {full_scale}")
    print_json(
        folder=folder,
        networks=[run.network for run in reproduction.runs],
        left_out=reproduction.left_out,
        verdicts=reproduction.verdicts,
        full_scale=full_scale,
    )


def _finish(folder: Path, reproduction: Reproduction, report: bool) -> None:
    """Print the verdicts, and write the summary of several networks and the pages."""
    from ..evaluate.summary import save_summary, summarise

    for network, reason in reproduction.left_out.items():
        note(f"{network} is omitted: {reason}")
    networks = [run.network for run in reproduction.runs]
    if len(networks) > 1:
        save_summary(summarise(run.results for run in reproduction.runs), folder, networks)
    _print_verdicts(reproduction.verdicts)
    if report:
        from ..paper.page import write_reproduction
        from ..report.summary import write_summary

        if len(networks) > 1:
            write_summary(folder)
        say(f"every table and figure -> {write_reproduction(folder, reproduction)}")


def _print_verdicts(verdicts: Sequence[ClaimVerdict]) -> None:
    """Print one line per table and figure: its number, the verdict, and the result of this run."""
    from rich.markup import escape
    from rich.table import Table

    from ..paper.verdicts import count_verdicts

    table = Table(title="The paper compared with this run", title_justify="left", show_lines=True)
    table.add_column("in the paper", no_wrap=True)
    table.add_column("agreement", no_wrap=True)
    table.add_column("this run shows", overflow="fold")
    for verdict in verdicts:
        colour = COLOURS.get(verdict.agreement, "default")
        table.add_row(escape(verdict.number), f"[{colour}]{verdict.agreement}[/]", escape(verdict.shows))
    console = open_console()
    console.print(table)
    console.print(f"{count_verdicts(verdicts)}.")


def _print_comparison(
    console: Console, folders: Sequence[Path], table: str | None, anyway: bool, csv: Path | None
) -> None:
    from dataclasses import asdict

    from ..evaluate.results import as_csv
    from ..evaluate.summary import load_runs
    from ..io.files import write_atomically
    from ..paper.claims import check_benchmarks
    from ..paper.comparison import average_benchmarks, compare_with_paper, headline
    from ..paper.tables import BENCHMARKS

    runs = [list(load_runs(folder).values()) for folder in dict.fromkeys(folders)]
    lines = [line for some in runs for line in compare_with_paper(some, table, anyway)]
    averages = average_benchmarks(lines) if len(runs) > 1 else []  # raises before anything is printed
    for place in dict.fromkeys((line.family, line.table) for line in [*lines, *averages]):
        _print_family(console, [line for line in [*lines, *averages] if (line.family, line.table) == place])
    if averages:
        console.print(f"The paper's headline, on all {len(BENCHMARKS)} benchmarks: {headline()}.")
        for check in check_benchmarks(runs).checks:
            result = {True: "holds here", None: "is undecided here", False: "does not hold here"}[check.holds]
            console.print(f"The claim {result}: {check.what}.", markup=False)
    if csv is not None:
        write_atomically(csv, as_csv(map(asdict, [*lines, *averages])))
        say(f"{len(lines) + len(averages)} lines -> {csv}")
    print_json(lines=[*lines, *averages], csv=csv)


def _print_family(console: Console, lines: Sequence[Line]) -> None:
    """Print the lines of one family: a table per metric, the remarks, and the number of values that agree."""
    from ..paper.comparison import BETWEEN

    columns = list(dict.fromkeys(line.dataset for line in lines))
    methods = list(dict.fromkeys(line.method for line in lines))
    fits = max(map(len, methods)) + 3 + sum(max(CELL, len(column) + 3) for column in columns) <= console.width
    shown = columns if fits or "all" not in columns else ["all"]
    for metric in dict.fromkeys(line.metric for line in lines):
        console.print(_make_table([line for line in lines if line.metric == metric], shown))
    console.print(LEGEND)
    if any("†" in line.remark for line in lines):
        console.print(DAGGER)
    if shown != columns:
        console.print("The terminal is too narrow for all data sets; use --csv to write them to a file.")
    remarks = [(remark, line.method) for line in lines for remark in line.remark.split(BETWEEN) if remark]
    for remark in dict.fromkeys(text for text, _ in remarks):
        named = dict.fromkeys(method for text, method in remarks if text == remark)
        console.print(f"{'all' if len(named) == len(methods) else ', '.join(named)}: {remark}", markup=False)
    known = [line for line in lines if line.low is not None]
    inside = sum(line.inside for line in known)
    console.print(f"{inside} of {len(known)} reported numbers lie inside the 95 % interval of the measured ones.")
    if len(known) < len(lines):
        console.print(f"{len(lines) - len(known)} have no interval.")


def _make_table(lines: Sequence[Line], columns: Sequence[str]) -> Table:
    """Format one metric of one family as a table."""
    from rich.markup import escape
    from rich.table import Table

    from ..paper.tables import METRICS, TABLES

    name = lines[0].table
    place = f"Table {TABLES[name].number} of the paper, {name}"
    title = f"{escape(lines[0].family)} and {place}: {METRICS[lines[0].metric]}"
    title = title if all(line.comparable for line in lines) else f"NOT COMPARABLE: {title}"
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column("average" if column == "all" else escape(column), justify="right", no_wrap=True)
    cells = {}
    for line in lines:
        mark = "†" if "†" in line.remark else "*" if line.low is not None and not line.inside else " "
        cells[line.method, line.dataset] = f"{line.measured:.2f} {line.difference:+z.2f}{mark}"  # z: no -0.00
    for method in dict.fromkeys(line.method for line in lines):
        table.add_row(escape(method), *(cells.get((method, column), "") for column in columns))
    return table


def _print_list(console: Console) -> None:
    """Print the available tables and the inconsistencies of the paper."""
    from rich.table import Table

    from ..paper.tables import NOTES, TABLES, contradictions, read_table

    listing = Table(box=None, pad_edge=False)
    for heading in ("table", "name", "what it shows", "numbers"):
        listing.add_column(heading, justify="right" if heading in ("table", "numbers") else "left")
    for name, layout in TABLES.items():
        listing.add_row(str(layout.number), name, layout.about, str(len(read_table(name))))
    console.print(listing)
    console.print("\nInconsistencies of the paper (averages are marked † in their table):")
    for contradiction in (*contradictions(), *NOTES):
        console.print(f"- {contradiction}", markup=False)
    console.print("\nPrint one with: flatfold paper --table 8, or a figure's claim with: --figure 1", highlight=False)
    tables = [
        {"table": name, "number": layout.number, "about": layout.about, "numbers": len(read_table(name))}
        for name, layout in TABLES.items()
    ]
    print_json(tables=tables, contradictions=contradictions(), notes=NOTES)


def _print_figure(console: Console, number: int) -> None:
    """Print the claim of the paper about a figure, and how it is read."""
    from ..paper.verdicts import find_figure

    claim = find_figure(number)
    for line in (f"{claim.number}: {claim.title}", f"\nThe paper claims: {claim.claim}", f"\nHere: {claim.note}"):
        console.print(line, markup=False, highlight=False)
    console.print("\nDraw and test it on a suite with: flatfold reproduce SUITE", highlight=False)
    print_json(figure=claim.number, title=claim.title, claim=claim.claim, note=claim.note)


def _print_table(console: Console, name: str) -> None:
    """Print a table of the paper, and its wrong averages; in several parts if the terminal is narrow."""
    from ..evaluate.metrics import SHOWN, describe_metrics
    from ..paper.tables import METRICS, TABLES, find_table, read_table, wrong_averages

    name = find_table(name)
    numbers, layout, wrong = read_table(name), TABLES[name], wrong_averages(name)
    metrics = list(dict.fromkeys(number.metric for number in numbers))
    columns = list(dict.fromkeys(number.column for number in numbers))
    caption = " / ".join(METRICS[metric] for metric in metrics) + " of the Hessian."
    console.print(f"Table {layout.number}, {name}: {layout.about}", highlight=False)
    for table in _fitting_tables(console, name, metrics, columns):
        print_table(console, table)
    console.print(describe_metrics(SHOWN) if "auroc" in metrics else caption, highlight=False)
    for contradiction in wrong.values():
        console.print(f"† {contradiction}", markup=False)
    print_json(
        table=name,
        number=layout.number,
        about=layout.about,
        numbers=[number._asdict() for number in numbers],
        contradictions=list(wrong.values()),
    )


def _fitting_tables(console: Console, name: str, metrics: Sequence[str], columns: Sequence[str]) -> Iterator[Table]:
    """Yield a table of the paper in as few parts as fit: one, one for each metric, or also for groups of columns."""
    table = _paper_table(name, metrics, columns)
    if table_width(console, table) <= console.width or (len(metrics) == len(columns) == 1):
        yield table
    elif len(metrics) > 1:
        for metric in metrics:
            yield from _fitting_tables(console, name, [metric], columns)
    else:
        parts = (_paper_table(name, metrics, columns[:n]) for n in range(len(columns) - 1, 0, -1))
        part = next((part for part in parts if table_width(console, part) <= console.width), None)
        count = 1 if part is None else len(part.columns) - 1  # the first names the row
        yield _paper_table(name, metrics, columns[:count])
        yield from _fitting_tables(console, name, metrics, columns[count:])


def _paper_table(name: str, metrics: Sequence[str], columns: Sequence[str]) -> Table:
    """Format some metrics and columns of a table of the paper; metrics share a cell."""
    from rich.table import Table

    from ..paper.tables import METRICS, TABLES, read_table, wrong_averages

    layout, wrong = TABLES[name], wrong_averages(name)
    cells: dict[str, dict[str, list[str]]] = {}
    for number in (number for number in read_table(name) if number.metric in metrics):
        spread = "" if number.std is None else f" ± {number.std:.{layout.digits}f}"
        mark = "†" * (number.place in wrong)
        text = f"{number.value:.{layout.digits}f}{spread}{mark}"
        cells.setdefault(number.row, {}).setdefault(number.column, []).append(text)
    table = Table(title=" / ".join(METRICS[metric] for metric in metrics), title_justify="left")
    table.add_column(", ".join(layout.row), no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row, texts in cells.items():
        if any(column in texts for column in columns):
            table.add_row(row, *(" / ".join(texts.get(column, [])) for column in columns))
    return table
