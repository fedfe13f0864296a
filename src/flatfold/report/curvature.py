"""The page of a curvature study, and the report that it joins."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..curvature.estimate import LOSSES, MATRICES
from ..evaluate.results import ID, Results
from ..evaluate.study_results import JSON, Detection, Space, Statistic, Study, above, load_study, typical_error
from ..io.files import write_atomically
from .curvature_figures import (
    NAMES,
    SPACES,
    Column,
    Comparison,
    Line,
    compare,
    factor,
    quantity,
    spectral_densities,
    top_eigenvalues,
    trace_densities,
)
from .figure import Drawing
from .figures import side_by_side
from .html import (
    Html,
    between,
    contents,
    definition_list,
    filled,
    head_cell,
    joined,
    percent,
    scrolling,
    sections,
    table,
    tag,
    warning_box,
)

# What a curvature study found, as sentences from its numbers.


def finding(comparison: Comparison) -> Html:
    """Return in how many unknown data sets the loss bends more, how much more, and plainly where it does not.

    More means: both statistics, over parameters and over features. Logits are not counted.
    """
    columns = [column for column in comparison.known if column[0] != "logit"]
    short = {name: _not_above(comparison, name, columns) for name in comparison.unknown}
    higher, count = sum(not missing for missing in short.values()), len(short)
    where = f"all {count}" if 1 < count == higher else f"{higher} of {count}"
    spaces = " and ".join(f"over {SPACES[space]}" for space in dict.fromkeys(space for space, _ in columns))
    what = (
        f"Both the largest eigenvalue λmax and the trace of the curvature, {spaces}, exceed those of the known images"
    )
    counted = joined([f"{what} in ", tag("b", f"{where} unknown data set{'s' * (count > 1)}"), "."])
    sentences: list[object] = [counted, _factors(comparison, columns)]
    if higher < count:
        told = [joined([tag("b", name, class_="name"), f" ({', '.join(why)})"]) for name, why in short.items() if why]
        sentences.append(joined(["Not so in ", *_listed(told), "."]))
    return joined(part for sentence in sentences if sentence for part in (sentence, " "))


def _factors(comparison: Comparison, columns: Sequence[Column]) -> str:
    """Return how many times the known figures the unknown ones are, from the least to the most."""
    told = []
    for column in columns:
        known = comparison.known[column].value
        values = [line[column].value for line in comparison.unknown.values()]
        if known > 0 and min(values) > 0:
            least, most = factor(min(values), known), quantity(max(values) / known, 3)
            told.append(f"{_words(column)} {least}" + f" to {most}" * (not least.endswith(f"\u00a0{most}")))
    return f"Against the known images: {', '.join(told)}." if told else ""


def _not_above(comparison: Comparison, name: str, columns: Sequence[Column]) -> list[str]:
    """Return what is not larger than for the known images, in words."""
    told = []
    for column in columns:
        figure, known = comparison.unknown[name][column], comparison.known[column]
        if above(figure, known) < 0:
            told.append(f"{_words(column)} {factor(figure.value, known.value) or 'lower'}")
        elif above(figure, known) == 0:
            told.append(f"{_words(column)} not to be told apart")
    return told


def _words(column: Column) -> str:
    space, name = column
    return f"{NAMES[name]} over {SPACES[space]}"


def _listed(parts: Sequence[Html]) -> list[object]:
    """Return parts with commas between them, and an "and" before the last."""
    marks = [", "] * (len(parts) - 2) + [" and "] * (len(parts) > 1) + [""]
    return [piece for pair in zip(parts, marks, strict=True) for piece in pair]


# The table of traces as detectors: does the curvature at one input tell whether it is known?


GUESSING = 0.5

MEANS = {"near": "near", "far": "far", "all": "average"}


def detection_table(study: Study) -> Html:
    """Return a line per trace, a column per data set and mean: the AUROC in percent, with its interval.

    The best of a column is marked, with every other whose interval reaches that of the best; none without a rival. What
    is certainly worse than guessing is marked, and says so. Traces that are estimated say so and are never marked:
    their intervals know nothing of the errors that inputs share.
    """
    if not study.detections:
        return Html()
    found = {(told.space, told.alpha, told.dataset): told for told in study.detections}
    lines = list(dict.fromkeys((told.space, told.alpha) for told in study.detections))
    columns = _columns(study)
    judged = [line for line in lines if typical_error(study, line[0]) is None]
    best = {name: _best([found[*line, name] for line in judged if (*line, name) in found]) for name in columns}
    rows = []
    for line in lines:
        rivals = best if line in judged else {}
        cells = [_cell(found.get((*line, name)), rivals.get(name), len(judged) > 1) for name in columns]
        rows.append(tag("tr", _head(study, line[0]), tag("td", f"{line[1]:g}"), *cells))
    groups = {ood["name"]: ood["group"] for ood in study.suite["ood"]}
    heads = [head_cell("trace over", text=True), head_cell("α", title="Exponent of partial normalisation.")]
    heads += [head_cell(name if name in groups else MEANS[name], groups.get(name, "mean")) for name in columns]
    return scrolling(table(heads, rows, class_="sortable results"), "Traces as detectors")


def _head(study: Study, space: Space) -> Html:
    error = typical_error(study, space)
    below = [] if error is None else [tag("small", f"estimated, ± {100 * error:.2g} %")]
    return tag("th", SPACES[space], *below, scope="row")


def _columns(study: Study) -> list[str]:
    """Return the data sets, then near, far and the average; the average alone where it repeats another."""
    here = {told.dataset for told in study.detections}
    sets = [str(ood["name"]) for ood in study.suite["ood"] if ood["name"] in here]
    means = ["near", "far", "all"] if {"near", "far"} <= here else ["all"]
    return sets + [name for name in means if name in here and name not in sets]


def _best(rivals: Iterable[Detection]) -> Detection | None:
    return max(rivals, key=lambda told: told.auroc, default=None)


def _cell(told: Detection | None, best: Detection | None, rivals: bool) -> Html:
    """Return an AUROC with its interval, and its mark; without a ``best`` to compare it to, there is none."""
    if told is None:
        return tag("td", data_sort="")
    poor = best is not None and told.high < GUESSING
    leads = best is not None and rivals and not poor and told.high >= best.low
    parts = [tag("b", percent(told.auroc)), tag("small", between((told.low, told.high)))]
    parts += [tag("small", "worse than guessing", class_="verdict")] if poor else []
    return tag("td", *parts, class_="below" if poor else "best" if leads else None, data_sort=round(told.auroc, 7))


# The table of a curvature study: how much the loss bends at known and at unknown images.


TITLES = {
    "lambda_max": "Largest eigenvalue of the mean curvature matrix.",
    "trace": "Sum of its eigenvalues: the mean trace over the inputs.",
}

VERDICTS = {1: "", 0: "not told apart", -1: "below known"}


def statistics_table(study: Study, comparison: Comparison) -> Html:
    """Return a line per data set and mean: every figure, its error, its factor over the known images.

    What does not exceed the known images is marked, and says so.
    """
    heads = [head_cell("data set", text=True), head_cell("inputs")]
    heads += [head_cell(NAMES[name], f"over {SPACES[space]}", TITLES[name]) for space, name in comparison.known]
    lines = [_line("known", "", comparison.known, comparison.known)]
    lines += [
        _line(ood["name"], ood["group"], comparison.unknown[ood["name"]], comparison.known, ood["about"])
        for ood in study.suite["ood"]
    ]
    lines += [_line(group, "mean", line, comparison.known) for group, line in comparison.means.items()]
    return scrolling(table(heads, lines, class_="sortable results"), "Curvature by data set")


def _line(name: str, below: str, line: Line, known: Line, about: str | None = None) -> Html:
    head = tag("th", name, *([tag("small", below)] if below else []), scope="row", title=about)
    n = max(figure.n for figure in line.values())
    cells = [_figure(figure, known[column]) for column, figure in line.items()]
    return tag("tr", head, tag("td", f"{n:,}", data_sort=n), *cells)


def _figure(figure: Statistic, known: Statistic) -> Html:
    """Return a figure with its error and, unless it is the known one itself, how it compares to that."""
    ratio, verdict = (
        ("", "") if figure is known else (factor(figure.value, known.value), VERDICTS[above(figure, known)])
    )
    error = "exact" if figure.stderr is None else f"± {quantity(figure.stderr, 2)}"
    parts: list[object] = [tag("b", quantity(figure.value)), tag("small", error)]
    parts += [tag("span", ratio)] if ratio else []
    parts += [tag("small", verdict, class_="verdict")] if verdict else []
    how = f"{figure.method}, {figure.matvecs:,} products" if figure.matvecs else figure.method
    return tag("td", *parts, class_="below" if verdict else None, title=how, data_sort=figure.value)


# The parts of a page that a curvature study fills, and what is said of that study alone.


SPECTRA: tuple[Space, ...] = ("parameter", "feature")

NETWORK = "weights, sha256"  # in the provenance: what tells one network from another

NEGATIVE = "Over parameters it has eigenvalues below zero as well, so that a trace can be smaller than λmax."

SHARED = (
    "Over parameters the traces are estimates. Inputs of a batch share the random directions and so their errors: a "
    "whole data set may be shifted against another."
)


class Parts(NamedTuple):
    """Content by the name of its section, and what is said of this study behind the explanation."""

    content: dict[str, Html]
    more: dict[str, str]


NOTHING = Parts({}, {})


def curvature_figures(study: Study) -> dict[str, Drawing]:
    """Return every figure of a study by its name."""
    spectra = (spectral_densities(study, space) for space in SPECTRA)
    drawings = (trace_densities(study), *spectra, top_eigenvalues(study))
    return {drawing.name: drawing for drawing in drawings}


def curvature_parts(study: Study, figures: dict[str, Drawing] | None = None) -> Parts:
    """Return what a page shows of a study.

    Args:
        study: What is shown.
        figures: What :func:`curvature_figures` made of it, where that was done already.
    """
    drawn = figures or curvature_figures(study)
    content = {
        "curvature": statistics_table(study, compare(study)),
        "curvature-traces": side_by_side(drawn["curvature-traces"]),
        "curvature-spectra": joined(_spectrum(study, space, drawn) for space in SPECTRA),
        "curvature-eigenvalues": side_by_side(drawn["curvature-eigenvalues"]),
        "curvature-detection": detection_table(study),
    }
    shared = "" if typical_error(study, "parameter") is None else f" {SHARED}"
    more = {
        "curvature": f"{meaning(study, list(SPACES))} {how(study)}",
        "curvature-traces": meaning(study, list(SPACES)) + shared,
        "curvature-spectra": meaning(study, SPECTRA),
        "curvature-eigenvalues": meaning(study, ["feature"]),
        "curvature-detection": meaning(study, list(SPACES)) + shared,
    }
    return Parts(content, more)


def meaning(study: Study, spaces: Sequence[Space]) -> str:
    """Return of which loss the curvature is, and which matrix it is, in each of these spaces."""
    found: dict[str, list[str]] = {}
    for space in spaces:
        told = study.cell(ID, space, "trace")
        found.setdefault(f"the {MATRICES[told.matrix]} of the {LOSSES[told.loss]}", []).append(SPACES[space])
    return f"Curvature is here {'; '.join(f'{what} over {_and(over)}' for what, over in found.items())}."


def how(study: Study) -> str:
    """Return how the figures over parameters were computed, and why a trace may be smaller than its part."""
    largest, trace = (study.cell(ID, "parameter", name).method for name in ("lambda_max", "trace"))
    told = f"Over parameters λmax was computed by {largest}, the trace by {trace}."
    if trace == "exact":
        told = f"Over parameters λmax was computed by {largest}, the trace exactly."
    cells = study.cells
    smaller = any(
        cells[name, "parameter", "trace"].value < cells[name, "parameter", "lambda_max"].value
        for name in study.datasets
    )
    return f"{told} {NEGATIVE}" if smaller else told


def beside(results: Results, folder: Path) -> Parts:
    """Return the parts of the study that lies beside results; where it is not of the same network, a sentence."""
    if not (folder / JSON).exists():
        return NOTHING
    try:
        study = load_study(folder)
    except ValueError as error:  # a report of sound results is not to fail for it
        return _sentence(f"There is a curvature study beside these results, which is not shown: {error}")
    if not same_network(results, study):
        return _elsewhere("another network: the weights are not the same")
    if _judged(results.suite) != _judged(study.suite):
        return _elsewhere("another suite: its name, or its unknown data sets, are not the same")
    parts = curvature_parts(study)
    above = [tag("p", finding(compare(study))), _alone(results, study), parts.content["curvature"]]
    return parts._replace(content={**parts.content, "curvature": joined(above)})


def same_network(results: Results, study: Study) -> bool:
    """Return whether results and study are of the same weights, which both must name."""
    weights = results.provenance.get(NETWORK)
    return weights is not None and weights == study.provenance.get(NETWORK)


def _alone(results: Results, study: Study) -> Html:
    """Return what a reader must know of the study and not of the results, such as that it took fewer images."""
    told = results.suite.get("deviations", [])
    own = [text for text in study.suite.get("deviations", []) if text not in told]
    return tag("p", f"Of the curvature study alone: {'; '.join(own)}.") if own else Html()


def _judged(suite: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Return what tells one suite from another, whatever part of its images was taken."""
    return suite["name"], [ood["name"] for ood in suite["ood"]]


