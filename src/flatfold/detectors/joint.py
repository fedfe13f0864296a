"""AutoFold on shaped features, with the percentile of the shaping chosen together with alpha, from ID data alone."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.autofold import middle_of_maximum
from ..core.bank import FeatureBank, Head
from ..core.pairs import Pairs
from ..core.validation import MethodRefused
from .base import Detector
from .shaped import Shaped, Shaping, with_percentile


class Joint(Detector):
    """The best of several shaped detectors, one per percentile, each of which fits a ``curve_``.

    AutoFold's criterion is an AUROC, so its maxima under different percentiles can be compared: their maximum is that
    over percentile and exponent together. ``fit`` leaves ``percentile_``, ``percentiles_`` and ``maxima_``, the maximum
    of the curve at each usable percentile; ``chosen`` is the best detector. Among exact ties the middle one is taken.
    """

    percentile_: Tensor
    percentiles_: Tensor
    maxima_: Tensor

    def __init__(self, make: Callable[[float], Shaped], percentiles: Sequence[float]) -> None:
        super().__init__()
        self.make = make
        self.percentiles = percentiles
        self.chosen = make(percentiles[0])

    def learn(self, bank: FeatureBank, head: Head) -> None:
        """Fit one detector per percentile and keep the best."""
        candidates, notes, usable, refusals = [], [], [], []
        for percentile in self.percentiles:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    candidates.append(self.make(percentile).fit(bank, head))
                except ValueError as error:  # too few features for so high a percentile, say
                    refusals.append(error)
                    continue
            notes.append(caught)
            usable.append(percentile)
        if not candidates:
            raise refusals[0]
        maxima = torch.stack([candidate.detector.get_buffer("curve_").amax() for candidate in candidates])
        best = middle_of_maximum(maxima)
        for note in notes[best]:
            warnings.warn(note.message, stacklevel=4)
        self.chosen = candidates[best]
        self.register_buffers(
            percentile_=torch.tensor(float(usable[best]), dtype=torch.float64),  # float32 might shape differently
            percentiles_=maxima.new_tensor(usable),
            maxima_=maxima,
        )

    def score(self, h: Tensor) -> Tensor:
        """Return the scores of the best detector."""
        return self.chosen.score(h)

    def pairs(self, h: Tensor, k: int) -> Pairs:
        """Return the pairs of classes of the best detector."""
        return self.chosen.pairs(h, k)

    @property
    def inner(self) -> Detector:
        """The best detector."""
        return self.chosen

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}percentile_" in state_dict:  # the shaping of that percentile takes up the rest of the state
            self.chosen = self.make(state_dict[f"{prefix}percentile_"].item())
        super()._load_from_state_dict(state_dict, prefix, *args)


def joint_factory(
    shaping: Callable[[float], Shaping],
    detector: Callable[..., Detector],
    percentiles: Sequence[float],
    summary: str,
) -> Callable[..., Detector]:
    """Return a factory whose ``percentile`` is a number to use, or several to choose from."""

    def build(percentile: float | Sequence[float], hyper: dict[str, Any]) -> Detector:
        def make(percentile: float) -> Shaped:
            return Shaped(shaping(percentile), detector(**hyper))

        if not isinstance(percentile, Sequence):
            return make(percentile)
        if not percentile or isinstance(percentile, str):
            raise MethodRefused(f"percentile must be a number, or several to choose from, got {percentile!r}.")
        return Joint(make, percentile)

    return with_percentile(build, percentiles, detector, summary)
