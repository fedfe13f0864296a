"""The images on which a method was most wrong: known ones that looked unknown, unknown ones that looked known."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..models.sources import ImageSource
from ..models.transform import in_mode
from .banks import Banks
from .methods import Judged
from .results import ID, WorstCase
from .suites.suite import Suite

SHOWN = 8  # images of each data set

SIDE = 64  # pixels of the longer side of a thumbnail


Thumbnails = dict[str, NDArray[np.uint8]]


class _Place(NamedTuple):
    """An image by its data set, its number there, and its position among those that could be read."""

    dataset: str
    row: int
    position: int


def most_wrong(judged: Iterable[Judged], suite: Suite, banks: Banks) -> tuple[list[WorstCase], Thumbnails]:
    """Return the worst images of each method and data set, worst first, and a small copy of every one of them.

    Args:
        judged: The methods with their scores.
        suite: Where the images come from; a data set of features has none to show.
        banks: What the network saw in them.
    """
    every = {ID: suite.test} | {ood.name: ood.images for ood in suite.ood}
    sources = {name: source for name, source in every.items() if isinstance(source, ImageSource)}
    found = [(each, place) for each in judged for place in _worst(each, banks) if place.dataset in sources]
    pictures = {place: sources[place.dataset].picture(place.row) for place in dict.fromkeys(p for _, p in found)}
    wrong = []
    for each, place in found:
        labels = sources[ID].labels if place.dataset == ID else None
        label = None if labels is None else int(labels[place.row])
        wrong.append(_described(each, place, pictures[place][0], label, banks))
    return wrong, {f"{place.dataset}/{place.row}": thumbnail(pixels) for place, (_, pixels) in pictures.items()}


def _worst(judged: Judged, banks: Banks) -> Iterator[_Place]:
    for dataset, scores in judged.scores.items():
        order = np.argsort(-scores if dataset == ID else scores, kind="stable")
        for position in order[:SHOWN].tolist():
            yield _Place(dataset, banks.row_of(dataset, position), position)


def _described(judged: Judged, place: _Place, name: str, label: int | None, banks: Banks) -> WorstCase:
    score = judged.scores[place.dataset][place.position]
    features = banks.judged[place.dataset].features[place.position : place.position + 1]
    return WorstCase(
        method=judged.run.method,
        dataset=place.dataset,
        row=place.row,
        name=name,
        score=float(score),
        share=float((judged.scores[ID] < score).mean()),
        predicted=int(banks.head(features).argmax()),
        label=label,
    )


def thumbnail(pixels: Image.Image | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a small copy of an image, ``(h, w, 3)``."""
    image = in_mode(pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels), "RGB")
    image.thumbnail((SIDE, SIDE))
    return np.asarray(image)
