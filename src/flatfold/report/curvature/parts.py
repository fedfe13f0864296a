"""The parts of a page that a curvature study fills, and what is said of that study alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...curvature.estimate import LOSSES, MATRICES
from ...evaluate.results import ID, Results
from ...evaluate.study.certainty import typical_error
from ...evaluate.study.files import JSON, Space, Study, load_study
from ..drawing import Drawing
from ..markup import Html, joined, tag
from ..panels import side_by_side
from ..theorem import theorem_figure
from .compare import SPACES, compare
from .detection import detection_table
from .eigenvalues import top_eigenvalues
from .finding import finding
from .spectra import spectral_densities
from .table import statistics_table
from .traces import trace_densities

SPECTRA: tuple[Space, ...] = ("parameter", "feature")
NETWORK = "weights, sha256"  # in the provenance: what tells one network from another
NEGATIVE = "Over parameters it has eigenvalues below zero as well, so that a trace can be smaller than λmax."
SHARED = (
    "Over parameters the traces are estimates. Inputs of a batch share the random directions and so their errors: a "
    "whole data set may be shifted against another."
)


class Parts(NamedTuple):
    """Content by the name of its section, and what is said of this study behind the explanation."""

    content: dict[str, Html]
    more: dict[str, str]


NOTHING = Parts({}, {})


def curvature_figures(study: Study) -> dict[str, Drawing]:
    """Return every figure of a study by its name."""
    spectra = (spectral_densities(study, space) for space in SPECTRA)
    drawings = (trace_densities(study), *spectra, top_eigenvalues(study), theorem_figure())
    return {drawing.name: drawing for drawing in drawings}


def curvature_parts(study: Study, figures: dict[str, Drawing] | None = None) -> Parts:
    """Return what a page shows of a study.

    Args:
        study: What is shown.
        figures: What :func:`curvature_figures` made of it, where that was done already.
    """
    drawn = figures or curvature_figures(study)
    content = {
        "curvature": statistics_table(study, compare(study)),
        "curvature-traces": side_by_side(drawn["curvature-traces"]),
        "curvature-spectra": joined(_spectrum(study, space, drawn) for space in SPECTRA),
        "curvature-eigenvalues": side_by_side(drawn["curvature-eigenvalues"]),
        "curvature-detection": detection_table(study),
        "theorem": side_by_side(drawn["theorem"]),
    }
    shared = "" if typical_error(study, "parameter") is None else f" {SHARED}"
    more = {
        "curvature": f"{meaning(study, list(SPACES))} {how(study)}",
        "curvature-traces": meaning(study, list(SPACES)) + shared,
        "curvature-spectra": meaning(study, SPECTRA),
        "curvature-eigenvalues": meaning(study, ["feature"]),
        "curvature-detection": meaning(study, list(SPACES)) + shared,
    }
    return Parts(content, more)


def meaning(study: Study, spaces: Sequence[Space]) -> str:
    """Return of which loss the curvature is, and which matrix it is, in each of these spaces."""
    found: dict[str, list[str]] = {}
    for space in spaces:
        told = study.cell(ID, space, "trace")
        found.setdefault(f"the {MATRICES[told.matrix]} of the {LOSSES[told.loss]}", []).append(SPACES[space])
    return f"Curvature is here {'; '.join(f'{what} over {_and(over)}' for what, over in found.items())}."


def how(study: Study) -> str:
    """Return how the figures over parameters were computed, and why a trace may be smaller than its part."""
    largest, trace = (study.cell(ID, "parameter", name).method for name in ("lambda_max", "trace"))
    told = f"Over parameters λmax was computed by {largest}, the trace by {trace}."
    if trace == "exact":
        told = f"Over parameters λmax was computed by {largest}, the trace exactly."
    cells = study.cells
    smaller = any(
        cells[name, "parameter", "trace"].value < cells[name, "parameter", "lambda_max"].value
        for name in study.datasets
    )
    return f"{told} {NEGATIVE}" if smaller else told


def beside(results: Results, folder: Path) -> Parts:
    """Return the parts of the study that lies beside results; where it is not of the same network, a sentence."""
    if not (folder / JSON).exists():
        return NOTHING
    try:
        study = load_study(folder)
    except ValueError as error:  # a report of sound results is not to fail for it
        return _sentence(f"There is a curvature study beside these results, which is not shown: {error}")
    if not same_network(results, study):
        return _elsewhere("another network: the weights are not the same")
    if _judged(results.suite) != _judged(study.suite):
        return _elsewhere("another suite: its name, or its unknown data sets, are not the same")
    parts = curvature_parts(study)
    above = [tag("p", finding(compare(study))), _alone(results, study), parts.content["curvature"]]
    return parts._replace(content={**parts.content, "curvature": joined(above)})


def same_network(results: Results, study: Study) -> bool:
    """Return whether results and study are of the same weights, which both must name."""
    weights = results.provenance.get(NETWORK)
    return weights is not None and weights == study.provenance.get(NETWORK)


def _alone(results: Results, study: Study) -> Html:
    """Return what a reader must know of the study and not of the results, such as that it took fewer images."""
    told = results.suite.get("deviations", [])
    own = [text for text in study.suite.get("deviations", []) if text not in told]
    return tag("p", f"Of the curvature study alone: {'; '.join(own)}.") if own else Html()


def _judged(suite: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Return what tells one suite from another, whatever part of its images was taken."""
    return suite["name"], [ood["name"] for ood in suite["ood"]]


def _elsewhere(of_what: str) -> Parts:
    return _sentence(
        f"There is a curvature study beside these results, of {of_what}. It is on a page of its own, curvature.html; "
        "run `flatfold curvature` again to see it here."
    )


def _sentence(text: str) -> Parts:
    return Parts({"curvature-elsewhere": tag("p", text)}, {})


def _spectrum(study: Study, space: Space, drawn: dict[str, Drawing]) -> Html:
    heading = tag("h3", f"Over {SPACES[space]}: {study.sizes[space]:,} eigenvalues")
    return joined([heading, side_by_side(drawn[f"curvature-spectrum-{space}"])])


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [words[-1]])
