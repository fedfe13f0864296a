"""One self-contained HTML page from the files of a benchmark: it works offline, and without its script too."""

from pathlib import Path
from string import Template

from ..evaluate.results import Results, load_results
from ..files import write_atomically
from . import head
from .about import datasets_table, methods_table, provenance
from .curves import SHOWN
from .drawing import Drawing
from .figures import all_figures
from .gallery import gallery
from .markup import Html, joined, tag
from .norms import headings
from .panels import side_by_side
from .results_table import legend, results_table

HERE = Path(__file__).parent
OPEN = 12  # histograms that are shown without a click


def write_report(folder: Path) -> Path:
    """Write ``report.html`` beside the result files in ``folder``, and its figures for papers; return its path.

    The figures are ``figures/NAME.svg`` and ``figures/NAME.pdf``. The same results give the same bytes.
    """
    results = load_results(folder)
    figures = all_figures(results)
    for name, drawing in figures.items():
        if name != "costs-tall":
            drawing.save(folder / "figures")
    path = folder / "report.html"
    write_atomically(path, render(results, figures))
    return path


def render(results: Results, figures: dict[str, Drawing] | None = None) -> str:
    """Return the page as text.

    Args:
        results: What the page tells.
        figures: What :func:`~flatfold.report.figures.all_figures` made of them, where that was done already.
    """
    suite = results.suite
    return filled(
        "page.html",
        title=head.title(results),
        about=suite["about"],
        finding=head.finding(results),
        facts=head.facts(results),
        warnings=head.warnings(results),
        legend=legend(results),
        results_table=results_table(results),
        gallery=gallery(results),
        datasets=datasets_table(results),
        methods=methods_table(results),
        provenance=provenance(results),
        **_figures(results, figures or all_figures(results)),
    )


def filled(template: str, **parts: object) -> str:
    """Return a template of this folder with style, script and these parts in place; what is not markup is escaped."""
    told = {name: joined([part]) for name, part in parts.items()}
    return Template(_read(template)).substitute(told, css=_read("page.css"), script=_read("page.js"))


def _figures(results: Results, figures: dict[str, Drawing]) -> dict[str, Html]:
    """Return each figure as a part of the page, and a sentence on what it shows of the whole."""
    count = len(results.methods)
    norms = [
        joined([tag("h3", why), side_by_side(figures[name])])
        for name, why in headings(results).items()
        if figures[name].panels
    ]
    return {
        "histograms": side_by_side(figures["histograms"], OPEN),
        "roc": side_by_side(figures["roc"]),
        "roc_shown": joined(
            [f"The {SHOWN} methods with the best average of {count} are drawn." if count > SHOWN else ""]
        ),
        "norms": joined(norms) if norms else tag("p", "These results hold no norms of features.", class_="soft"),
        "alpha": _or(figures["alpha"], "No AutoFold among the methods of this run."),
        "costs": joined(
            tag("div", side_by_side(figures[name], class_="panels one"), class_=kind)
            for name, kind in (("costs", "wide"), ("costs-tall", "tall"))
        ),
    }


def _or(drawing: Drawing, otherwise: str) -> Html:
    return side_by_side(drawing) if drawing.panels else tag("p", otherwise, class_="soft")


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf8")
