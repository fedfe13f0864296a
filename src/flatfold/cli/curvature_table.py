"""A curvature study as a table in the terminal."""

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from ..curvature.estimate import LOSSES, MATRICES
from ..evaluate.results import ID
from ..evaluate.study.files import Name, Space, Statistic, Study
from .console import open_console

SHOWN: tuple[Space, ...] = ("parameter", "feature")
DIGITS = 4  # of a figure
LEGEND = (
    "Of the mean Hessian over the images of a data set; x: how many times the figure of the known images. "
    "Figures without ± are exact to the digits shown."
)


def print_study(study: Study) -> None:
    """Print one line per data set and group, and what a reader must know besides.

    Where the paper's claim, that unknown data lies above known data, does not hold, a sentence says for what.
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
    return rounded(cell) + ("" if dataset == ID or factor is None else f" x{factor:.3g}")


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
    scores = (
        f"{each.space}s{f' (alpha = {each.alpha:g})' if each.alpha else ''} {100 * each.auroc:.2f}"
        for each in study.detections
        if each.dataset == "all" and each.space in SHOWN
    )
    yield f"The trace of a single image as a score, mean AUROC in percent: {', '.join(scores)}."
    for space, name in study.columns:
        missed = [each.dataset for each in study.not_above if (each.space, each.name) == (space, name)]
        if missed and space in SHOWN:
            yield f"The paper's claim does not hold here for the {space} {name} of {', '.join(missed)}: not above id."
