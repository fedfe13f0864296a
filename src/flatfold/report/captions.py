"""What is said of an image on which a method was wrong."""

import re
from collections.abc import Sequence

from ..evaluate.results import ID, Wrong

DIGITS = range(3, 10)  # of a score: three where they tell all apart, at most nine, which tell any two float32 apart
KNOWN = "the known test images"


def words_of(wrongs: Sequence[Wrong], classes: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return the words below each picture of a row.

    Args:
        wrongs: Images of one method and data set.
        classes: Names of the network's classes; where there is none, the number of the class is told.

    Returns:
        For each image its ``file``, the ``place`` where to find it, its ``score``, ``share`` and ``classes``.
    """
    scores = told_apart([wrong.score for wrong in wrongs])
    return [
        {
            "file": re.split(r"[/\\]", wrong.name.rstrip("/\\"))[-1],
            "place": f"{wrong.name}, row {wrong.row} of {KNOWN if wrong.dataset == ID else wrong.dataset}",
            "score": f"score {score}",
            "share": f"above {100 * wrong.share:.1f} % of known",
            "classes": _seen(wrong, classes),
        }
        for wrong, score in zip(wrongs, scores, strict=True)
    ]


def told_apart(scores: Sequence[float]) -> list[str]:
    """Return scores with as many digits, at least three, as it takes to tell those that differ apart.

    Example:
        >>> told_apart([-0.1011, -0.1012]), told_apart([295.2, 3.0])
        (['-0.1011', '-0.1012'], ['295', '3.00'])
    """
    for digits in DIGITS:
        texts = [f"{score:#.{digits}g}".removesuffix(".") for score in scores]
        if len(set(texts)) == len(set(scores)):
            break
    return texts


def _seen(wrong: Wrong, classes: Sequence[str]) -> str:
    is_what = "" if wrong.label is None else f", is {_name(wrong.label, classes)}"
    return f"seen as {_name(wrong.predicted, classes)}{is_what}"


def _name(number: int, classes: Sequence[str]) -> str:
    return str(classes[number]) if number < len(classes) else str(number)
