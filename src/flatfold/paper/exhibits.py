"""Verdicts on every table, figure and theorem of the paper.

``exhibits.toml`` has the title, claim and reading of each exhibit; ``claims`` has the checks.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

from . import claims
from .claims import Finding, NetworkRun
from .tables import contradictions

Agreement = Literal["agrees", "partly", "disagrees", "undecided", "not tested"]

EXHIBITS: dict[str, Callable[[NetworkRun], Finding]] = {
    "Figure 1": claims.check_figure_1,
    "Table 1": partial(claims.check_regimes, space="parameter"),
    "Figure 2": claims.check_traces_by_regime,
    "Table 2": claims.check_averages,
    "Figure 3": claims.check_costs,
    "Figure 4": claims.check_exponents,
    "Table 3": claims.check_normalisation,
    "Figure 5": claims.check_separation,
    "Figure 6": claims.check_eigenvalues,
    "Table 4": claims.check_logits,
    "Figure 7": claims.check_spectra,
    "Table 6": partial(claims.check_regimes, space="feature"),
    "Table 7": claims.check_statistics,
    "Figures 8 and 10": partial(claims.check_spectra_by_data_set, space="parameter"),
    "Figures 9 and 11": partial(claims.check_spectra_by_data_set, space="feature"),
    "Figures 12 to 15": claims.check_traces_by_data_set,
    "Tables 8 to 11": claims.check_data_sets,
}
JOINT_EXHIBITS: dict[str, tuple[str, Callable[[Sequence[NetworkRun]], Finding]]] = {  # and the network of their checks
    "Table 5": ("all", claims.check_networks),
    "Theorem 1": ("any", claims.check_theorem),
}


@dataclass(frozen=True)
class Check:
    """One condition that must hold if a claim is true."""

    network: str  # that was measured; "all" for a mean over networks, "any" for the theorem
    what: str  # the condition in a few words, with the numbers
    holds: bool | None  # None if the intervals leave it open


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
    return [judge(number, runs) for number in _read_texts()]


def judge(number: str, runs: Sequence[NetworkRun]) -> Verdict:
    """Return the verdict on one exhibit."""
    if number in JOINT_EXHIBITS:
        network, check = JOINT_EXHIBITS[number]
        findings = {network: check(runs)}
    else:
        findings = {run.network: EXHIBITS[number](run) for run in runs}
    checks = [Check(network, *check) for network, finding in findings.items() for check in finding.checks]
    shows = "; ".join(f"{network}: {finding.shows}" for network, finding in findings.items())
    if len(findings) == 1:
        (finding,) = findings.values()
        shows = finding.shows
        shows = shows[:1].upper() + shows[1:] if shows[:1].isascii() else shows  # λ stays small
    sentence = f"{shows}{_summarise_failures([check.holds for check in checks])}."
    return Verdict(shows=sentence, agreement=_conclude(checks), checks=checks, **_read_texts()[number])


def _conclude(checks: Sequence[Check]) -> Agreement:
    held = [check.holds for check in checks]
    if not held:
        return "not tested"
    if any(held):
        return "agrees" if all(held) else "partly"
    return "disagrees" if False in held else "undecided"


def _summarise_failures(held: Sequence[bool | None]) -> str:
    """Return the number of checks that contradict the claim or leave it open; nothing if all hold."""
    count, false, open_ = len(held), held.count(False), held.count(None)
    if count == 1 and false + open_:
        return "; the check is undecided" if open_ else "; the check contradicts the claim"
    parts = [f"{false} of {count} checks contradict{'s' * (false == 1)} the claim"] if false else []
    parts += (
        [f"{open_} of {count}{'' if false else ' checks'} {'is' if open_ == 1 else 'are'} undecided"] if open_ else []
    )
    return f"; {' and '.join(parts)}" if parts else ""


@cache
def _read_texts() -> dict[str, dict[str, str]]:
    """Return number, title, claim and note of every exhibit; braces in notes hold thresholds and shared sentences."""
    document = tomllib.loads(Path(__file__).with_name("exhibits.toml").read_text(encoding="utf-8"))
    shares = ("LARGE", "COMPETITIVE", "NEAR_OPTIMAL")
    percents = {name.lower(): 100 * getattr(claims, name) for name in shares}
    texts = {}
    for exhibit in document["exhibit"]:
        table = exhibit.pop("errata", "")  # whose wrong averages the note lists
        errata = "; ".join(str(wrong).removeprefix(f"{table}, ") for wrong in contradictions() if wrong.table == table)
        note = exhibit["note"].format(**document["shared"], **percents, claims=claims, errata=errata)
        texts[exhibit["number"]] = exhibit | {"note": note}
    return texts
