"""What the paper measured: networks, data sets and tuning, in its own words and in those of suites."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import AVERAGE, check_table_name, read_table

PROTOCOL = "openood-1.5/"
OTHERS = "imagenet1k_architectures"
NETWORKS = {
    "cifar10": ("openood/resnet18_32x32",),
    "cifar100": ("openood/resnet18_32x32",),
    "imagenet200": ("openood/resnet18_224x224",),
    "imagenet1k": ("openood/resnet50",),
    OTHERS: (
        "torchvision/regnet_y_16gf",
        "torchvision/densenet121",
        "torchvision/wide_resnet50_2",
        "torchvision/resnext50_32x4d",
    ),
}
COLUMNS = dict(zip(NETWORKS[OTHERS], ("RegNet", "DenseNet", "WRN", "ResNeXt"), strict=True))
CHECKPOINTS = {"cifar10": 3, "cifar100": 3, "imagenet200": 3, "imagenet1k": 1, OTHERS: 1}
TUNED = frozenset({"odin", "react", "vim", "knn", "ash", "fold", "fold-r", "fold-a"})  # on OOD validation data
TEXTURES = ("texture", "textures")  # what OpenOOD calls them beside CIFAR, and beside ImageNet
_CODE = "the released code also chose a setting on OOD data"
REMARKS = {  # what the authors' code does and the text does not say, by row or column
    "AutoFold": _CODE,
    "AutoFold-R": _CODE,
    "AutoFold-A": _CODE,
    "DenseNet": "the released code leaves out this network's last ReLU",
}


def table_of(suite: Mapping[str, Any]) -> str | None:
    """Return the table to which a suite belongs by its protocol and architecture, or None."""
    protocol = str(suite.get("protocol") or "")
    name = protocol.removeprefix(PROTOCOL)
    if not protocol.startswith(PROTOCOL) or name not in CHECKPOINTS or name == OTHERS:
        return None
    return OTHERS if name == "imagenet1k" and suite.get("architecture") in COLUMNS else name


def incomparable(suites: Iterable[Mapping[str, Any]], table: str | None) -> list[str]:
    """Return every reason why runs of these suites cannot be compared with a table, each once."""
    reasons = []
    for suite in suites:
        own = table_of(suite)
        if own is None:
            reasons.append(f"the suite {suite['name']} does not follow one of the paper's benchmarks")
        elif own != table:
            reasons.append(f"the suite {suite['name']} belongs to the table {own}, not to {table}")
        architecture = suite.get("architecture") or "not known"
        if table is not None and architecture not in NETWORKS[table]:
            reasons.append(f"the architecture is {architecture}, the paper's is {' or '.join(NETWORKS[table])}")
        reasons += [str(deviation).rstrip(".") for deviation in suite.get("deviations") or ()]
    return list(dict.fromkeys(reasons))


def check_comparable_table(name: str) -> None:
    """Raise unless a table of the paper has numbers that a run can be put beside."""
    check_table_name(name)
    if name not in CHECKPOINTS:
        raise ValueError(f"no run has the numbers of the table {name}. Choose one of {', '.join(CHECKPOINTS)}.")


def suite_column(column: str, table: str, suite: Mapping[str, Any]) -> str | None:
    """Return where a run of ``suite`` has what a column of a table shows: a data set, or ``all``.

    Averages are there only when the suite has all data sets of the paper and no other.

    Example:
        >>> suite_column("SSB-Hard", "imagenet200", {"ood": [{"name": "ssb_hard"}]})
        'ssb_hard'
    """
    here = [ood["name"] for ood in suite["ood"]]
    if table == OTHERS:
        if COLUMNS.get(suite.get("architecture", "")) != column:
            return None
        column, table = AVERAGE, "imagenet1k"
    if column != AVERAGE:
        return _named(column, here)
    wanted = {_named(number.column, here) for number in read_table(table) if number.column != AVERAGE}
    return "all" if wanted == set(here) else None


def _named(column: str, here: Sequence[str]) -> str | None:
    """Return the data set of a suite that the paper calls ``column``."""
    plain = column.lower()
    name = plain.replace("-", "") if plain.startswith("cifar") else plain.replace("-", "_")
    return next((known for known in here if known == name or (column == "Textures" and known in TEXTURES)), None)


def labels(method: str) -> list[str]:
    """Return what a run may call a method of the paper, the one that was tuned on the same data first.

    Example:
        >>> labels("KNN"), labels("MSP")
        (['knn@ood', 'knn', 'knn@id'], ['msp', 'msp@ood', 'msp@id'])
    """
    name = method.lower()
    return sorted([name, f"{name}@ood", f"{name}@id"], key=lambda label: _tuning(label) != _tuning_in_paper(name))


def label_remark(label: str) -> str:
    """Return a sentence when a method was not tuned on the data on which the paper tuned it."""
    here, there = _tuning(label), _tuning_in_paper(label.partition("@")[0])
    return "" if here == there else f"{here} here, {there} in the paper"


def _tuning(label: str) -> str:
    at = label.partition("@")[2]
    return f"tuned on {at.upper()} data" if at else "untuned"


def _tuning_in_paper(name: str) -> str:
    return _tuning(f"{name}@ood" if name in TUNED else name)
