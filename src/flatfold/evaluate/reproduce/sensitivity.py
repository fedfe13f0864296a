"""How much the exponent matters to the FOLD family, and what AutoFold's choice gives away (the paper's Figure 4)."""

import warnings
from collections.abc import Sequence
from typing import Any

from ...core.delong import paired_difference
from ...detectors import create
from ..banks import Banks
from ..judge import learnt_numbers
from ..rows import MethodRun
from .rows import Sensitivity
from .scored import ALL, fpr95, influences, scored

METHODS = ("fold", "fold-r", "fold-a")
GRID = tuple(step / 10 for step in range(11))


def sensitivities(
    banks: Banks, runs: Sequence[MethodRun] = (), grid: Sequence[float] = GRID
) -> tuple[list[Sensitivity], dict[str, str]]:
    r"""Return what every exponent gives, beside AutoFold's choice, and why some methods could not be measured.

    .. math:: \text{regret} = \max_{\alpha \in \text{grid}} A(\alpha) - A(\alpha^*)

    with :math:`A` the AUROC averaged over data sets and :math:`\alpha^*` the choice of AutoFold, which saw known
    inputs only; the maximum was found on the judged images themselves and flatters the grid. The interval is paired.
    Clipping and shaping have the percentile that AutoFold chose together with its exponent, so that its choice lies on
    the curve. Its own grid is finer: a choice between two points may beat both, and a regret be negative.

    Args:
        banks: Features of every data set.
        runs: Methods of a benchmark on the same data; what AutoFold chose there is not looked for again.
        grid: Exponents to try.
    """
    found, refused = list[Sensitivity](), dict[str, str]()
    for method in METHODS:
        try:
            found.append(_sensitivity(method, banks, _choice(method, banks, runs), grid))
        except ValueError as error:  # two classes, or ASH and negative features
            refused[method] = str(error)
    return found, refused


def _choice(method: str, banks: Banks, runs: Sequence[MethodRun]) -> dict[str, Any]:
    """Return the exponent that the AutoFold of a method chose, and the percentile where it has one."""
    name = f"auto{method}"
    learnt = next((run.learnt for run in runs if run.method == name), None)
    if learnt is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a flat curve is what the regret is about
            learnt = learnt_numbers(create(name).fit(banks.val, banks.head))
    chosen = {"alpha": learnt["alpha_"]}
    return chosen | ({"percentile": learnt["percentile_"]} if "percentile_" in learnt else {})


def _sensitivity(method: str, banks: Banks, choice: dict[str, Any], grid: Sequence[float]) -> Sensitivity:
    scores = [scored(method, banks, **{**choice, "alpha": alpha}) for alpha in grid]
    chosen = scored(method, banks, **choice)
    aurocs, rates = [influences(each) for each in scores], [fpr95(each) for each in scores]
    ours = influences(chosen)
    best = max((each[ALL] for each in aurocs), key=lambda influence: influence.auroc)
    regret = paired_difference(best, ours[ALL])
    return Sensitivity(
        method=method,
        grid=list(grid),
        auroc={column: [each[column].auroc for each in aurocs] for column in ours},
        fpr95={column: [each[column] for each in rates] for column in ours},
        chosen=choice["alpha"],
        chosen_auroc={column: influence.auroc for column, influence in ours.items()},
        chosen_fpr95=fpr95(chosen),
        regret=regret.value,
        regret_low=regret.low,
        regret_high=regret.high,
    )
