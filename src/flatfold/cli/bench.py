"""``flatfold bench``, ``flatfold report`` and ``flatfold methods``: evaluate methods on a suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from .options import (
    METHOD,
    BatchSize,
    ExecutionOptions,
    Limit,
    LimitFit,
    LoadingOptions,
    SuiteName,
    SuiteOptions,
    TableOptions,
    With,
    check_out,
    load_plugins,
)
from .output import count, get_output, open_console, print_json, print_table, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..evaluate.results import Choice, Results
    from ..evaluate.summary import SummaryRow

STDOUT = Path("-")

Latex = Annotated[
    Path | None,
    Option(
        metavar="FILE", help="Write the table of results in LaTeX to this file; - for stdout, without other output."
    ),
]


def bench(
    suite: SuiteName,
    methods: Annotated[
        str | None,
        Option(
            help=f"Methods, separated by commas: each a {METHOD}. NAME@ood tunes hyper-parameters on the suite's OOD "
            "validation images, NAME@id on ID images only. Default: all methods, untuned."
        ),
    ] = None,
    add: Annotated[
        str | None,
        Option(
            metavar="METHODS",
            help="Add these methods to the finished results in --out, replacing methods of the same name. "
            "Network, images and settings must be those of the finished run.",
        ),
    ] = None,
    latex: Latex = None,
    *,
    table: TableOptions,
    batch_size: BatchSize = 256,
    limit: Limit = None,
    limit_fit: LimitFit = None,
    bootstrap: Annotated[int, Option(min=0, help="Bootstrap samples per interval; 0 for AUROC only.")] = 1000,
    options: SuiteOptions,
    loading: LoadingOptions,
    execution: ExecutionOptions,
    own: With = None,
) -> None:
    """Evaluate methods on the data sets of a suite.

    Prints AUROC and FPR95 for every OOD data set. Features are extracted once and stored in the output folder; an
    interrupted run resumes from there. Writes results.json, results.csv, averages.csv, scores.safetensors,
    thumbnails.safetensors, report.html and figures. With several networks or seeds, each gets a folder, and
    summary.csv, summary.json and report.html hold the means.

    Exit codes: 0 done; 1 invalid input, or a method failed unexpectedly; 2 invalid usage; 130 interrupted.

    Example: flatfold bench digits --methods msp,knn:k=10,knn@id,react@ood,autofold

    Example: flatfold bench digits --metric auroc --sets near,far,average --latex table.tex

    Example: flatfold bench digits --add mine --with mine.py
    """
    from .. import detectors
    from ..evaluate.methods import split_methods
    from ..evaluate.results import columns_of
    from ..evaluate.runner import check_specs, forget, run_and_save
    from ..evaluate.summary import load_runs
    from ..report.page import write_report

    if methods is not None and add is not None:
        raise typer.BadParameter("--methods starts new results, --add extends finished ones.", param_hint="--add")
    if latex == STDOUT and get_output().json:
        raise typer.BadParameter("--json also writes to stdout. Pass a file to --latex.", param_hint="--latex")
    if latex is not None and latex != STDOUT:
        check_out(latex, option="--latex")
    load_plugins(own)
    wanted = methods if add is None else add
    specs = check_specs(detectors.methods() if wanted is None else split_methods(wanted))
    settings = execution.settings(loading, bootstrap)
    folder = options.out or Path("out") / Path(suite).stem
    finished = {} if add is None else load_runs(folder)  # first: suites may be slow to load
    metrics = table.metrics()
    suites = options.suites(suite, folder, batch_size, (limit, limit_fit))
    for each in suites.values():  # a wrong name is found before the work
        table.columns(columns_of({ood.name: ood.group for ood in each.ood}))
    if add is not None and (missing := [place for place in suites if place not in finished]):
        raise ValueError(f"--add extends finished results, but {missing[0]} has none. Exclude it with --networks.")
    failed: dict[str, str] = {}
    runs = []
    for place, each in suites.items():
        if not options.resume:
            forget(place)
        results = run_and_save(each, specs, place, settings, finished.get(place))
        page = write_report(place) if options.report else None
        failed |= {spec.label: results.failed[spec.label] for spec in specs if spec.label in results.failed}
        if latex != STDOUT:
            print_results(results, metrics, table.columns(results.members))
        files = f"{place / 'results.csv'}, {place / 'results.json'}"
        say(f"{count(len(results.rows), 'row')} -> {files}", err=latex == STDOUT)
        if page is not None:
            say(f"report -> {page}", err=latex == STDOUT)
        runs.append(_summary_of(results) | {"folder": place, "report": page})
    if folder not in suites:
        _summarise(folder, each.siblings, options.report, table, quiet=latex == STDOUT)
    if latex is not None:
        _write_latex(folder, latex, table)
    print_json(runs=runs, failed=failed)
    if failed:
        typer.echo(f"flatfold: {', '.join(failed)} failed, see above; all other results were written.", err=True)
        raise typer.Exit(1)


def _write_latex(folder: Path, latex: Path, table: TableOptions) -> None:
    """Write the table of a folder's run, or the means of each family of its runs, to a file or stdout."""
    from ..evaluate.summary import families, load_runs, summary_latex
    from ..io.files import write_atomically

    metrics, texts = table.metrics(), list[str]()
    for first, *others in families(load_runs(folder).values()).values():
        columns = table.columns(first.members)
        if others:
            texts.append(summary_latex([first, *others], metrics, columns=columns))
        else:
            texts.append(first.to_latex(metrics, columns=columns))
    text = "\n".join(texts)
    if latex == STDOUT:
        typer.echo(text, nl=False)
    else:
        write_atomically(latex, text)
        say(f"LaTeX -> {latex}")


