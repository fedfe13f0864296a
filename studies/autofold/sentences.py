"""Everything on the page that is from a run: the tables, and what came out in a few sentences."""

from collections.abc import Sequence

import numpy as np

from . import tables
from .results import ORACLE, REFERENCE, Found, with_interval
from .selection import Verdict, mean_gain, verdicts
from .tables import GROUPS, signed

SMALL = 0.25  # percentage points that nobody would miss


def sections(found: Sequence[Found]) -> dict[str, str]:
    """Return everything between markers of the page, by the name of the marker."""
    decided = verdicts(found)
    return {
        "answer": answer(found, decided),
        "beside": beside(found),
        "capped": tables.capped(found),
        "networks": tables.networks(found),
        "sets": tables.sets(found, [verdict.rule for verdict in decided[: len(GROUPS)]]),
        "oracles": tables.oracles(found),
        "rules": tables.rules(found),
        "verdicts": tables.judged(decided),
    }


def answer(found: Sequence[Found], decided: Sequence[Verdict]) -> str:
    """Return what came out, in a few sentences."""
    ahead = [each.name for each in found if each.values("ebo")[0] > each.values(REFERENCE)[0]]
    listed = f" ({', '.join(ahead)})" if ahead else ""
    said = [_regrets(found), f"Plain energy is ahead of AutoFold on {len(ahead)} networks{listed}."]
    if not decided:
        return " ".join([*said, "There were no held-out networks in this run, so no rule was judged."])
    names = dict.fromkeys(f"`{verdict.rule}`" for verdict in decided if verdict.confirmed)
    confirmed = f"Certain on both sides, whichever was chosen on: {', '.join(names) or 'none of these rules'}."
    return " ".join([*said, *(_judged(verdict) for verdict in decided[: len(GROUPS)]), confirmed])


def beside(found: Sequence[Found]) -> str:
    """Return how a constant exponent and energy compare with rules, in sentences."""
    constant, best = "fixed-0.25", "oracle-T"
    said = []
    for role in dict.fromkeys(each.role for each in found):
        cases = [each for each in found if each.role == role]
        ahead = sum(each.values("ebo")[0] > each.values(best)[0] for each in cases)
        said.append(
            f"On the {role} networks a constant exponent of a quarter gains "
            f"{signed(with_interval(mean_gain(cases, constant)))} points over `paired`, and energy is ahead even of "
            f"the best exponent and temperature on {ahead} of {len(cases)}."
        )
    return " ".join(said)


def _regrets(found: Sequence[Found]) -> str:
    regrets = [each.values(ORACLE)[0] - each.values(REFERENCE)[0] for each in found]
    return (
        f"Over {len(found)} networks the median regret of AutoFold is {np.median(regrets):.2f} percentage points of "
        f"AUROC, and {sum(regret < SMALL for regret in regrets)} of them give away less than {SMALL:g}; the largest "
        f"regret is {max(regrets):.2f} ({found[int(np.argmax(regrets))].name})."
    )


def _judged(verdict: Verdict) -> str:
    return (
        f"Of rules that {GROUPS[verdict.group]}, `{verdict.rule}` was chosen on the development networks; on the "
        f"held-out ones it gains {signed((verdict.gain, verdict.low, verdict.high))} points over `paired`: "
        f"{'**kept**' if verdict.kept else 'not kept'}."
    )
