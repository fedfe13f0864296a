"""The top of the page: how many claims agree, and each of them in a line."""

import re
from collections.abc import Sequence
from typing import get_args

from ...evaluate.reproduce.verdict import Agreement, Check, Verdict
from ..cells import head_cell, table
from ..markup import Html, definition_list, joined, scrolling, tag

WORDS: dict[Agreement, str] = {
    "agrees": "agree with this run",
    "partly": "agree in part",
    "disagrees": "disagree",
    "cannot be told": "cannot be told",
    "not tested": "were not tested",
}
HOLDS = {True: "holds", False: "contradicts", None: "cannot be told"}


def slug(number: str) -> str:
    """Return the number of an exhibit as a part of addresses and names of files.

    Example:
        >>> slug("Table 1"), slug("Figures 8 and 10"), slug("Tables 8 to 11")
        ('table-1', 'figures-8-10', 'tables-8-11')
    """
    return "-".join(word for word in number.lower().split() if word not in ("and", "to"))


def finding(verdicts: Sequence[Verdict]) -> Html:
    """Return one sentence: of how many exhibits the claim agrees, agrees in part, disagrees or cannot be told."""
    found = [verdict.agreement for verdict in verdicts]
    counts = [(found.count(kind), WORDS[kind]) for kind in get_args(Agreement) if kind in found]
    parts: list[object] = [f"Of {len(found)} claims, which cover every table and figure of the paper and its theorem, "]
    for place, (count, words) in enumerate(counts):
        between = "" if place == 0 else " and " if place == len(counts) - 1 else ", "
        parts += [between, tag("b", f"{count}"), f" {words}"]
    return joined([*parts, "."])


def mark(agreement: Agreement) -> Html:
    """Return the word of a verdict, with a colour of its own."""
    return tag("span", agreement, class_=f"verdict-{agreement.replace(' ', '-')}")


def overview(verdicts: Sequence[Verdict]) -> Html:
    """Return a line per exhibit: its number, title, verdict and what this run shows, with a link to it."""
    heads = [head_cell(word, text=True) for word in ("exhibit", "about", "verdict", "this run shows")]
    lines = []
    for verdict in verdicts:
        link = tag("a", verdict.number, href=f"#{slug(verdict.number)}")
        cells = [tag("td", verdict.title, class_="text"), tag("td", mark(verdict.agreement), class_="text")]
        lines.append(
            tag("tr", tag("th", link, scope="row"), *cells, tag("td", _by_line(verdict.shows), class_="text long"))
        )
    return scrolling(table(heads, lines, class_="sortable told overview"), "Every table and figure of the paper")


def told(verdict: Verdict) -> Html:
    """Return what the paper claims, what this run shows, the verdict, and at a click everything that was looked at."""
    lines = definition_list(
        {
            "The paper claims": verdict.claim,
            "This run shows": _by_line(verdict.shows),
            "Verdict": mark(verdict.agreement),
        }
    )
    note = [tag("p", verdict.note, class_="soft")] if verdict.note else []
    return joined([lines, *note, _checks(verdict.checks)])


def _by_line(shows: str) -> Html:
    """Return what several networks show one below the other."""
    return joined(tag("span", part, class_="line") for part in re.split(r"(?<=;) ", shows))


def _checks(checks: Sequence[Check]) -> Html:
    if not checks:
        return Html()
    networks = any(check.network for check in checks)
    words = [*(["network"] if networks else []), "looked at", "result"]
    lines = []
    for check in checks:
        first = [tag("td", check.network, class_="text")] if networks else []
        cells = [*first, tag("td", check.what, class_="text long"), tag("td", HOLDS[check.holds], class_="text")]
        lines.append(tag("tr", *cells))
    held = sum(check.holds is True for check in checks)
    shown = scrolling(table([head_cell(word, text=True) for word in words], lines, class_="sortable told"), "Checks")
    return tag("details", tag("summary", f"{held} of {len(checks)} checks hold"), shown)
