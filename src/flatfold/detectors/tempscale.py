"""TempScale: MSP at the temperature that calibrates the network.

Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.class_statistics import Rows, best_temperature, logits_by_rows, reference_temperature
from ..core.validation import check_choice, require_labels
from ..errors import warn
from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "guo2017calibration",
    "On Calibration of Modern Neural Networks",
    ("Chuan Guo", "Geoff Pleiss", "Yu Sun", "Kilian Q. Weinberger"),
    2017,
    "ICML",
    "https://arxiv.org/abs/1706.04599",
)

Solver = Literal["reference", "exact"]
SOLVERS: dict[str, Callable[[Rows, Tensor], float]] = {"reference": reference_temperature, "exact": best_temperature}


@register("tempscale", printed="TempScale", full_name="Temperature scaling", cite=(PAPER,), fits_on="val")
class TempScale(Detector):
    r"""Minus the largest class probability at a fitted temperature.

    .. math:: s(h) = -\max_c \operatorname{softmax}(z / T)_c, \qquad
        T = \arg\min_T \frac1n \sum_i -\log \operatorname{softmax}(z_i / T)_{y_i}

    ``fit`` needs labels and sets ``temperature_``.

    Args:
        solver: ``"reference"`` reproduces OpenOOD's optimiser, which often stops far from the optimum, sometimes on the
            other side of 1, and rarely below 0, in which case the exact solver is used, with a warning. ``"exact"``
            solves the convex problem.
    """

    temperature_: Tensor

    def __init__(self, solver: Solver = "reference") -> None:
        super().__init__()
        self.solver = solver

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_choice("solver", self.solver, SOLVERS)
        logits, labels = logits_by_rows(bank.features, head.weight, head.bias), require_labels(bank, "TempScale")
        temperature = SOLVERS[self.solver](logits, labels)
        if not temperature > 0:
            warn(
                f'the reference optimiser reached a temperature of {temperature:g}, so solver="exact" is used instead.',
            )
            temperature = best_temperature(logits, labels)
        self.register_buffer("temperature_", torch.tensor(temperature).to(head.weight))

    def score(self, h: Tensor) -> Tensor:
        return -(self.logits(h) / self.temperature_).softmax(dim=-1).amax(dim=-1)
