"""Figure 3: what FOLD and AutoFold cost."""

from ..files import Ablations
from ..rows import Cost
from ..verdict import Check, Material
from .exhibit import Exhibit, Found, for_each
from .words import at_most, number

FORWARD = "forward"
COMPARABLE = 2.0  # times a forward pass: what a pass with FOLD's score may take
FAR = 2.0  # times: how much longer than FOLD a method must take to be called far slower
EQUAL = 1.25  # times: up to which two inference times count as the same
SCORING = ("rmds", "knn")  # that the paper names for their inference
LEARNING = ("vim", "rmds")  # that the paper names for their set-up, beyond collecting features
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
        f"least {FAR:g} times as long as FOLD, VIM and RMDS set up at least {FAR:g} times as long as FOLD and as "
        f"AutoFold; AutoFold scores in at most {EQUAL:g} times the time of FOLD. Inference times count with their "
        f"quartiles over the rounds; set-up was timed once, so less than a factor of {FAR:g} either way tells nothing. "
        "The paper counts the collection of features as set-up; here they are at hand for every method.",
    )


def cost_of(ablations: Ablations, name: str) -> Cost | None:
    """Return the cost of a method, however it was tuned."""
    return next((cost for cost in ablations.costs if cost.method.partition("@")[0] == name), None)


def _look(material: Material) -> Found:
    forward, fold = (cost_of(material.ablations, name) for name in (FORWARD, "fold"))
    if forward is None or fold is None:
        return Found("neither FOLD nor a forward pass was timed", [])
    checks = [check for end in VARIANTS for check in _variant(material, end, forward)]
    checks += [check for slow in SCORING for check in _scores_longer(material, fold, slow)]
    checks += [
        check for name in ("fold", "autofold") for slow in LEARNING for check in _learns_longer(material, name, slow)
    ]
    told = (
        f"the score of {fold.method} adds {number(100 * fold.inference_ms / forward.inference_ms)} % to a forward pass"
    )
    held = sum(check.holds is True for check in checks)
    return Found(f"{told} of {number(forward.inference_ms)} ms, {held} of {len(checks)} comparisons hold", checks)


def _variant(material: Material, end: str, forward: Cost) -> list[Check]:
    """Return whether a variant is about as quick as a forward pass, and its AutoFold as quick as itself."""
    fold, auto = (cost_of(material.ablations, f"{name}{end}") for name in ("fold", "autofold"))
    if fold is None:
        return []
    low, high = (1 + part / forward.inference_ms for part in (fold.inference_low, fold.inference_high))
    text = f"a pass with {fold.method} takes {number(1 + fold.inference_ms / forward.inference_ms)} forward passes"
    checks = [Check(material.network, text, at_most(low, high, COMPARABLE))]
    if auto is not None:
        text = f"{auto.method} scores in {number(auto.inference_ms)} ms, {fold.method} in {number(fold.inference_ms)}"
        same = auto.inference_ms <= EQUAL * fold.inference_ms
        slower = auto.inference_low > EQUAL * fold.inference_high
        checks.append(Check(material.network, text, True if same else False if slower else None))
    return checks


def _scores_longer(material: Material, fold: Cost, name: str) -> list[Check]:
    slow = cost_of(material.ablations, name)
    if slow is None:
        return []
    surely, possibly = slow.inference_low >= FAR * fold.inference_high, slow.inference_high >= FAR * fold.inference_low
    text = f"{slow.method} scores in {number(slow.inference_ms)} ms, {fold.method} in {number(fold.inference_ms)}"
    return [Check(material.network, text, True if surely else None if possibly else False)]


def _learns_longer(material: Material, name: str, other: str) -> list[Check]:
    mine, slow = (cost_of(material.ablations, method) for method in (name, other))
    if mine is None or slow is None:
        return []
    far, back = slow.setup_ms >= FAR * mine.setup_ms, mine.setup_ms >= FAR * slow.setup_ms
    text = f"{slow.method} sets up in {number(slow.setup_ms)} ms, {mine.method} in {number(mine.setup_ms)}"
    return [Check(material.network, text, True if far else False if back else None)]
