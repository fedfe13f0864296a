"""One self-contained HTML page from the files of a benchmark: it works offline, and without its script too."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..evaluate.results import OPENOOD, PAPER, Average, MethodRun, Results, Row, in_family, load_results
from ..io.files import write_atomically
from .curvature import NOTHING, Parts, beside
from .figure import Drawing
from .figures import SHOWN, all_figures, headings, side_by_side
from .gallery import gallery
from .html import (
    Html,
    between,
    bullets,
    contents,
    definition_list,
    filled,
    head_cell,
    joined,
    metric_cell,
    metric_switch,
    percent,
    scrolling,
    sections,
    table,
    tag,
    warning_box,
)

# The top of the page: what was found, on what, and what a reader must know first.


NAMED = 20  # unreadable images that are named


def title_of(results: Results) -> str:
    """Return the suite and, where it has a name, the network."""
    suite = results.suite
    return f"{suite['name']}, {suite['network']}" if suite["network"] else str(suite["name"])


def finding(results: Results) -> Html:
    """Return one sentence: the best method on average, how sure that is, and who cannot be told from it."""
    best = results.ranked[0]
    mean = results.cells[best.method, "all"]
    parts: list[object] = [
        tag("b", best.method, class_="name"),
        f" has the best average AUROC, {percent(mean.auroc)} %",
    ]
    if mean.certainty is None:
        return joined([*parts, "."])
    if "auroc" in mean.certainty.intervals:
        parts.append(f" (95 % interval {between(mean.certainty.intervals['auroc'])})")
    others = [run.method for run in results.ranked[1:] if _is_best(results, run.method)]
    if not others:
        return joined([*parts, "; every other is significantly behind." if len(results.methods) > 1 else "."])
    return joined([*parts, "; ", _names(others), " cannot be told from it."])


def _is_best(results: Results, method: str) -> bool:
    certainty = results.cells[method, "all"].certainty
    return certainty is not None and certainty.best


def _names(names: list[str]) -> Html:
    """Return names as words, none of them or of their commas broken between two lines."""
    commas = [name + "," for name in names[:-2]] + names[-2:]
    words = [tag("span", name, class_="name") for name in commas]
    return Html(" ".join([*words[:-1], "and", words[-1]] if len(words) > 1 else words))


def facts(results: Results) -> Html:
    """Return the numbers that describe the run."""
    suite = results.suite
    told = [
        (f"{percent(suite['accuracy'])} %", "accuracy"),
        (f"{suite['n_classes']:,}", "known classes"),
        (f"{suite['n_test']:,}", "known test images"),
        (f"{sum(ood['n'] for ood in suite['ood']):,}", f"unknown images in {len(suite['ood'])} data sets"),
        (f"{len(results.methods)}", "methods"),
    ]
    return tag("ul", *(tag("li", tag("b", number), " ", what) for number, what in told), class_="facts")


def warnings(results: Results) -> Html:
    """Return a box with everything that makes these numbers others than they seem, or nothing."""
    gaps = {dataset: reasons for dataset, reasons in results.unreadable.items() if reasons}
    counted = {f"{len(reasons)} images of {dataset} could not be read" for dataset, reasons in gaps.items()}
    told: list[object] = [text for text in results.suite.get("deviations", []) if text not in counted]
    told += [_unreadable(dataset, reasons) for dataset, reasons in gaps.items()]
    told += [f"{method} was left out: {reason}" for method, reason in results.refused.items()]
    return warning_box(told, [f"{run.method}: {note}" for run in results.methods for note in run.warnings])


def _unreadable(dataset: str, reasons: Mapping[str, str]) -> Html:
    """Return one line on the gaps of a data set; which images they are comes at a click."""
    named = [f"{name}: {reason}" for name, reason in list(reasons.items())[:NAMED]]
    if len(reasons) > NAMED:
        named.append(f"and {len(reasons) - NAMED} more, all in results.json")
    images = "image that could not be read was" if len(reasons) == 1 else "images that could not be read were"
    line = tag("summary", f"{dataset}: {len(reasons):,} {images} left out.")
    return tag("details", line, bullets(named))


# The end of the page: data sets, methods, and where the numbers come from.


SHORT = 4  # values of a list that are all told

LABELS = {"seconds": "seconds, without loading and drawing"}  # of what a result file names more shortly


def datasets_table(results: Results) -> Html:
    """Return a line per unknown data set: group, number of images, what it shows."""
    heads = [head_cell(name, text=name != "images") for name in ("data set", "group", "images", "about")]
    lines = []
    for ood in results.suite["ood"]:
        name = tag("th", ood["name"], scope="row")
        count = tag("td", f"{ood['n']:,}", data_sort=ood["n"])
        lines.append(tag("tr", name, tag("td", ood["group"], class_="text"), count, _words(ood["about"])))
    return scrolling(table(heads, lines, class_="sortable told"), "Unknown data sets")


def methods_table(results: Results) -> Html:
    """Return a line per method: settings, what it learnt and from what, and what it cost."""
    words = ("method", "settings", "learnt", "fitted on", "tuned on")
    numbers = ("fit, s", "µs a sample", "peak MB")
    heads = [head_cell(name, text=True) for name in words] + [head_cell(name) for name in numbers]
    lines = [_method(run) for run in results.methods]
    return scrolling(table(heads, lines, class_="sortable told"), "Settings and cost of every method")


def _method(run: MethodRun) -> Html:
    peak = "" if run.peak_megabytes is None else f"{run.peak_megabytes:,.1f}"
    return tag(
        "tr",
        tag("th", run.method, scope="row"),
        *(_words(text) for text in (settings(run.hyper), settings(run.learnt), run.fits_on, run.tuned_on)),
        tag("td", f"{run.fit_seconds:.3f}", data_sort=run.fit_seconds),
        tag("td", f"{run.microseconds_per_sample:.2f}", data_sort=run.microseconds_per_sample),
        tag("td", peak, data_sort="" if run.peak_megabytes is None else run.peak_megabytes),
    )


def _words(text: object) -> Html:
    return tag("td", text, class_="text long" if len(str(text)) > 30 else "text")


def settings(values: Mapping[str, object]) -> str:
    """Return settings as words, those without a value left out; of a list longer than four its ends are told.

    Example:
        >>> settings({"std": [0.2, 0.3], "grid": [0.1, 0.2, 0.3, 0.4, 0.5], "score_norm": None, "seed": 3})
        'std = (0.2, 0.3), grid = 0.1..0.5, seed = 3'
    """
    return ", ".join(f"{key} = {_setting(value)}" for key, value in values.items() if value is not None)


def _setting(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    return f"{value[0]}..{value[-1]}" if len(value) > SHORT else f"({', '.join(map(str, value))})"


def provenance(results: Results) -> Html:
    """Return everything that the result files say about their own making."""
    told = {LABELS.get(name, name): value for name, value in results.provenance.items()}
    hashes = results.suite.get("fingerprints")
    return definition_list({**told, **({"images, sha256": hashes} if hashes else {})})


# The table of results: a line per method, a column per data set and average.


GROUPS = {"all": "All", "family": "FOLD family", "untuned": "Tuned on nothing"}

AVERAGES = {
    "near": ("near", f"mean, {OPENOOD}", f"Mean over the near data sets, as {OPENOOD} averages."),
    "far": ("far", f"mean, {OPENOOD}", f"Mean over the far data sets, as {OPENOOD} averages."),
    "all": ("average", f"mean, {PAPER}", f"Mean over all data sets, as the {PAPER} averages."),
}


def results_table(results: Results) -> Html:
    """Return the table, best average AUROC first, with its switches, which stay hidden until a script serves them."""
    lines = [_line(results, run) for run in results.ranked]
    made = table(_heads(results), lines, id="results-table", class_="sortable results")
    return joined([controls("results-table", len(lines)), scrolling(made, "Results of every method")])


def legend(results: Results) -> Html:
    """Return what the mark means, or why there is none."""
    if any(cell.certainty is not None for cell in results.cells.values()):
        meaning = (
            " is the best AUROC of a column and every other that cannot be told from it: in a paired test on the same "
            "images, the difference is not significant at 5 %, shared among all methods."
        )
        return joined([tag("span", "Marked", class_="mark"), meaning])
    return Html("No interval was computed for these results, so no method is marked as the best.")


class Column(NamedTuple):
    """The head of a column: its name, the small text below, and what a pointer over it shows."""

    name: str
    below: str
    title: str


def columns_of(results: Results, columns: Sequence[str]) -> list[Column]:
    """Return the heads of data sets and averages."""
    ood = {ood["name"]: Column(ood["name"], ood["group"], ood["about"]) for ood in results.suite["ood"]}
    return [ood[name] if name in ood else Column(*AVERAGES[name]) for name in columns]


def column_heads(results: Results, columns: Sequence[str]) -> list[Html]:
    """Return the heads of data sets and averages, by the last of which the table is sorted."""
    groups = {ood["name"]: ood["group"] for ood in results.suite["ood"]}
    abouts = {ood["name"]: ood["about"] for ood in results.suite["ood"]}
    heads = []
    for column in columns:
        sort = "descending" if column == columns[-1] else None
        if column in groups:
            heads.append(head_cell(column, groups[column], abouts[column], sort))
        else:
            heads.append(head_cell(*AVERAGES[column], sort=sort))
    return heads


def _heads(results: Results) -> list[Html]:
    last = [
        head_cell("α", title="Exponent of partial normalisation; * was chosen by AutoFold on ID validation data."),
        head_cell("tuned", title="Data that chose settings: known (ID) or unknown (OOD) inputs."),
    ]
    return [head_cell("method", text=True), *column_heads(results, results.columns), *last]


def _line(results: Results, run: MethodRun) -> Html:
    cells = [_cell(results.cells[run.method, column]) for column in results.columns]
    alpha = tag("td", run.alpha, data_sort=run.alpha.rstrip("*"))
    name = tag("th", run.method, scope="row")
    return tag("tr", name, *cells, alpha, tag("td", run.tuned), data_groups=groups_of(run))


def _cell(cell: Row | Average) -> Html:
    values, told = vars(cell), cell.certainty
    if told is None:
        return metric_cell(values, {})
    soft = {metric: between(interval) for metric, interval in told.intervals.items()}
    behind = f"{percent(told.behind)} behind the best ({between((told.behind_low, told.behind_high))})"
    title = "cannot be told from the best" if told.best and told.behind > 0 else "the best" if told.best else behind
    return metric_cell(values, soft, told.best, f"AUROC {soft['auroc']}: {title}" if "auroc" in soft else title)


def groups_of(run: MethodRun) -> str:
    """Return the groups of methods to which one belongs, as the buttons above a table know them."""
    return " ".join(["all"] + ["family"] * in_family(run.name) + ["untuned"] * (run.tuned_on == "nothing"))


def controls(table_id: str, count: int) -> Html:
    """Return the switches of a table with ``count`` methods, hidden until a script serves them."""
    groups = [
        tag("label", tag("input", type="radio", name="group", value=key, checked=key == "all"), tag("span", name))
        for key, name in GROUPS.items()
    ]
    return tag(
        "form",
        metric_switch("metric"),
        tag("fieldset", tag("legend", "Methods"), *groups, class_="choices group"),
        tag(
            "label",
            "Name ",
            tag("input", type="search", placeholder="filter, e.g. knn", autocomplete="off"),
            class_="search",
        ),
        tag("output", f"{count} of {count} methods"),
        tag("p", class_="nothing", role="status"),
        class_="controls",
        data_for=table_id,
        hidden=True,
    )


OPEN_HISTOGRAMS = 12  # histograms that are shown without a click


def write_report(folder: Path) -> Path:
    """Write ``report.html`` beside the result files in ``folder``, and its figures for papers; return its path.

    The figures are ``figures/NAME.svg`` and ``figures/NAME.pdf``. The same results give the same bytes. A curvature
    study of the same network in the folder is shown too; of one that is not, the page says so.
    """
    results = load_results(folder)
    figures = all_figures(results)
    for name, drawing in figures.items():
        if name != "costs-tall":
            drawing.save(folder / "figures")
    path = folder / "report.html"
    write_atomically(path, render(results, figures, beside(results, folder)))
    return path


def render(results: Results, figures: dict[str, Drawing] | None = None, curvature: Parts = NOTHING) -> str:
    """Return the page as text.

    Args:
        results: What the page tells.
        figures: What :func:`~flatfold.report.figures.all_figures` made of them, where that was done already.
        curvature: What :func:`~flatfold.report.curvature.beside` found beside them.
    """
    parts = {
        **_figures(results, figures or all_figures(results)),
        "wrong": gallery(results),
        **curvature.content,
        "datasets": datasets_table(results),
        "methods": methods_table(results),
        "provenance": provenance(results),
    }
    return filled(
        "page.html",
        title=title_of(results),
        about=results.suite["about"],
        finding=finding(results),
        facts=facts(results),
        warnings=warnings(results),
        legend=legend(results),
        results_table=results_table(results),
        contents=contents(parts),
        sections=sections(parts, {**_more(results), **curvature.more}),
    )


def _figures(results: Results, figures: dict[str, Drawing]) -> dict[str, Html]:
    """Return each figure as a part of the page; one without panels is empty."""
    norms = [
        joined([tag("h3", why), side_by_side(figures[name])])
        for name, why in headings(results).items()
        if figures[name].panels
    ]
    return {
        "scores": side_by_side(figures["histograms"], OPEN_HISTOGRAMS),
        "roc": side_by_side(figures["roc"]),
        "norms": joined(norms),
        "alpha": side_by_side(figures["alpha"]) if figures["alpha"].panels else Html(),
        "costs": joined(
            tag("div", side_by_side(figures[name], class_="panels one"), class_=kind)
            for name, kind in (("costs", "wide"), ("costs-tall", "tall"))
        ),
    }


def _more(results: Results) -> dict[str, str]:
    """Return what the explanation of a section says of this run alone."""
    count = len(results.methods)
    return {
        "roc": f"The {SHOWN} methods with the best average of {count} are drawn." if count > SHOWN else "",
        "wrong": "" if results.suite.get("classes") else "Classes are numbers of the network's outputs.",
    }
