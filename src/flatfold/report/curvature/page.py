"""The page of a curvature study, and the report that it joins."""

from pathlib import Path

from ...evaluate.results import ID
from ...evaluate.study.files import Study, load_study
from ...files import write_atomically
from ..cells import percent
from ..drawing import Drawing
from ..head import warning_box
from ..markup import Html, definition_list, tag
from ..page import filled, write_report
from ..sections import contents, sections
from .compare import compare
from .finding import finding
from .parts import curvature_figures, curvature_parts


def write_curvature(folder: Path) -> Path:
    """Write ``curvature.html`` beside the files of a study in ``folder``, and its figures for papers; return its path.

    The figures are ``figures/NAME.svg`` and ``figures/NAME.pdf``. Where the results of a benchmark lie in the folder
    too, their ``report.html`` is written again, with the study in it. The same files give the same bytes.
    """
    study = load_study(folder)
    figures = curvature_figures(study)
    for drawing in figures.values():
        drawing.save(folder / "figures")
    path = folder / "curvature.html"
    write_atomically(path, render_curvature(study, figures))
    if (folder / "results.json").exists():
        write_report(folder)
    return path


def render_curvature(study: Study, figures: dict[str, Drawing] | None = None) -> str:
    """Return the page as text.

    Args:
        study: What the page tells.
        figures: What :func:`~flatfold.report.curvature.parts.curvature_figures` made of it, where that is done already.
    """
    suite = study.suite
    parts = curvature_parts(study, figures)
    content = {**parts.content, "provenance": definition_list(study.provenance)}
    return filled(
        "curvature.html",
        title=f"{suite['name']}, {suite['network']}" if suite["network"] else suite["name"],
        about=suite["about"],
        finding=finding(compare(study)),
        facts=_facts(study),
        warnings=warning_box(suite.get("deviations", []), []),
        contents=contents(content),
        sections=sections(content, parts.more),
    )


def _facts(study: Study) -> Html:
    suite, traces = study.suite, study.traces
    unknown = [len(traces[f"feature/{name}"]) for name in study.datasets[1:]]
    told = [
        (f"{suite['n_parameters']:,}", "parameters"),
        (f"{suite['n_features']:,}", "features"),
        (f"{suite['n_classes']:,}", "known classes"),
        (f"{percent(suite['accuracy'])} %", "accuracy"),
        (f"{len(traces[f'feature/{ID}']):,}", "known test images"),
        (f"{sum(unknown):,}", f"unknown images in {len(unknown)} data set{'s' * (len(unknown) > 1)}"),
    ]
    return tag("ul", *(tag("li", tag("b", number), " ", what) for number, what in told), class_="facts")