def _elsewhere(of_what: str) -> Parts:
    return _sentence(
        f"There is a curvature study beside these results, of {of_what}. It is on a page of its own, curvature.html; "
        "run `flatfold curvature` again to see it here."
    )


def _sentence(text: str) -> Parts:
    return Parts({"curvature-elsewhere": tag("p", text)}, {})


def _spectrum(study: Study, space: Space, drawn: dict[str, Drawing]) -> Html:
    heading = tag("h3", f"Over {SPACES[space]}: {study.sizes[space]:,} eigenvalues")
    return joined([heading, side_by_side(drawn[f"curvature-spectrum-{space}"])])


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [words[-1]])


def write_curvature(folder: Path) -> Path:
    """Write ``curvature.html`` beside the files of a study in ``folder``, and its figures for papers; return its path.

    The figures are ``figures/NAME.svg`` and ``figures/NAME.pdf``. Where the results of a benchmark lie in the folder
    too, their ``report.html`` is written again, with the study in it. The same files give the same bytes.
    """
    study = load_study(folder)
    figures = curvature_figures(study)
    for drawing in figures.values():
        drawing.save(folder / "figures")
    path = folder / "curvature.html"
    write_atomically(path, render_curvature(study, figures))
    if (folder / "results.json").exists():
        from .page import write_report

        write_report(folder)
    return path


