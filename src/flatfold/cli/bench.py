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
    With,
    load_plugins,
)
from .output import count, get_output, open_console, print_json, print_table, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..evaluate.results import Results
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
    batch_size: BatchSize = 256,
    limit: Limit = None,
    limit_fit: LimitFit = None,
    bootstrap: Annotated[int, Option(min=0, help="Bootstrap samples per interval; 0 for AUROC only.")] = 1000,
    *,
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

    Example: flatfold bench digits --add mine --with mine.py
    """
    from .. import detectors
    from ..evaluate.methods import split_methods
    from ..evaluate.runner import check_specs, forget, run_and_save
    from ..evaluate.summary import load_runs
    from ..report.page import write_report

    if methods is not None and add is not None:
        raise typer.BadParameter("--methods starts new results, --add extends finished ones.", param_hint="--add")
    if latex == STDOUT and get_output().json:
        raise typer.BadParameter("--json also writes to stdout. Pass a file to --latex.", param_hint="--latex")
    load_plugins(own)
    wanted = methods if add is None else add
    specs = check_specs(detectors.methods() if wanted is None else split_methods(wanted))
    settings = execution.settings(loading, bootstrap)
    folder = options.out or Path("out") / Path(suite).stem
    finished = {} if add is None else load_runs(folder)  # first: suites may be slow to load
    suites = options.suites(suite, folder, batch_size, (limit, limit_fit))
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
            print_results(results)
        files = f"{place / 'results.csv'}, {place / 'results.json'}"
        say(f"{count(len(results.rows), 'row')} -> {files}", err=latex == STDOUT)
        if page is not None:
            say(f"report -> {page}", err=latex == STDOUT)
        runs.append(_summary_of(results) | {"folder": place, "report": page})
    if folder not in suites:
        _summarise(folder, each.siblings, options.report, quiet=latex == STDOUT)
    if latex is not None:
        _write_latex(folder, latex)
    print_json(runs=runs, failed=failed)
    if failed:
        typer.echo(f"flatfold: {', '.join(failed)} failed, see above; all other results were written.", err=True)
        raise typer.Exit(1)


def _write_latex(folder: Path, latex: Path) -> None:
    """Write the table of a folder's run, or the means of each family of its runs, to a file or stdout."""
    from ..evaluate.summary import families, load_runs, summary_latex
    from ..io.files import write_atomically

    groups = families(load_runs(folder).values()).values()
    text = "\n".join(group[0].to_latex() if len(group) == 1 else summary_latex(group) for group in groups)
    if latex == STDOUT:
        typer.echo(text, nl=False)
    else:
        write_atomically(latex, text)
        say(f"LaTeX -> {latex}")


def _summarise(folder: Path, networks: Sequence[str], report: bool, quiet: bool) -> None:
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
            print_summary(group, means)
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


def print_results(results: Results) -> None:
    """Print one line per method, best average AUROC first; only averages if the terminal is too narrow."""
    from ..evaluate.results import BEFORE, BEST

    console = open_console()
    if not print_table(console, *(results.table(columns).rich() for columns in (results.columns, results.groups))):
        console.print("The terminal is too narrow for all data sets; see results.csv or the report.")
    if console.is_terminal and any(row.certainty is not None for row in results.rows):
        console.print(f"Green: {BEST}")
    for text in results.notes:
        console.print(text, markup=False, style="yellow" if text.startswith(BEFORE) else None)


def title_of(suite: dict[str, str]) -> str:
    """Format the name of a suite and its network for rich."""
    from rich.markup import escape

    return escape(f"{suite['name']}, {suite['network']}" if suite["network"] else suite["name"])


def print_summary(group: Sequence[Results], rows: Sequence[SummaryRow]) -> None:
    """Print the means of one family, best average AUROC first, and a sentence that names the best method."""
    from ..evaluate.summary import answer

    console = open_console()
    columns, averages = (
        [column for column in each if any(row.column == column for row in rows)]
        for each in (group[0].columns, group[0].groups)
    )
    if not print_table(console, *(_summary_table(rows, each) for each in (columns, averages))):
        console.print("The terminal is too narrow for all data sets; see summary.csv or the report.")
    console.print(answer(group), markup=False, highlight=False)


def _summary_table(rows: Sequence[SummaryRow], columns: Sequence[str]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from ..evaluate.results import LEGEND

    title = f"{escape(rows[0].family)}: mean ± population standard deviation (as OpenOOD) over {rows[0].n} runs."
    table = Table(title=title, title_justify="left", caption=LEGEND, caption_justify="left")
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column("average" if column == "all" else column, justify="right", no_wrap=True)
    cells = {(row.method, row.column): row for row in rows}
    methods = dict.fromkeys(row.method for row in rows)
    for method in sorted(methods, key=lambda method: -cells[method, "all"].means["auroc"]):
        metrics = ("auroc", "fpr95_ood_positive")
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
) -> None:
    """Write the pages or a LaTeX table of finished results.

    Writes report.html, curvature.html and their figures for the results in the folder; for several networks,
    the pages of each and one with their means.

    Example: flatfold report out/digits

    Example: flatfold report out/digits --latex table.tex
    """
    if latex is not None:
        _write_latex(folder, latex)
        return
    from ..evaluate.summary import load_runs
    from ..report.page import write_curvature, write_report
    from ..report.summary import write_summary

    studies, pages = _holding(folder, "curvature.json"), []
    runs = list(load_runs(folder)) if _holding(folder, "results.json") or not studies else []
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
