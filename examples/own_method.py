"""A method of one's own: ``flatfold bench digits --with examples/own_method.py --methods msp,aside``."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

import flatfold as ff


@ff.register("aside", fits_on="train")
class Aside(ff.Detector):
    """Sine of the angle between a feature and the nearest class mean: 0 along it, 1 at right angles."""

    def learn(self, bank: ff.FeatureBank, head: ff.Head) -> None:
        """Remember the direction of every class mean."""
        if bank.labels is None:
            raise ff.MethodRefusedError("aside needs labels. Give FeatureBank(features, labels).")
        means = [bank.features[bank.labels == k].mean(dim=0) for k in bank.labels.unique()]
        self.register_buffer("means", normalize(torch.stack(means)))

    def score(self, h: Tensor) -> Tensor:
        """Return that sine for features ``(n, d)``."""
        units, means = normalize(h), self.get_buffer("means")
        along, nearest = (units @ means.mT).max(dim=-1, keepdim=True)
        # Not the root of 1 - along ** 2, which has no digits left at small angles.
        return (units - along.clamp(min=0) * means[nearest.squeeze(-1)]).norm(dim=-1)
