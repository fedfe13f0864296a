"""Results as a table in the terminal."""

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..curvature.estimate import LOSSES, MATRICES
from ..evaluate.results import ID, Average, Results, Row
from ..evaluate.study_results import Name, Space, Statistic, Study, above, typical_error
from ..evaluate.summary import SummaryRow
from .console import open_console

LEGEND = (
    "AUROC / FPR95 in percent. FPR95 counts OOD as positive: the share of known inputs that raise an alarm "
    "when 95 % of the unknown ones do."
)

CELL, LAST = 16, 17  # columns of text that "99.99 / 99.99" takes, and the two last ones


def print_results(results: Results) -> None:
    """Print one line per method, best average AUROC first, and what it was tuned on.

    A narrow terminal gets the averages only, which a line below the table says; a pipe has no width to respect.
    """
    console = open_console()
    first = 3 + max(len(run.method) for run in results.methods)
    fits = first + LAST + sum(max(CELL, len(column) + 3) for column in results.columns) <= console.width
    console.print(_table(results, results.columns if fits else results.groups))
    if not fits:
        console.print("The terminal is too narrow for every data set; results.csv and the report have them.")
    if console.is_terminal and any(row.certainty is not None for row in results.rows):
        console.print("Green: the best AUROC of a column and every other that cannot be told from it (paired test).")
    if any("alpha_" in run.learnt for run in results.methods):
        console.print("* chosen by AutoFold on ID validation data")
    if any(run.tuned_on != "nothing" for run in results.methods):
        console.print("tuned: on which data hyper-parameters were chosen, known (ID) or unknown (OOD) inputs.")
    for reason in dict.fromkeys(results.refused.values()):
        methods = [method for method, other in results.refused.items() if other == reason]
        was = "was" if len(methods) == 1 else "were"
        console.print(f"{', '.join(methods)} {was} left out: {reason}", markup=False)
    for deviation in results.suite.get("deviations", ()):
        console.print(f"Before you compare: {deviation}.", markup=False, style="yellow")


def _table(results: Results, columns: list[str]) -> Table:
    cells = results.cells
    table = Table(title=_title(results), title_justify="left", caption=LEGEND, caption_justify="left")
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column("average" if column == "all" else column, justify="right", no_wrap=True)
    table.add_column("alpha", justify="right", no_wrap=True)
    table.add_column("tuned", no_wrap=True)
    for run in results.ranked:
        figures = (_figures(cells[run.method, column]) for column in columns)
        table.add_row(escape(run.method), *figures, run.alpha, run.tuned)
    return table


def _figures(cell: Row | Average) -> Text:
    figures = f"{100 * cell.auroc:.2f} / {100 * cell.fpr95_ood_positive:.2f}"
    best = cell.certainty is not None and cell.certainty.best
    return Text(figures, style="bold green" if best else "")


def _title(results: Results) -> str:
    suite = results.suite
    name = f"{suite['name']}, {suite['network']}" if suite["network"] else suite["name"]
    about = f"{suite['about']} " if suite["about"] else ""
    return f"{escape(name)}: {escape(about)}ID accuracy {100 * suite['accuracy']:.2f} % on {suite['n_test']} images."


def print_summary(rows: Sequence[SummaryRow]) -> None:
    """Print the means over the networks of each family that has several, best average AUROC first."""
    console = open_console()
    for family in dict.fromkeys(row.family for row in rows if row.n > 1):
        mine = [row for row in rows if row.family == family]
        console.print(_summary_table(family, mine))


def _summary_table(family: str, rows: Sequence[SummaryRow]) -> Table:
    title = f"{escape(family)}: mean ± spread (population standard deviation, as OpenOOD) over {rows[0].n} runs."
    table = Table(title=title, title_justify="left", caption=LEGEND, caption_justify="left")
    table.add_column("method", no_wrap=True)
    groups = [group for group in ("near", "far", "all") if any(row.column == group for row in rows)]
    for group in groups:
        table.add_column("average" if group == "all" else group, justify="right", no_wrap=True)
    cells = {(row.method, row.column): row for row in rows}
    methods = dict.fromkeys(row.method for row in rows)
    for method in sorted(methods, key=lambda method: -cells[method, "all"].means["auroc"]):
        table.add_row(escape(method), *(_spread(cells[method, group]) for group in groups))
    return table


def _spread(row: SummaryRow) -> str:
    figures = (f"{100 * row.means[m]:.2f} ± {100 * row.stds[m]:.2f}" for m in ("auroc", "fpr95_ood_positive"))
    return " / ".join(figures)


# A curvature study as a table in the terminal.


SHOWN: tuple[Space, ...] = ("parameter", "feature")

