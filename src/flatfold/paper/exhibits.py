"""Verdicts on every table, figure and theorem of the paper.

``exhibits.toml`` has the title, claim and reading of each exhibit; ``claims_curvature`` and ``claims_detection`` have
the checks.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

from . import claims_curvature as curvature
from . import claims_detection as detection
from .claims import Check, Finding, NetworkRun
from .tables import contradictions

Agreement = Literal["agrees", "partly", "disagrees", "cannot be told", "not tested"]


@dataclass(frozen=True)
class Verdict:
    """An exhibit of the paper and the result of a run."""

    number: str  # as in the paper: "Table 1", "Figure 4", "Theorem 1"
    title: str
    claim: str  # of the paper, in a sentence
    shows: str  # the result of this run, in a sentence with numbers
    agreement: Agreement
    checks: list[Check]
    note: str  # how the claim was read, and where the paper contradicts itself


def compute_verdicts(runs: Sequence[NetworkRun]) -> list[Verdict]:
    """Return a verdict on every exhibit, in the order of the paper, from the measurements of at least one network."""
    if not runs:
        raise ValueError("a verdict needs the measurements of at least one network, got none. Name the networks.")
    return [judge(number, runs) for number in EXHIBITS]


def judge(number: str, runs: Sequence[NetworkRun]) -> Verdict:
    """Return the verdict on one exhibit."""
    shows, checks = EXHIBITS[number](runs)
    sentence = f"{shows}{_summarise_failures(checks)}."
    return Verdict(shows=sentence, agreement=agreement(checks), checks=checks, **_read_texts()[number])


def agreement(checks: Sequence[Check]) -> Agreement:
    """Return ``agrees`` if all checks hold, ``partly`` if some do, else ``disagrees`` if one contradicts.

    Example:
        >>> agreement([Check("a", "", True), Check("b", "", None)]), agreement([Check("a", "", None)])
        ('partly', 'cannot be told')
    """
    held = [check.holds for check in checks]
    if not held:
        return "not tested"
    if any(held):
        return "agrees" if all(held) else "partly"
    return "disagrees" if False in held else "cannot be told"


def _for_each(check: Callable[[NetworkRun], Finding]) -> Callable[[Sequence[NetworkRun]], Finding]:
    """Return a function that checks each network by itself and joins the findings."""

    def check_all(runs: Sequence[NetworkRun]) -> Finding:
        findings = [check(run) for run in runs]
        checks = [check for finding in findings for check in finding.checks]
        if len(runs) == 1:
            shows = findings[0].shows
            return Finding(shows[:1].upper() + shows[1:] if shows[:1].isascii() else shows, checks)  # λ stays small
        return Finding("; ".join(f"{run.network}: {f.shows}" for run, f in zip(runs, findings, strict=True)), checks)

    return check_all


EXHIBITS: dict[str, Callable[[Sequence[NetworkRun]], Finding]] = {
    "Figure 1": _for_each(curvature.check_figure_1),
    "Table 1": _for_each(partial(curvature.check_regimes, space="parameter")),
    "Figure 2": _for_each(curvature.check_traces_by_regime),
    "Table 2": _for_each(detection.check_averages),
    "Figure 3": _for_each(detection.check_costs),
    "Figure 4": _for_each(detection.check_exponents),
    "Table 3": _for_each(detection.check_normalisation),
    "Figure 5": _for_each(detection.check_separation),
    "Figure 6": _for_each(curvature.check_eigenvalues),
    "Table 4": _for_each(curvature.check_logits),
    "Figure 7": _for_each(curvature.check_spectra),
    "Table 5": detection.check_networks,
    "Theorem 1": curvature.check_theorem,
    "Table 6": _for_each(partial(curvature.check_regimes, space="feature")),
    "Table 7": _for_each(curvature.check_data_sets),
    "Figures 8 and 10": _for_each(partial(curvature.check_spectra_by_data_set, space="parameter")),
    "Figures 9 and 11": _for_each(partial(curvature.check_spectra_by_data_set, space="feature")),
    "Figures 12 to 15": _for_each(curvature.check_traces_by_data_set),
    "Tables 8 to 11": _for_each(detection.check_data_sets),
}


@cache
def _read_texts() -> dict[str, dict[str, str]]:
    """Return number, title, claim and note of every exhibit; braces in notes hold thresholds and shared sentences."""
    document = tomllib.loads(Path(__file__).with_name("exhibits.toml").read_text(encoding="utf-8"))
    values = document["shared"] | {
        "large": 100 * curvature.LARGE,
        "collapsed": curvature.COLLAPSED,
        "comparable": detection.COMPARABLE,
        "slower": detection.SLOWER,
        "few": detection.FEW,
        "equal": detection.EQUAL,
        "competitive": 100 * detection.COMPETITIVE,
        "near_optimal": 100 * detection.NEAR_OPTIMAL,
    }
    texts = {}
    for exhibit in document["exhibit"]:
        table = exhibit.pop("errata", "")  # whose wrong averages the note lists
        errata = "; ".join(str(wrong).removeprefix(f"{table}, ") for wrong in contradictions() if wrong.table == table)
        texts[exhibit["number"]] = exhibit | {"note": exhibit["note"].format(**values, errata=errata)}
    return texts


def _summarise_failures(checks: Sequence[Check]) -> str:
    """Return the number of checks that contradict the claim or leave it open; nothing if all hold."""
    count = len(checks)
    if count == 1 and not checks[0].holds:
        return "; the check cannot be told" if checks[0].holds is None else "; the check contradicts the claim"
    false, open_ = (sum(check.holds is value for check in checks) for value in (False, None))
    parts = [f"{false} of {count} checks contradict{'s' * (false == 1)} the claim"] if false else []
    parts += [f"{open_} of {count}{'' if false else ' checks'} cannot be told"] if open_ else []
    return f"; {' and '.join(parts)}" if parts else ""
