"""What the figures of the paper take from figures that exist: some panels, some data sets, another name."""

from dataclasses import replace

from ...evaluate.reproduce.verdict import Material
from ...evaluate.results import Results
from ...evaluate.study.files import Space, Study
from ..costs import WIDE, cost_figure
from ..curvature.compare import SPACES
from ..curvature.spectra import spectral_densities
from ..curvature.traces import trace_densities
from ..drawing import Drawing

SHOWN: tuple[Space, ...] = ("parameter", "feature")


def price(material: Material, name: str, size: tuple[float, float] = WIDE) -> Drawing:
    """Return AUROC against cost, with the times that were taken for all methods on the same batch."""
    return replace(cost_figure(_timed(material), size), name=name)


def typical_traces(study: Study, name: str) -> Drawing:
    """Return the traces over parameters of the known, the first near and the first far data set."""
    drawing = trace_densities(one_of_each(study))
    return replace(drawing, name=name, panels=drawing.panels[:1])


def typical_spectra(study: Study, name: str) -> Drawing:
    """Return the spectra of the known, the first near and the first far data set, over parameters and features."""
    few = one_of_each(study)
    drawings = {space: spectral_densities(few, space) for space in SHOWN}
    panels = [
        replace(panel, title=f"{panel.title}, over {SPACES[space]}")
        for space, drawing in drawings.items()
        for panel in drawing.panels
    ]
    return replace(drawings["feature"], name=name, panels=panels)


def one_of_each(study: Study) -> Study:
    """Return a study of the first near and the first far data set alone."""
    firsts = [next(ood for ood in study.suite["ood"] if ood["group"] == group) for group in study.groups]
    return replace(study, suite={**study.suite, "ood": firsts})


def _timed(material: Material) -> Results:
    """Return the results with the costs of the ablations in place of those of the benchmark."""
    costs = {cost.method: cost for cost in material.ablations.costs}
    methods = [
        replace(
            run,
            fit_seconds=costs[run.method].setup_ms / 1000,
            microseconds_per_sample=1000 * costs[run.method].inference_ms / costs[run.method].batch_size,
        )
        for run in material.results.methods
        if run.method in costs
    ]
    return replace(material.results, methods=methods or material.results.methods)