def render_curvature(study: Study, figures: dict[str, Drawing] | None = None) -> str:
    """Return the page as text.

    Args:
        study: What the page tells.
        figures: What :func:`~flatfold.report.curvature.curvature_figures` made of it, where that is done already.
    """
    suite = study.suite
    parts = curvature_parts(study, figures)
    content = {**parts.content, "provenance": definition_list(study.provenance)}
    return filled(
        "curvature.html",
        title=f"{suite['name']}, {suite['network']}" if suite["network"] else suite["name"],
        about=suite["about"],
        finding=finding(compare(study)),
        facts=_facts(study),
        warnings=warning_box(suite.get("deviations", []), []),
        contents=contents(content),
        sections=sections(content, parts.more),
    )


def _facts(study: Study) -> Html:
    suite, traces = study.suite, study.traces
    unknown = [len(traces[f"feature/{name}"]) for name in study.datasets[1:]]
    told = [
        (f"{suite['n_parameters']:,}", "parameters"),
        (f"{suite['n_features']:,}", "features"),
        (f"{suite['n_classes']:,}", "known classes"),
        (f"{percent(suite['accuracy'])} %", "accuracy"),
        (f"{len(traces[f'feature/{ID}']):,}", "known test images"),
        (f"{sum(unknown):,}", f"unknown images in {len(unknown)} data set{'s' * (len(unknown) > 1)}"),
    ]
    return tag("ul", *(tag("li", tag("b", number), " ", what) for number, what in told), class_="facts")
