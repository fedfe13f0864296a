"""One page for several runs, of networks or seeds: means and spread, and the way to each run's own report."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from ..evaluate.results import METRICS, Results
from ..evaluate.summary import SummaryRow, families, family_of, load_runs, summarise
from ..io.files import write_atomically
from .html import Html, between, filled, head_cell, joined, metric_cell, percent, scrolling, table, tag, warning_box
from .page import column_heads, controls, groups_of, title


def write_summary(folder: Path) -> Path:
    """Write ``report.html`` above the folders of several runs and return its path.

    Args:
        folder: Whose direct sub-folders hold the result files, as `flatfold bench` writes them for several runs.
    """
    if (folder / "results.json").exists():
        raise ValueError(
            f"a summary needs a folder of several runs, but {folder} is a run itself. Use write_report, or name the "
            "folder above it."
        )
    runs = load_runs(folder)
    path = folder / "report.html"
    write_atomically(path, render_summary(runs, folder))
    return path


def render_summary(runs: dict[Path, Results], folder: Path) -> str:
    """Return the page as text; links are relative to ``folder``."""
    results = list(runs.values())
    groups, rows = families(results), summarise(results)
    suites = dict.fromkeys(str(run.suite["name"]) for run in results)
    abouts = dict.fromkeys(str(run.suite["about"]) for run in results)
    return filled(
        "summary.html",
        title=", ".join(suites),
        about=" ".join(abouts),
        facts=_facts(groups),
        contents=joined(tag("li", tag("a", family, href=f"#family-{number}")) for number, family in enumerate(groups)),
        warnings=warning_box(_deviations(results) + _left_out(groups, rows), []),
        families=joined(
            _family(number, group, [row for row in rows if row.family == family])
            for number, (family, group) in enumerate(groups.items())
        ),
        runs=_runs(runs, folder),
    )


def _facts(groups: dict[str, list[Results]]) -> Html:
    count = sum(map(len, groups.values()))
    told = [(count, "run" if count == 1 else "runs: networks or seeds")]
    told += [(len(groups), "family" if len(groups) == 1 else "families")]
    return tag("ul", *(tag("li", tag("b", number), " ", what) for number, what in told), class_="facts")


def _deviations(runs: Sequence[Results]) -> list[str]:
    return [f"{title(run)}: {sentence}" for run in runs for sentence in run.suite.get("deviations", [])]


def _left_out(groups: dict[str, list[Results]], rows: Sequence[SummaryRow]) -> list[str]:
    """Return a sentence for every method that a family's table lacks because a run lacks or refused it."""
    told = []
    for family, group in groups.items():
        shown = {row.method for row in rows if row.family == family}
        methods = dict.fromkeys(name for run in group for name in (*(m.method for m in run.methods), *run.refused))
        told += [f"{family}: {_why_not(method, group)}" for method in methods if method not in shown]
    return told


def _why_not(method: str, group: Sequence[Results]) -> str:
    """Return why a method is left out, with the reason of the first run that refused it."""
    refusals = [(title(run), run.refused[method]) for run in group if method in run.refused]
    if len(refusals) == len(group):
        return f"{method} was left out: {refusals[0][1]}"
    if refusals:
        return f"{method} is not in every run and left out here. {refusals[0][0]} left it out: {refusals[0][1]}"
    return f"{method} is not in every run and left out here."


def _family(number: int, group: Sequence[Results], rows: Sequence[SummaryRow]) -> Html:
    """Return the table of one family, best mean AUROC of the last column first."""
    family, first = family_of(group[0]), group[0]
    columns = list(dict.fromkeys(row.column for row in rows))
    cells = {(row.method, row.column): row for row in rows}
    means = {row.method: row.means["auroc"] for row in rows if row.column == columns[-1]}
    shown = {row.method for row in rows}
    methods = sorted((run for run in first.methods if run.method in shown), key=lambda run: -means.get(run.method, 0.0))
    lines = [
        tag(
            "tr",
            tag("th", run.method, scope="row"),
            *(_cell(cells.get((run.method, column))) for column in columns),
            data_groups=groups_of(run),
        )
        for run in methods
    ]
    made = table([head_cell("method", text=True), *column_heads(first, columns)], lines, id=f"table-{number}")
    parts = [
        tag("h2", family),
        tag("p", _about(group)),
        controls(f"table-{number}", len(lines)),
        scrolling(made, family),
    ]
    return tag("section", *parts, id=f"family-{number}")


def _about(group: Sequence[Results]) -> str:
    accuracy = fmean(run.suite["accuracy"] for run in group)
    if len(group) == 1:
        return f"One run, accuracy {percent(accuracy)} %. Figures in percent, below them their 95 % interval."
    return (
        f"Means over {len(group)} runs, in percent; below them the standard deviation between the runs, and the "
        f"95 % interval of the mean where one was computed. Accuracy {percent(accuracy)} % on average."
    )


def _cell(row: SummaryRow | None) -> Html:
    if row is None:
        return tag("td")
    intervals = {metric: between(row.intervals.get(metric)) for metric in METRICS}
    spread = {metric: f"± {percent(row.stds[metric])}\n" if row.n > 1 else "" for metric in METRICS}
    return metric_cell(row.means, {metric: (spread[metric] + intervals[metric]).strip() for metric in METRICS})


def _runs(runs: dict[Path, Results], folder: Path) -> Html:
    heads = [head_cell(name, text=True) for name in ("run", "family", "best method")]
    heads += [head_cell(name) for name in ("average AUROC", "accuracy", "seed")]
    lines = []
    for place, run in runs.items():
        address = f"{quote(place.relative_to(folder).as_posix())}/report.html"
        name = tag("a", place.name, href=address) if (place / "report.html").exists() else place.name
        best = run.ranked[0].method
        words = (tag("td", text, class_="text") for text in (family_of(run), best))
        numbers = (
            percent(run.cells[best, "all"].auroc),
            percent(run.suite["accuracy"]),
            run.provenance.get("seed", ""),
        )
        lines.append(tag("tr", tag("th", name, scope="row"), *words, *(tag("td", number) for number in numbers)))
    return scrolling(table(heads, lines, class_="sortable told"), "Runs")
