"""The table of traces as detectors: does the curvature at one input tell whether it is known?"""

from collections.abc import Iterable

from ...evaluate.study.certainty import typical_error
from ...evaluate.study.files import Detection, Space, Study
from ..cells import between, head_cell, percent, table
from ..markup import Html, scrolling, tag
from .compare import SPACES

GUESSING = 0.5
MEANS = {"near": "near", "far": "far", "all": "average"}


def detection_table(study: Study) -> Html:
    """Return a line per trace, a column per data set and mean: the AUROC in percent, with its interval.

    The best of a column is marked, with every other whose interval reaches that of the best; none without a rival. What
    is certainly worse than guessing is marked, and says so. Traces that are estimated say so and are never marked:
    their intervals know nothing of the errors that inputs share.
    """
    if not study.detections:
        return Html()
    found = {(told.space, told.alpha, told.dataset): told for told in study.detections}
    lines = list(dict.fromkeys((told.space, told.alpha) for told in study.detections))
    columns = _columns(study)
    judged = [line for line in lines if typical_error(study, line[0]) is None]
    best = {name: _best([found[*line, name] for line in judged if (*line, name) in found]) for name in columns}
    rows = []
    for line in lines:
        rivals = best if line in judged else {}
        cells = [_cell(found.get((*line, name)), rivals.get(name), len(judged) > 1) for name in columns]
        rows.append(tag("tr", _head(study, line[0]), tag("td", f"{line[1]:g}"), *cells))
    groups = {ood["name"]: ood["group"] for ood in study.suite["ood"]}
    heads = [head_cell("trace over", text=True), head_cell("α", title="Exponent of partial normalisation.")]
    heads += [head_cell(name if name in groups else MEANS[name], groups.get(name, "mean")) for name in columns]
    return scrolling(table(heads, rows, class_="sortable results"), "Traces as detectors")


def _head(study: Study, space: Space) -> Html:
    error = typical_error(study, space)
    below = [] if error is None else [tag("small", f"estimated, ± {100 * error:.2g} %")]
    return tag("th", SPACES[space], *below, scope="row")


def _columns(study: Study) -> list[str]:
    """Return the data sets, then near, far and the average; the average alone where it repeats another."""
    here = {told.dataset for told in study.detections}
    sets = [str(ood["name"]) for ood in study.suite["ood"] if ood["name"] in here]
    means = ["near", "far", "all"] if {"near", "far"} <= here else ["all"]
    return sets + [name for name in means if name in here and name not in sets]


def _best(rivals: Iterable[Detection]) -> Detection | None:
    return max(rivals, key=lambda told: told.auroc, default=None)


def _cell(told: Detection | None, best: Detection | None, rivals: bool) -> Html:
    """Return an AUROC with its interval, and its mark; without a ``best`` to compare it to, there is none."""
    if told is None:
        return tag("td", data_sort="")
    poor = best is not None and told.high < GUESSING
    leads = best is not None and rivals and not poor and told.high >= best.low
    parts = [tag("b", percent(told.auroc)), tag("small", between((told.low, told.high)))]
    parts += [tag("small", "worse than guessing", class_="verdict")] if poor else []
    return tag("td", *parts, class_="below" if poor else "best" if leads else None, data_sort=round(told.auroc, 7))
