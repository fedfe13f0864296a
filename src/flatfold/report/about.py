"""The end of the page: data sets, methods, and where the numbers come from."""

from collections.abc import Mapping

from ..evaluate.results import Results
from ..evaluate.rows import MethodRun
from .cells import head_cell, table
from .markup import Html, definition_list, scrolling, tag

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
