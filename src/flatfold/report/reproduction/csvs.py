"""The tables of the paper as lines of CSV files."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ...evaluate.reproduce.claims.curvature import REGIMES, figure, regimes
from ...evaluate.reproduce.verdict import Material
from ...evaluate.rows import Average, Row
from ...evaluate.study.rows import Name, Space

FPR95 = "fpr95_ood_positive"
BOTH: tuple[Name, ...] = ("lambda_max", "trace")
SHOWN: tuple[Space, ...] = ("parameter", "feature")
Line = dict[str, Any]


def regime_lines(materials: Sequence[Material], space: Space) -> Iterator[Line]:
    """Yield the lines of Table 1 or 6."""
    for material in materials:
        for at in regimes(material.study):
            yield {"network": material.network, "data": REGIMES[at], **_figures(material, at, space)}


def dataset_lines(materials: Sequence[Material]) -> Iterator[Line]:
    """Yield the lines of Table 7."""
    for material in materials:
        for space in SHOWN:
            for at in material.study.datasets:
                yield {"network": material.network, "space": space, "data": at, **_figures(material, at, space)}


def average_lines(materials: Sequence[Material]) -> Iterator[Line]:
    """Yield the lines of Tables 2 and 5."""
    for material in materials:
        for mean in material.results.averages:
            yield {"network": material.network, "method": mean.method, "over": mean.over, **_rates(mean)}


def row_lines(materials: Sequence[Material]) -> Iterator[Line]:
    """Yield the lines of Tables 8 to 11."""
    for material in materials:
        for row in material.results.rows:
            yield {"network": material.network, "method": row.method, "dataset": row.dataset, **_rates(row)}


def effect_lines(materials: Sequence[Material]) -> Iterator[Line]:
    """Yield the lines of Table 3."""
    for material in materials:
        for effect in material.ablations.effects:
            yield {"network": material.network, **asdict(effect)}


def cost_lines(materials: Sequence[Material]) -> Iterator[Line]:
    """Yield what Figure 3 shows, with the memory."""
    for material in materials:
        for cost in material.ablations.costs:
            yield {"network": material.network, **asdict(cost)}


def detection_lines(materials: Sequence[Material]) -> Iterator[Line]:
    """Yield the lines of Table 4."""
    for material in materials:
        for told in material.study.detections:
            if told.space != "parameter":
                yield {"network": material.network, **asdict(told)}


def _figures(material: Material, at: str, space: Space) -> Line:
    told = {name: figure(material.study, at, space, name) for name in BOTH}
    return {
        key: value for name in BOTH for key, value in ((name, told[name].value), (f"{name}_stderr", told[name].stderr))
    }


def _rates(cell: Row | Average) -> Line:
    """Return the same columns for every cell, empty where it has no interval."""
    intervals = cell.certainty.intervals if cell.certainty else {}
    line: Line = {}
    for metric in ("auroc", FPR95):
        low, high = intervals.get(metric, (None, None))
        line |= {metric: getattr(cell, metric), f"{metric}_low": low, f"{metric}_high": high}
    return {**line, "best": cell.certainty.best if cell.certainty else None}
