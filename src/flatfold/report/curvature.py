"""A curvature study as tables, figures and sentences, for its own page and for the report of the same network."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from ..curvature.estimate import LOSSES, MATRICES
from ..display.figure import Drawing
from ..evaluate.results import ID, Results
from ..evaluate.study_results import NAMES, SPACES, Detection, Name, Space, Study, above, typical_error
from .curvature_figures import spectral_densities, top_eigenvalues, trace_densities
from .templates import factor, quantity, render, suite_title

SPECTRA: tuple[Space, ...] = ("parameter", "feature")
WEIGHTS = "weights, sha256"  # in the provenance: identifies a network
GUESSING = 0.5  # AUROC
MEANS = {"near": "near", "far": "far", "all": "average"}
VERDICTS = {1: "", 0: "not significant", -1: "below ID"}  # by the comparison of a value with that of the ID images


def render_curvature(study: Study, figures: dict[str, Drawing] | None = None) -> Markup:
    """Render the page of a study; ``figures`` are those of :func:`curvature_figures` if already computed."""
    return render(
        "curvature.html",
        title=suite_title(study.suite),
        study=study,
        sizes=[len(study.traces[f"feature/{name}"]) for name in study.datasets],
        view=curvature_view(study, figures=figures),
    )


def curvature_figures(study: Study) -> dict[str, Drawing]:
    """Return every figure of a study by its name."""
    spectra = (spectral_densities(study, space) for space in SPECTRA)
    return {drawing.name: drawing for drawing in (trace_densities(study), *spectra, top_eigenvalues(study))}


def curvature_view(
    study: Study, results: Results | None = None, figures: dict[str, Drawing] | None = None
) -> dict[str, Any]:
    """Return the values of ``curvature_sections.html``; with ``results``, for the sections in their report."""
    cells = study.cells
    deviations = results.suite.get("deviations", []) if results else []
    return {
        "joined": results is not None,
        "deviations": [text for text in study.suite.get("deviations", []) if text not in deviations],
        "finding": _finding(study),
        "statistics": statistics_table(study),
        "detection": detection_table(study),
        "figures": figures or curvature_figures(study),
        "spectra": {space: SPACES[space] for space in SPECTRA},
        "sizes": study.sizes,
        "meaning": {
            "all": _meaning(study, list(SPACES)),
            "spectra": _meaning(study, SPECTRA),
            "features": _meaning(study, ["feature"]),
        },
        "largest_by": cells[ID, "parameter", "lambda_max"].method,
        "trace_by": cells[ID, "parameter", "trace"].method,
        "negative": any(
            cells[name, "parameter", "trace"].value < cells[name, "parameter", "lambda_max"].value
            for name in study.datasets
        ),
        "estimated": typical_error(study, "parameter") is not None,
    }


def mismatch(results: Results, study: Study) -> str:
    """Return the reason why a study does not belong to these results, or an empty string."""
    suites = [(suite["name"], [ood["name"] for ood in suite["ood"]]) for suite in (results.suite, study.suite)]
    if (weights := results.provenance.get(WEIGHTS)) is None or weights != study.provenance.get(WEIGHTS):
        other = "another network: the weights differ"
    elif suites[0] != suites[1]:
        other = "another suite: its name or its OOD data sets differ"
    else:
        return ""
    return (
        f"The curvature study in this folder belongs to {other}. It has its own page, curvature.html; run `flatfold "
        "curvature` again to include it here."
    )


def statistics_table(study: Study) -> Markup:
    """Render a table with one row per data set and mean: every value, its error, and its ratio to the ID images.

    Values that do not exceed those of the ID images are marked.
    """
    columns, sets = _columns(study), study.suite["ood"]
    groups = [ood["group"] for ood in sets]
    lines = [(ID, "ID", "", None), *((ood["name"], ood["name"], ood["group"], ood["about"]) for ood in sets)]
    lines += [(group, group, "mean", None) for group in study.groups if groups.count(group) > 1]
    return render(
        "statistics_table.html",
        columns=[(name, NAMES[name], SPACES[space]) for space, name in columns],
        lines=[
            (head, below, title, [study.cells[at, *column] for column in columns]) for at, head, below, title in lines
        ],
        find_verdict=lambda statistic, reference: VERDICTS[above(statistic, reference)],
    )


def detection_table(study: Study) -> Markup:
    """Render a table of AUROCs with intervals: one row per trace, one column per data set and mean; may be empty.

    The best value of a column is marked, and every other whose interval overlaps it, unless there is only one; an AUROC
    significantly worse than guessing is marked too. Estimated traces are never marked: their AUROC is that of the
    estimates, not of the exact traces.
    """
    if not study.detections:
        return Markup()
    found = {(detection.space, detection.alpha, detection.dataset): detection for detection in study.detections}
    errors = {(space, alpha): typical_error(study, space) for space, alpha, _ in found}
    exact = [trace for trace, error in errors.items() if error is None]
    groups = {ood["name"]: ood["group"] for ood in study.suite["ood"]}
    present = {name for _, _, name in found}
    means = ["near", "far", "all"] if {"near", "far"} <= present else ["all"]
    columns = [name for name in dict.fromkeys([*groups, *means]) if name in present]

    def find_mark(detection: Detection) -> str | None:
        if (detection.space, detection.alpha) not in exact:
            return None
        rivals = [found[*trace, detection.dataset] for trace in exact if (*trace, detection.dataset) in found]
        best = max(rivals, key=lambda rival: rival.auroc)
        leads = len(exact) > 1 and detection.high >= best.low
        return "below" if detection.high < GUESSING else "best" if leads else None

    return render(
        "detection_table.html",
        columns=[(name if name in groups else MEANS[name], groups.get(name, "mean")) for name in columns],
        lines=[
            (SPACES[space], alpha, error, [found.get((space, alpha, name)) for name in columns])
            for (space, alpha), error in errors.items()
        ],
        find_mark=find_mark,
    )


def _columns(study: Study) -> list[tuple[Space, Name]]:
    return [(space, name) for space in SPACES for name in NAMES if (space, name) in study.columns]


def _finding(study: Study) -> dict[str, Any]:
    """Summarise in which OOD data sets both statistics exceed those of the ID images, and by how much.

    ``ratios`` are the smallest and the largest ratio to the ID images in the data sets where they do. Statistics over
    logits are not counted.
    """
    columns = [column for column in _columns(study) if column[0] != "logit"]
    cells, factors = study.cells, []
    exceptions: dict[str, list[str]] = {name: [] for name in study.datasets[1:]}
    for column in columns:
        name = f"{NAMES[column[1]]} over {SPACES[column[0]]}"
        reference = cells[ID, *column]
        values = [cells[dataset, *column].value for dataset in exceptions]
        for dataset, reasons in exceptions.items():
            order = above(cells[dataset, *column], reference)
            if order < 0:
                reasons.append(f"{name} {factor(cells[dataset, *column].value, reference.value) or 'lower'}")
            elif order == 0:
                reasons.append(f"{name} not significantly different")
        if reference.value > 0 and min(values) > 0:
            least, most = factor(min(values), reference.value), quantity(max(values) / reference.value, 3)
            factors.append(f"{name} {least}" + f" to {most}" * (not least.endswith(f"\u00a0{most}")))
    clear = [dataset for dataset, reasons in exceptions.items() if not reasons]
    ratios = [
        cells[dataset, *column].value / cells[ID, *column].value
        for column in columns
        for dataset in clear
        if cells[ID, *column].value > 0
    ]
    return {
        "ratios": (min(ratios), max(ratios)) if ratios else None,
        "spaces": " and ".join(f"over {SPACES[space]}" for space in dict.fromkeys(space for space, _ in columns)),
        "count": len(exceptions),
        "higher": sum(not reasons for reasons in exceptions.values()),
        "factors": factors,
        "exceptions": {name: reasons for name, reasons in exceptions.items() if reasons},
    }


def _meaning(study: Study, spaces: Sequence[Space]) -> str:
    """Describe the matrix and the loss of the curvature in each of these spaces."""
    matrices: dict[str, list[str]] = {}
    for space in spaces:
        statistic = study.cells[ID, space, "trace"]
        matrix = f"the {MATRICES[statistic.matrix]} of the {LOSSES[statistic.loss]}"
        matrices.setdefault(matrix, []).append(SPACES[space])
    parts = [
        f"{matrix} over {', '.join(over[:-1])}{' and ' * (len(over) > 1)}{over[-1]}"
        for matrix, over in matrices.items()
    ]
    return f"Curvature here is {'; '.join(parts)}."
