"""The images on which a method was most wrong, as small pictures."""

import base64
import io
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..evaluate.results import ID, Results, WorstCase
from .html import Html, data_block, joined, tag

# What is said of an image on which a method was wrong.


DIGITS = range(3, 10)  # of a score: three where they tell all apart, at most nine, which tell any two float32 apart

KNOWN = "the known test images"


def words_of(wrongs: Sequence[WorstCase], classes: Sequence[str] = ()) -> list[dict[str, str]]:
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


def _seen(wrong: WorstCase, classes: Sequence[str]) -> str:
    is_what = "" if wrong.label is None else f", is {_name(wrong.label, classes)}"
    return f"seen as {_name(wrong.predicted, classes)}{is_what}"


def _name(number: int, classes: Sequence[str]) -> str:
    return str(classes[number]) if number < len(classes) else str(number)


SHOWN = 8  # of a data set

BUDGET = 2_000_000  # characters of pictures: a page must still open on a telephone

SMALL = 64  # pixels: up to this side, pictures are enlarged without a blur

EMPTY = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="

WORDS = ("file", "place", "score", "share", "classes")  # about a picture, in reading order

BLANK = dict.fromkeys(("key", "name", *WORDS), "")  # for the mould that the page's script fills


Entry = dict[str, str]

Pictures = Mapping[str, str]


def gallery(results: Results) -> Html:
    """Return the pictures of the best method that has any, and those of the others for the page's script.

    Results without images give nothing. Every distinct image is in the page once. When all together were too many,
    fewer are shown of each data set.
    """
    if not results.wrong:
        return Html()
    classes = results.suite.get("classes") or ()
    pictures = {key: data_uri(pixels) for key, pixels in results.thumbnails.items()}
    chosen = _chosen(results, pictures)
    first = next(iter(chosen))
    here = {key_of(wrong) for wrongs in chosen[first].values() for wrong in wrongs}
    used = {key_of(wrong) for groups in chosen.values() for wrongs in groups.values() for wrong in wrongs}
    methods = {
        method: {name: _entries(wrongs, classes) for name, wrongs in groups.items()}
        for method, groups in chosen.items()
    }
    rest = {key: pictures[key] for key in sorted(used - here) if key in pictures}
    shelves = [_shelf(name, methods[first].get(name, []), pictures) for name in _names(results)]
    small = all(max(pixels.shape) <= SMALL for pixels in results.thumbnails.values())
    shelf_box = tag("div", *shelves, id="gallery", class_="small" if small else None)
    template = tag("template", _card(BLANK, EMPTY), id="card")
    return joined(
        [_choice(list(chosen)), shelf_box, template, data_block("wrong-data", {"methods": methods, "pictures": rest})]
    )


def key_of(wrong: WorstCase) -> str:
    """Return the name of an image's thumbnail."""
    return f"{wrong.dataset}/{wrong.row}"


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return a picture ``(h, w, 3)`` as a PNG inside an address."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def _chosen(results: Results, pictures: Pictures) -> dict[str, dict[str, list[WorstCase]]]:
    """Return what is shown, by method, best first, and data set; as many of each as the budget allows."""
    for count in range(SHOWN, 0, -1):
        chosen = {run.method: _worst(results, run.method, count) for run in results.ranked}
        chosen = {method: groups for method, groups in chosen.items() if groups}
        used = {key_of(wrong) for groups in chosen.values() for wrongs in groups.values() for wrong in wrongs}
        if sum(len(pictures.get(key, "")) for key in used) <= BUDGET:
            break
    return chosen


def _entries(wrongs: list[WorstCase], classes: Sequence[str]) -> list[Entry]:
    told = zip(wrongs, words_of(wrongs, classes), strict=True)
    return [{"key": key_of(wrong), "name": wrong.name, **words} for wrong, words in told]


def _worst(results: Results, method: str, count: int) -> dict[str, list[WorstCase]]:
    groups: dict[str, list[WorstCase]] = {}
    for wrong in results.wrong:
        if wrong.method == method and len(groups.setdefault(wrong.dataset, [])) < count:
            groups[wrong.dataset].append(wrong)
    return groups


def _names(results: Results) -> list[str]:
    return [ID, *(ood["name"] for ood in results.suite["ood"])]


def _choice(methods: list[str]) -> Html:
    options = [tag("option", method, value=method) for method in methods]
    choice = tag("label", "Method ", tag("select", *options))
    plain = tag("p", "Method: ", tag("b", methods[0]), class_="scriptless")
    return joined([plain, tag("form", choice, class_="controls", data_for="gallery", hidden=True)])


def _shelf(name: str, entries: list[Entry], pictures: Pictures) -> Html:
    title = "Known images that looked most unknown" if name == ID else f"{name}: unknown images that looked most known"
    cards = [_card(entry, pictures.get(entry["key"], EMPTY)) for entry in entries]
    return tag("section", tag("h3", title), tag("div", *cards, class_="cards"), class_="shelf", data_dataset=name)


def _card(entry: Entry, address: str) -> Html:
    """Return one picture with its words; a click on it shows where it is, with or without a script."""
    name = entry["name"]
    picture = tag("img", src=address, alt=name, title=name, data_key=entry["key"])
    file, place, *words = (tag("span", entry[word], class_=word) for word in WORDS)
    return tag("figure", tag("details", tag("summary", picture, file), place), tag("figcaption", *words), class_="card")
