"""A table or figure of the paper: what is claimed with it, and how a run is asked whether that is so."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal, NamedTuple

from ..evaluate.results import Results, load_results
from ..evaluate.study_results import Name, Space, Study, load_study
from .ablations import Ablations, load_ablations
from .tables import contradictions

# Whether what a run shows is what the paper claims.


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


# Numbers and comparisons as words, for sentences about a run.


SPACES: dict[Space, str] = {"parameter": "parameters", "feature": "features", "logit": "logits"}

NAMES: dict[Name, str] = {"lambda_max": "λmax", "trace": "trace"}

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

SMALL, LARGE = 1e-3, 1e6  # outside, a power of ten is told


def number(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point.

    Example:
        >>> number(13.477), number(26834.2), number(0.0), number(0.00001234), number(-2.5e9)
        ('13.5', '26,834', '0', '1.23·10⁻⁵', '−2.50·10⁹')
    """
    size, sign = abs(value), "−" if value < 0 else ""
    if size == 0 or not isfinite(size):
        return f"{sign}{size:g}"
    digits, _, exponent = f"{size:.2e}".partition("e")
    if not SMALL <= size < LARGE:
        return f"{sign}{digits}·10{str(int(exponent)).translate(RAISED)}"
    return f"{sign}{size:,.{max(2 - int(exponent), 0)}f}"


def percent(share: float) -> str:
    """Return a share in percent.

    Example:
        >>> percent(0.98765)
        '98.77 %'
    """
    return f"{100 * share:.2f} %"


def gained(value: float, low: float, high: float) -> str:
    """Return a difference of shares in percentage points, with its interval.

    Example:
        >>> gained(0.0123, -0.001, 0.02)
        '+1.23 (−0.10 to +2.00)'
    """
    told, start, end = (f"{100 * part:+.2f}".replace("-", "−") for part in (value, low, high))
    return f"{told} ({start} to {end})"


def above_zero(low: float, high: float) -> bool | None:
    """Return whether an interval lies above 0; None where it holds 0.

    Example:
        >>> above_zero(0.1, 0.2), above_zero(-0.2, -0.1), above_zero(-0.1, 0.1), above_zero(0.0, 0.0)
        (True, False, None, None)
    """
    return True if low > 0 else False if high < 0 else None


def at_most(low: float, high: float, bound: float) -> bool | None:
    """Return whether a range reaches no further than a bound; None where it holds it.

    Example:
        >>> at_most(1.0, 2.0, 2.0), at_most(2.5, 3.0, 2.0), at_most(1.0, 3.0, 2.0)
        (True, False, None)
    """
    return True if high <= bound else False if low > bound else None


def all_above(orders: Iterable[int]) -> bool | None:
    """Return whether all of several comparisons (1 above, -1 below, 0 not told) came out above; False if one is below.

    Example:
        >>> all_above([1, 1]), all_above([1, 0]), all_above([1, 0, -1])
        (True, None, False)
    """
    found = list(orders)
    return False if -1 in found else None if 0 in found else True


def listed(words: Sequence[str]) -> str:
    """Return words with commas between them, and an "and" before the last.

    Example:
        >>> listed(["a", "b", "c"]), listed(["a"])
        ('a, b and c', 'a')
    """
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [*words[-1:]])


# Averages of the paper that are not what they are said to be.


def slips(table: str) -> str:
    """Return every printed average of a table that its own parts contradict, with both numbers; nothing without any.

    Example:
        >>> slips("logit_vs_feature_hessian").partition(";")[0]
        'Logit, Average, auroc: 86.02 is printed, the mean of its parts is 86.06'
    """
    return "; ".join(str(each).removeprefix(f"{table}, ") for each in contradictions() if each.table == table)
