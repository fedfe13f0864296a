"""What is measured: a data set, and everything about it in one space."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...models.sources import Source
from .rows import Statistic

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DataSet:
    """A data set whose curvature is measured.

    Attributes:
        name: ``id`` for the known test images.
        group: ``id``, ``near`` or ``far``.
        source: Its images.
        left_out: Images that have no features because they could not be read, and why.
    """

    name: str
    group: str
    source: Source
    left_out: Mapping[int, str]

    @property
    def key(self) -> dict[str, str]:
        """What tells its images from others."""
        return {"data": self.source.fingerprint, "left_out": repr(sorted(self.left_out))}


@dataclass(frozen=True, eq=False)
class Measured:
    """The curvature of one data set in one space.

    Attributes:
        statistics: Its largest eigenvalue and its trace.
        traces: Of single inputs, ``(n,)``.
        stderr: Their standard errors, None where they are exact.
        nodes, weights: The spectrum, ``(probes, m)``.
        size: Number of eigenvalues.
    """

    statistics: tuple[Statistic, ...]
    traces: Array
    stderr: Array | None
    nodes: Array
    weights: Array
    size: int


def as_array(values: Tensor) -> Array:
    """Return a tensor as numpy's float64."""
    array: Array = values.detach().cpu().to(torch.float64).numpy()
    return array
