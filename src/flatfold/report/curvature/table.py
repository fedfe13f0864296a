"""The table of a curvature study: how much the loss bends at known and at unknown images."""

from ...evaluate.study.certainty import above
from ...evaluate.study.files import Statistic, Study
from ..cells import head_cell, table
from ..markup import Html, scrolling, tag
from .compare import NAMES, SPACES, Comparison, Line
from .numbers import factor, quantity

TITLES = {
    "lambda_max": "Largest eigenvalue of the mean curvature matrix.",
    "trace": "Sum of its eigenvalues: the mean trace over the inputs.",
}
VERDICTS = {1: "", 0: "not told apart", -1: "below known"}


def statistics_table(study: Study, comparison: Comparison) -> Html:
    """Return a line per data set and mean: every figure, its error, its factor over the known images.

    What does not exceed the known images is marked, and says so.
    """
    heads = [head_cell("data set", text=True), head_cell("inputs")]
    heads += [head_cell(NAMES[name], f"over {SPACES[space]}", TITLES[name]) for space, name in comparison.known]
    lines = [_line("known", "", comparison.known, comparison.known)]
    lines += [
        _line(ood["name"], ood["group"], comparison.unknown[ood["name"]], comparison.known, ood["about"])
        for ood in study.suite["ood"]
    ]
    lines += [_line(group, "mean", line, comparison.known) for group, line in comparison.means.items()]
    return scrolling(table(heads, lines, class_="sortable results"), "Curvature by data set")


def _line(name: str, below: str, line: Line, known: Line, about: str | None = None) -> Html:
    head = tag("th", name, *([tag("small", below)] if below else []), scope="row", title=about)
    n = max(figure.n for figure in line.values())
    cells = [_figure(figure, known[column]) for column, figure in line.items()]
    return tag("tr", head, tag("td", f"{n:,}", data_sort=n), *cells)


def _figure(figure: Statistic, known: Statistic) -> Html:
    """Return a figure with its error and, unless it is the known one itself, how it compares to that."""
    ratio, verdict = (
        ("", "") if figure is known else (factor(figure.value, known.value), VERDICTS[above(figure, known)])
    )
    error = "exact" if figure.stderr is None else f"± {quantity(figure.stderr, 2)}"
    parts: list[object] = [tag("b", quantity(figure.value)), tag("small", error)]
    parts += [tag("span", ratio)] if ratio else []
    parts += [tag("small", verdict, class_="verdict")] if verdict else []
    how = f"{figure.method}, {figure.matvecs:,} products" if figure.matvecs else figure.method
    return tag("td", *parts, class_="below" if verdict else None, title=how, data_sort=figure.value)
