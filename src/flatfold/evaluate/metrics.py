"""The metrics of a benchmark: their names in results and in arguments, and their headings."""

from collections.abc import Iterable
from typing import NamedTuple


class Metric(NamedTuple):
    """A metric between 0 and 1."""

    field: str  # its name in results; that of FPR95 contains the positive class
    name: str  # its short name in arguments and options
    title: str
    higher: bool  # higher is better
    legend: str = ""  # a sentence, where the title does not say enough


_ALL = (
    Metric("auroc", "auroc", "AUROC", True),
    Metric(
        "fpr95_ood_positive",
        "fpr95",
        "FPR95",
        False,
        "FPR95 counts OOD as positive: the fraction of ID inputs flagged by the threshold that flags 95 % of the OOD "
        "inputs.",
    ),
    Metric(
        "fpr95_id_positive",
        "fpr95-id",
        "FPR95 (ID positive)",
        False,
        "With ID as positive, FPR95 is the fraction of OOD inputs that pass the threshold that 95 % of the ID inputs "
        "pass.",
    ),
    Metric("aupr_out", "aupr-out", "AUPR-out", True, "AUPR-out counts OOD as positive."),
    Metric("aupr_in", "aupr-in", "AUPR-in", True, "AUPR-in counts ID as positive."),
)
METRICS = {metric.field: metric for metric in _ALL}
FIELDS = tuple(METRICS)
SHOWN = ("auroc", "fpr95_ood_positive")  # by default


def find_metrics(names: Iterable[str]) -> tuple[str, ...]:
    """Return the fields of metrics, each given by its short name or its field, without duplicates.

    Example:
        >>> find_metrics(["fpr95", "auroc"])
        ('fpr95_ood_positive', 'auroc')
    """
    fields = {metric.name: metric.field for metric in _ALL} | {field: field for field in METRICS}
    names = list(names)
    if not names or not fields.keys() >= set(names):
        known = ", ".join(metric.name for metric in _ALL)
        raise ValueError(f"metrics must be some of {known}, got {', '.join(map(repr, names)) or 'none'}.")
    return tuple(dict.fromkeys(fields[name] for name in names))


def rank(metric: str, value: float) -> float:
    """Return a key that sorts values of a metric, the best first."""
    return -value if METRICS[metric].higher else value


def describe_metrics(metrics: Iterable[str]) -> str:
    """Return the legend of a table that shows metrics side by side, in percent."""
    shown = [METRICS[metric] for metric in metrics]
    title = " / ".join(metric.title for metric in shown)
    return " ".join([f"{title} in percent.", *(metric.legend for metric in shown if metric.legend)])
