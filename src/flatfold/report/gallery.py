"""The images on which a method was most wrong, as small pictures."""

import base64
import io
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..evaluate.results import ID, Results, Wrong
from .markup import Html, data_block, joined, tag

SHOWN = 8  # of a data set
BUDGET = 2_000_000  # characters of pictures: a page must still open on a telephone
SMALL = 64  # pixels: up to this side, pictures are enlarged without a blur
EMPTY = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="

Pictures = Mapping[str, str]


def gallery(results: Results) -> Html:
    """Return the pictures of the best method that has any, and those of the others for the page's script.

    Every distinct image is in the page once. When all together were too many, fewer are shown of each data set.
    """
    if not results.wrong:
        return tag("p", "These results hold no images.", class_="soft")
    pictures = {key: data_uri(pixels) for key, pixels in results.thumbnails.items()}
    chosen = _chosen(results, pictures)
    first = next(iter(chosen))
    here = {key_of(wrong) for wrongs in chosen[first].values() for wrong in wrongs}
    used = {key_of(wrong) for groups in chosen.values() for wrongs in groups.values() for wrong in wrongs}
    content = {
        "methods": {
            method: {name: [_entry(wrong) for wrong in wrongs] for name, wrongs in groups.items()}
            for method, groups in chosen.items()
        },
        "pictures": {key: pictures[key] for key in sorted(used - here) if key in pictures},
    }
    shelves = [_shelf(name, chosen[first].get(name, []), pictures) for name in _names(results)]
    small = all(max(pixels.shape) <= SMALL for pixels in results.thumbnails.values())
    shelf_box = tag("div", *shelves, id="gallery", class_="small" if small else None)
    template = tag("template", _card(None, EMPTY), id="card")
    return joined([_choice(list(chosen)), shelf_box, template, data_block("wrong-data", content)])


def key_of(wrong: Wrong) -> str:
    """Return the name of an image's thumbnail."""
    return f"{wrong.dataset}/{wrong.row}"


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return a picture ``(h, w, 3)`` as a PNG inside an address."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def _chosen(results: Results, pictures: Pictures) -> dict[str, dict[str, list[Wrong]]]:
    """Return what is shown, by method, best first, and data set; as many of each as the budget allows."""
    for count in range(SHOWN, 0, -1):
        chosen = {run.method: _worst(results, run.method, count) for run in results.ranked}
        chosen = {method: groups for method, groups in chosen.items() if groups}
        used = {key_of(wrong) for groups in chosen.values() for wrongs in groups.values() for wrong in wrongs}
        if sum(len(pictures.get(key, "")) for key in used) <= BUDGET:
            break
    return chosen


def _entry(wrong: Wrong) -> dict[str, str]:
    return {"key": key_of(wrong), "name": wrong.name, **words_of(wrong)}


def _worst(results: Results, method: str, count: int) -> dict[str, list[Wrong]]:
    groups: dict[str, list[Wrong]] = {}
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


def _shelf(name: str, wrongs: list[Wrong], pictures: Pictures) -> Html:
    title = "Known images that looked most unknown" if name == ID else f"{name}: unknown images that looked most known"
    cards = [_card(wrong, pictures.get(key_of(wrong), EMPTY)) for wrong in wrongs]
    return tag("section", tag("h3", title), tag("div", *cards, class_="cards"), class_="shelf", data_dataset=name)


def _card(wrong: Wrong | None, address: str) -> Html:
    """Return one picture with its words; without an image, the mould that the page's script fills."""
    words = words_of(wrong) if wrong else dict.fromkeys(("score", "share", "classes"), "")
    caption = tag("figcaption", *(tag("span", text, class_=name) for name, text in words.items()))
    name = wrong.name if wrong else ""
    picture = tag("img", src=address, alt=name, title=name, data_key=key_of(wrong) if wrong else "")
    return tag("figure", picture, caption, class_="card")


def words_of(wrong: Wrong) -> dict[str, str]:
    """Return what is said below a picture."""
    label = "" if wrong.label is None else f", is {wrong.label}"
    return {
        "score": f"score {wrong.score:.3g}",
        "share": f"above {100 * wrong.share:.1f} % of known",
        "classes": f"seen as {wrong.predicted}{label}",
    }
