"""HTML from values: whatever is not markup already is escaped."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

from markupsafe import Markup

from ..evaluate.results import METRICS

VOID = {"img", "input"}


Html = Markup


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        name: Of the element.
        *children: What it contains: :class:`~markupsafe.Markup` as it is, anything else as text.
        **attributes: ``class_`` is ``class`` and ``data_key`` is ``data-key``; True gives an attribute without a value,
            None and False give none.

    Example:
        >>> tag("td", "a < b", class_="best", title=None)
        '<td class="best">a &lt; b</td>'
    """
    told = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            told += f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
    return Html(f"<{name}{told}>{joined(children)}" + ("" if name in VOID else f"</{name}>"))


def joined(parts: Iterable[object]) -> Html:
    """Return parts one behind the other: markup as it is, anything else as text."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts))


def data_block(name: str, content: object) -> Html:
    """Return a script element that holds ``content`` for the page's own script, and cannot end early or run."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def definition_list(entries: Mapping[str, object]) -> Html:
    """Return names and values; a mapping inside is a list inside, and what is empty is left out."""
    pairs = []
    for key, value in entries.items():
        if isinstance(value, Mapping):
            inner = definition_list({str(name): part for name, part in value.items()})
            pairs += [tag("dt", key), tag("dd", inner)] if value else []
        elif value not in (None, "", []):
            told = ", ".join(map(str, value)) if isinstance(value, list) else value
            pairs += [tag("dt", key), tag("dd", told)]
    return tag("dl", *pairs)


def scrolling(table: Html, label: str) -> Html:
    """Return a table in a box that scrolls by itself, also by keyboard, so that the page never moves sideways."""
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


HERE = Path(__file__).parent


def filled(template: str, **parts: object) -> str:
    """Return a template of this folder with style, script and these parts in place; what is not markup is escaped."""
    told = {name: joined([part]) for name, part in parts.items()}
    return Template(_read(template)).substitute(
        told, css=_read("templates/page.css"), script=_read("templates/page.js")
    )


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf8")


# Cells of a sortable table that can show one metric after the other.


OPEN_NOTES = 6  # notes of methods that are shown without a click


METRIC_NAMES = {
    "auroc": "AUROC",
    "fpr95_ood_positive": "FPR95, OOD positive",
    "fpr95_id_positive": "FPR95, ID positive",
    "aupr_out": "AUPR-out",
    "aupr_in": "AUPR-in",
}

LOWER_IS_BETTER = ("fpr95_ood_positive", "fpr95_id_positive")


def percent(value: float) -> str:
    """Return a share as a number of percent.

    Example:
        >>> percent(0.93456)
        '93.46'
    """
    return f"{100 * value:.2f}"


def between(interval: tuple[float, float] | None) -> str:
    """Return an interval of shares in percent, or nothing."""
    return "" if interval is None else f"{percent(interval[0])}–{percent(interval[1])}"


def metric_cell(
    values: Mapping[str, float], soft: Mapping[str, str], best: bool = False, title: str | None = None
) -> Html:
    """Return a cell that shows AUROC and FPR95, and keeps every metric for the page's script.

    Args:
        values: Shares by metric.
        soft: What is shown in small letters below each of them, by metric.
        best: Whether the AUROC is marked.
        title: What a pointer over the cell reads.
    """
    kept = [[round(values[m], 7), percent(values[m]), soft.get(m, "")] for m in METRICS]
    plain = joined([tag("b", kept[0][1]), " ", tag("span", kept[1][1])])
    return tag(
        "td",
        plain,
        class_="best" if best else None,
        title=title,
        data_metrics=json.dumps(kept, separators=(",", ":"), ensure_ascii=False),
    )


def head_cell(
    name: str, below: str = "", title: str | None = None, sort: str | None = None, text: bool = False
) -> Html:
    """Return the head of a column, with a word below its name in small letters.

    Args:
        name: Of the column.
        below: Said below it.
        title: What a pointer over it reads.
        sort: ``descending`` or ``ascending`` if the table is sorted by it.
        text: Whether the column holds words, which stand on the left.
    """
    small = tag("small", below) if below else ""
    return tag("th", name, small, scope="col", title=title, aria_sort=sort, class_="text" if text else None)


def table(heads: Sequence[Html], lines: Sequence[Html], **attributes: object) -> Html:
    """Return a table that the page's script makes sortable."""
    body = tag("tbody", *lines)
    return tag("table", tag("thead", tag("tr", *heads)), body, **{"class_": "sortable", **attributes})


def metric_switch(name: str) -> Html:
    """Return the buttons that choose a metric, the first of them pressed."""
    choices = [
        tag(
            "label",
            tag(
                "input", type="radio", name=name, value=number, checked=number == 0, data_low=metric in LOWER_IS_BETTER
            ),
            tag("span", METRIC_NAMES[metric]),
        )
        for number, metric in enumerate(METRICS)
    ]
    return tag("fieldset", tag("legend", "Metric"), *choices, class_="choices metric")


def warning_box(told: Sequence[object], notes: Sequence[str]) -> Html:
    """Return a box with sentences, and notes that are behind a click when they are many; nothing without any."""
    if not told and not notes:
        return Html()
    inside: list[Html] = []
    if len(notes) > OPEN_NOTES:
        summary = tag("summary", f"{len(notes)} notes on methods")
        inside = [tag("details", summary, bullets(notes))]
        notes = []
    listed = [bullets([*told, *notes])] if told or notes else []
    return tag("aside", tag("h2", "Before you compare"), *listed, *inside, class_="warning")


