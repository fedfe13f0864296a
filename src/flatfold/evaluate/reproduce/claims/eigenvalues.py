"""Figure 6: at which ranks the eigenvalues of single inputs tell unknown from known."""

from statistics import fmean

import numpy as np

from ....core.delong import Influence, auroc_influence, interval, mean_influence, paired_difference
from ...results import ID
from ...study.files import Study
from ..verdict import Check, Material
from .exhibit import Exhibit, Found, for_each
from .words import above_zero, number, percent

COLLAPSED = 0.5  # of what an AUROC without normalisation has above guessing


def figure_6() -> Exhibit:
    """Return the largest eigenvalues of single inputs, by normalisation."""
    return Exhibit(
        "Figure 6",
        "Largest eigenvalues of the feature Hessian under three normalisations",
        "Partial normalisation widens the gap between known and unknown inputs over more of the spectrum than none, "
        "and full normalisation makes it collapse.",
        for_each(_look),
        "The gap at a rank is read as the AUROC of this eigenvalue as a score, averaged over the unknown data sets: "
        "unlike a ratio it can be compared between normalisations that change all eigenvalues. “Over more of the "
        "spectrum” means: larger by a paired 95 % interval at more than half of the ranks. “Collapse” means: what the "
        f"mean AUROC over the ranks has above 50 % is less than {COLLAPSED:g} of that without normalisation. The ratio "
        "of medians is told and no test: where it is larger without normalisation, it speaks against the paper. The "
        "paper shows 50 ranks of ImageNet-200 alone; a head has one eigenvalue less than classes.",
    )


def gaps(study: Study, kind: str) -> list[Influence]:
    """Return how well the eigenvalue of each rank tells unknown from known inputs, largest first."""
    values = {name: study.eigenvalues[f"{kind}/{name}"] for name in study.datasets}
    ranks = min(study.suite["n_classes"] - 1, study.suite["n_features"], values[ID].shape[1])
    return [
        mean_influence([auroc_influence(values[ID][:, r], values[name][:, r]) for name in study.datasets[1:]])
        for r in range(ranks)
    ]


def _look(material: Material) -> Found:
    none, partial, full = (gaps(material.study, kind) for kind in ("none", "partial", "full"))
    pairs = [paired_difference(b, a) for a, b in zip(none, partial, strict=True)]
    signs = [above_zero(pair.low, pair.high) for pair in pairs]
    wider, narrower, ranks = signs.count(True), signs.count(False), len(signs)
    holds = True if 2 * wider > ranks else False if 2 * narrower > ranks else None
    ratios = (number(_ratio(material.study, kind)) for kind in ("none", "partial", "full"))
    text = f"partial over none: wider at {wider}, narrower at {narrower} of {ranks} ranks"
    checks = [Check(material.network, text, holds), _collapsed(material.network, none, full)]
    medians = "typical ratio of unknown to known {} none, {} partial, {} full".format(*ratios)
    told = f"the gap is wider under partial normalisation at {wider} and narrower at {narrower} of {ranks} ranks"
    return Found(f"{told}, {medians}", checks)


def _collapsed(network: str, none: list[Influence], full: list[Influence]) -> Check:
    a, b = (fmean(each.auroc for each in found) for found in (none, full))
    (a_low, a_high), (b_low, b_high) = (_mean_interval(found) for found in (none, full))
    bound_low, bound_high = (0.5 + COLLAPSED * (end - 0.5) for end in (a_low, a_high))
    text = f"mean AUROC over the ranks: {percent(a)} none, {percent(b)} full"
    return Check(network, text, True if b_high < bound_low else False if b_low > bound_high else None)


def _mean_interval(found: list[Influence]) -> tuple[float, float]:
    """Return the interval of a mean over ranks: the mean of theirs, because all are of the same images."""
    ends = [interval(each.auroc, each.stderr, each.pairs, each.pairs) for each in found]
    return fmean(low for low, _ in ends), fmean(high for _, high in ends)


def _ratio(study: Study, kind: str) -> float:
    """Return the median over the ranks of the ratio of medians, unknown over known; those that are 0 do not count."""
    values = {name: study.eigenvalues[f"{kind}/{name}"] for name in study.datasets}
    known = np.median(values[ID], axis=0)
    unknown = np.median(np.concatenate([values[name] for name in study.datasets[1:]]), axis=0)
    positive = known > 0
    return float(np.median(unknown[positive] / known[positive])) if positive.any() else 0.0
