"""The page of a reproduction, and the files of its tables and figures."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from ..evaluate.results import Results, as_csv
from ..evaluate.study_results import Space, Study
from ..evaluate.summary import family_of
from ..io.files import write_atomically
from ..report.cost_figure import TALL, WIDE, cost_figure
from ..report.curvature import detection_table, statistics_table
from ..report.curvature_figures import SPACES, spectral_densities, top_eigenvalues, trace_densities
from ..report.figure import Drawing
from ..report.html import (
    Html,
    compare,
    definition_list,
    filled,
    head_cell,
    joined,
    scrolling,
    side_by_side,
    table,
    tag,
    warning_box,
)
from ..report.templates import percent
from . import page_tables as csvs
from .claims import Agreement, Check, Material, Verdict, load_material
from .exhibits import verdicts
from .figures import alpha_sensitivity, cost_bars, norm_scatter, trace_by_regime
from .page_tables import (
    chosen,
    cost_table,
    effects_table,
    methods_table,
    network_table,
    paper_lines,
    paper_table,
    regime_table,
    why_not,
)
from .tables import Line
from .theorem import theorem_figure

# What the figures of the paper take from figures that exist: some panels, some data sets, another name.


SHOWN: tuple[Space, ...] = ("parameter", "feature")


def price(material: Material, name: str, size: tuple[float, float] = WIDE) -> Drawing:
    """Return AUROC against cost, with the times that were taken for all methods on the same batch."""
    return replace(cost_figure(_timed(material), size), name=name)


def typical_traces(study: Study, name: str) -> Drawing:
    """Return the traces over parameters of the known, the first near and the first far data set."""
    drawing = trace_densities(one_of_each(study))
    return replace(drawing, name=name, panels=drawing.panels[:1])


def typical_spectra(study: Study, name: str) -> Drawing:
    """Return the spectra of the known, the first near and the first far data set, over parameters and features."""
    few = one_of_each(study)
    drawings = {space: spectral_densities(few, space) for space in SHOWN}
    panels = [
        replace(panel, title=f"{panel.title}, over {SPACES[space]}")
        for space, drawing in drawings.items()
        for panel in drawing.panels
    ]
    return replace(drawings["feature"], name=name, panels=panels)


def one_of_each(study: Study) -> Study:
    """Return a study of the first near and the first far data set alone."""
    firsts = [next(ood for ood in study.suite["ood"] if ood["group"] == group) for group in study.groups]
    return replace(study, suite={**study.suite, "ood": firsts})


def _timed(material: Material) -> Results:
    """Return the results with the costs of the ablations in place of those of the benchmark."""
    costs = {cost.method: cost for cost in material.ablations.costs}
    methods = [
        replace(
            run,
            fit_seconds=costs[run.method].setup_ms / 1000,
            microseconds_per_sample=1000 * costs[run.method].inference_ms / costs[run.method].batch_size,
        )
        for run in material.results.methods
        if run.method in costs
    ]
    return replace(material.results, methods=methods or material.results.methods)


# Content of an exhibit, and how that of several networks comes together.


class Shown(NamedTuple):
    """The content of an exhibit.

    Attributes:
        html: For the page.
        drawings: For files.
        lines: Of a CSV file; none where a figure has all there is to tell.
    """

    html: Html
    drawings: Sequence[Drawing] = ()
    lines: Sequence[dict[str, Any]] = ()


Show = Callable[[Sequence[Material], str], Shown]


def named(stem: str, network: str) -> str:
    """Return the name of a drawing.

    Example:
        >>> named("figure-4", "cnn"), named("figure-4", "")
        ('figure-4-cnn', 'figure-4')
    """
    return f"{stem}-{network}" if network else stem


def per_network(materials: Sequence[Material], show: Callable[[Material], Html]) -> Html:
    """Return something of each network, below the name of each where there are several."""
    return joined(
        joined([*([tag("h3", material.network)] if len(materials) > 1 else []), show(material)])
        for material in materials
    )


def drawn(draw: Callable[[Material, str], Drawing]) -> Show:
    """Return a figure with one drawing for each network."""

    def show(materials: Sequence[Material], stem: str) -> Shown:
        drawings = {each.network: draw(each, named(stem, each.network)) for each in materials}
        return Shown(per_network(materials, lambda each: side_by_side(drawings[each.network])), [*drawings.values()])

    return show


# What is shown of each table and figure of the paper: markup for the page, drawings and lines for files.


RATES = (
    "AUROC in bold and FPR95 behind it, in percent, unknown inputs as the positive class. Green marks the best AUROC "
    "of a column and every other that a paired test cannot tell from it."
)

GAINS = (
    "Averages of AUROC in bold and FPR95 behind it, in percent; below them the gain in AUROC over no normalisation, in "
    "points, with its paired 95 % interval. Green marks gains whose interval lies above 0, amber losses."
)

COMPUTED = "Errors in this table are of the computation alone; the checks count the images that were drawn, too."

STUDIED = "AUROC in percent on the images of the curvature study, which are fewer than those of the check above."


def _pitch(materials: Sequence[Material], stem: str) -> Shown:
    trend = trace_by_regime(materials, f"{stem}a")
    wide = {each.network: price(each, named(f"{stem}b", each.network)) for each in materials}
    tall = {each.network: price(each, named(f"{stem}b-tall", each.network), TALL) for each in materials}
    both = per_network(
        materials,
        lambda each: joined(
            tag("div", side_by_side(drawing[each.network], class_="panels one"), class_=kind)
            for drawing, kind in ((wide, "wide"), (tall, "tall"))
        ),
    )
    parts = [tag("h3", "(a) Sharpness"), side_by_side(trend), tag("h3", "(b) AUROC and cost"), both]
    return Shown(joined(parts), [trend, *wide.values()])


def _below(text: str, content: Html) -> Html:
    return joined([tag("p", text), content])


def _regimes(space: Space) -> Show:
    return lambda materials, stem: Shown(
        regime_table(materials, space), lines=list(csvs.regime_lines(materials, space))
    )


def _averages(materials: Sequence[Material], stem: str) -> Shown:
    shown = per_network(materials, lambda each: methods_table(each.results, each.results.groups, "Averages"))
    return Shown(_below(RATES, shown), lines=list(csvs.average_lines(materials)))


def _networks(materials: Sequence[Material], stem: str) -> Shown:
    if len({family_of(material.results) for material in materials}) == 1:
        return Shown(Html())
    means = [line for line in csvs.average_lines(materials) if line["over"] == "all"]
    return Shown(_below(RATES, network_table(materials)), lines=means)


def _rows(materials: Sequence[Material], stem: str) -> Shown:
    shown = per_network(materials, lambda each: methods_table(each.results, each.results.columns, "Every data set"))
    return Shown(_below(RATES, shown), lines=list(csvs.row_lines(materials)))


def _effects(materials: Sequence[Material], stem: str) -> Shown:
    shown = per_network(materials, lambda each: effects_table(each.ablations))
    return Shown(_below(GAINS, shown), lines=list(csvs.effect_lines(materials)))


def _detections(materials: Sequence[Material], stem: str) -> Shown:
    def show(each: Material) -> Html:
        two = [told for told in each.study.detections if told.space != "parameter"]
        return detection_table(replace(each.study, detections=two))

    return Shown(_below(STUDIED, per_network(materials, show)), lines=list(csvs.detection_lines(materials)))


def _datasets(materials: Sequence[Material], stem: str) -> Shown:
    def show(each: Material) -> Html:
        study = replace(each.study, statistics=[told for told in each.study.statistics if told.space != "logit"])
        return statistics_table(study, compare(study))

    return Shown(_below(COMPUTED, per_network(materials, show)), lines=list(csvs.dataset_lines(materials)))


def _costs(materials: Sequence[Material], stem: str) -> Shown:
    bars = {each.network: cost_bars(each.ablations.costs, named(stem, each.network)) for each in materials}
    shown = per_network(
        materials, lambda each: joined([side_by_side(bars[each.network]), cost_table(each.ablations.costs)])
    )
    return Shown(shown, [*bars.values()], list(csvs.cost_lines(materials)))


def _theorem(materials: Sequence[Material], stem: str) -> Shown:
    drawing = replace(theorem_figure(), name=stem)
    return Shown(side_by_side(drawing), [drawing])


SHOWS: dict[str, Show] = {
    "Figure 1": _pitch,
    "Table 1": _regimes("parameter"),
    "Figure 2": drawn(lambda each, name: typical_traces(each.study, name)),
    "Table 2": _averages,
    "Figure 3": _costs,
    "Figure 4": drawn(lambda each, name: alpha_sensitivity(each.ablations.sensitivities, name)),
    "Table 3": _effects,
    "Figure 5": drawn(lambda each, name: norm_scatter(each.ablations, each.study.datasets[1:], name)),
    "Figure 6": drawn(lambda each, name: replace(top_eigenvalues(each.study), name=name)),
    "Table 4": _detections,
    "Figure 7": drawn(lambda each, name: typical_spectra(each.study, name)),
    "Table 5": _networks,
    "Theorem 1": _theorem,
    "Table 6": _regimes("feature"),
    "Table 7": _datasets,
    "Figures 8 and 10": drawn(lambda each, name: replace(spectral_densities(each.study, "parameter"), name=name)),
    "Figures 9 and 11": drawn(lambda each, name: replace(spectral_densities(each.study, "feature"), name=name)),
    "Figures 12 to 15": drawn(lambda each, name: replace(trace_densities(each.study), name=name)),
    "Tables 8 to 11": _rows,
}


# The top of the page: how many claims agree, and each of them in a line.


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
        "reproduction.html",
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
        refused = material.results.left_out | material.ablations.refused
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
