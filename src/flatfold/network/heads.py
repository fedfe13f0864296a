"""Find the last linear layer of a model by running one batch, not by its name.

Every linear layer and 1x1 convolution is hooked; the one whose output *is* the model's logits is the head, and its
input is the feature. If there is none, other relations between layers and logits are tried
(:mod:`flatfold.network.relations`). This works for any architecture whose logits are ``z = W h + b``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import linear

from ..core.bank import Head, as_two_classes
from ..core.validation import check_finite
from ..data.batch import Batch, split_batch
from ..errors import UnsupportedHeadError, warn
from .calls import (
    Call,
    Keep,
    at_positions,
    evaluating,
    forward,
    is_quantised,
    linear_layer,
    linear_layers,
    one_row_each,
    outputs_of,
    plain_name,
    record_calls,
    spatial_axes,
)
from .dense import PROBED as DENSE_PROBED
from .dense import Dense
from .relations import (
    Averaged,
    Inner,
    Linear,
    Pooled,
    Reading,
    Record,
    Relation,
    Selected,
    as_double,
    is_close,
    logits_like,
    quoted,
)

logger = logging.getLogger(__name__)

# Allowed |W h + b - z| relative to |z|. float32 allows for TF32, which convolutions use on CUDA by default; the half
# types for logits rounded to 11 or 8 bits.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softmax": lambda z: z.softmax(dim=-1),
    "log-softmax": lambda z: z.log_softmax(dim=-1),
}
MASK = "attention_mask"  # name of the argument with the tokens that are no padding, in every library
PROBED = 8  # inputs whose tokens are kept to find a relation
BASIS = 1024  # unit vectors that an adapter is called with at once

_SHOWN = 8  # a transformer has hundreds of linear layers
_CHECKED = 64  # classes whose logits are recomputed for every row of each batch


@dataclass(frozen=True, eq=False)
class FoundHead:
    """The head of a model.

    Attributes:
        relation: How the logits come out of the layers; ``str(relation)`` is a sentence.
        modules: The layers, usually one.
        head: W and b of ``z = W h + b`` for the features of the relation, on the CPU, float32 (float64 for a float64
            model).
        dtype: The dtype of the weights in the model.
    """

    relation: Relation
    modules: tuple[nn.Module, ...]
    head: Head
    dtype: torch.dtype
    _copies: dict[torch.device, Head] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, relation: Relation, layers: Mapping[str, nn.Module]) -> Self:
        """Return the head that a relation makes of some layers, by name; the caller sets evaluation mode."""
        modules = tuple(layers[name] for name in relation.layers)
        return cls(relation, modules, relation.head([head_of(each) for each in modules]), _weight_of(modules[0]).dtype)

    @property
    def name(self) -> str:
        """The layer's name in the model, ``""`` if the model is that layer; of several layers, joined by commas."""
        return ",".join(self.relation.layers)

    @property
    def layers(self) -> dict[str, nn.Module]:
        """The layers by name."""
        return dict(zip(self.relation.layers, self.modules, strict=True))

    @property
    def module(self) -> nn.Module:
        """The layer, the first one if there are several."""
        return self.modules[0]

    @property
    def gives_logits(self) -> bool:
        """False if the user named the layer and the model returns something else."""
        return not isinstance(self.relation, Inner)

    @property
    def single(self) -> bool:
        """Whether the layer has one output, which counts as two classes."""
        return len(_weight_of(self.module)) == 1

    @property
    def key(self) -> str:
        """What identifies the head in the key of a stored result."""
        return self.name if isinstance(self.relation, (Linear, Inner)) else str(self.relation)

    def on(self, device: torch.device) -> Head:
        """Return the head on a device."""
        if device == self.head.weight.device:
            return self.head
        if device not in self._copies:
            self._copies[device] = self.head.to(device)
        return self._copies[device]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_copies": {}}  # another process may not have the device


class Pass(NamedTuple):
    """Result of one batch: features ``(n, d)`` in the head's dtype, logits ``(n, c)`` as the head returned them.

    A single logit is converted to two classes, ``(n, 2)`` (:func:`~flatfold.core.bank.as_two_classes`).
    """

    features: Tensor
    logits: Tensor


