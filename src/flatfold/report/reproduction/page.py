"""The page of a reproduction, and the files of its tables and figures."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ...evaluate.paper import Line
from ...evaluate.reproduce.claims import verdicts
from ...evaluate.reproduce.verdict import Material, Verdict, load_material
from ...evaluate.results import as_csv
from ...files import write_atomically
from ..cells import percent
from ..head import warning_box
from ..markup import Html, joined, tag
from ..page import filled
from .exhibits import SHOWS
from .overview import finding, overview, slug, told
from .paper_numbers import chosen, paper_lines, paper_table, why_not
from .shown import Shown

FORMAT, VERSION = "flatfold-reproduction", 1
PAGE, JSON, FILES = "reproduction.html", "reproduction.json", "exhibits"
FULL = "the exponent of partial normalisation is 1, so that it is full normalisation"
BESIDE = ("Table 2", "Table 5", "Tables 8 to 11")  # which the paper's own numbers may join


def write_reproduction(folder: Path, networks: Sequence[str]) -> Path:
    """Write ``reproduction.html`` from what was measured of some networks, and return its path.

    Beside it come ``reproduction.json`` with all verdicts, and in ``exhibits`` a CSV file per table and an SVG and a
    PDF file per figure and network. The same files give the same bytes.

    Args:
        folder: Where each network has a folder of its name, and where the page goes.
        networks: Their names; ``[""]`` for a single one, whose files are in ``folder`` itself.
    """
    if not networks:
        raise ValueError(
            'a reproduction needs at least one network, got none. Name its folder, or [""] for a single one.'
        )
    materials = [load_material(folder / network, network) for network in networks]
    found = verdicts(materials)
    shown = {verdict.number: SHOWS[verdict.number](materials, slug(verdict.number)) for verdict in found}
    for number, exhibit in shown.items():
        _save(exhibit, folder / FILES, slug(number))
    content = {"format": FORMAT, "version": VERSION, "networks": list(networks), "verdicts": [asdict(v) for v in found]}
    write_atomically(folder / JSON, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    path = folder / PAGE
    write_atomically(path, render_reproduction(materials, found, shown))
    return path


def render_reproduction(materials: Sequence[Material], found: Sequence[Verdict], shown: dict[str, Shown]) -> str:
    """Return the page as text.

    Args:
        materials: What was measured of each network.
        found: A verdict on every exhibit.
        shown: The content of every exhibit, by its number.
    """
    suite = materials[0].results.suite
    lines = paper_lines(materials)
    return filled(
        "reproduction/page.html",
        title=f"The FOLD paper on {suite['name']}",
        about=suite["about"],
        finding=finding(found),
        facts=_facts(materials, found),
        contents=joined(tag("li", tag("a", v.number, href=f"#{slug(v.number)}", title=v.title)) for v in found),
        warnings=warning_box(_warnings(materials), []),
        overview=overview(found),
        exhibits=joined(_section(verdict, shown[verdict.number], lines) for verdict in found),
    )


def _section(verdict: Verdict, shown: Shown, lines: Sequence[Line]) -> Html:
    """Return an exhibit: heading, claim and verdict, content, and the paper's own numbers where comparable."""
    own = paper_table(chosen(lines, verdict.number)) if verdict.number in BESIDE else Html()
    heading = tag("h2", f"{verdict.number}. {verdict.title}")
    return tag("section", heading, told(verdict), shown.html, own, id=slug(verdict.number))


def _save(shown: Shown, folder: Path, stem: str) -> None:
    for drawing in shown.drawings:
        drawing.save(folder)
    if shown.lines:
        write_atomically(folder / f"{stem}.csv", as_csv(shown.lines))


def _facts(materials: Sequence[Material], found: Sequence[Verdict]) -> Html:
    suite = materials[0].results.suite
    accuracy = [percent(material.results.suite["accuracy"]) for material in materials]
    facts = [
        (f"{len(materials)}", "network" + "s" * (len(materials) > 1)),
        (f"{' / '.join(accuracy)} %", "accuracy"),
        (f"{max(len(material.results.methods) for material in materials)}", "methods"),
        (f"{suite['n_test']:,}", "known test images"),
        (f"{sum(ood['n'] for ood in suite['ood']):,}", f"unknown images in {len(suite['ood'])} data sets"),
        (f"{sum(len(verdict.checks) for verdict in found)}", "checks"),
    ]
    return tag("ul", *(tag("li", tag("b", number), " ", what) for number, what in facts), class_="facts")


def _warnings(materials: Sequence[Material]) -> list[object]:
    """Return everything that makes these numbers others than they seem, each once."""
    where: dict[str, list[str]] = {}
    for material in materials:
        refused = material.results.refused | material.ablations.refused
        told = [f"{method} was left out: {reason}" for method, reason in refused.items()]
        told += material.results.suite.get("deviations") or []
        if material.ablations.alphas["partial"] == 1:
            told.append(FULL)
        told += [f"curvature study: {text}" for text in material.study.suite.get("deviations") or []]
        for sentence in dict.fromkeys(told):
            where.setdefault(sentence, []).append(material.network)
    own = [
        sentence if len(networks) == len(materials) else f"{', '.join(networks)}: {sentence}"
        for sentence, networks in where.items()
    ]
    reason = why_not(materials)  # which may have told some of it
    return [*[reason] * bool(reason), *(sentence for sentence in own if sentence.rstrip(".") not in reason)]
