"""Summary page of several runs: means and spread over networks or seeds, and links to the reports."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from ..detectors import cited_works, full_name
from ..evaluate.results import METRICS, MethodRun, Results
from ..evaluate.summary import SummaryRow, answer, families, family_of, load_runs, summarise
from ..io.files import write_atomically
from .page import columns_of, groups_of
from .templates import interval, percent, render, suite_title


def write_summary(folder: Path | str) -> Path:
    """Write ``report.html`` to the parent folder of several runs and return its path."""
    folder = Path(folder)
    if (folder / "results.json").exists():
        raise ValueError(
            f"{folder} holds a single run; a summary needs several runs. Use write_report, or pass the parent folder."
        )
    path = folder / "report.html"
    write_atomically(path, render_summary(load_runs(folder), folder))
    return path


def render_summary(runs: dict[Path, Results], folder: Path | str) -> Markup:
    """Render the page; links are relative to ``folder``."""
    results = list(runs.values())
    groups, rows = families(results), summarise(results)
    deviations = [f"{suite_title(run.suite)}: {text}" for run in results for text in run.suite.get("deviations", [])]
    reports = {place: place / "report.html" for place in runs}
    return render(
        "summary.html",
        title=", ".join(dict.fromkeys(str(run.suite["name"]) for run in results)),
        about=" ".join(dict.fromkeys(str(run.suite["about"]) for run in results)),
        warnings=deviations + _left_out(groups, rows),
        families=[_family(group, [row for row in rows if row.family == family]) for family, group in groups.items()],
        groups_of=groups_of,
        full_name=full_name,
        cited_works=cited_works,
        runs=runs,
        family_of=family_of,
        links={place: quote(path.relative_to(folder).as_posix()) for place, path in reports.items() if path.exists()},
    )


def _left_out(groups: dict[str, list[Results]], rows: Sequence[SummaryRow]) -> list[str]:
    """Return a sentence for every method missing in a family's table because a run lacks or rejected it."""
    sentences = []
    for family, group in groups.items():
        shown = {row.method for row in rows if row.family == family}
        methods = dict.fromkeys(name for run in group for name in (*(m.method for m in run.methods), *run.left_out))
        sentences += [f"{family}: {_reason(method, group)}" for method in methods if method not in shown]
    return sentences


def _reason(method: str, group: Sequence[Results]) -> str:
    refusals = [(suite_title(run.suite), run.left_out[method]) for run in group if method in run.left_out]
    if len(refusals) == len(group):
        return f"{method} was left out: {refusals[0][1]}"
    missing = f"{method} is not in every run and is omitted here."
    return f"{missing} {refusals[0][0]} left it out: {refusals[0][1]}" if refusals else missing


def _family(group: Sequence[Results], rows: Sequence[SummaryRow]) -> dict[str, Any]:
    """Return the table of one family, sorted by the mean AUROC of the last column."""
    columns = [column for column in group[0].columns if any(row.column == column for row in rows)]
    cells: dict[str, dict[str, SummaryRow]] = {row.method: {} for row in rows}
    for row in rows:
        cells[row.method][row.column] = row

    def mean_auroc(run: MethodRun) -> float:
        last = cells[run.method].get(columns[-1])
        return last.means["auroc"] if last else 0.0

    methods = sorted((run for run in group[0].methods if run.method in cells), key=mean_auroc, reverse=True)
    return {
        "name": family_of(group[0]),
        "answer": answer(group),
        "runs": len(group),
        "accuracy": fmean(run.suite["accuracy"] for run in group),
        "columns": columns_of(group[0], columns),
        "methods": [(run, [_cell(cells[run.method].get(column)) for column in columns]) for run in methods],
    }


def _cell(row: SummaryRow | None) -> tuple[dict[str, float], dict[str, str]] | None:
    """Return the means by metric, and below each its standard deviation and interval."""
    if row is None:
        return None
    spread = {metric: f"± {percent(row.stds[metric])}\n" if row.n > 1 else "" for metric in METRICS}
    return row.means, {metric: (spread[metric] + interval(row.intervals.get(metric))).strip() for metric in METRICS}
