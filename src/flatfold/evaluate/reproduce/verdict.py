"""Whether what a run shows is what the paper claims."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ..results import Results, load_results
from ..study.files import Study, load_study
from .files import Ablations, load_ablations

Agreement = Literal["agrees", "partly", "disagrees", "cannot be told", "not tested"]


class Material(NamedTuple):
    """Everything measured of one network; ``network`` is its name in tables."""

    network: str
    results: Results
    study: Study
    ablations: Ablations


@dataclass(frozen=True)
class Check:
    """One thing that must hold if a claim is true.

    Attributes:
        network: Where it was looked at.
        what: In a few words, with the numbers.
        holds: None where the intervals do not let one tell.
    """

    network: str
    what: str
    holds: bool | None


@dataclass(frozen=True)
class Verdict:
    """A table or figure of the paper, beside what a run shows.

    Attributes:
        number: As in the paper: ``Table 1``, ``Figure 4``, ``Theorem 1``.
        title: What it is about.
        claim: What the paper says with it, in a sentence.
        shows: What this run shows, in a sentence with numbers.
        agreement: Whether the two agree.
        checks: What was looked at.
        note: How the claim was read, and where the paper contradicts itself.
    """

    number: str
    title: str
    claim: str
    shows: str
    agreement: Agreement
    checks: list[Check]
    note: str = ""


def agreement(checks: Sequence[Check]) -> Agreement:
    """Return ``agrees`` where every check holds, ``disagrees`` where none does, ``partly`` in between.

    Example:
        >>> agreement([Check("a", "", True), Check("b", "", None)]), agreement([Check("a", "", None)])
        ('partly', 'cannot be told')
    """
    found = [check.holds for check in checks]
    if not found:
        return "not tested"
    if all(found):
        return "agrees"
    if any(found):
        return "partly"
    return "disagrees" if False in found else "cannot be told"


def load_material(folder: Path, network: str) -> Material:
    """Read what was measured of a network from its folder."""
    return Material(network, load_results(folder), load_study(folder), load_ablations(folder))
