r"""Positions of images as samples: which ones are drawn, and what they are calibrated for.

The positions of one image are not independent of each other, so the promise is about images. Of every image some pixels
of its logits are drawn at random; each stands for the position of the layer's grid that it takes its features from. A
random half of the images fits the detector. The others calibrate it: with the share :math:`L_i(t)` of the drawn pixels
of image i with a score above t, the threshold is the smallest t with

.. math:: \frac{L_1(t) + \dots + L_n(t) + 1}{n + 1} \le \text{fpr}

so that the expected share of alarms in a new image is at most ``fpr`` (:mod:`flatfold.core.conformal`). The draw costs
nothing of this: whatever the threshold, the share of independently drawn pixels has the share of all as its mean.

An image as a whole has one number, the q-quantile of the scores of pixels drawn from it. It depends on that image
alone, so its rank among those of the held-out images is uniform. (The share of alarms of an image would not do: the
p-values of a held-out image were computed with this image among the others.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from ..core.bank import FeatureBank, Head
from ..core.conformal import ROUNDING
from ..core.copies import count_copies_once, distinct_rows, group_copies
from ..core.hessian import row_chunks
from ..core.validation import check_finite, check_fit
from ..data.batch import Batch
from ..data.transform import InputSizes
from ..detectors.base import Detector
from ..network.calls import evaluating
from ..network.heads import DensePass
from ..network.network import Network
from .calibrated import Calibration, check_enough, with_rounding_margin, without_autocast
from .fitting import SAME_DATA, FitResult, check_labels_fit, learns, split_groups

log = logging.getLogger(__name__)

POSITIONS = 200_000  # pixels drawn in all
MOST = 4096  # and of one image
AT_ONCE = 2**16  # rows of features that are scored at once
IGNORED = (255, -100)  # labels that do not count, as in torchvision and transformers
SHOWN = 5  # labels in a message


class Drawn(NamedTuple):
    """Pixels drawn from one image; each is the row of its position in ``features``."""

    features: Tensor
    """``(k, d)``, of the positions of the grid that were drawn."""
    predicted: Tensor
    """``(k,)``, the likeliest class of each."""
    labels: Tensor | None
    """``(k,)``, the class of each position, -1 where it is ignored; None without labels."""
    counted: Tensor
    """``(a,)`` rows of pixels with a label that counts; all pixels count without labels."""
    seen: Tensor
    """``(b,)`` rows of pixels, whatever their labels."""
    mean: Tensor
    """``(d,)``, the mean of the features of all positions, by which copies of images are found."""

    def thin(self, pixels: int) -> Drawn:
        """Return the draw of fewer pixels; the order of a draw is random."""
        counted, seen = self.counted[:pixels], self.seen[:pixels]
        kept, places = _unique(torch.cat([counted, seen]))
        labels = None if self.labels is None else self.labels[kept]
        counted, seen = places[: len(counted)], places[len(counted) :]
        return Drawn(self.features[kept], self.predicted[kept], labels, counted, seen, self.mean)


def cells_of(grid: Sequence[int], size: Sequence[int]) -> Tensor:
    """Return the position of the grid that is nearest to each pixel of a map, ``(pixels,)``, both in row-major order.

    Example:
        >>> cells_of((2, 2), (2, 4))
        tensor([0, 0, 1, 1, 2, 2, 3, 3])
    """
    cells = torch.zeros(1, dtype=torch.int64)
    for side, length in zip(grid, size, strict=True):
        places = torch.arange(length) * side // length
        cells = (cells[:, None] * side + places).flatten()
    return cells


def at_size(values: Tensor, size: Sequence[int]) -> Tensor:
    """Return maps ``(n, *grid)`` at another size, ``(n, *size)``, with the nearest value of each."""
    for axis, (side, length) in enumerate(zip(values.shape[1:], size, strict=True), 1):
        if side != length:
            values = values.index_select(axis, torch.arange(length, device=values.device) * side // length)
    return values


def smooth(score: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return scores ``(n, *grid)`` at another size: bilinear, unless this would make neighbours of one NaN."""
    near = at_size(score, size)
    if tuple(score.shape[1:]) == size or score.ndim != 3:
        return near
    between = interpolate(score[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    return between.where(score.isfinite().flatten(1).all(dim=1)[:, None, None], near)


def drawn_cells(grid: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
    """Return :func:`order_of_cells`, a constant for a compiler once ``assume_constant_result`` was called with this."""
    return torch.from_numpy(order_of_cells(grid, size))


@lru_cache(maxsize=8)  # of an array: a tensor made while a graph is traced has no values
def order_of_cells(grid: tuple[int, ...], size: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the positions of the grid, ``(pixels,)``, of the pixels of new images in the order of the draw.

    It is always the same, and drawn by numpy, so that it is a constant while a graph is traced.
    """
    cells = np.arange(prod(grid)).reshape(grid)
    for axis, (side, length) in enumerate(zip(grid, size, strict=True)):
        cells = cells.take(np.arange(length) * side // length, axis=axis)
    order: NDArray[np.int64] = cells.ravel()[np.random.default_rng(prod(size)).permutation(prod(size))]
    return order


def draw(
    network: Network, batches: Iterable[Batch], ignored: Sequence[int], device: torch.device | str | None, seed: int
) -> tuple[list[Drawn], int]:
    """Run all batches and draw the same number of pixels from every image; return this number too.

    Images in which no label counts are left out.
    """
    generator, drawn, pixels, empty, masked = torch.Generator().manual_seed(seed), list[Drawn](), MOST, 0, None
    with evaluating(network.model, device) as place:
        for batch in batches:
            if masked not in (None, batch.labels is not None):
                raise ValueError(
                    "either all batches have labels or none has, but some have and some have not. Give a mask for "
                    "every image, or leave them out everywhere."
                )
            masked = batch.labels is not None
            shape = tuple(batch.first_tensor.shape[1:])
            network.add_sizes(InputSizes(shape, shape))
            result = network.runtime(batch.to(place))
            assert isinstance(result, DensePass)
            check_finite(result.features, "features")
            masks = None if batch.labels is None else masks_of(batch, result, ignored)
            for image in range(batch.rows):
                one = _draw_one(result, image, None if masks is None else masks[image], pixels, generator)
                empty += one is None
                drawn += [] if one is None else [one]
            while len(drawn) * pixels > POSITIONS and pixels > 1:
                pixels //= 2
                drawn = [each.thin(pixels) for each in drawn]
    if not drawn:
        raise ValueError(
            f"no position of any image has a label that counts: all of them are {_named(ignored)}, which are ignored. "
            "Check the masks, or the argument ignore_index."
        )
    if empty:
        log.warning("%d images without a label that counts are left out", empty)
    return drawn, pixels


def _draw_one(
    result: DensePass, image: int, mask: Tensor | None, pixels: int, generator: torch.Generator
) -> Drawn | None:
    """Draw pixels from one image; ``mask``, ``(pixels,)``, holds its labels, -1 where they are ignored."""
    _, *grid = result.grid
    every = torch.ones(prod(result.size), dtype=torch.bool)
    if result.counted is not None:
        every = result.counted[image].flatten().cpu()
    valid = every if mask is None else every & (mask >= 0)
    if not valid.any():
        return None
    order = torch.randperm(len(every), generator=generator)
    cells = cells_of(grid, result.size)
    counted, seen = (cells[order[which[order]][:pixels]] for which in (valid, every))
    kept, places = _unique(torch.cat([counted, seen]))
    rows = (kept + image * prod(grid)).to(result.features.device)
    # The nearest label of a position is that of the pixel in its middle.
    labels = None if mask is None else mask[cells_of(result.size, [2 * side for side in grid])[_middles(grid)]][kept]
    predicted, own = result.logits[rows].argmax(dim=-1), slice(image * prod(grid), (image + 1) * prod(grid))
    mean, places = result.features[own].mean(dim=0).cpu(), places.cpu()
    counted, seen = places[: len(counted)], places[len(counted) :]
    return Drawn(result.features[rows].cpu(), predicted.cpu(), labels, counted, seen, mean)


def _middles(grid: Sequence[int]) -> Tensor:
    """Return the places, in a grid that is twice as fine, of the lower right quarter of each position."""
    places = torch.zeros(1, dtype=torch.int64)
    for side in grid:
        places = (places[:, None] * 2 * side + 2 * torch.arange(side) + 1).flatten()
    return places


def masks_of(batch: Batch, result: DensePass, ignored: Sequence[int]) -> Tensor:
    """Return the labels of a batch as class indices ``(n, pixels)`` at the size of the logits, -1 where ignored."""
    assert batch.labels is not None
    masks, size, classes = batch.labels, result.size, result.logits.shape[1]
    if masks.ndim == len(size) + 2 and masks.shape[1] == 1:
        masks = masks[:, 0]
    given, image = tuple(masks.shape[1:]), tuple(batch.first_tensor.shape[-len(size) :])
    if given not in (size, image):
        at = " x ".join(map(str, size))
        also = "" if image == size or len(size) == 1 else f" or of the image, {' x '.join(map(str, image))}"
        advice = "Resize the masks with nearest neighbour, as the images."
        if not given:
            advice = "For one decision per input, wrap the model so that it selects or pools positions."
        raise ValueError(
            f"the model has logits at every position, so labels must have a class for each: {at}, the size of the "
            f"logits{also}, got {' x '.join(map(str, given)) or 'one per input'}. {advice}"
        )
    masks = at_size(masks.long(), size).flatten(1)
    used = torch.tensor([value for value in ignored if not 0 <= value < classes], dtype=torch.int64)
    counts = ~torch.isin(masks, used)
    wrong = masks[counts & ((masks < 0) | (masks >= classes))]
    values = sorted({*wrong.tolist()})
    if values:
        raise ValueError(
            f"labels must be classes from 0 to {classes - 1} or ignored ({_named(ignored)}), got {_named(values)}. "
            "Name the label to leave out as ignore_index=, or number classes in the order of the model's outputs."
        )
    return masks.where(counts, -1)


def _unique(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorted distinct values, and the place of each value among them."""
    distinct, places = torch.unique(values, return_inverse=True)
    return distinct, places


def _named(labels: Sequence[int]) -> str:
    return ", ".join(map(str, labels[:SHOWN])) + (", ..." if len(labels) > SHOWN else "")


@dataclass(frozen=True)
class Images:
    """Calibration of images as a whole.

    Attributes:
        pixels: How many are drawn from an image.
        level: q; the number of an image is the q-quantile of their scores.
        calibration: The numbers of held-out images.
    """

    pixels: int
    level: float
    calibration: Calibration

    def at(self, fpr: float) -> Images:
        """Return the same numbers at another false-alarm rate."""
        return Images(self.pixels, self.level, self.calibration.at(fpr))

    def of_maps(self, scores: Tensor, counted: Tensor | None, size: tuple[int, ...]) -> Tensor:
        """Return the number of each image, given scores ``(n, *grid)`` and which of them are no padding."""
        cells = drawn_cells(tuple(scores.shape[1:]), size)
        if counted is None:
            drawn = _at_most_infinite(scores.flatten(1)[:, cells[: self.pixels].to(scores.device)])
            return drawn.topk(_above(self.level, drawn.shape[1])).values[:, -1]
        cells = cells.to(scores.device)
        drawn, counts = _at_most_infinite(scores.flatten(1)[:, cells]), counted.to(scores.device).flatten(1)[:, cells]
        counts = counts & (counts.cumsum(dim=1) <= self.pixels)
        ranked = drawn.where(counts, -torch.inf).sort(dim=1, descending=True).values
        sizes = counts.sum(dim=1)
        above = ((1 - self.level) * sizes.double() - ROUNDING).ceil().clamp_min(1).long()
        return ranked.gather(1, above[:, None] - 1)[:, 0].where(sizes > 0, torch.inf)

    @classmethod
    def of(cls, numbers: Tensor, distinct: Tensor, pixels: int, fpr: float) -> Self:
        """Calibrate on numbers ``(n,)`` of images, of which copies are not ``distinct``."""
        ranked = count_copies_once(numbers, distinct)
        return cls(pixels, 1 - fpr, Calibration(ranked[None], torch.tensor([len(ranked)]), fpr))


def upper_quantile(scores: Tensor, level: float) -> Tensor:
    """Return the smallest of the scores that at most a share 1 - ``level`` exceeds; infinity without scores."""
    if not len(scores):
        return scores.new_tensor(torch.inf)
    return _at_most_infinite(scores).sort(descending=True).values[_above(level, len(scores)) - 1]


def _above(level: float, pixels: int) -> int:
    """Return the rank, from the largest on, of the quantile of some pixels."""
    return max(1, ceil((1 - level) * pixels - ROUNDING))


def _at_most_infinite(scores: Tensor) -> Tensor:
    """Return scores with those that are not finite as infinity."""
    return scores.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)


def scores_of(detector: Detector, features: Tensor) -> Tensor:
    """Return the score of each row of features, a part of them at a time."""
    with without_autocast(features):
        return torch.cat([detector(features[part]) for part in row_chunks(len(features), AT_ONCE)])


@torch.no_grad()
def fit_positions(
    detector: Detector,
    head: Head,
    drawn: Sequence[Drawn],
    pixels: int,
    fpr: float,
    seed: int,
    others: Sequence[Drawn] = (),
) -> tuple[FitResult, Images]:
    """Fit a detector in place on pixels of a random half of the images, and calibrate it on the other half.

    With ``others`` to calibrate on, all images are fitted on. ``pixels`` are drawn from each image.
    """
    every = [*drawn, *others]
    groups = group_copies(torch.stack([each.mean for each in every]))[0]
    copies = int((~distinct_rows(groups)).sum())
    if others:
        to_fit, to_hold, where = torch.arange(len(drawn)), torch.arange(len(drawn), len(every)), "the calibration data"
        if learns(detector):  # images that the detector has learnt from say nothing about others
            to_hold = to_hold[~torch.isin(groups[to_hold], groups[to_fit])]
            if not len(to_hold):
                raise ValueError(SAME_DATA)
    else:
        check_enough(fpr, len(every) // 2, "half of the images")
        (to_fit, to_hold), where = split_groups(groups, 1.0, seed), "half of the images"
    held, of_held = [every[image] for image in to_hold.tolist()], groups[to_hold]
    distinct = distinct_rows(of_held)
    check_enough(fpr, int(distinct.sum()), f"{where}{', copies not counted,' if copies else ''}")
    fitted = [every[image] for image in to_fit.tolist()]
    features, labels, predicted = (torch.cat(column) for column in zip(*map(_rows_to_fit, fitted), strict=True))
    bank = FeatureBank(features, None if drawn[0].labels is None else labels)
    check_fit(bank, head)
    accuracy = check_labels_fit(bank, head, predicted)
    if bank.labels is not None and head.n_classes > 1 and len(classes := _unique(bank.labels)[0]) == 1:
        raise ValueError(
            f"labels must be of several classes, but all that count are of class {int(classes)}. Are these the masks, "
            "in the order of the images? Without labels, pass the images alone."
        )
    with without_autocast(bank.features):
        detector.fit(bank, head)
    detector.eval()
    scores = with_rounding_margin(scores_of(detector, torch.cat([each.features for each in held])))
    ends = torch.tensor([len(each.features) for each in held]).cumsum(dim=0)
    parts = scores.tensor_split(ends[:-1])
    counted = [own[each.counted] for own, each in zip(parts, held, strict=True)]
    grouping = of_held.repeat_interleave(torch.tensor([len(own) for own in counted]))
    calibration = Calibration.of(torch.cat(counted), fpr, grouping=grouping)
    numbers = torch.stack([upper_quantile(own[each.seen], 1 - fpr) for own, each in zip(parts, held, strict=True)])
    result = FitResult(detector, calibration, len(drawn), accuracy, "torch", copies)
    return result, Images.of(numbers, distinct, pixels, fpr)


def _rows_to_fit(one: Drawn) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, labels and predicted classes of the drawn positions of an image whose label counts."""
    rows, _ = _unique(one.counted)
    labels = one.predicted if one.labels is None else one.labels
    rows = rows[labels[rows] >= 0]
    return one.features[rows], labels[rows], one.predicted[rows]
