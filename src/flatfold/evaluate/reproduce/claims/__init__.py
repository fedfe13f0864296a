"""What the paper claims with each table and figure, and whether a run agrees."""

from collections.abc import Sequence

from ..verdict import Material, Verdict
from .alphas import figure_4
from .costs import figure_3
from .datasets import tables_8_to_11
from .detection import table_2
from .eigenvalues import figure_6
from .exhibit import Exhibit
from .logits import table_4
from .networks import table_5
from .normalisation import table_3
from .pitch import figure_1
from .regimes import by_regime, table_7
from .separation import figure_5
from .singles import figure_2, figures_12_to_15
from .spectra import by_dataset, figure_7
from .theorem import theorem_1


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
