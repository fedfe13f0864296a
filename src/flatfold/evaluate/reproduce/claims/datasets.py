"""Tables 8 to 11: FOLD and its variants on every data set."""

from ...results import Results
from ..verdict import Check, Material
from .detection import best
from .exhibit import Exhibit, Found, for_each
from .words import at_most, gained, percent

COMPETITIVE = 0.02  # of AUROC: how far behind the best of a data set a method may be


def tables_8_to_11() -> Exhibit:
    """Return the figures of every data set."""
    return Exhibit(
        "Tables 8 to 11",
        "AUROC and FPR95 of every method, by data set",
        "FOLD is not the best on every data set, but competitive on average.",
        for_each(_by_dataset),
        "The paper's four tables are of CIFAR-10, CIFAR-100, ImageNet-200 and ImageNet-1K; this one, of the suite of "
        f"this run, answers all four. “Competitive” is read as: the variant with the best average AUROC is at most "
        f"{100 * COMPETITIVE:g} points behind the method with the best one, by a paired 95 % interval. Single data "
        "sets are told, and no test: the paper does not claim it of them.",
    )


def _by_dataset(material: Material) -> Found:
    results = material.results
    ours = best(results, "auroc", ours=True)
    if ours is None:
        return Found("the run has no method of the FOLD family", [])
    names = [str(ood["name"]) for ood in results.suite["ood"]]
    first = sum(results.cells[ours, name].auroc >= _top(results, name) for name in names)
    behind = sum(_competitive(results, ours, name) is False for name in names)
    told = f"on {first} of {len(names)} data sets, and is certainly more than {100 * COMPETITIVE:g} points behind on"
    return Found(f"the best variant, {ours}, has the best AUROC {told} {behind}", [_on_average(material, ours)])


def _on_average(material: Material, ours: str) -> Check:
    cell = material.results.cells[ours, "all"]
    text = f"{ours} on average: AUROC {percent(cell.auroc)}"
    if cell.certainty is not None:
        told = cell.certainty
        text += f", behind the best by {gained(told.behind, told.behind_low, told.behind_high)} points"
    return Check(material.network, text, _competitive(material.results, ours, "all"))


def _competitive(results: Results, method: str, column: str) -> bool | None:
    told = results.cells[method, column].certainty
    return None if told is None else at_most(told.behind_low, told.behind_high, COMPETITIVE)


def _top(results: Results, dataset: str) -> float:
    return max(results.cells[run.method, dataset].auroc for run in results.methods)
