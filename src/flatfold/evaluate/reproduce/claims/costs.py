"""Figure 3: what FOLD and AutoFold cost."""

import re
from itertools import product

from ..files import Ablations
from ..rows import Cost
from ..verdict import Check, Material
from .exhibit import Exhibit, Found, for_each
from .words import at_most, number

FORWARD = "forward"
COMPARABLE = 2.0  # times a forward pass: what a pass with FOLD's score may take
FAR = 2.0  # times: how much longer than FOLD a method must take to be called far slower
FEW = 4  # rounds below which quartiles tell nothing
EQUAL = 1.25  # times: up to which two inference times count as the same
SCORING = ("rmds", "knn")  # that the paper names for their inference
LEARNING = ("vim", "rmds", "knn")  # that the paper names for their set-up
NO_DATA = ("fold", "fold-a")  # learn nothing from images
VARIANTS = ("", "-r", "-a")


def figure_3() -> Exhibit:
    """Return set-up and inference times."""
    return Exhibit(
        "Figure 3",
        "Set-up and inference times",
        "FOLD needs almost no set-up and hardly more than a forward pass, far less than RMDS, VIM and KNN; AutoFold "
        "adds a little set-up and no inference time.",
        for_each(_look),
        f"Read as: forward pass and score take at most {COMPARABLE:g} times a forward pass; RMDS and KNN score at "
        f"least {FAR:g} times as long as FOLD, VIM, RMDS and KNN set up at least {FAR:g} times as long as FOLD and as "
        f"AutoFold; AutoFold scores in at most {EQUAL:g} times the time of FOLD. Inference times count with their "
        f"quartiles over the rounds, of fewer than {FEW} rounds with half and double of what was taken; set-up is "
        f"timed at most three times, so less than a factor of {FAR:g} either way tells nothing. The paper counts the "
        "collection of features as set-up. Here they are at hand, so the checks add the forward passes over as many "
        "images as a method learns from, without the time to read these; bars are without either.",
    )


def cost_of(ablations: Ablations, name: str) -> Cost | None:
    """Return the cost of a method, however it was tuned."""
    return next((cost for cost in ablations.costs if re.split("[:@]", cost.method)[0] == name), None)


def ends(cost: Cost) -> tuple[float, float]:
    """Return between which milliseconds inference lies: its quartiles, or half and double a time of few rounds."""
    if cost.rounds < FEW:
        return cost.inference_ms / 2, 2 * cost.inference_ms
    return cost.inference_low, cost.inference_high


def forward_pass(material: Material) -> Cost | None:
    """Return the cost of a forward pass; None where it was not timed, and where the network is its last layer alone."""
    suite = material.study.suite
    if suite["n_parameters"] <= suite["n_classes"] * (suite["n_features"] + 1):
        return None
    return cost_of(material.ablations, FORWARD)


def set_up(material: Material, cost: Cost) -> float:
    r"""Return the milliseconds that set a method up, with the forward passes that collect the features it learns from.

    .. math:: t = t_{\text{fit}} + t_{\text{forward}} \, n / b

    for ``n`` images and batches of ``b``; ``n`` is 0 for a method that learns nothing.
    """
    run = next(run for run in material.results.methods if run.method == cost.method)
    forward = forward_pass(material)
    if forward is None or run.name in NO_DATA:
        return cost.setup_ms
    images = int(material.results.suite.get(f"n_{run.fits_on}") or 0)
    return cost.setup_ms + forward.inference_ms * images / forward.batch_size


def _look(material: Material) -> Found:
    forward, fold = forward_pass(material), cost_of(material.ablations, "fold")
    if fold is None:
        return Found("FOLD was not timed", [])
    checks = [check for end in VARIANTS for check in _variant(material, end, forward)]
    checks += [check for slow in SCORING for check in _scores_longer(material, fold, slow)]
    if forward is not None:  # without it nobody knows what the features took
        pairs = product(("fold", "autofold"), LEARNING)
        checks += [check for name, slow in pairs for check in _learns_longer(material, name, slow)]
    held = sum(check.holds is True for check in checks)
    count = f", {held} of {len(checks)} comparisons hold" if checks else ", and there is nothing to compare it with"
    return Found(f"{_added(fold, forward)}{count}", checks)


def _added(fold: Cost, forward: Cost | None) -> str:
    if forward is None:
        return f"the score of {fold.method} takes {number(fold.inference_ms)} ms with no network in front of it"
    share = number(100 * fold.inference_ms / forward.inference_ms)
    return f"the score of {fold.method} adds {share} % to a forward pass of {number(forward.inference_ms)} ms"


def _variant(material: Material, end: str, forward: Cost | None) -> list[Check]:
    """Return whether a variant is about as quick as a forward pass, and its AutoFold as quick as itself."""
    fold, auto = (cost_of(material.ablations, f"{name}{end}") for name in ("fold", "autofold"))
    if fold is None:
        return []
    checks = list[Check]()
    if forward is not None:
        low, high = (1 + part / forward.inference_ms for part in ends(fold))
        text = f"a pass with {fold.method} takes {number(1 + fold.inference_ms / forward.inference_ms)} forward passes"
        checks.append(Check(material.network, text, at_most(low, high, COMPARABLE)))
    if auto is not None:
        text = f"{auto.method} scores in {number(auto.inference_ms)} ms, {fold.method} in {number(fold.inference_ms)}"
        same = auto.inference_ms <= EQUAL * fold.inference_ms
        slower = ends(auto)[0] > EQUAL * ends(fold)[1]
        checks.append(Check(material.network, text, True if same else False if slower else None))
    return checks


def _scores_longer(material: Material, fold: Cost, name: str) -> list[Check]:
    slow = cost_of(material.ablations, name)
    if slow is None:
        return []
    (low, high), (least, most) = ends(slow), ends(fold)
    surely, possibly = low >= FAR * most, high >= FAR * least
    text = f"{slow.method} scores in {number(slow.inference_ms)} ms, {fold.method} in {number(fold.inference_ms)}"
    return [Check(material.network, text, True if surely else None if possibly else False)]


def _learns_longer(material: Material, name: str, other: str) -> list[Check]:
    mine, slow = (cost_of(material.ablations, method) for method in (name, other))
    if mine is None or slow is None:
        return []
    ours, theirs = (set_up(material, cost) for cost in (mine, slow))
    far, back = theirs >= FAR * ours, ours >= FAR * theirs
    text = f"{slow.method} sets up in {number(theirs)} ms, {mine.method} in {number(ours)}, features included"
    return [Check(material.network, text, True if far else False if back else None)]
