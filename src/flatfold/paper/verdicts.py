"""Verdicts on the paper's claims: the text of each claim, the checks of a run, and the conclusion.

``claims.toml`` has a claim for every exhibit, that is every table, figure and theorem; ``claims`` has the checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import msgspec

from . import claims, measurements
from .claims import CHECKS, Check
from .measurements import NetworkRun
from .tables import TABLES, contradictions

Agreement = Literal["agrees", "partly", "disagrees", "undecided", "not tested"]
COUNTED = {"agrees": ("agrees", "agree"), "partly": ("in part",) * 2, "disagrees": ("disagrees", "disagree")}


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the paper claims with an exhibit."""

    number: str  # of the exhibit in the paper: "Table 1", "Figure 4", "Theorem 1"
    title: str
    claim: str  # in a sentence
    note: str  # how the claim is read, and where the paper contradicts itself
    tables: tuple[str, ...] = ()  # the paper's numbers, by the name of their file
    networks: Literal["each", "all", "any"] = "each"  # checked one by one or by their mean; any: no run is needed

    @property
    def figures(self) -> Sequence[int]:
        """The numbers of the figures that the claim is about."""
        kind, *places = self.number.split()
        numbers = [int(place) for place in places if place.isdecimal()]
        if not kind.startswith("Figure"):
            return ()
        return range(numbers[0], numbers[-1] + 1) if "to" in places else numbers

    def __post_init__(self) -> None:
        if not all((self.number, self.title, self.claim, self.note)) or not TABLES.keys() >= {*self.tables}:
            raise ValueError(f"{self.number or 'a claim'} lacks a text, or names a table that does not exist")


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``claims.toml``."""

    shared: dict[str, str]
    claims: list[Claim]


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim of the paper and the result of a run."""

    number: str
    title: str
    claim: str
    shows: str  # the result of this run, in a sentence with numbers
    agreement: Agreement
    checks: list[Check]
    note: str


@cache
def read_claims() -> dict[str, Claim]:
    """Return every claim by its number, in the order of the paper, with thresholds and wrong averages in its note."""
    document = msgspec.toml.decode(Path(__file__).with_name("claims.toml").read_bytes(), type=_Document)
    shares = ("LARGE", "COMPETITIVE", "NEAR_OPTIMAL")
    values = {name.lower(): 100 * getattr(claims, name) for name in shares}
    values |= {**document.shared, "claims": claims, "measurements": measurements}
    texts = {}
    for claim in document.claims:
        wrong = [str(each).removeprefix(f"{each.table}, ") for each in contradictions() if each.table in claim.tables]
        note = claim.note.format(**values, errata="; ".join(wrong))
        texts[claim.number] = msgspec.structs.replace(claim, note=note)
    return texts


def find_figure(number: int) -> Claim:
    """Return the claim about a figure of the paper, given its number in the paper."""
    figures = {place: claim for claim in read_claims().values() for place in claim.figures}
    if number not in figures:
        raise ValueError(f"the paper has no Figure {number}. It has Figures {min(figures)} to {max(figures)}.")
    return figures[number]


def compute_verdicts(runs: Sequence[NetworkRun]) -> list[ClaimVerdict]:
    """Return the verdict on every claim, in the order of the paper, from the measurements of at least one network."""
    return [judge(number, runs) for number in read_claims()]


def judge(number: str, runs: Sequence[NetworkRun]) -> ClaimVerdict:
    """Return the verdict on the claim of one exhibit."""
    claim, check = read_claims()[number], CHECKS[number]
    one_by_one = claim.networks == "each"
    findings = {run.network: check(run) for run in runs} if one_by_one else {claim.networks: check(runs)}
    checks = [replace(part, network=network) for network, finding in findings.items() for part in finding.checks]
    shows = "; ".join(f"{network}: {finding.shows}" for network, finding in findings.items())
    if len(findings) == 1:
        (shows,) = (finding.shows for finding in findings.values())
        shows = shows[:1].upper() + shows[1:] if shows[:1].isascii() else shows  # λ stays small
    held = [check.holds for check in checks]
    return ClaimVerdict(
        number, claim.title, claim.claim, f"{shows}{_summarise_failures(held)}.", _conclude(held), checks, claim.note
    )


def _conclude(held: Sequence[bool | None]) -> Agreement:
    if not held:
        return "not tested"
    if any(held):
        return "agrees" if all(held) else "partly"
    return "disagrees" if False in held else "undecided"


def _summarise_failures(held: Sequence[bool | None]) -> str:
    """Return the number of checks that contradict the claim or leave it open; nothing if all hold."""
    count, false, undecided = len(held), held.count(False), held.count(None)
    if count == 1:
        return {True: "", False: "; the check contradicts the claim", None: "; the check is undecided"}[held[0]]
    parts = []
    if false:
        parts.append(f"{false} of {count} checks {'contradicts' if false == 1 else 'contradict'} the claim")
    if undecided:
        whole = f"{count}" if false else f"{count} checks"
        parts.append(f"{undecided} of {whole} {'is' if undecided == 1 else 'are'} undecided")
    return f"; {' and '.join(parts)}" if parts else ""


def count_verdicts(verdicts: Sequence[ClaimVerdict]) -> str:
    """Return how many claims have each verdict, such as ``19 claims: 3 agree, 15 in part, 1 disagrees``."""
    counts = {kind: sum(verdict.agreement == kind for verdict in verdicts) for kind in get_args(Agreement)}
    words = [f"{n} {COUNTED.get(kind, (kind, kind))[n > 1]}" for kind, n in counts.items() if n]
    return f"{len(verdicts)} claim{'s' * (len(verdicts) != 1)}: {', '.join(words)}"