class DensePass(Pass):
    """Result of a batch of n inputs with logits at every position; the rows of a pass are the positions of a grid.

    Attributes:
        grid: ``(n, *sides)``, the number of inputs and the sides of the grid of the layer.
        outputs: The logits as the model returned them, with two classes instead of a single one.
        channels_last: Whether these are ``(n, *size, c)``, and not ``(n, c, *size)``.
        counted: Which positions are no padding, a mask ``(n, *sides)``; None if all are none.
        size: The size of the logits that the model returned, ``(H, W)`` or ``(T,)``.
    """

    grid: tuple[int, ...]
    size: tuple[int, ...]  # not a property, which torch 2.6 cannot compile
    outputs: Tensor
    channels_last: bool
    counted: Tensor | None

    @classmethod
    def read(cls, relation: Dense, record: Record, dtype: torch.dtype, compared: bool = True) -> Self | None:
        """Return what a record holds, with features in a ``dtype``; None if it is not of this relation.

        Values are not ``compared`` in a graph.
        """
        maps = relation.maps(record, compared)
        if maps is None:
            return None
        result = cls(maps.features.flatten(0, -2).to(dtype), as_two_classes(maps.logits.flatten(0, -2), dim=1))
        outputs, result.grid = as_two_classes(maps.outputs, dim=1), tuple(maps.features.shape[:-1])
        result.outputs = outputs.movedim(1, -1) if relation.channels_last else outputs
        result.channels_last, result.size = relation.channels_last, tuple(maps.outputs.shape[2:])
        masked = record.mask is not None and tuple(record.mask.shape) == result.grid
        result.counted = record.mask != 0 if masked and record.mask is not None else None
        return result

    def select(self, kept: Tensor) -> DensePass:
        """Return the result of some of the inputs, a mask ``(n,)``."""
        rows = kept.repeat_interleave(prod(self.grid[1:]))
        result = type(self)(self.features[rows], self.logits[rows])
        result.grid, result.outputs = (int(kept.sum()), *self.grid[1:]), self.outputs[kept]
        result.channels_last, result.size = self.channels_last, self.size
        result.counted = None if self.counted is None else self.counted[kept]
        return result


def find_head(model: nn.Module, batch: Any, name: str | None = None) -> FoundHead:
    """Run one batch and return the layers that compute the model's logits, and how.

    The logits may be the output of one linear layer, or of one at one token of each input, the average of its outputs
    at all positions, its outputs at every position, or the average or sum of several layers.

    The model runs in evaluation mode, without gradients, on its device; its state is restored.

    Args:
        model: Any classifier.
        batch: A batch that it accepts: a tensor, ``(x, y)`` or a dict (see ``split_batch``).
        name: The layer to use, as in ``model.named_modules()``, or several layers whose outputs are averaged or added,
            separated by commas. Warns if the model returns something else than the output of the layer.

    Raises:
        UnsupportedHeadError: The logits are not z = W h + b for features that can be had, or there are several ways to
            read them.
        ValueError: The model rejects this batch.

    Example:
        >>> find_head(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(2, 4)).name
        '2'
    """
    with evaluating(model) as device:
        found, _ = probe(model, split_batch(batch).to(device), name)
    warn_of_other_logits(found)
    return found


def warn_of_other_logits(found: FoundHead) -> None:
    """Warn if the user named a layer whose output is not the output of the model."""
    if not found.gives_logits:
        warn(
            f"the model does not return the output of {quoted(found.name)}, so scores describe this layer and not "
            "the model's logits. Leave out head= to find the layer that computes them.",
        )


def probe(model: nn.Module, batch: Batch, name: str | None = None) -> tuple[FoundHead, Pass]:
    """Find the head and return it with the result of the batch; the caller sets evaluation mode."""
    if batch.rows == 0:
        raise ValueError("finding the head needs a batch with at least one input, got an empty one. Pass another.")
    if name is None:
        layers = linear_layers(model)
    else:
        layers = {plain_name(part): _named_layer(model, part) for part in map(str.strip, name.split(","))}
    record = _record(model, layers, batch)
    relation = _find_relation(model, layers, record, batch, name)
    found = FoundHead.of(relation, layers)
    reading = relation.read(record)
    dense = isinstance(relation, Dense)
    result = run(model, found, batch) if reading is None or dense else _as_pass(reading, batch, found)
    _check_affine(found, result)
    single = ", whose single output is used as the logit of class 1 against class 0" if found.single else ""
    logger.info("%s: %r%s", relation, found.head, single)
    return found, result


