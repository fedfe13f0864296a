"""The images with the most misleading scores: ID images with high ones, OOD images with low ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..models.sources import ImageSource
from ..models.transform import in_mode
from .banks import Banks
from .methods import MethodResult
from .results import ID, WorstCase
from .suites.suite import Suite

SHOWN = 8  # images of each data set
SIDE = 64  # pixels of the longer side of a thumbnail


def worst_cases(
    evaluated: Sequence[MethodResult], suite: Suite, banks: Banks
) -> tuple[list[WorstCase], dict[str, NDArray[np.uint8]]]:
    """Return the worst images of each method and data set, worst first, and a thumbnail of every one of them.

    A data set of features has no images to show.
    """
    sources = {ID: suite.test} | {ood.name: ood.images for ood in suite.ood}
    cases, thumbnails, names = [], {}, {}
    for result in evaluated:
        for dataset, scores in result.scores.items():
            source = sources[dataset]
            if not isinstance(source, ImageSource):
                continue
            order = np.argsort(-scores if dataset == ID else scores, kind="stable")
            for position in order[:SHOWN].tolist():
                row = banks.row_of(dataset, position)
                key = f"{dataset}/{row}"
                if key not in thumbnails:
                    names[key], pixels = source.picture(row)
                    thumbnails[key] = thumbnail(pixels)
                logits = banks.head(banks.test_sets[dataset].features[position : position + 1])
                score, label = scores[position], None
                if dataset == ID and source.labels is not None:
                    label = int(source.labels[row])
                cases.append(
                    WorstCase(
                        method=result.run.method,
                        dataset=dataset,
                        row=row,
                        name=names[key],
                        score=float(score),
                        share=float((result.scores[ID] < score).mean()),
                        predicted=int(logits.argmax()),
                        label=label,
                    )
                )
    return cases, thumbnails


def thumbnail(pixels: Image.Image | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a small copy of an image, ``(h, w, 3)``."""
    image = in_mode(pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels), "RGB")
    image.thumbnail((SIDE, SIDE))
    return np.asarray(image)
