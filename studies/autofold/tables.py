"""The tables of the page, every number in them from a run."""

from collections.abc import Sequence

import numpy as np

from .measure import CAPPED, ORACLES, REFERENCES
from .resampled import Vector
from .results import ORACLE, REFERENCE, Found, with_interval
from .rules import RULES
from .selection import Verdict, limited_gains, mean_gain

GROUPS = {"exponent": "choose the exponent alone", "temperature": "set the temperature too", "cap": "cap norms too"}
CRITERIA = ("paired", "one-vs-rest")  # what AutoFold offers of the paper's and of the authors' code
SHOWN = ("one-vs-rest", "fixed-0", "fixed-0.5", "fixed-1", "ebo", "msp", *ORACLES)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a markdown table; all columns but the first are numbers.

    Example:
        >>> print(table(["rule", "AUROC"], [["paired", "98.5"]]))
        | rule | AUROC |
        |---|--:|
        | paired | 98.5 |
    """
    rule = "|---|" + "--:|" * (len(header) - 1)
    return "\n".join([_line(header), rule, *map(_line, rows)])


def networks(found: Sequence[Found]) -> str:
    """Return one row per network: exponents, regrets, and the AUROC of AutoFold beside others."""
    header = ["network", "accuracy", "α", "best α", *(f"regret of {name}" for name in CRITERIA), "paired", *SHOWN]
    rows = []
    for each in found:
        alphas = [each.measured.alphas[each.measured.methods.index(name), 0, -1] for name in (REFERENCE, ORACLE)]
        regrets = [_plain(with_interval(each.regret(name))) for name in CRITERIA]
        aurocs = [f"{each.values(name)[0]:.2f}" for name in (REFERENCE, *SHOWN)]
        accuracy = f"{100 * float(each.measured.accuracy):.1f}"
        rows.append([each.name, accuracy, *(f"{alpha:.2f}" for alpha in alphas), *regrets, *aurocs])
    return table(header, rows)


def regrets(found: Sequence[Found]) -> str:
    """Return one row per network and set of unknown images: the regret of every criterion, and of energy."""
    names = (*CRITERIA, "shrunk", "ebo")
    rows = []
    for each in found:
        best = each.measured.alphas[each.measured.methods.index(ORACLE), 0]
        for number, dataset in enumerate(each.measured.datasets):
            values = [_plain(with_interval(each.regret(name, number))) for name in names]
            rows.append([f"{each.name}: {dataset}", f"{best[number]:.2f}", *values])
    return table(["network: OOD data set", "best α", *names], rows)


def sets(found: Sequence[Found], extra: Sequence[str]) -> str:
    """Return one row per held-out network, or any if there is none, and set of unknown images."""
    shown = [each for each in found if each.role == "held out"] or found
    names = [REFERENCE, *extra, "one-vs-rest", "ebo", "msp"]
    rows = []
    for each in shown:
        for number, dataset in enumerate(each.measured.datasets[:-1]):
            fixed = [_plain(with_interval(each.values(name, redrawn=False, dataset=number))) for name in names]
            rows.append([f"{each.name}: {dataset}", *fixed])
    return table(["network: OOD data set", *names], rows)


def oracles(found: Sequence[Found]) -> str:
    """Return what somebody who knows the unknown images gains, with the exponent and with the temperature too."""
    rows = [[each.name, *(signed(with_interval(each.gain(name))) for name in ORACLES)] for each in found]
    return table(["network", "best α", "best α and T"], rows)


def capped(found: Sequence[Found]) -> str:
    """Return what a cap does for energy, which needs no exponent: a row per network and one for each role's mean."""
    rows = []
    for role in dict.fromkeys(each.role for each in found):
        cases = [each for each in found if each.role == role]
        gains = [each.values("ebo-cap50") - each.values("ebo") for each in cases]
        for each, gain in zip(cases, gains, strict=True):
            values = (f"{each.values(name)[0]:.2f}" for name in ("ebo", "ebo-cap50"))
            rows.append([each.name, *values, signed(with_interval(gain))])
        rows.append([f"*{role}, mean*", "", "", signed(with_interval(np.mean(gains, axis=0)))])
    return table(["network", "ebo", "ebo-cap50", "difference"], rows)


def rules(found: Sequence[Found]) -> str:
    """Return one row per rule and reference: what it gains over ``paired`` on either side."""
    sides = {role: [each for each in found if each.role == role] for role in ("development", "held out")}
    sides = {role: cases for role, cases in sides.items() if cases}
    header = ["rule", *(f"{role}: {what}" for role in sides for what in ("gain", "limited", "worst"))]
    rows = []
    for name in [*(name for name in RULES if name != REFERENCE), *REFERENCES]:
        late = RULES[name].afterthought if name in RULES else REFERENCES[name][0] == CAPPED
        row = [f"`{name}`{' *' if late else ''}"]
        for cases in sides.values():
            worst = min(float(each.gain(name)[0]) for each in cases)
            row += [
                signed(with_interval(mean_gain(cases, name))),
                f"{limited_gains(cases, name)[0]:+.2f}",
                f"{worst:+.2f}",
            ]
        rows.append(row)
    return table(header, rows)


def judged(decided: Sequence[Verdict]) -> str:
    """Return one row per verdict."""
    header = [
        "chosen on → judged on",
        "of rules that",
        "rule",
        "chosen again",
        "gain",
        "networks redrawn",
        "worst",
        "kept",
        "confirmed",
    ]
    rows = [
        [
            f"{verdict.chosen_on} → {verdict.judged_on}",
            GROUPS[verdict.group],
            f"`{verdict.rule}`",
            f"{100 * verdict.again:.0f} %",
            signed((verdict.gain, verdict.low, verdict.high)),
            f"{verdict.wide_low:+.2f} to {verdict.wide_high:+.2f}",
            f"{verdict.worst:+.2f}",
            "yes" if verdict.kept else "no",
            "yes" if verdict.confirmed else "no",
        ]
        for verdict in decided
    ]
    return table(header, rows) if rows else "There were no held-out networks in this run."


def _plain(value: Vector | tuple[float, float, float]) -> str:
    return f"{value[0]:.2f} ({value[1]:.2f} to {value[2]:.2f})"


def signed(value: tuple[float, float, float]) -> str:
    """Return a value with its sign and its interval."""
    return f"{value[0]:+.2f} ({value[1]:+.2f} to {value[2]:+.2f})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
