"""Is the share of false alarms of a guard for every pixel what it promises, and that of pooled pixels not?

``python -m studies.positions`` draws calibration images 400 times from the scenes of the suite ``scenes``, and from
synthetic maps whose pixels hardly differ within an image, and measures the share of alarms in the other images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flatfold.core.bank import FeatureBank
from flatfold.data.batch import split_batch
from flatfold.detectors import create
from flatfold.evaluate.pixels import score_maps
from flatfold.evaluate.suites.library import load_suites
from flatfold.network.calls import evaluating
from flatfold.network.heads import DensePass
from flatfold.network.network import Network
from flatfold.scoring.calibrated import Calibration

REDRAWS = 400
PIXELS = 100  # of an image
SETTINGS = ((30, 0.05), (100, 0.01))  # calibration images and rate
SHIFTED = 1000  # synthetic images that alarms are measured on


@dataclass(frozen=True)
class Measured:
    """The mean share of alarms in new images over redraws, with its standard error, by way of calibration."""

    maps: str
    images: int
    fpr: float
    guard: float
    guard_error: float
    pooled: float
    pooled_error: float


def scene_scores(folder: Path, method: str = "msp") -> Tensor:
    """Return scores ``(n, pixels)`` of pixels drawn from the ID scenes that the network was not trained on."""
    (suite,) = load_suites("scenes", folder)
    rows, rng = [], np.random.default_rng(0)
    with evaluating(suite.model) as device:
        network, _ = Network.of(suite.model, split_batch(suite.test.read(range(2))[0]))
        head = network.found.head
        detector = create(method).fit(FeatureBank(head.weight), head)  # a method that learns nothing
        for source in (suite.val, suite.test):
            assert source is not None
            for x, _ in source:
                result = network.runtime(split_batch(x).to(device))
                assert isinstance(result, DensePass)
                maps = score_maps(detector, result, result.size).reshape(len(x), -1)
                rows += [rng.choice(scores, PIXELS, replace=False) for scores in maps]
    return torch.from_numpy(np.stack(rows))


def correlated_scores(images: int, rng: np.random.Generator) -> Tensor:
    """Return scores whose pixels share almost everything with the other pixels of their image."""
    return torch.from_numpy(rng.normal(size=(images, 1)) + 0.05 * rng.normal(size=(images, PIXELS)))


def alarm_shares(calibration: Tensor, new: Tensor, fpr: float) -> tuple[float, float]:
    """Return the mean share of alarms in new images: with a guard's threshold, and with one on pooled pixels."""
    grouping = torch.arange(len(calibration)).repeat_interleave(calibration.shape[1])
    guard = Calibration.of(calibration.flatten(), fpr, grouping=grouping).threshold
    ranked = calibration.flatten().sort(descending=True).values
    pooled = ranked[int(fpr * (len(ranked) + 1)) - 1]  # the threshold for independent pixels
    return float((new > guard).double().mean()), float((new > pooled).double().mean())


def measure(pool: Tensor | None, images: int, fpr: float, redraws: int = REDRAWS, seed: int = 0) -> Measured:
    """Redraw the calibration images from a pool, or from the synthetic maps, and measure on the other images."""
    rng, shares = np.random.default_rng([seed, images, round(1 / fpr)]), []
    for _ in range(redraws):
        if pool is None:
            maps = correlated_scores(images + SHIFTED // 10, rng)
            order = torch.arange(len(maps))
        else:
            maps, order = pool, torch.from_numpy(rng.permutation(len(pool)))
        shares.append(alarm_shares(maps[order[:images]], maps[order[images:]], fpr))
    values: NDArray[np.float64] = np.array(shares)
    means, errors = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(redraws)
    name = "synthetic" if pool is None else "scenes"
    return Measured(name, images, fpr, means[0], errors[0], means[1], errors[1])


def measure_all(pool: Tensor, settings: Sequence[tuple[int, float]] = SETTINGS) -> list[Measured]:
    """Measure all settings on the scenes and on the synthetic maps."""
    return [measure(maps, images, fpr) for maps in (pool, None) for images, fpr in settings]