def _summarise(folder: Path, networks: Sequence[str], report: bool, table: TableOptions, quiet: bool) -> None:
    """Write and print the means over the networks of each family that have results."""
    from ..evaluate.results import load_results
    from ..evaluate.summary import families, save_summary, summarise
    from ..report.summary import write_summary

    finished = [network for network in networks if (folder / network / "results.json").exists()]
    runs = [load_results(folder / network) for network in finished]
    rows = summarise(runs)
    save_summary(rows, folder, finished)
    page = f", {write_summary(folder)}" if report else ""
    for family, group in families(runs).items():
        if len(group) > 1 and not quiet and (means := [row for row in rows if row.family == family]):
            print_summary(group, means, table.metrics(), table.columns(group[0].members))
    say(f"all runs -> {folder / 'summary.csv'}{page}", err=quiet)


def _summary_of(results: Results) -> dict[str, Any]:
    """Return the content of a run's table: the metrics of each method in each column, best average AUROC first."""
    from ..evaluate.results import METRICS

    suite, cells = results.suite, results.cells
    figures = [
        {"method": run.method, "column": column}
        | {metric: getattr(cells[run.method, column], metric) for metric in METRICS}
        for run in results.ranked
        for column in results.columns
    ]
    about = {name: suite[name] for name in ("name", "network", "accuracy", "n_test", "deviations")}
    return {"suite": about, "figures": figures, "left_out": results.left_out}


