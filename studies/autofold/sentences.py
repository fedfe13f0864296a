"""Everything on the page that is from a run: the tables, and what came out in a few sentences."""

from collections.abc import Iterator, Sequence

import numpy as np

from . import tables
from .results import Found, with_interval
from .selection import Verdict, best_rules, limited_gains, mean_gain, verdicts
from .tables import CRITERIA, GROUPS, signed

SMALL = 0.25  # percentage points that nobody would miss
RARE = 0.05  # a rule that is chosen in fewer redraws is not listed


def sections(found: Sequence[Found]) -> dict[str, str]:
    """Return everything between markers of the page, by the name of the marker."""
    decided = verdicts(found)
    return {
        "answer": answer(found, decided),
        "beside": beside(found),
        "choices": choices(found),
        "capped": tables.capped(found),
        "networks": tables.networks(found),
        "regrets": tables.regrets(found),
        "sets": tables.sets(found, [verdict.rule for verdict in decided[: len(GROUPS)]]),
        "oracles": tables.oracles(found),
        "rules": tables.rules(found),
        "verdicts": tables.judged(decided),
    }


def answer(found: Sequence[Found], decided: Sequence[Verdict]) -> str:
    """Return what came out, in a few sentences."""
    said = [*(_regrets(found, name) for name in CRITERIA), *_energy(found)]
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


def choices(found: Sequence[Found]) -> str:
    """Return how much the choice of a rule owes to the images and to the limit on gains, as a table."""
    sides = [[each for each in found if each.role == role] for role in ("development", "held out")]
    if not all(sides):
        return "There were no held-out networks in this run."
    rows = []
    for group, about in GROUPS.items():
        _, *redrawn = best_rules(sides[0], group)
        unlimited = best_rules(sides[0], group, limit=np.inf)[0]
        shares = {name: redrawn.count(name) / len(redrawn) for name in dict.fromkeys([*redrawn, unlimited])}
        for name in sorted(shares, key=shares.__getitem__, reverse=True):
            if shares[name] >= RARE or name == unlimited:
                here, there = limited_gains(sides[0], name)[0], with_interval(mean_gain(sides[1], name))
                without = "chosen" if name == unlimited else ""
                rows.append([about, f"`{name}`", f"{100 * shares[name]:.0f} %", f"{here:+.2f}", without, signed(there)])
    header = ["of rules that", "rule", "chosen in", "development: limited", "without the limit", "held out: gain"]
    return tables.table(header, rows)


def _regrets(found: Sequence[Found], rule: str) -> str:
    regrets = [each.regret(rule)[0] for each in found]
    single = max(each.regret(rule, number)[0] for each in found for number in range(len(each.measured.datasets) - 1))
    return (
        f"Over {len(found)} networks the median regret of `{rule}` is {np.median(regrets):.2f} percentage points of "
        f"AUROC, and {sum(regret < SMALL for regret in regrets)} of them lose less than {SMALL:g}; the largest "
        f"regret is {max(regrets):.2f} ({found[int(np.argmax(regrets))].name}), and {single:.2f} on a single OOD "
        "data set."
    )


def _energy(found: Sequence[Found]) -> Iterator[str]:
    """Yield where plain energy is ahead of AutoFold, and by how much on held-out networks."""
    ahead = [each.name for each in found if each.gain("ebo")[0] > 0]
    listed = f" ({', '.join(ahead)})" if ahead else ""
    yield f"Plain energy is ahead of AutoFold on {len(ahead)} networks{listed}."
    if held_out := [each for each in found if each.role == "held out"]:
        beaten = sum(each.regret("ebo")[0] < 0 for each in held_out)
        difference = signed(with_interval(mean_gain(held_out, "ebo")))
        yield (
            f"On the held-out networks the difference is {difference} points, and energy is ahead of FOLD at any "
            f"exponent on {beaten} of {len(held_out)}."
        )


def _judged(verdict: Verdict) -> str:
    return (
        f"Of rules that {GROUPS[verdict.group]}, `{verdict.rule}` was chosen on the development networks; on the "
        f"held-out ones it gains {signed((verdict.gain, verdict.low, verdict.high))} points over `paired`: "
        f"{'**kept**' if verdict.kept else 'not kept'}."
    )
