"""The top of the page: what was found, on what, and what a reader must know first."""

from collections.abc import Mapping, Sequence

from ..evaluate.results import Results
from .cells import between, percent
from .markup import Html, joined, tag

NAMED = 20  # unreadable images that are named
OPEN = 6  # notes of methods that are shown without a click


def title(results: Results) -> str:
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


def warning_box(told: Sequence[object], notes: Sequence[str]) -> Html:
    """Return a box with sentences, and notes that are behind a click when they are many; nothing without any."""
    if not told and not notes:
        return Html()
    inside: list[Html] = []
    if len(notes) > OPEN:
        summary = tag("summary", f"{len(notes)} notes on methods")
        inside = [tag("details", summary, _list(notes))]
        notes = []
    listed = [_list([*told, *notes])] if told or notes else []
    return tag("aside", tag("h2", "Before you compare"), *listed, *inside, class_="warning")


def _list(sentences: Sequence[object]) -> Html:
    return tag("ul", *(tag("li", sentence) for sentence in sentences))


def _unreadable(dataset: str, reasons: Mapping[str, str]) -> Html:
    """Return one line on the gaps of a data set; which images they are comes at a click."""
    named = [f"{name}: {reason}" for name, reason in list(reasons.items())[:NAMED]]
    if len(reasons) > NAMED:
        named.append(f"and {len(reasons) - NAMED} more, all in results.json")
    images = "image that could not be read was" if len(reasons) == 1 else "images that could not be read were"
    line = tag("summary", f"{dataset}: {len(reasons):,} {images} left out.")
    return tag("details", line, _list(named))
