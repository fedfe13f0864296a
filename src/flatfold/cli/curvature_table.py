"""A curvature study as a table in the terminal."""

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from ..curvature.estimate import LOSSES, MATRICES
from ..evaluate.results import ID
from ..evaluate.study.certainty import above, typical_error
from ..evaluate.study.files import Name, Space, Statistic, Study
from .console import open_console

SHOWN: tuple[Space, ...] = ("parameter", "feature")
DIGITS = 4  # of a figure
LEGEND = (
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
    console.print(_table(study))
    for line in _sentences(study):
        console.print(line, markup=False, highlight=False)
    for deviation in study.suite.get("deviations", ()):
        console.print(f"Before you compare: {deviation}.", markup=False, style="yellow")


def _table(study: Study) -> Table:
    columns = [column for column in study.columns if column[0] in SHOWN]
    table = Table(title=_title(study), title_justify="left", caption=LEGEND, caption_justify="left")
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


def _title(study: Study) -> str:
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
