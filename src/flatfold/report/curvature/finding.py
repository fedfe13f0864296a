"""What a curvature study found, as sentences from its numbers."""

from collections.abc import Sequence

from ...evaluate.study.certainty import above
from ..markup import Html, joined, tag
from .compare import NAMES, SPACES, Column, Comparison
from .numbers import factor, quantity


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
