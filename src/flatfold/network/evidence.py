"""Evidence of what a model computes: synthetic inputs and the model's features for them.

A hash of the weights cannot distinguish models that use them differently: another activation or epsilon of a
normalisation, scaled inputs, a buffer that is not saved. A few inputs can. They are drawn from a seed, between the
smallest and the largest value of the first inputs that the model was run on: no real input is stored.
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
from .heads import DensePass, FoundHead, Pass
from .runtime import TorchRuntime

log = logging.getLogger(__name__)

INPUTS = 4  # synthetic inputs, each of coarser blocks than the one before
CPU_TOLERANCE = 1e-3  # for float32 on CPUs, relative to the norm of the features; they agree within about 1e-5
NUDGE = 1e-6  # relative change of the inputs that must leave evidence the same within a tenth of its tolerance
LARGEST = 2**25  # values of one input
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*FLOATS, *INTEGERS)}


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of one input tensor: its dtype, its shape without the batch axis, and the range of its values."""

    dtype: str
    shape: list[int]
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.dtype not in TYPES or any(size < 1 for size in self.shape) or prod(self.shape) > LARGEST:
            raise ValueError("inputs have an unsupported shape or dtype")
        if not -inf < self.low <= self.high < inf:
            raise ValueError("inputs have no finite range")

    @classmethod
    def of(cls, values: Tensor) -> TensorSpec:
        """Describe a tensor ``(n, ...)``; raise ValueError if its values have no finite range."""
        low, high = (values.byte() if values.dtype == torch.bool else values.detach()).aminmax()
        return cls(str(values.dtype).removeprefix("torch."), list(values.shape[1:]), float(low), float(high))

    def make(self, rows: int, random: np.random.RandomState) -> Tensor:
        """Draw random values in the range; row i is constant in blocks of 2^i along the last two axes."""
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
    """Call signature of a model: positional and keyword arguments, each a tensor or a plain value."""

    args: list[Argument]
    kwargs: dict[str, Argument]

    def __post_init__(self) -> None:
        if not any(isinstance(argument, TensorSpec) for argument in (*self.args, *self.kwargs.values())):
            raise ValueError("inputs must have a tensor")

    @classmethod
    def of(cls, batch: Batch) -> InputSpec | None:
        """Describe the inputs of a batch; None if such inputs cannot be synthesised."""

        def describe(value: Any) -> Argument:
            if isinstance(value, Tensor) and batch.one_per_input(value):
                return TensorSpec.of(value)
            if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and isfinite(value)):
                return value
            raise ValueError(f"a value of type {type(value).__name__} cannot be synthesised")

        try:
            args = [describe(value) for value in batch.args]
            return cls(args, {name: describe(batch.kwargs[name]) for name in sorted(batch.kwargs)})  # as in JSON
        except (RuntimeError, TypeError, ValueError) as error:
            log.info("inputs of this model cannot be synthesised: %s", error)
            return None

    def make(self, rows: int) -> Batch:
        """Return synthetic inputs, the same on every machine: numpy guarantees that this generator never changes."""
        random = np.random.RandomState(0)
        values = [
            value.make(rows, random) if isinstance(value, TensorSpec) else value
            for value in (*self.args, *self.kwargs.values())
        ]
        args, others = values[: len(self.args)], values[len(self.args) :]
        return Batch(tuple(args), dict(zip(self.kwargs, others, strict=True)), None, rows)


class Evidence(msgspec.Struct, frozen=True, eq=False):
    """Features ``(r, d)`` of a model for the ``rows`` of its synthetic inputs where they are numerically stable."""

    inputs: InputSpec
    rows: list[int]
    device: str
    features: Tensor

    @classmethod
    def of(cls, model: nn.Module, found: FoundHead, inputs: InputSpec, dtype: torch.dtype | None) -> Evidence | None:
        """Run synthetic inputs through a model; None if it rejects them, or if its features are random."""

        def nudge(value: Any) -> Any:
            return value * (1 + NUDGE) if isinstance(value, Tensor) and value.is_floating_point() else value

        try:
            with evaluating(model) as device:
                batch, run = inputs.make(INPUTS).to(device), TorchRuntime(model, found, dtype=dtype)
                features, logits = (values.cpu() for values in _one_row_each(run(batch)))
                moved = _one_row_each(run(batch.with_each(nudge))).features.cpu()
        except Exception as error:  # a network may raise anything for unexpected inputs
            log.info("no evidence of what this model computes can be recorded: %s", error)
            return None
        allowed = tolerance(device.type, device.type, logits.dtype)
        rows = (_differences(features, moved) <= allowed / 10).nonzero().flatten().tolist()
        if not rows:
            log.info("no evidence of what this model computes can be recorded: its features for noise are unstable")
            return None
        return cls(inputs, rows, device.type, features[rows])

    def difference(self, model: nn.Module, found: FoundHead, dtype: torch.dtype | None) -> float:
        """Return the relative difference of a model's features from these, at most 1; 0 if it is within rounding."""
        with evaluating(model) as device:
            made = self.inputs.make(INPUTS).to(device)
            features, logits = _one_row_each(TorchRuntime(model, found, dtype=dtype)(made))
        stored = Pass(self.features, logits)
        return difference(stored, Pass(features[self.rows], logits), self.device, device.type)


def difference(first: Pass, second: Pass, there: str, here: str | None = None) -> float:
    """Return the largest relative difference of the features of the same inputs; 0 if it is within rounding.

    The first were computed on a device type ``there``, the second on ``here``, by default the same.
    """
    worst = float(_differences(first.features.cpu(), second.features.cpu()).amax())
    return 0.0 if worst <= tolerance(there, here or there, second.logits.dtype) else worst


def tolerance(there: str, here: str, dtype: torch.dtype) -> float:
    """Return the allowed relative difference of features between two device types, for logits of ``dtype``."""
    wide = dtype in (torch.float32, torch.float64)
    return CPU_TOLERANCE if wide and there == here == "cpu" else network_tolerance(dtype)


def _one_row_each(result: Pass) -> Pass:
    """Return a pass with one row per input: of one with a row per position, the mean over all positions."""
    if not isinstance(result, DensePass):
        return result
    return Pass(*(values.reshape(result.grid[0], -1, values.shape[-1]).mean(dim=1) for values in result))


def _differences(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the distance of rows relative to the larger norm; 1 if one is not finite."""
    ours, theirs = ours.double(), theirs.double()
    sizes = torch.maximum(ours.norm(dim=-1), theirs.norm(dim=-1))
    error = (ours - theirs).norm(dim=-1)
    return torch.where(error == 0, 0.0, error / sizes).nan_to_num(nan=1.0, posinf=1.0).clamp_max(1.0)
