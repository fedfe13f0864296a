"""Tables 1, 6 and 7: curvature of whole data sets."""

from itertools import product

from ...results import ID
from ...study.certainty import above
from ...study.files import Study
from ...study.rows import Name, Space
from ..verdict import Check, Material
from .curvature import HOLDS, figure, path, steps, unasked
from .exhibit import Exhibit, Found, for_each
from .slips import slips
from .words import NAMES, SPACES, all_above, listed, number

BOTH: tuple[Name, ...] = ("lambda_max", "trace")
SPACES_SHOWN: tuple[Space, ...] = ("parameter", "feature")
ERRORS = (
    "Larger means: by more than two standard errors of both figures together. The error of a trace counts the "
    "computation and the images that were drawn, that of λmax the computation alone."
)


def by_regime(space: Space) -> Exhibit:
    """Return Table 1 (parameters) or Table 6 (features)."""

    def look(material: Material) -> Found:
        told = " and ".join(path(material.study, space, name) for name in BOTH)
        return Found(told, [check for name in BOTH for check in steps(material, space, name)])

    features = space == "feature"
    return Exhibit(
        "Table 6" if features else "Table 1",
        f"Hessian over {SPACES[space]}, by regime",
        f"The largest eigenvalue and the trace of the Hessian over {SPACES[space]} are smallest for known data, larger "
        "for near and largest for far unknown data.",
        for_each(look),
        f"{ERRORS} Averages of the paper that its own Table 7 contradicts: "
        f"{slips('hessian_feature_milli' if features else 'hessian_parameter')}."
        + " In the paper the feature trace of CIFAR-100 goes 546.3, 1394.5, 1262.4: it falls from near to far."
        * features
        + " The paper does not state of which loss its Hessian over parameters is on data without labels."
        * (not features),
    )


def table_7() -> Exhibit:
    """Return the curvature of every data set."""
    return Exhibit(
        "Table 7",
        "Hessians over parameters and over features, by data set",
        "In either space both figures are lowest for the known data, higher for near data sets, and reach their "
        "highest values for far ones.",
        for_each(_by_dataset),
        f"{ERRORS} Read as: every unknown data set lies above the known one, and the highest of all is a far one. The "
        "paper's own table has one exception, the feature trace of CIFAR-100, highest for TIN with 1470.9; that every "
        "far data set lies above every near one is not so in the paper either.",
    )


def _by_dataset(material: Material) -> Found:
    study, checks, told = material.study, list[Check](), list[str]()
    for space, name in product(SPACES_SHOWN, BOTH):
        higher = _compare(study, study.datasets[1:], [ID], space, name)
        what = f"{NAMES[name]} over {SPACES[space]}"
        told.append(f"{what} {higher.count(1)}")
        known = number(study.cell(ID, space, name).value)
        text = f"{what} exceeds that of known data, {known}, in {higher.count(1)} of {len(higher)} data sets"
        checks.append(Check(material.network, text, all_above(higher)))
        near, far = (_members(study, group) for group in ("near", "far"))
        if near and far:
            text, holds = _highest(study, near, far, space, name)
            checks.append(Check(material.network, f"{what} is highest in {text}", holds))
        checks += unasked(material, space, name)
    return Found(f"unknown data sets above the known one, of {len(study.datasets) - 1}: {listed(told)}", checks)


def _compare(study: Study, upper: list[str], lower: list[str], space: Space, name: Name) -> list[int]:
    return [above(figure(study, a, space, name), figure(study, b, space, name)) for a, b in product(upper, lower)]


def _highest(study: Study, near: list[str], far: list[str], space: Space, name: Name) -> tuple[str, bool | None]:
    """Return where a figure is highest among near and among far data sets, and whether the far one is above."""
    found = {each: figure(study, each, space, name) for each in (*near, *far)}
    a, b = (max(group, key=lambda each: found[each].value) for group in (near, far))
    told = " and ".join(f"{each}, {number(found[each].value)}" for each in (a, b))
    return f"{told} (near and far)", HOLDS[above(found[b], found[a])]


def _members(study: Study, group: str) -> list[str]:
    return [ood["name"] for ood in study.suite["ood"] if ood["group"] == group]
