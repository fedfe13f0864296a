"""Curvature of unknown images beside that of the known ones."""

from typing import NamedTuple

from ...evaluate.study.files import Name, Space, Statistic, Study

SPACES: dict[Space, str] = {"parameter": "parameters", "feature": "features", "logit": "logits"}
NAMES: dict[Name, str] = {"lambda_max": "λmax", "trace": "trace"}

Column = tuple[Space, Name]
Line = dict[Column, Statistic]


class Comparison(NamedTuple):
    """The figures of a study.

    Attributes:
        known: Of the known images, by space and statistic; parameters come first.
        unknown: Of each unknown data set, in the order of the suite.
        means: Over the near and over the far data sets, where there is more than one of them.
    """

    known: Line
    unknown: dict[str, Line]
    means: dict[str, Line]


def compare(study: Study) -> Comparison:
    """Return the statistics of a study by data set, and their means."""
    columns: list[Column] = [(space, name) for space in SPACES for name in NAMES if (space, name) in study.columns]
    cells = {(told.dataset, told.space, told.name): told for told in study.statistics}
    known, *unknown = ({column: cells[name, *column] for column in columns} for name in study.datasets)
    groups = [ood["group"] for ood in study.suite["ood"]]
    means = study.means
    return Comparison(
        known,
        dict(zip(study.datasets[1:], unknown, strict=True)),
        {group: {c: means[group, *c] for c in columns} for group in study.groups if groups.count(group) > 1},
    )
