"""Traces of single inputs as detectors: how well each tells unknown data sets from the known one."""

from collections.abc import Mapping, Sequence

from ...core.delong import Influence, auroc_influence, interval, mean_influence
from ..results import ID
from ..suites.suite import OodSet
from .measured import Array
from .rows import Detection, Space


def detections(space: Space, alpha: float, traces: Mapping[str, Array], ood: Sequence[OodSet]) -> list[Detection]:
    """Return the AUROC on every unknown data set and its mean over near, far and all of them, with 95 % intervals.

    Args:
        space: Whose traces.
        alpha: At which exponent of partial normalisation.
        traces: Of single inputs by data set, ``id`` for the known test images. Higher counts as more unknown.
        ood: The unknown data sets.
    """
    influences = {each.name: auroc_influence(traces[ID], traces[each.name]) for each in ood}
    columns = dict(influences)
    for group in ("near", "far", "all"):
        members = [influences[each.name] for each in ood if group in (each.group, "all")]
        if members:
            columns[group] = mean_influence(members)
    return [_detection(space, alpha, name, influence) for name, influence in columns.items()]


def _detection(space: Space, alpha: float, dataset: str, found: Influence) -> Detection:
    low, high = interval(found.auroc, found.stderr, found.pairs, found.pairs)
    return Detection(space, alpha, dataset, found.auroc, low, high)
