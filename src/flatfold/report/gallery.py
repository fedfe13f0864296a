"""Gallery of the images with the largest errors of a method, as thumbnails with captions."""

import base64
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..evaluate.results import ID, Results, WorstCase

SHOWN = 8  # images per data set
BUDGET = 2_000_000  # characters of all pictures, so that the page still opens on a phone
SMALL = 64  # pixels: up to this size, pictures are enlarged without smoothing
DIGITS = range(3, 10)  # digits of a score; nine distinguish any two float32 values

Chosen = dict[str, dict[str, list[WorstCase]]]


def gallery(results: Results) -> dict[str, Any] | None:
    """Return the values of ``gallery.html``, with the best method that has images first; None without images.

    Every distinct image is embedded once. If the total is too large, fewer images per data set are shown.
    """
    if not results.wrong:
        return None
    classes = results.suite.get("classes") or ()
    pictures = {key: data_uri(pixels) for key, pixels in results.thumbnails.items()}
    for count in range(SHOWN, 0, -1):
        chosen = _worst(results, count)
        used = {_key(wrong) for groups in chosen.values() for wrongs in groups.values() for wrong in wrongs}
        if sum(len(pictures.get(key, "")) for key in used) <= BUDGET:
            break
    first = next(iter(chosen))
    shown = {_key(wrong) for wrongs in chosen[first].values() for wrong in wrongs}
    return {
        "first": first,
        "methods": {
            method: {name: _captions(wrongs, classes) for name, wrongs in groups.items()}
            for method, groups in chosen.items()
        },
        "shelves": {ID: "ID images with the highest scores"}
        | {ood["name"]: f"{ood['name']}: OOD images with the lowest scores" for ood in results.suite["ood"]},
        "pictures": pictures,
        "hidden_pictures": {key: pictures[key] for key in sorted(used - shown) if key in pictures},
        "small": all(max(pixels.shape) <= SMALL for pixels in results.thumbnails.values()),
    }


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Encode a picture ``(h, w, 3)`` as a data URI of a PNG."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def distinct_texts(scores: Sequence[float]) -> list[str]:
    """Format scores with enough digits, at least three, that different scores have different texts."""
    for digits in DIGITS:
        texts = [f"{score:#.{digits}g}".removesuffix(".") for score in scores]
        if len(set(texts)) == len(set(scores)):
            break
    return texts


def _key(wrong: WorstCase) -> str:
    return f"{wrong.dataset}/{wrong.row}"  # key of the thumbnail


def _worst(results: Results, count: int) -> Chosen:
    """Return at most ``count`` images per method, best first, and data set."""
    chosen: Chosen = {run.method: {} for run in results.ranked}
    for wrong in results.wrong:
        wrongs = chosen[wrong.method].setdefault(wrong.dataset, [])
        if len(wrongs) < count:
            wrongs.append(wrong)
    return {method: groups for method, groups in chosen.items() if groups}


def _captions(wrongs: Sequence[WorstCase], classes: Sequence[str]) -> list[dict[str, str]]:
    """Return the captions of each picture; a class without a name is shown as a number."""

    def name(number: int) -> str:
        return str(classes[number]) if number < len(classes) else str(number)

    return [
        {
            "key": _key(wrong),
            "name": wrong.name,
            "file": re.split(r"[/\\]", wrong.name.rstrip("/\\"))[-1],
            "place": f"{wrong.name}, row {wrong.row} of " + ("the ID images" if wrong.dataset == ID else wrong.dataset),
            "score": f"score {score}",
            "share": f"above {100 * wrong.share:.1f} % of ID",
            "classes": f"predicted {name(wrong.predicted)}"
            + ("" if wrong.label is None else f", is {name(wrong.label)}"),
        }
        for wrong, score in zip(wrongs, distinct_texts([wrong.score for wrong in wrongs]), strict=True)
    ]