def run(model: nn.Module, found: FoundHead, batch: Batch) -> Pass:
    """Run one batch through a model whose head is known."""
    record = _record(model, found.layers, batch, found.relation.keep)
    if isinstance(found.relation, Dense):
        result: Pass | None = DensePass.read(found.relation, record, found.head.weight.dtype)
    else:
        reading = found.relation.read(record)
        result = None if reading is None else _as_pass(reading, batch, found)
    if result is None:
        raise UnsupportedHeadError(
            f"{found.relation} in the first batch, but not in a later one. Does the model branch on its input? Wrap it "
            "so that all inputs use one head, or name a layer with head='module.name'."
        )
    check_rows(found, result)
    return result


def _record(model: nn.Module, layers: Mapping[str, nn.Module], batch: Batch, keep: Keep = one_row_each) -> Record:
    """Run one batch and return what was seen of some layers."""
    with record_calls(layers, batch.rows, keep) as calls:
        outputs = outputs_of(forward(model, batch))
    return Record(tuple(layers), calls, outputs, batch.rows, batch.kwargs.get(MASK))


def _find_relation(
    model: nn.Module, layers: Mapping[str, nn.Module], record: Record, batch: Batch, name: str | None
) -> Relation:
    """Return the relation between the layers and the logits: the simplest kind that there is."""
    several, spread = len(layers) > 1 and name is not None, None
    found: list[Relation] = [] if several else [*Linear.find(record)]
    found = found or [each for each in Averaged.find(record) if not several or len(each.layers) == len(layers)]
    if len(found) > 1 and batch.labels is not None:
        least = int(batch.labels.max())
        found = [each for each in found if _classes(each.read(record)) > least] or found
    if not found:
        places = list(dict.fromkeys(call.name for call in reversed(_likely(record, name)) if call.features is None))
        if places:
            # The last ones: many layers may be as wide as a second output, and the tokens of all would fill the memory.
            some = {key: layer for key, layer in layers.items() if key in places[:_SHOWN]}
            if any(output.ndim > 2 for output in record.outputs):
                found = [*Dense.find(_record(model, some, batch.part(0, DENSE_PROBED), Dense.keep))]
            if not found and not several:
                spread = _record(model, some, batch.part(0, PROBED), at_positions)
                found = [*Selected.find(spread), *Pooled.find(spread)]
        found = found or ([] if name is None or several else [*Inner.find(record)])
    if len(found) == 1:
        return found[0]
    if found:
        raise UnsupportedHeadError(_ambiguous(found, record))
    need = "flatfold needs logits that are z = W h + b, with one row of features h per input."
    raise UnsupportedHeadError(f"{need} {_not_a_head(model, record, spread, name)}")


def _classes(reading: Reading | None) -> int:
    return 0 if reading is None else reading.logits.shape[1]


def head_of(layer: nn.Module) -> Head:
    """Copy a layer's weights to the CPU, in float32 unless they are float64; the caller sets evaluation mode.

    The weights of an adapter are what it computes of unit vectors, whatever it adds to its layer.
    """
    weight = _weight_of(layer)
    bias = layer.bias if linear_layer(layer) is layer else None
    if linear_layer(layer) is not layer:
        weight, bias = _probe_weights(layer, weight[0].numel())
    dtype = torch.float64 if _weight_of(layer).dtype == torch.float64 else torch.float32

    def copy(values: Tensor) -> Tensor:
        return values.detach().to("cpu", dtype, copy=True)

    return Head(copy(weight.flatten(1)), copy(bias) if isinstance(bias, Tensor) else None)


def _weight_of(layer: nn.Module) -> Tensor:
    plain = linear_layer(layer)
    assert plain is not None
    weight = plain.weight
    assert isinstance(weight, Tensor)
    return weight


