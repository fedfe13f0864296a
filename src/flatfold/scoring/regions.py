"""Explain alarms at positions of images: connected regions, and what is unusual about each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.ndimage import find_objects, label
from torch import Tensor

from ..detectors.base import Detector
from ..display.numbers import count
from ..display.table import Table
from ..network.heads import DensePass
from .calibrated import Verdict
from .explanation import Explanation, explain
from .positions import at_size

SHOWN = 50  # images as text


class Region(NamedTuple):
    """Positions with an alarm that touch each other."""

    share: float
    """Share of the image, between 0 and 1."""
    box: tuple[tuple[int, int], ...]
    """First position and the one after the last along each axis of the logits: rows, then columns."""
    explanation: Explanation
    """Of its most unusual position: the predicted class, the pairs of classes and the unusual signs."""

    def __str__(self) -> str:
        return f"{100 * self.share:.1f} % of it: {self.explanation}"


class Regions(list[tuple[Region, ...]]):
    """The regions of each image, the largest first, shown as a line for each region."""

    def _rows(self) -> list[tuple[str, str]]:
        none = "no alarm"
        return [(str(row), text) for row, own in enumerate(self) for text in (list(map(str, own)) or [none])]

    def __repr__(self) -> str:
        lines = [f"{row}: {text}" for row, text in self._rows()]
        rest = len(lines) - SHOWN
        return "\n".join([*lines[:SHOWN], *([f"and {count(rest, 'more region')}"] if rest > 0 else [])]) or "[]"

    def _repr_html_(self) -> str:
        return Table(("row", "region"), self._rows(), left=(1,)).html()


def find_regions(
    result: DensePass,
    maps: tuple[Tensor, Tensor, Tensor],
    detector: Detector,
    names: Sequence[str] | None,
    pairs: int,
    most: int,
) -> Regions:
    """Return at most ``most`` regions of each image of a batch, given score, p-value and decision on the grid."""
    images, size = result.grid[0], result.size
    peaks, regions = list[int](), list[list[tuple[float, tuple[tuple[int, int], ...]]]]()
    score = maps[0].nan_to_num(nan=torch.inf, posinf=torch.inf).flatten(1).cpu()
    for image in range(images):
        labels, _ = label(maps[2][image].cpu().numpy())
        wide = at_size(torch.from_numpy(labels)[None], size)[0].numpy()
        pixels = np.bincount(wide.ravel(), minlength=labels.max() + 1)[1:]
        boxes = find_objects(wide, max_label=len(pixels))
        largest = [place for place in np.argsort(-pixels, kind="stable")[:most].tolist() if pixels[place]]
        inside = [torch.from_numpy(labels.ravel() == place + 1) for place in largest]
        peaks += [int(score[image].where(own, -torch.inf).argmax()) + image * score.shape[1] for own in inside]
        regions.append(
            [(pixels[place] / wide.size, tuple((side.start, side.stop) for side in boxes[place])) for place in largest]
        )
    rows = torch.tensor(peaks, dtype=torch.int64, device=result.features.device)
    verdict = Verdict(result.logits[rows], *(values.flatten()[rows] for values in maps))
    h = result.features[rows]
    texts = iter(explain(verdict, detector.pairs(h, pairs), names, detector.signs(h)) if peaks else ())
    return Regions(tuple(Region(float(share), box, next(texts)) for share, box in own) for own in regions)