def bullets(sentences: Sequence[object]) -> Html:
    """Return a list with a bullet per sentence."""
    return tag("ul", *(tag("li", sentence) for sentence in sentences))


# The sections of the page below its results: heading, explanation, content; none without something to show.


class Section(NamedTuple):
    """What stands above the content of a section."""

    name: str
    heading: str
    text: str = ""


SECTIONS = (
    Section(
        "scores",
        "How the scores separate",
        "Grey: known test images. Lines: unknown ones. Further right means “less like the training data”. The "
        "outermost bars collect what lies beyond; an axis with powers of ten is logarithmic.",
    ),
    Section(
        "roc",
        "False alarms against finds",
        "Each threshold on the score finds a share of the unknown inputs and flags a share of the known ones by "
        "mistake. The axis of false alarms is logarithmic: practice happens on its left.",
    ),
    Section(
        "norms",
        "Scores and norms",
        "Features of unknown inputs tend to be shorter. A score that only measures their length would follow one line; "
        "what separates the colours at the same norm is what the method adds.",
    ),
    Section(
        "alpha",
        "How AutoFold chose α",
        "The criterion (black, with a band of two standard errors) comes from in-distribution validation data alone. "
        "The coloured lines are the AUROC that each α would really have given; AutoFold never sees them. The dotted "
        "line is its choice, the dashed curve the average over the unknown data sets. The regret is what the best α "
        "would have added to that average, in percentage points.",
    ),
    Section(
        "costs",
        "AUROC and cost",
        "Best is top left: a high average AUROC from little time per sample. The axis of AUROC is stretched towards "
        "100. Bars are 95 % intervals where they were computed. Markers grow with the time that fitting took, one step "
        "for every factor of ten. The dotted line joins the methods that none beats in both.",
    ),
    Section(
        "wrong",
        "The most wrong images",
        "Where a method is most mistaken: known images with the highest scores and, of each unknown data set, those "
        "with the lowest. The share says how many of the known test images score lower. A click on an image shows "
        "where it is.",
    ),
    Section(
        "curvature",
        "Curvature by data set",
        "The largest eigenvalue λmax and the trace of the mean curvature over the inputs of a data set. Below each its "
        "error, which is the standard error of a trace and for λmax a bound on the distance to an eigenvalue, or that "
        "it is exact; then the factor over the known images. Amber marks what does not exceed them. These errors are "
        "of the computation alone: other images of the same kind would give other figures.",
    ),
    Section("curvature-elsewhere", "Curvature"),
    Section(
        "curvature-traces",
        "Curvature of single inputs",
        "Traces at every input, of features as they are. Grey: known test images. Lines: unknown ones. All data sets "
        "are drawn equally high: compare where they lie, not how high they reach. The outermost bars collect what lies "
        "beyond, the leftmost also what is zero; an axis with powers of ten is logarithmic. Behind the name is the "
        "typical error of a trace, or that all are exact.",
    ),
    Section(
        "curvature-spectra",
        "Spectra",
        "How the eigenvalues of the mean curvature spread: first of the known images, then of each unknown data set in "
        "front of them. A Gaussian kernel turns them into a density; its width is 1 % of the largest eigenvalue of "
        "each. Behind the name is the share of eigenvalues that are zero or, of an estimate, that lie within this "
        "width of zero. An estimate comes from a few Lanczos steps along random probes: its peaks are points of a "
        "quadrature and, except at the ends, no single eigenvalues; a band, where probes differ, is one standard error "
        "over them. The axis of density is logarithmic and starts at a tenth of the height of a single eigenvalue.",
    ),
    Section(
        "curvature-eigenvalues",
        "Largest eigenvalues of single inputs",
        "Of the curvature over features, by how much of their norm is divided out: the median over the inputs, with a "
        "band from the lower to the upper quartile. Where bands overlap, this eigenvalue hardly tells inputs apart.",
    ),
    Section(
        "curvature-detection",
        "Traces as detectors",
        "AUROC, in percent, of a trace as a score, with its 95 % interval; α is the exponent by which features were "
        "normalised, and 0 leaves them as they are. Green marks the best of a column and every other whose interval "
        "reaches that of the best: no more than that is claimed. Amber marks what is certainly worse than guessing.",
    ),
    Section("datasets", "Unknown data sets"),
    Section(
        "methods",
        "Methods",
        "“Fitted on” is the in-distribution data a method learnt from, “tuned on” the data on which it chose a "
        "setting; learnt values end in an underscore. Times are of this machine, with the features given; those of "
        "odin and mdsens hold the network's own passes. “Peak MB” is the memory that fitting and scoring took beyond "
        "what was in use, where the system tells.",
    ),
    Section("provenance", "Where the numbers come from"),
)


def contents(parts: Mapping[str, Html]) -> Html:
    """Return an entry of the menu for every section that has content."""
    return joined(tag("li", tag("a", told.heading, href=f"#{told.name}")) for told in _shown(parts))


def sections(parts: Mapping[str, Html], more: Mapping[str, str]) -> Html:
    """Return the sections that have content.

    Args:
        parts: Content by the name of its section; one that is missing or empty has no section.
        more: What is said of this run behind the explanation, by the name of the section.
    """
    made = []
    for told in _shown(parts):
        text = " ".join(filter(None, (told.text, more.get(told.name, ""))))
        above = [tag("h2", told.heading), *([tag("p", text)] if text else [])]
        made.append(tag("section", *above, parts[told.name], id=told.name))
    return joined(made)


def _shown(parts: Mapping[str, Html]) -> Iterable[Section]:
    return (told for told in SECTIONS if parts.get(told.name))