def _probe_weights(layer: nn.Module, width: int) -> tuple[Tensor, Tensor | None]:
    """Return W and b of a module that computes ``W h + b``, in float64."""
    wide, places = deepcopy(layer).to("cpu", torch.float64), [1] * spatial_axes(layer)

    def outputs(h: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            z: Tensor = wide(h.reshape(*h.shape, *places))
        return z.flatten(1)

    basis = torch.eye(width, dtype=torch.float64)
    bias = outputs(torch.zeros(1, width, dtype=torch.float64))
    columns = torch.cat([outputs(basis[start : start + BASIS]) - bias for start in range(0, width, BASIS)])
    return columns.mT.contiguous(), bias[0] if bias.any() else None


def module_named(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module of a name, with or without prefixes of ``torch.compile``; None if there is none."""
    modules = {plain_name(key): module for key, module in model.named_modules(remove_duplicate=False)}
    return modules.get(plain_name(name))


def _named_layer(model: nn.Module, name: str) -> nn.Module:
    layer = module_named(model, name)
    if layer is not None and linear_layer(layer) is not None:
        return layer
    layers = list(linear_layers(model))
    if layer is not None:
        problem = f"{quoted(name)} is a {'quantised ' if is_quantised(layer) else ''}{type(layer).__name__}."
    else:
        near = get_close_matches(name, layers, n=1, cutoff=0.4)
        problem = f"the model has no module {name!r}." + (f" Did you mean {near[0]!r}?" if near else "")
    raise UnsupportedHeadError(
        f"head= must name a linear layer or a 1x1 convolution; {problem} The model has {_listed(layers)}."
    )


def _as_pass(reading: Reading, batch: Batch, found: FoundHead) -> Pass:
    features, logits = reading
    if len(features) != batch.rows:
        raise UnsupportedHeadError(
            f"the head needs one row of features per input, but {quoted(found.name)} got {len(features)} rows for "
            f"a batch of {batch.rows}. Does the model split its inputs? Wrap it so that each input yields one row."
        )
    return Pass(features.to(found.head.weight.dtype), as_two_classes(logits, dim=1))


def _check_affine(found: FoundHead, result: Pass) -> None:
    """Raise unless ``W h + b`` is the layer's output: a subclass of ``nn.Linear`` may compute something else."""
    check_finite(result.features, "features")
    expected = found.head(result.features.cpu())
    actual = result.logits.to("cpu", expected.dtype)
    error, size = float((expected - actual).norm()), float(torch.maximum(expected.norm(), actual.norm()))
    if not error <= _tolerance(found, result) * size:
        raise _not_affine(found, error, size)


def check_rows(found: FoundHead, result: Pass) -> None:
    """Raise unless ``W h + b`` equals the logits of every row, at the class of the largest one and at some others.

    A layer may be linear on the first batch and later clip its output, or the norm of its input. If products cancel to
    small logits, the error is compared with the size of the products.
    """
    h, z = result
    if not len(z):
        return
    head, allowed = found.on(z.device), _tolerance(found, result)
    weight, bias, z = head.weight, head.bias, z.to(head.weight.dtype)
    some = slice(None, None, max(1, len(weight) // _CHECKED))  # all 21,000 would cost as much as the layer itself
    expected = linear(h, weight[some], None if bias is None else bias[some])
    error, size = vector_norm(expected - z[:, some], torch.inf, dim=1), vector_norm(z, torch.inf, dim=1)
    if some.step > 1:
        best, largest = z.max(dim=1)
        own = (weight[largest] * h).sum(dim=1)
        error = torch.maximum(error, (own - best if bias is None else own + bias[largest] - best).abs())
    suspect = error > allowed * size  # false for non-finite features, which are reported elsewhere
    if suspect.any():
        h, z, size = h[suspect], z[suspect], size[suspect, None]
        errors, sizes = (head(h) - z).abs(), torch.maximum(size, h.abs() @ weight.abs().mT)
        excess = errors - allowed * sizes
        if (excess > 0).any():
            worst = int(excess.argmax())
            raise _not_affine(found, float(errors.flatten()[worst]), float(z.flatten()[worst].abs()))


def _tolerance(found: FoundHead, result: Pass) -> float:
    return max(TOLERANCE[found.dtype], TOLERANCE[result.logits.dtype])


def _not_affine(found: FoundHead, error: float, size: float) -> UnsupportedHeadError:
    kinds = " and ".join(dict.fromkeys(type(module).__name__ for module in found.modules))
    return UnsupportedHeadError(
        f"the head must compute z = W h + b, but {quoted(found.name)} ({kinds}) computes something else: |W h + b - z| "
        f"is {error:.3g} for |z| = {size:.3g}. Use a plain nn.Linear, or name another layer with head='module.name'."
    )


def _ambiguous(found: Sequence[Relation], record: Record) -> str:
    """Return the message for several relations that give the logits."""
    first, last = found[0], found[-1]
    if all(isinstance(each, Linear) for each in found):
        widths = {call.name: call.outputs for call in record.calls}
        both = " and ".join(f"{quoted(each.layers[0])} with {widths[each.layers[0]]} outputs" for each in found)
        return (
            f"the model returns the outputs of several linear layers: {both}. Name the one that computes the logits, "
            f"such as head={last.layers[0]!r}."
        )
    readings = "; ".join(f"({number}) {each}" for number, each in enumerate(found[:_SHOWN], 1))
    if first.layers != last.layers:
        advice = f"Name the layers to use, such as head={','.join(last.layers)!r}."
    else:
        advice = "Pass a first batch with more inputs, which differ from each other."
    return f"the logits can be read in several ways: {readings}. {advice}"


def _likely(record: Record, name: str | None) -> list[Call]:
    """Return the calls with as many outputs as there are logits, or all calls of a layer that the user named."""
    widths = {width for output in record.outputs for width in (output.shape[1:] or (*output.shape, 1))}
    return [call for call in record.calls if name is not None or call.outputs in widths]


def _not_a_head(model: nn.Module, record: Record, spread: Record | None, name: str | None) -> str:
    """Return the reason why no relation fits the called linear layers."""
    calls, shape = record.calls, tuple(record.outputs[0].shape)
    if name is not None and not calls:
        return f"{quoted(name)} was never called. Name a layer that the model uses."
    if name is not None and "," in name:
        return f"The logits are neither the average nor the sum of the outputs of {_listed(name.split(','))}."
    likely = _likely(record, name)
    names = list(dict.fromkeys(call.name for call in likely))
    packed = [] if name is not None else _quantised_layers(model, shape)
    if packed and not names:
        return (
            f"{quoted(packed[-1])} has as many outputs as there are logits, but it is quantised: its weights are not a "
            "matrix W of floating-point numbers. Leave the last layer out when the model is quantised."
        )
    if not names:
        called = _listed(list(dict.fromkeys(call.name for call in calls)))
        layers = f"{called}, but none has as many outputs as its logits {shape}" if calls else "no linear layer"
        return (
            f"The model called {layers}. Compute the logits with an nn.Linear, or name a layer with head='module.name'."
        )
    behind = _activation_behind(spread or record)
    if behind:
        return behind
    at_places = next((call for call in likely if call.features is None), None)
    if at_places is not None:
        return (
            f"{quoted(at_places.name)} runs at every token or pixel of an input: its output is {at_places.shape}, the "
            f"logits are {shape}, and are neither its output at every position or at one token nor its mean. Wrap the "
            "model so that it selects or pools before that layer, or name another layer with head='module.name'."
        )
    if len(names) > 1:
        return (
            f"{_listed(names)} have as many outputs as there are logits, but neither one of them nor an average or sum "
            f"gives them: are they weighted? To use one of them, name it: head={names[-1]!r}."
        )
    return (
        f"{quoted(names[0])} has as many outputs as there are logits, but the model changes them before returning (a "
        f"scale, a second branch?). To use this layer anyway, name it: head={names[0]!r}."
    )


def _quantised_layers(model: nn.Module, shape: tuple[int, ...]) -> list[str]:
    """Return the names of quantised layers with as many outputs as there are logits."""
    named = ((plain_name(name), module) for name, module in model.named_modules())
    return [name for name, module in named if is_quantised(module) and module.out_features in shape[1:]]


def _activation_behind(record: Record) -> str:
    """Return a sentence about the function between a layer and the logits, empty if it is none of the usual ones."""
    for call in reversed(record.calls):
        if call.logits is None:
            continue
        pooled = call.logits.ndim == 3
        logits = logits_like(record, 0, call.logits[:, 0] if pooled else call.logits)
        if logits is None:
            continue
        outputs = as_double(call.logits)
        for name, function in ACTIVATIONS.items():
            values = function(outputs).mean(dim=1) if pooled else function(outputs)
            if is_close(values, logits, values.abs(), call.logits.dtype):
                what = "the mean over all positions of the " if pooled else "the "
                advice = f"To use this layer anyway, name it: head={call.name!r}."
                return (
                    f"The logits are {what}{name} of the output of {quoted(call.name)}, so they are not linear in any "
                    f"features. {'Use a network without it.' if pooled else advice}"
                )
    return ""


def _listed(names: list[str]) -> str:
    if not names:
        return "no linear layers"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the linear layer{'s' if len(names) > 1 else ''} " + ", ".join(map(quoted, names[-_SHOWN:])) + more
