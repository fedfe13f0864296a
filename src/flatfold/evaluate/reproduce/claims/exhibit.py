"""A table or figure of the paper: what is claimed with it, and how a run is asked whether that is so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..verdict import Check, Material, Verdict, agreement


class Found(NamedTuple):
    """What a run shows, in a part of a sentence that ends without a full stop, and what was looked at."""

    shows: str
    checks: list[Check]


Look = Callable[[Sequence[Material]], Found]


@dataclass(frozen=True)
class Exhibit:
    """A table, figure or theorem of the paper.

    Attributes:
        number: As in the paper.
        title: What it is about.
        claim: What the paper says with it, in a sentence.
        look: Asks a run.
        note: How the claim is read, and where the paper contradicts itself.
    """

    number: str
    title: str
    claim: str
    look: Look
    note: str = ""

    def verdict(self, materials: Sequence[Material]) -> Verdict:
        """Return whether a run of some networks agrees."""
        shows, checks = self.look(materials)
        sentence = f"{shows}{_doubts(checks)}."
        return Verdict(self.number, self.title, self.claim, sentence, agreement(checks), checks, self.note)


def for_each(look: Callable[[Material], Found]) -> Look:
    """Return a look that asks each network by itself and puts the answers one behind the other."""

    def together(materials: Sequence[Material]) -> Found:
        found = {material.network: look(material) for material in materials}
        checks = [check for told in found.values() for check in told.checks]
        if len(found) == 1:
            return Found(_begun(found[materials[0].network].shows), checks)
        return Found("; ".join(f"{network}: {told.shows}" for network, told in found.items()), checks)

    return together


def _begun(shows: str) -> str:
    """Return a part of a sentence as its beginning; a λ is no letter to make large."""
    return shows[:1].upper() + shows[1:] if shows[:1].isascii() else shows


def _doubts(checks: Sequence[Check]) -> str:
    """Return how many checks contradict the claim, and how many do not tell; nothing where all hold."""
    count = len(checks)
    if count == 1 and not checks[0].holds:
        return "; the check cannot be told" if checks[0].holds is None else "; the check contradicts the claim"
    false, open_ = (sum(check.holds is value for check in checks) for value in (False, None))
    told = [f"{false} of {count} checks contradict{'s' * (false == 1)} the claim"] if false else []
    told += [f"{open_} of {count}{'' if false else ' checks'} cannot be told"] if open_ else []
    return f"; {' and '.join(told)}" if told else ""
