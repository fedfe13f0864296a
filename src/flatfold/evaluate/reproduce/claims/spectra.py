"""Figures 7 to 11: spectra of the mean Hessian."""

from math import sqrt

from ...results import ID
from ...study.certainty import above
from ...study.files import Study
from ...study.rows import Space
from ..verdict import Check, Material
from .curvature import HOLDS, path, rises
from .exhibit import Exhibit, Found, for_each
from .words import SPACES, number, percent

LARGE = 0.01  # of the largest eigenvalue
BENCHMARKS = "The paper has it for CIFAR-10 and for ImageNet-200; this one, of the suite of this run, answers both."


def figure_7() -> Exhibit:
    """Return the spectra over parameters and over features."""
    return Exhibit(
        "Figure 7",
        "Spectra of the Hessians over parameters and over features",
        "The largest eigenvalue grows from known to unknown data in both spaces, and the spectrum over features is "
        "broader than that over parameters.",
        for_each(_both),
        "Whether it grows further from near to far is asked with Tables 1 and 6. "
        f"“Broader” is read as: a larger share of the eigenvalues exceeds {100 * LARGE:g} % of the largest one, beyond "
        "two standard errors over the probes of an estimated spectrum. A network has many more parameters than "
        "features, so this says little about the inputs.",
    )


def by_dataset(space: Space) -> Exhibit:
    """Return Figures 8 and 10 (parameters) or Figures 9 and 11 (features)."""

    def look(material: Material) -> Found:
        study = material.study
        checks = [_larger(material, space, name) for name in study.datasets[1:]]
        higher = sum(check.holds is True for check in checks)
        known = number(study.cell(ID, space, "lambda_max").value)
        return Found(f"λmax exceeds that of known data, {known}, in {higher} of {len(checks)} data sets", checks)

    return Exhibit(
        "Figures 9 and 11" if space == "feature" else "Figures 8 and 10",
        f"Spectra of the Hessian over {SPACES[space]}, by data set",
        f"Over {SPACES[space]} the spectrum of every unknown data set reaches further than that of the known one.",
        for_each(look),
        f"{BENCHMARKS} Its text says only that these spectra agree with the figures of Table 7; “further” is read as: "
        "the largest eigenvalue is larger, beyond the error of the computation.",
    )


def broad(study: Study, space: Space, dataset: str) -> tuple[float, float]:
    """Return the share of eigenvalues above 1 % of the largest, and its standard error over the probes."""
    nodes, weights = study.nodes[f"{space}/{dataset}"], study.weights[f"{space}/{dataset}"]
    shares = (weights * (nodes > LARGE * study.cell(dataset, space, "lambda_max").value)).sum(axis=1)
    return float(shares.mean()), float(shares.std(ddof=1)) / sqrt(len(shares)) if len(shares) > 1 else 0.0


def _both(material: Material) -> Found:
    study = material.study
    checks = [check for space in ("parameter", "feature") for check in rises(material, space, "lambda_max")]
    broader = [_broader(material, name) for name in study.datasets]
    count = sum(check.holds is True for check in broader)
    paths = " and ".join(f"over {SPACES[s]} {path(study, s, 'lambda_max')}" for s in ("parameter", "feature"))
    return Found(f"{paths}, broader over features in {count} of {len(broader)} data sets", checks + broader)


def _broader(material: Material, dataset: str) -> Check:
    (wide, error), (narrow, doubt) = (broad(material.study, space, dataset) for space in ("feature", "parameter"))
    room = 2 * (error + doubt)
    order = (wide - narrow > room) - (narrow - wide > room)
    name = "known" if dataset == ID else dataset
    text = f"share of large eigenvalues, {name}: {percent(wide)} over features, {percent(narrow)} over parameters"
    return Check(material.network, text, HOLDS[order])


def _larger(material: Material, space: Space, dataset: str) -> Check:
    a, b = (material.study.cell(name, space, "lambda_max") for name in (ID, dataset))
    return Check(
        material.network,
        f"λmax of {dataset}, {number(b.value)}, exceeds that of known data, {number(a.value)}",
        HOLDS[above(b, a)],
    )
