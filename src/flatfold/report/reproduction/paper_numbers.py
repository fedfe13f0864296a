"""The paper's own numbers beside those of a run, where the two can be compared."""

from collections.abc import Sequence

from ...evaluate.paper import Line, beside_paper
from ...evaluate.paper_tables.benchmarks import OTHERS, incomparable, table_of
from ...evaluate.reproduce.verdict import Material
from ...evaluate.summary import families
from ..cells import head_cell, table
from ..markup import Html, scrolling, tag


def why_not(materials: Sequence[Material]) -> str:
    """Return why the paper's numbers cannot stand beside those of this run, or nothing."""
    runs = [material.results for material in materials]
    reasons = [
        reason
        for group in families(runs).values()
        for reason in incomparable([run.suite for run in group], table_of(group[0].suite))
    ]
    if not reasons:
        return ""
    told = "; ".join(dict.fromkeys(reasons))
    return f"The paper's own numbers are not put beside these, because {told}. Its claims are tested all the same."


def paper_lines(materials: Sequence[Material]) -> list[Line]:
    """Return every number of the paper that this run has too, none where they cannot be compared."""
    if why_not(materials):
        return []
    try:
        return beside_paper([material.results for material in materials])
    except ValueError:  # nothing in common, or one network twice: there is nothing to show
        return []


def chosen(lines: Sequence[Line], number: str) -> list[Line]:
    """Return the lines that belong to Table 2, Table 5 or Tables 8 to 11."""
    if number == "Table 5":
        return [line for line in lines if line.table == OTHERS]
    averages = number == "Table 2"
    return [line for line in lines if line.table != OTHERS and (line.dataset == "all") == averages]


def paper_table(lines: Sequence[Line]) -> Html:
    """Return the paper's numbers beside those of the run, in percent; nothing without any."""
    if not lines:
        return Html()
    heads = [head_cell(word, text=True) for word in ("method", "data set", "metric")]
    heads += [head_cell(word) for word in ("paper", "this run", "difference", "95 % interval")]
    heads += [head_cell("remark", text=True)]
    rows = []
    for line in lines:
        words = [tag("td", word, class_="text") for word in (line.dataset, line.metric)]
        numbers = [f"{line.reported:.2f}", f"{line.measured:.2f}", f"{line.difference:+.2f}".replace("-", "−")]
        span = "" if line.low is None or line.high is None else f"{line.low:.2f}–{line.high:.2f}"
        cells = [tag("td", told) for told in (*numbers, span)]
        rows.append(
            tag("tr", tag("th", line.method, scope="row"), *words, *cells, tag("td", line.remark, class_="text"))
        )
    inside = sum(line.inside for line in lines)
    summary = f"The paper's numbers: {inside} of {len(lines)} lie in the 95 % interval of this run"
    return tag(
        "details",
        tag("summary", summary),
        scrolling(table(heads, rows, class_="sortable told"), "The paper's numbers beside those of this run"),
    )
