"""What the paper claims with each table and figure, and whether a run agrees."""

from collections.abc import Sequence

from .claims import Exhibit, Material, Verdict
from .claims_curvature import (
    by_dataset,
    by_regime,
    figure_1,
    figure_2,
    figure_6,
    figure_7,
    figures_12_to_15,
    table_4,
    table_7,
    theorem_1,
)
from .claims_detection import figure_3, figure_4, figure_5, table_2, table_3, table_5, tables_8_to_11


def exhibits() -> list[Exhibit]:
    """Return every table, figure and theorem of the paper, in its order."""
    return [
        figure_1(),
        by_regime("parameter"),
        figure_2(),
        table_2(),
        figure_3(),
        figure_4(),
        table_3(),
        figure_5(),
        figure_6(),
        table_4(),
        figure_7(),
        table_5(),
        theorem_1(),
        by_regime("feature"),
        table_7(),
        by_dataset("parameter"),
        by_dataset("feature"),
        figures_12_to_15(),
        tables_8_to_11(),
    ]


def verdicts(materials: Sequence[Material]) -> list[Verdict]:
    """Return a verdict on every table, figure and theorem of the paper, in its order.

    Args:
        materials: What was measured, one for each network, at least one.
    """
    if not materials:
        raise ValueError("a verdict needs what was measured of at least one network, got none. Name the networks.")
    return [exhibit.verdict(materials) for exhibit in exhibits()]
