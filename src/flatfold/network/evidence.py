"""Evidence of what a model computes: made-up inputs, and the features that it gave for them.

A hash of the weights does not tell apart models that do something else with them: another activation or epsilon of a
normalisation, inputs that are scaled, a buffer that is not saved. A few inputs do. They are made from a seed and lie
between the smallest and the largest value of the first inputs that the model was run on: no real input is kept.
"""

from __future__ import annotations

import logging
from math import inf, isfinite, prod
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from ..data.banks import network_tolerance
from ..data.batch import Batch
from .calls import evaluating
from .heads import FoundHead
from .runtime import TorchRuntime

log = logging.getLogger(__name__)

INPUTS = 4  # made-up ones, each of coarser blocks than the one before
CPU_TOLERANCE = 1e-3  # of float32 on processors, relative to the length of the features; they agree within 1e-5 or so
NUDGE = 1e-6  # a change of the inputs after which evidence must be the same within a part of its tolerance
LARGEST = 2**25  # values of one input
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*FLOATS, *INTEGERS)}


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor among the inputs of a model: type and shape of the part of one input, and the range of its values."""

    dtype: str
    shape: list[int]
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.dtype not in TYPES or any(size < 1 for size in self.shape) or prod(self.shape) > LARGEST:
            raise ValueError("inputs have a shape or a type that is not known")
        if not -inf < self.low <= self.high < inf:
            raise ValueError("inputs have no range")

    @classmethod
    def of(cls, values: Tensor) -> TensorSpec:
        """Describe a tensor ``(n, ...)``; raise ValueError for one that has no range."""
        low, high = (values.byte() if values.dtype == torch.bool else values.detach()).aminmax()
        return cls(str(values.dtype).removeprefix("torch."), list(values.shape[1:]), float(low), float(high))

    def make(self, rows: int, random: np.random.RandomState) -> Tensor:
        """Return random values in the range; those of row i are equal in blocks of 2^i along the last two axes."""
        made = []
        for row in range(rows):
            block = 2 ** (row % INPUTS)
            inner = [-(-size // block) for size in self.shape[-2:]]
            values = random.random_sample([*self.shape[:-2], *inner])
            for axis, size in enumerate(self.shape[-2:], len(self.shape[:-2])):
                values = values.repeat(block, axis=axis).take(range(size), axis=axis)
            made.append(values)
        shares, dtype = torch.from_numpy(np.stack(made)), TYPES[self.dtype]
        if dtype.is_floating_point:
            return (self.low + (self.high - self.low) * shares).to(dtype)
        return (self.low + ((self.high - self.low + 1) * shares).floor()).clamp_max(self.high).to(dtype)


Argument = TensorSpec | bool | int | float | str | None


class InputSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model is called: its arguments by position and by name, each a tensor or a plain value."""

    args: list[Argument]
    kwargs: dict[str, Argument]

    def __post_init__(self) -> None:
        if not any(isinstance(argument, TensorSpec) for argument in (*self.args, *self.kwargs.values())):
            raise ValueError("inputs must have a tensor")

    @classmethod
    def of(cls, batch: Batch) -> InputSpec | None:
        """Describe the inputs of a batch; None where inputs like them cannot be made up."""

        def describe(value: Any) -> Argument:
            if isinstance(value, Tensor) and batch.one_per_input(value):
                return TensorSpec.of(value)
            if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and isfinite(value)):
                return value
            raise ValueError(f"no value like this {type(value).__name__} can be made up")

        try:
            args = [describe(value) for value in batch.args]
            return cls(args, {name: describe(batch.kwargs[name]) for name in sorted(batch.kwargs)})  # as in JSON
        except (RuntimeError, TypeError, ValueError) as error:
            log.info("inputs like those of this model cannot be made up: %s", error)
            return None

    def make(self, rows: int) -> Batch:
        """Return the same made-up inputs on every machine; numpy keeps this generator as it is for ever."""
        random = np.random.RandomState(0)
        values = [
            value.make(rows, random) if isinstance(value, TensorSpec) else value
            for value in (*self.args, *self.kwargs.values())
        ]
        args, others = values[: len(self.args)], values[len(self.args) :]
        return Batch(tuple(args), dict(zip(self.kwargs, others, strict=True)), None, rows)


class Evidence(msgspec.Struct, frozen=True, eq=False):
    """Features ``(r, d)`` that a model gave for those ``rows`` of its made-up inputs for which they are steady."""

    inputs: InputSpec
    rows: list[int]
    device: str
    features: Tensor

    @classmethod
    def of(cls, model: nn.Module, found: FoundHead, inputs: InputSpec, dtype: torch.dtype | None) -> Evidence | None:
        """Run made-up inputs through a model; None where it does not take them, or gives random features."""

        def nudge(value: Any) -> Any:
            return value * (1 + NUDGE) if isinstance(value, Tensor) and value.is_floating_point() else value

        try:
            with evaluating(model) as device:
                batch, run = inputs.make(INPUTS).to(device), TorchRuntime(model, found, dtype=dtype)
                features, logits = (values.cpu() for values in run(batch))
                moved = run(batch.with_each(nudge)).features.cpu()
        except Exception as error:  # a network may raise anything for inputs that it was not made for
            log.info("what this model computes cannot be put on record: %s", error)
            return None
        allowed = tolerance(device.type, device.type, logits.dtype)
        rows = (_differences(features, moved) <= allowed / 10).nonzero().flatten().tolist()
        if not rows:
            log.info("what this model computes cannot be put on record: its features for noise are not steady")
            return None
        return cls(inputs, rows, device.type, features[rows])

    def difference(self, model: nn.Module, found: FoundHead, dtype: torch.dtype | None) -> float:
        """Return how far the features of a model are from these, 1 at most; 0 if rounding may be the reason."""
        with evaluating(model) as device:
            made = self.inputs.make(INPUTS).to(device)
            features, logits = (values.cpu() for values in TorchRuntime(model, found, dtype=dtype)(made))
        worst = float(_differences(self.features, features[self.rows]).amax())
        return 0.0 if worst <= tolerance(self.device, device.type, logits.dtype) else worst


def tolerance(there: str, here: str, dtype: torch.dtype) -> float:
    """Return how far the features of one network may differ between two kinds of devices, in the type of its logits."""
    wide = dtype in (torch.float32, torch.float64)
    return CPU_TOLERANCE if wide and there == here == "cpu" else network_tolerance(dtype)


def _differences(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the distance of rows, relative to the longer one; 1 where one is not finite."""
    ours, theirs = ours.double(), theirs.double()
    sizes = torch.maximum(ours.norm(dim=-1), theirs.norm(dim=-1))
    error = (ours - theirs).norm(dim=-1)
    return torch.where(error == 0, 0.0, error / sizes).nan_to_num(nan=1.0, posinf=1.0).clamp_max(1.0)