def print_results(results: Results, metrics: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> None:
    """Print one line per method, the best average first; if the terminal is narrow, fewer metrics and columns."""
    from ..evaluate.metrics import SHOWN
    from ..evaluate.results import BEFORE, BEST

    console = open_console()
    choices = results.choices(metrics or SHOWN, columns)
    _print_fitting(console, [results.table(*choice).rich() for choice in choices], choices)
    if console.is_terminal and any(row.certainty is not None for row in results.rows):
        console.print(f"Green: {BEST}")
    for text in results.notes:
        console.print(text, markup=False, style="yellow" if text.startswith(BEFORE) else None)


def _print_fitting(console: Console, tables: Sequence[Table], choices: Sequence[Choice]) -> None:
    """Print the first of several tables that fits, and what it lacks; ``choices`` are their columns and metrics."""
    from ..evaluate.metrics import METRICS

    (every, metrics), (columns, shown) = choices[0], choices[print_table(console, *tables)]
    missing = [METRICS[metric].title for metric in metrics if metric not in shown]
    missing += ["all data sets"] * (len(columns) < len(every))
    if missing:
        console.print(f"The terminal is too narrow for {' and '.join(missing)}: use --metric, --sets or the CSV files.")


def title_of(suite: dict[str, str]) -> str:
    """Format the name of a suite and its network for rich."""
    from rich.markup import escape

    return escape(f"{suite['name']}, {suite['network']}" if suite["network"] else suite["name"])


def print_summary(
    group: Sequence[Results],
    rows: Sequence[SummaryRow],
    metrics: Sequence[str],
    chosen: Sequence[str] | None = None,
) -> None:
    """Print the means of one family, the best average first, and a sentence that names the best method."""
    from ..evaluate.results import list_choices
    from ..evaluate.summary import answer

    console = open_console()
    wanted = (group[0].columns, group[0].groups) if chosen is None else (chosen,)
    columns = [[column for column in each if any(row.column == column for row in rows)] for each in wanted]
    choices = list_choices(metrics, *columns)
    _print_fitting(console, [_summary_table(rows, *choice) for choice in choices], choices)
    console.print(answer(group), markup=False, highlight=False)


def _summary_table(rows: Sequence[SummaryRow], columns: Sequence[str], metrics: Sequence[str]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from ..evaluate.metrics import describe_metrics, rank

    title = f"{escape(rows[0].family)}: mean ± population standard deviation (as OpenOOD) over {rows[0].n} runs."
    table = Table(title=title, title_justify="left", caption=describe_metrics(metrics), caption_justify="left")
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column("average" if column == "all" else column, justify="right", no_wrap=True)
    cells = {(row.method, row.column): row for row in rows}
    methods = dict.fromkeys(row.method for row in rows)
    first = metrics[0]
    for method in sorted(methods, key=lambda method: rank(first, cells[method, "all"].means[first])):
        figures = (
            " / ".join(f"{100 * row.means[metric]:.2f} ± {100 * row.stds[metric]:.2f}" for metric in metrics)
            for row in (cells[method, column] for column in columns)
        )
        table.add_row(escape(method), *figures)
    return table


def report(
    folder: Annotated[Path, Argument(help="Output folder of `flatfold bench` or `flatfold curvature`.")],
    latex: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write only the table of results, in LaTeX, to this file; - for stdout."),
    ] = None,
    *,
    table: TableOptions,
) -> None:
    """Write the pages or a LaTeX table of finished results.

    Writes report.html, curvature.html and their figures for the results in the folder; for several networks,
    the pages of each and one with their means.

    Example: flatfold report out/digits

    Example: flatfold report out/digits --latex table.tex --metric auroc --sets near,far,average
    """
    if latex is not None:
        if latex != STDOUT:
            check_out(latex, option="--latex")
        _write_latex(folder, latex, table)
        return
    if table.metric is not None or table.sets is not None:
        raise typer.BadParameter("they apply to the LaTeX table. Add --latex FILE.", param_hint="--metric, --sets")
    from ..evaluate.summary import families, load_runs
    from ..report.page import write_curvature, write_report
    from ..report.summary import write_summary

    studies, pages = _holding(folder, "curvature.json"), []
    results = load_runs(folder) if _holding(folder, "results.json") or not studies else {}
    families(results.values())  # raises before anything is written
    runs = list(results)
    for place in dict.fromkeys([*runs, *studies]):
        if place in studies:
            pages.append(write_curvature(place))  # writes the report of the same folder too
            say(f"curvature -> {pages[-1]}")
        else:
            write_report(place)
        if place in runs:
            pages.append(place / "report.html")
            say(f"report -> {pages[-1]}")
    if runs and runs != [folder]:
        pages.append(write_summary(folder))
        say(f"all runs -> {pages[-1]}")
    print_json(pages=pages)


def _holding(folder: Path, name: str) -> list[Path]:
    """Return the folder itself if it contains the file, else its direct sub-folders that do."""
    return [folder] if (folder / name).exists() else [path.parent for path in sorted(folder.glob(f"*/{name}"))]


def methods(
    cite: Annotated[
        str | None, Option(metavar="NAME", help="Print the references of this method as BibTeX instead of the list.")
    ] = None,
    own: With = None,
) -> None:
    """List all methods with their hyper-parameters.

    Example: flatfold methods --cite knn
    """
    from rich.table import Table

    from .. import detectors

    load_plugins(own)
    if cite is not None:
        typer.echo(detectors.bibtex(detectors.parse_method(cite)[0]))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it scores", "learns from", "hyper-parameters"):
        table.add_column(column)
    entries = {name: detectors.get_method(name) for name in detectors.methods()}
    data = {"nothing": "the head", "val": "ID validation data", "train": "ID training data"}
    for name, method in entries.items():
        learns_from = data[method.fits_on]
        if method.sees != "features":
            learns_from = "nothing; runs the network" if method.fits_on == "nothing" else learns_from[:-4] + "images"
        hyper = detectors.hyperparameters(name).items()
        texts = (
            (key, f"{x[0]}..{x[-1]}" if isinstance(x, tuple) and x else x) for key, x in hyper
        )  # the ends of a grid
        table.add_row(name, method.summary, learns_from, ", ".join(f"{key}={text}" for key, text in texts))
    print_json(
        methods=[
            {
                "name": name,
                "summary": method.summary,
                "scores": method.sees,
                "learns_from": method.fits_on,
                "needs_labels": method.needs_labels,
                "hyperparameters": detectors.hyperparameters(name),
                "grid": method.grid,
            }
            for name, method in entries.items()
        ]
    )
    console = open_console(listing=True)
    console.print(table)
    console.print("\nAny other method that scores features accepts alpha=..., partial normalisation h / |h|^alpha.")
    names = ", ".join(f"{alias} is {name}" for alias, name in detectors.ALIASES.items())
    console.print(f"A method is written name:key=value everywhere, as in mds:alpha=1; {names}.")
    console.print("From Python: flatfold.create('mds:alpha=1'), or flatfold.create(name, alpha=..., preset='authors').")
    console.print("References of a method as BibTeX: flatfold methods --cite NAME.")
    tunable = [name for name, method in entries.items() if method.grid]
    on_features = [name for name in tunable if entries[name].sees == "features"]
    console.print(f"A benchmark tunes name@id on ID data and name@ood on OOD data: {', '.join(on_features)}.")
    others = " and ".join(name for name in tunable if name not in on_features)
    console.print(f"{others} can be tuned on OOD data only.")
