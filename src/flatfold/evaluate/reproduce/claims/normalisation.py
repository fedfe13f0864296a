"""Table 3: partial and full normalisation in front of seven methods."""

from ..rows import Effect
from ..verdict import Check, Material
from .exhibit import Exhibit, Found, for_each
from .slips import slips
from .words import above_zero, gained, percent

TABLE = "partial_normalisation"
HARMFUL = 0.02  # of AUROC below partial normalisation


def table_3() -> Exhibit:
    """Return seven methods without, with partial and with full normalisation."""
    return Exhibit(
        "Table 3",
        "No, partial and full normalisation in front of seven methods",
        "Partial normalisation improves every method; full normalisation competes with it on CIFAR-10 and does harm on "
        "ImageNet-200.",
        for_each(_look),
        "“Improves” is read as: the paired 95 % interval of the gain in average AUROC lies above 0; on which side a "
        "run is with full normalisation is told, and no test. Here all seven have the exponent that AutoFold chose for "
        "FOLD, or that of --alpha; how the paper chose its exponents it does not say. In the paper itself partial "
        "normalisation lowers the AUROC of EBO, ReAct and FOLD-R on ImageNet-200. Averages that are not the mean of "
        "their row: "
        f"{slips(TABLE)}.",
    )


def methods(material: Material) -> list[str]:
    """Return the methods that were measured, in their order."""
    return list(dict.fromkeys(effect.method for effect in material.ablations.effects))


def _look(material: Material) -> Found:
    checks, harmed = list[Check](), 0
    for method in methods(material):
        none, partial, full = (material.ablations.effect(method, kind) for kind in ("none", "partial", "full"))
        if none is None or partial is None:
            continue
        gain = gained(partial.gain, partial.gain_low, partial.gain_high)
        text = (
            f"{method}: {percent(none.auroc)} without, {percent(partial.auroc)} with α {partial.alpha:g}, {gain} points"
        )
        checks.append(Check(material.network, text, above_zero(partial.gain_low, partial.gain_high)))
        harmed += full is not None and _harmed(partial, full)
    better = sum(check.holds is True for check in checks)
    improved = f"partial normalisation improves {better} of {len(checks)} methods"
    return Found(f"{improved}, and {_side(harmed, len(checks))}", checks)


def _side(harmed: int, total: int) -> str:
    """Return to how many methods full normalisation does harm, and which of the paper's two benchmarks that is like."""
    if not harmed:
        return f"full costs no method more than {100 * HARMFUL:g} points, as in the paper's CIFAR-10"
    like = "as in the paper's ImageNet-200" if 2 * harmed > total else "between the paper's CIFAR-10 and ImageNet-200"
    return f"full costs {harmed} of {total} methods more than {100 * HARMFUL:g} points, {like}"


def _harmed(partial: Effect, full: Effect) -> bool:
    return full.auroc < partial.auroc - HARMFUL