DIGITS = 4  # of a figure

CURVATURE_LEGEND = (
    "Of the mean matrix over the images of a data set; x: how many times the figure of the known images (id). "
    "Without ±, all digits shown are certain for these images; others of the same kind would give other figures."
)


ESTIMATED = (
    "an estimate, typically ± {:.2g} %, with errors that images of a batch share: its AUROC is not that of the trace."
)


def print_study(study: Study) -> None:
    """Print one line per data set and group, and what a reader must know besides.

    Where the paper's claim, that unknown data lies above known data, does not hold or cannot be told, a sentence says
    for what.
    """
    console = open_console()
    console.print(_curvature_table(study))
    for line in _sentences(study):
        console.print(line, markup=False, highlight=False)
    for deviation in study.suite.get("deviations", ()):
        console.print(f"Before you compare: {deviation}.", markup=False, style="yellow")


def _curvature_table(study: Study) -> Table:
    columns = [column for column in study.columns if column[0] in SHOWN]
    table = Table(title=_curvature_title(study), title_justify="left", caption=CURVATURE_LEGEND, caption_justify="left")
    table.add_column("data set", no_wrap=True)
    table.add_column("images", justify="right", no_wrap=True)
    for space, name in columns:
        table.add_column(f"{space}\n{name}", justify="right")  # on two lines, to fit into 80 columns of text
    for dataset in study.datasets + study.groups:
        if dataset == "near" or (dataset == "far" and "near" not in study.groups):
            table.add_section()
        title = f"{dataset} (mean)" if dataset in study.groups else dataset
        images = str(study.cell(dataset, *columns[0]).n)
        table.add_row(escape(title), images, *(_figure(study, dataset, space, name) for space, name in columns))
    return table


def _figure(study: Study, dataset: str, space: Space, name: Name) -> str:
    cell, factor = study.cell(dataset, space, name), study.factor(dataset, space, name)
    return rounded(cell) + ("" if dataset == ID or factor is None else f" x{f'{factor:#.3g}'.rstrip('.')}")


def rounded(cell: Statistic) -> str:
    """Return a figure to four digits, with its error where that can change one of them."""
    figure = f"{cell.value:#.{DIGITS}g}".rstrip(".")
    if cell.stderr is None or cell.stderr < abs(cell.value) * 0.5 * 10.0 ** (1 - DIGITS):
        return figure
    return f"{figure} ± {cell.stderr:.1g}"


def _curvature_title(study: Study) -> str:
    suite, about = study.suite, study.provenance
    name = f"{suite['name']}, {suite['network']}" if suite["network"] else suite["name"]
    what = f"{MATRICES[about['matrix']]} of the {LOSSES[about['loss']]}"
    sizes = f"{study.sizes['parameter']} parameters and {study.sizes['feature']} features"
    return f"{escape(name)}: {what} over {sizes}."


def _sentences(study: Study) -> Iterator[str]:
    """Yield how it was computed, what the traces are worth as scores, and where the paper's claim does not hold."""
    for name in ("lambda_max", "trace"):
        yield f"parameter {name}: {study.cell(ID, 'parameter', name).method}."
    cells = study.cells
    if any(cells[d, "parameter", "trace"].value < cells[d, "parameter", "lambda_max"].value for d in study.datasets):
        yield "A parameter trace below its lambda_max is no mistake: eigenvalues below zero count in it."
    yield _scores(study)
    for space in SHOWN:
        for name in (name for each, name in study.columns if each == space):
            yield from _claim(study, space, name)


def _scores(study: Study) -> str:
    told = (
        f"{each.space}s{f' (alpha = {each.alpha:g})' if each.alpha else ''} {100 * each.auroc:.2f}"
        for each in study.detections
        if each.dataset == "all" and each.space in SHOWN
    )
    error = typical_error(study, "parameter")
    caution = f" Over parameters it is {ESTIMATED.format(100 * error)}" if error is not None else ""
    return f"The trace of a single image as a score, mean AUROC in percent: {', '.join(told)}.{caution}"


def _claim(study: Study, space: Space, name: Name) -> Iterator[str]:
    """Yield for which data sets one figure is not above that of the known images, or cannot be told to be."""
    known = study.cell(ID, space, name)
    verdicts = {dataset: above(study.cell(dataset, space, name), known) for dataset in study.datasets[1:]}
    lower, unsure = ([dataset for dataset, found in verdicts.items() if found == which] for which in (-1, 0))
    if lower:
        yield f"The paper's claim does not hold here for the {space} {name} of {', '.join(lower)}: below id."
    if unsure:
        yield f"The {space} {name} of {', '.join(unsure)} cannot be told apart from that of id."
