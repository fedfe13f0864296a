"""One self-contained HTML page from the files of a benchmark: no script, no outside request."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template

from ..evaluate.results import Results, load_results
from ..evaluate.rows import Average, Row
from ..files import write_atomically
from . import figures

HERE = Path(__file__).parent


def write_report(folder: Path) -> Path:
    """Write ``report.html`` beside the result files in ``folder`` and return its path."""
    path = folder / "report.html"
    write_atomically(path, render(load_results(folder)))
    return path


def render(results: Results) -> str:
    """Return the page as text."""
    suite = results.suite
    return Template((HERE / "page.html").read_text(encoding="utf8")).substitute(
        title=escape(f"flatfold: {suite['name']}" + (f", {suite['network']}" if suite["network"] else "")),
        about=escape(suite["about"]),
        facts=_facts(results),
        table=_table(results),
        notes=_notes(results),
        methods=_methods(results),
        datasets=_definition_list(
            {ood["name"]: f"{ood['about']} ({ood['group']}-OOD, {ood['n']} images)" for ood in suite["ood"]}
        ),
        histograms=figures.histograms(results),
        roc=figures.roc_curves(results),
        alpha=_alpha_section(results),
        provenance=_definition_list(results.provenance),
    )


def _facts(results: Results) -> str:
    suite = results.suite
    facts = {
        f"{100 * suite['accuracy']:.2f} %": f"accuracy on {suite['n_test']} known test images",
        str(suite["n_classes"]): "known classes",
        str(len(suite["ood"])): "unknown data sets",
        str(len(results.methods)): "methods",
    }
    return "".join(f"<li><b>{escape(number)}</b> {escape(what)}</li>" for number, what in facts.items())


def _table(results: Results) -> str:
    cells, columns = results.cells, results.columns
    best = {column: max(cells[run.method, column].auroc for run in results.methods) for column in columns}
    names = ["method", *("average" if column == "all" else column for column in columns), "α", "tuned"]
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    lines = [f"<thead><tr>{heads}</tr></thead><tbody>"]
    for run in results.ranked:
        figures_ = "".join(_cell(cells[run.method, column], best[column]) for column in columns)
        last = f"<td>{run.alpha}</td><td>{run.tuned}</td>"
        lines.append(f'<tr><th scope="row">{escape(run.method)}</th>{figures_}{last}</tr>')
    return f"<table>{''.join(lines)}</tbody></table>"


def _cell(cell: Row | Average, best: float) -> str:
    mark = ' class="best"' if cell.auroc == best else ""
    return f"<td{mark}><b>{100 * cell.auroc:.2f}</b> <span>{100 * cell.fpr95_ood_positive:.2f}</span></td>"


def _methods(results: Results) -> str:
    heads = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("method", "settings", "learnt", "fitted on", "tuned on", "fit, s", "score, µs a sample")
    )
    lines = []
    for run in results.methods:
        told = (_settings(run.hyper), _settings(run.learnt), run.fits_on, run.tuned_on)
        cells = "".join(f"<td>{escape(text)}</td>" for text in told)
        times = f"<td>{run.fit_seconds:.3f}</td><td>{run.microseconds_per_sample:.2f}</td>"
        lines.append(f'<tr><th scope="row">{escape(run.method)}</th>{cells}{times}</tr>')
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _settings(values: Mapping[str, object]) -> str:
    shown = {key: f"{value[0]}..{value[-1]}" if isinstance(value, list) else value for key, value in values.items()}
    return ", ".join(f"{key} = {value}" for key, value in shown.items() if value is not None)


def _notes(results: Results) -> str:
    notes = [f"{run.method}: {note}" for run in results.methods for note in run.warnings]
    notes += [f"{method} was left out: {reason}" for method, reason in results.refused.items()]
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def _alpha_section(results: Results) -> str:
    if not results.alpha_curves:
        return "<p>No AutoFold among the methods of this run.</p>"
    return figures.alpha_curves(results)


def _definition_list(entries: Mapping[str, object]) -> str:
    pairs = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in entries.items())
    return f"<dl>{pairs}</dl>"
