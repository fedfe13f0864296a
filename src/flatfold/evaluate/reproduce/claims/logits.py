"""Table 4: the trace over logits against that over features."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ....core.delong import Influence, auroc_influence, mean_influence, paired_difference
from ...results import ID
from ..verdict import Check, Material
from .exhibit import Exhibit, Found, for_each
from .slips import slips
from .words import above_zero, gained, percent

TABLE = "logit_vs_feature_hessian"


def table_4() -> Exhibit:
    """Return both traces as detectors."""
    return Exhibit(
        "Table 4",
        "Trace of the logit Hessian against that of the feature Hessian",
        "As a score, the trace over features has a higher average AUROC than that over logits.",
        for_each(_look),
        "The paper's numbers over features are those of FOLD in its Table 2, so both traces are judged under partial "
        "normalisation: on all images, by the paired 95 % interval of the average over the unknown data sets. The "
        "paper's claim is about the mean over four benchmarks: on CIFAR-10 the logits are ahead, 92.52 to 92.46. "
        f"Averages that are not the mean: {slips(TABLE)}.",
    )


def average(traces: Mapping[str, NDArray[np.floating]]) -> Influence:
    """Return the mean AUROC of a trace over the unknown data sets."""
    return mean_influence([auroc_influence(traces[ID], traces[name]) for name in traces if name != ID])


def _look(material: Material) -> Found:
    ablations = material.ablations
    feature = average({name: ablations.scores[f"partial/{name}"] for name in ablations.logits})
    logit = average(ablations.logits)
    found = paired_difference(feature, logit)
    a, b = percent(feature.auroc), percent(logit.auroc)
    text = f"average AUROC {a} over features, {b} over logits, {gained(found.value, found.low, found.high)} points"
    told = f"at α {ablations.alphas['partial']:g} average AUROC {a} over features and {b} over logits"
    return Found(told, [Check(material.network, text, above_zero(found.low, found.high))])
