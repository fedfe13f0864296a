"""Table 4: the trace over logits against that over features."""

from ....core.delong import Influence, auroc_influence, mean_influence, paired_difference
from ...results import ID
from ...study.files import Study
from ...study.rows import Space
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
        "As a score, the trace over features has a higher AUROC than that over logits.",
        for_each(_look),
        "Judged on features as they are, by the paired 95 % interval of the average over the unknown data sets. At "
        "AutoFold's exponent a study keeps the interval of either trace alone: these are told, and no test. In the "
        f"paper itself the logits are ahead on CIFAR-10, 92.52 to 92.46. Averages that are not "
        f"the mean: {slips(TABLE)}.",
    )


def average(study: Study, space: Space) -> Influence:
    """Return the mean AUROC of the trace of features as they are over the unknown data sets."""
    known = study.traces[f"{space}/{ID}"]
    return mean_influence([auroc_influence(known, study.traces[f"{space}/{name}"]) for name in study.datasets[1:]])


def _look(material: Material) -> Found:
    study = material.study
    feature, logit = average(study, "feature"), average(study, "logit")
    found = paired_difference(feature, logit)
    a, b = percent(feature.auroc), percent(logit.auroc)
    text = f"average AUROC {a} over features, {b} over logits, {gained(found.value, found.low, found.high)} points"
    told = [f"average AUROC {a} over features and {b} over logits", *_at_partial(study)]
    return Found(", ".join(told), [Check(material.network, text, above_zero(found.low, found.high))])


def _at_partial(study: Study) -> list[str]:
    alpha = study.alphas["partial"]
    found = {each.space: each for each in study.detections if each.alpha == alpha and each.dataset == "all"}
    if alpha == 0 or not {"feature", "logit"} <= set(found):
        return []
    return [f"at α {alpha:g} {percent(found['feature'].auroc)} and {percent(found['logit'].auroc)}"]
