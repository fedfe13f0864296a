"""One self-contained HTML page from the files of a benchmark: it works offline, and without its script too."""

from pathlib import Path
from string import Template

from ..evaluate.results import Results, load_results
from ..files import write_atomically
from . import head
from .about import datasets_table, methods_table, provenance
from .curvature.parts import NOTHING, Parts, beside
from .curves import SHOWN
from .drawing import Drawing
from .figures import all_figures
from .gallery import gallery
from .markup import Html, joined, tag
from .norms import headings
from .panels import side_by_side
from .results_table import legend, results_table
from .sections import contents, sections

HERE = Path(__file__).parent
OPEN = 12  # histograms that are shown without a click


def write_report(folder: Path) -> Path:
    """Write ``report.html`` beside the result files in ``folder``, and its figures for papers; return its path.

    The figures are ``figures/NAME.svg`` and ``figures/NAME.pdf``. The same results give the same bytes. A curvature
    study of the same network in the folder is shown too; of one that is not, the page says so.
    """
    results = load_results(folder)
    figures = all_figures(results)
    for name, drawing in figures.items():
        if name != "costs-tall":
            drawing.save(folder / "figures")
    path = folder / "report.html"
    write_atomically(path, render(results, figures, beside(results, folder)))
    return path


def render(results: Results, figures: dict[str, Drawing] | None = None, curvature: Parts = NOTHING) -> str:
    """Return the page as text.

    Args:
        results: What the page tells.
        figures: What :func:`~flatfold.report.figures.all_figures` made of them, where that was done already.
        curvature: What :func:`~flatfold.report.curvature.parts.beside` found beside them.
    """
    parts = {
        **_figures(results, figures or all_figures(results)),
        "wrong": gallery(results),
        **curvature.content,
        "datasets": datasets_table(results),
        "methods": methods_table(results),
        "provenance": provenance(results),
    }
    return filled(
        "page.html",
        title=head.title(results),
        about=results.suite["about"],
        finding=head.finding(results),
        facts=head.facts(results),
        warnings=head.warnings(results),
        legend=legend(results),
        results_table=results_table(results),
        contents=contents(parts),
        sections=sections(parts, {**_more(results), **curvature.more}),
    )


def filled(template: str, **parts: object) -> str:
    """Return a template of this folder with style, script and these parts in place; what is not markup is escaped."""
    told = {name: joined([part]) for name, part in parts.items()}
    return Template(_read(template)).substitute(told, css=_read("page.css"), script=_read("page.js"))


def _figures(results: Results, figures: dict[str, Drawing]) -> dict[str, Html]:
    """Return each figure as a part of the page; one without panels is empty."""
    norms = [
        joined([tag("h3", why), side_by_side(figures[name])])
        for name, why in headings(results).items()
        if figures[name].panels
    ]
    return {
        "scores": side_by_side(figures["histograms"], OPEN),
        "roc": side_by_side(figures["roc"]),
        "norms": joined(norms),
        "alpha": side_by_side(figures["alpha"]) if figures["alpha"].panels else Html(),
        "costs": joined(
            tag("div", side_by_side(figures[name], class_="panels one"), class_=kind)
            for name, kind in (("costs", "wide"), ("costs-tall", "tall"))
        ),
    }


def _more(results: Results) -> dict[str, str]:
    """Return what the explanation of a section says of this run alone."""
    count = len(results.methods)
    return {
        "roc": f"The {SHOWN} methods with the best average of {count} are drawn." if count > SHOWN else "",
        "wrong": "" if results.suite.get("classes") else "Classes are numbers of the network's outputs.",
    }


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf8")
