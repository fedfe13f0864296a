"""Tables 8 to 11: FOLD and its variants on every data set."""

from ...results import Results
from ..verdict import Check, Material
from .detection import best
from .exhibit import Exhibit, Found, for_each
from .words import above_zero, gained, percent

COMPETITIVE = 0.02  # of AUROC: how far behind the best of a data set a method may be


def tables_8_to_11() -> Exhibit:
    """Return the figures of every data set."""
    return Exhibit(
        "Tables 8 to 11",
        "AUROC and FPR95 of every method, by data set",
        "FOLD is not the best on every data set, but competitive on all of them.",
        for_each(_by_dataset),
        "The paper's four tables are of CIFAR-10, CIFAR-100, ImageNet-200 and ImageNet-1K; this one, of the suite of "
        f"this run, answers all four. “Competitive” is read as: at most {100 * COMPETITIVE:g} points of AUROC behind "
        "the best method of the data set, by the paired 95 % interval of the variant with the best average.",
    )


def _by_dataset(material: Material) -> Found:
    results = material.results
    ours = best(results, "auroc", ours=True)
    if ours is None:
        return Found("the run has no method of the FOLD family", [])
    checks = []
    for dataset in (ood["name"] for ood in results.suite["ood"]):
        cell = results.cells[ours, dataset]
        text, holds = f"{ours} on {dataset}: AUROC {percent(cell.auroc)}", None
        if cell.certainty is not None:
            told = cell.certainty
            text += f", behind the best by {gained(told.behind, told.behind_low, told.behind_high)} points"
            holds = above_zero(COMPETITIVE - told.behind_high, COMPETITIVE - told.behind_low)
        checks.append(Check(material.network, text, holds))
    near = sum(check.holds is True for check in checks)
    first = sum(results.cells[ours, ood["name"]].auroc >= _top(results, ood["name"]) for ood in results.suite["ood"])
    count = len(checks)
    return Found(
        f"the best variant, {ours}, has the best AUROC on {first} and is competitive on {near} of {count} data sets",
        checks,
    )


def _top(results: Results, dataset: str) -> float:
    return max(results.cells[run.method, dataset].auroc for run in results.methods)
