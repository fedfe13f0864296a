r"""Format results as LaTeX tables: booktabs rules, one column per data set and metric, the best in bold."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .metrics import METRICS, SHOWN, find_metrics

SPECIAL = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


class LatexCell(NamedTuple):
    """Values of one method in one column by metric, between 0 and 1, and LaTeX to append to each."""

    values: Mapping[str, float]
    after: Mapping[str, str] = {}


def latex_table(
    columns: Sequence[str],
    lines: Sequence[tuple[str, Sequence[LatexCell]]],
    metrics: Sequence[str] = SHOWN,
    caption: str = "",
    label: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Format a table of values in percent.

    The best value of each column is bold, and so are values equal to it after rounding. With a ``caption`` or a
    ``label`` the result is a ``table`` environment, else a ``tabular``. ``lines`` are the methods, each with
    one cell per column; ``notes`` become comments.
    """
    metrics = find_metrics(metrics)
    if not lines or not columns:
        raise ValueError("a table needs a method and a column, got none. Choose results that have both.")
    heads = {
        metric: rf"{METRICS[metric].title} $\{'up' if METRICS[metric].higher else 'down'}arrow$" for metric in metrics
    }
    width = len(metrics)
    body = [r"\toprule"]
    if width == 1:
        body.append(_row(["Method", *(f"{escape(column)} {heads[metrics[0]]}" for column in columns)]))
    else:
        spans = (f"\\multicolumn{{{width}}}{{c}}{{{escape(column)}}}" for column in columns)
        starts = range(2, 2 + width * len(columns), width)
        body.append(_row(["", *spans]))
        body.append(" ".join(f"\\cmidrule(lr){{{start}-{start + width - 1}}}" for start in starts))
        body.append(_row(["Method", *(heads[metric] for _ in columns for metric in metrics)]))
    body.append(r"\midrule")
    best = {
        (number, metric): (max if METRICS[metric].higher else min)(_digits(cells[number], metric) for _, cells in lines)
        for number in range(len(columns))
        for metric in metrics
    }
    for method, cells in lines:
        texts = []
        for number, cell in enumerate(cells):
            for metric in metrics:
                value = _digits(cell, metric)
                text = f"\\textbf{{{value:.2f}}}" if value == best[number, metric] else f"{value:.2f}"
                texts.append(text + cell.after.get(metric, ""))
        body.append(_row([escape(method), *texts]))
    alignment = "l" + "r" * width * len(columns)
    tabular = "\n".join([f"\\begin{{tabular}}{{{alignment}}}", *body, r"\bottomrule", r"\end{tabular}"])
    if caption or label:
        titles = [f"\\caption{{{caption}}}"] * bool(caption) + [f"\\label{{{label}}}"] * bool(label)
        tabular = "\n".join([r"\begin{table}", r"\centering", *titles, tabular, r"\end{table}"])
    comments = [r"needs \usepackage{booktabs}; figures in percent", *notes]
    return "".join(f"% {' '.join(comment.split())}\n" for comment in comments) + tabular + "\n"


def escape(text: str) -> str:
    r"""Escape the special characters of LaTeX.

    Example:
        >>> escape("knn:k=10 & 5 % of digits_6")
        'knn:k=10 \\& 5 \\% of digits\\_6'
    """
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def interval_after(ends: tuple[float, float] | None) -> str:
    """Format an interval to append to its value."""
    return "" if ends is None else "\\,{{\\scriptsize[{:.2f}, {:.2f}]}}".format(*(100 * end for end in ends))


def deviation_after(deviation: float) -> str:
    """Format a standard deviation to append to its mean."""
    return f"\\,{{\\scriptsize$\\pm${100 * deviation:.2f}}}"


def _digits(cell: LatexCell, metric: str) -> float:
    return round(100 * cell.values[metric], 2)


def _row(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"
