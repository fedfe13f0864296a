r"""The relation of models with logits at every position: of segmentation networks and classifiers of tokens.

z_t = W h_t + b at every position t of the grid of a layer, or the sum of several such layers. The logits of the model
are these, or their interpolation to another size, usually that of the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from .relations import RELATIONS, ROUNDING, Averaged, Reading, Record, quoted

# How logits are brought from the grid of a layer to the size of the output, and what `interpolate` calls it; of those
# that fit, the first one counts.
RESIZES: dict[str, dict[str, Any]] = {
    "none": {},
    "bilinear": {"mode": "bilinear", "align_corners": False},
    "bilinear, corners aligned": {"mode": "bilinear", "align_corners": True},
    "nearest": {"mode": "nearest"},
    "bicubic": {"mode": "bicubic", "align_corners": False},
}
MOST_SUMMED = 3  # layers whose sum is tried
PROBED = 2  # inputs on which the relation is looked for


class Maps(NamedTuple):
    """What a batch of n inputs gives at every position."""

    features: Tensor
    """``(n, *grid, d)``, on the grid of the layers."""
    logits: Tensor
    """``(n, *grid, c)``, on the grid of the layers."""
    outputs: Tensor
    """``(n, c, *size)``, as the model returned them, with the channels second."""


def resized(values: Tensor, size: tuple[int, ...], resize: str) -> Tensor:
    """Return values ``(n, c, *grid)`` at another size, ``(n, c, *size)``."""
    return values if resize == "none" else interpolate(values, size, **RESIZES[resize])


@dataclass(frozen=True)
class Dense(Averaged):
    """The logits are the output of a layer at every position, or the sum of several, as it is or interpolated."""

    kind = "dense"

    resize: str = "none"
    channels_last: bool = False
    """Whether the model returns ``(n, *size, c)``, as for tokens, and not ``(n, c, *size)``."""

    def __post_init__(self) -> None:
        if self.resize not in RESIZES:  # from a file
            raise ValueError("the relation between layers and logits is not valid")

    @staticmethod
    def keep(values: Tensor, axes: int, rows: int) -> Tensor | None:
        """Return the input or output of a layer as ``(n, *grid, channels)``."""
        if (values.ndim != axes + 2 if axes else values.ndim < 3) or values.shape[0] != rows:
            return None
        return (values.movedim(1, -1) if axes else values).detach().clone()

    @classmethod
    def find(cls, record: Record) -> list[Self]:  # noqa: D102
        found: list[Self] = []
        names = [name for name in record.layers if record.of(name)]
        for output in range(len(record.outputs)):
            for size in range(1, MOST_SUMMED + 1):
                groups = [cls(group, (1,) * size, True, output) for group in combinations(names, size)]
                fitting = [each for group in groups for each in group._fitting(record)]
                if fitting:
                    found += fitting
                    break
        return found

    def _fitting(self, record: Record) -> list[Self]:
        """Return the first way to interpolate the output of these layers that gives the logits, if there is one."""
        for last in (False, True):
            for resize in RESIZES:
                each = type(self)(self.layers, self.calls, self.summed, self.output, resize, last)
                if each.maps(record) is not None:
                    return [each]
        return []

    @property
    def from_inputs(self) -> bool:  # noqa: D102
        return False

    def maps(self, record: Record, compared: bool = True) -> Maps | None:
        """Return features and logits at every position; None if the calls do not give what the model returned.

        Values are not ``compared`` in a graph, which cannot branch on them.
        """
        calls = [record.of(name)[-1:] for name in self.layers]
        if not all(calls) or self.output >= len(record.outputs):
            return None
        readings = [reading for (reading,) in calls]
        first, outputs = readings[0].logits, record.outputs[self.output].detach()
        outputs = outputs.movedim(-1, 1) if self.channels_last and outputs.ndim > 2 else outputs
        alike = all(each.logits.shape == first.shape for each in readings)
        if not alike or outputs.ndim != first.ndim or outputs.shape[1] != first.shape[-1]:
            return None
        size, grid = tuple(outputs.shape[2:]), tuple(first.shape[1:-1])
        if (size != grid) if self.resize == "none" else (len(grid) != 2 or not outputs.is_floating_point()):
            return None
        logits = first if len(readings) == 1 else torch.stack([each.logits for each in readings]).sum(dim=0)
        maps = Maps(torch.cat([each.features for each in readings], dim=-1), logits, outputs)
        if not compared:
            return maps
        # One input shows whether the model has done the same with this batch.
        given = resized(logits[:1].movedim(-1, 1).float(), size, self.resize)
        allowed = max(ROUNDING[first.dtype], ROUNDING[outputs.dtype]) * given.nan_to_num().norm()
        wanted = outputs[:1].to(given)
        error = torch.where(given.isnan() & wanted.isnan(), 0.0, given - wanted)
        return maps if error.norm() <= allowed else None

    def read(self, record: Record) -> Reading | None:
        """Return features and logits with one row per position of the grid."""
        maps = self.maps(record)
        return None if maps is None else Reading(maps.features.flatten(0, -2), maps.logits.flatten(0, -2))

    def __str__(self) -> str:
        names = " and ".join(map(quoted, self.layers))
        what = f"sum of the outputs of {names}" if len(self.layers) > 1 else f"output of {names}"
        how = "" if self.resize == "none" else f", interpolated ({self.resize})"
        return f"the logits are the {what} at every position{how}"


RELATIONS[Dense.kind] = Dense
