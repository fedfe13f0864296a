"""Find the last linear layer of a model by running one batch, not by its name.

Every linear layer and 1x1 convolution is hooked; the one whose output *is* the model's logits is the head, and its
input is the feature. This works for any architecture that ends in ``z = W h + b``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from difflib import get_close_matches
from math import hypot
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.bank import Head, as_two_classes
from ..core.validation import check_finite
from ..data.batch import Batch, split_batch
from ..errors import UnsupportedHeadError, warn
from .calls import Call, evaluating, forward, is_linear, outputs_of, plain_name, record_calls

logger = logging.getLogger(__name__)

# Allowed |W h + b - z| relative to |z|. float32 allows for TF32, which convolutions use on CUDA by default; the half
# types for logits rounded to 11 or 8 bits.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}

_SHOWN = 8  # a transformer has hundreds of linear layers
_CHECKED = 32  # classes whose logits are recomputed for one row of each batch


@dataclass(frozen=True, eq=False)
class FoundHead:
    """The head of a model.

    Attributes:
        name: The layer's name in the model, ``""`` if the model is that layer; without prefixes of ``torch.compile``.
        module: The layer itself.
        head: A copy of its weights on the CPU, float32 (float64 for a float64 model).
        gives_logits: False if the user named the layer and the model returns something else.
    """

    name: str
    module: nn.Module
    head: Head
    gives_logits: bool


class Pass(NamedTuple):
    """Result of one batch: features ``(n, d)`` in the head's dtype, logits ``(n, c)`` as the head returned them.

    A single logit is converted to two classes, ``(n, 2)`` (:func:`~flatfold.core.bank.as_two_classes`).
    """

    features: Tensor
    logits: Tensor


def find_head(model: nn.Module, batch: Any, name: str | None = None) -> FoundHead:
    """Run one batch and return the layer whose output is the model's logits.

    The model runs in evaluation mode, without gradients, on its device; its state is restored.

    Args:
        model: Any classifier.
        batch: A batch that it accepts: a tensor, ``(x, y)`` or a dict (see ``split_batch``).
        name: The layer to use, as in ``model.named_modules()``. Warns if the model returns something else.

    Raises:
        UnsupportedHeadError: There is no such layer, or several are combined.
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
            f"the model does not return the output of {_quoted(found.name)}, so scores describe this layer and not "
            "the model's logits. Leave out head= to find the layer that computes them.",
        )


def probe(model: nn.Module, batch: Batch, name: str | None = None) -> tuple[FoundHead, Pass]:
    """Find the head and return it with the result of the batch; the caller sets evaluation mode."""
    if batch.rows == 0:
        raise ValueError("finding the head needs a batch with at least one input, got an empty one. Pass another.")
    layers = _linear_layers(model) if name is None else {plain_name(name): _named_layer(model, name)}
    with record_calls(layers, batch.rows) as calls:
        outputs = outputs_of(forward(model, batch))
    call = _call_of_head(calls, outputs, batch.labels)
    gives_logits = call is not None
    if call is None and name is not None:
        call = _last_flat(calls)
    if call is None:
        need = "flatfold needs logits that are the output of one linear layer, z = W h + b."
        raise UnsupportedHeadError(f"{need} {_not_a_head(calls, outputs[0], name)}")
    module = layers[call.name]
    found = FoundHead(call.name, module, head_of(module), gives_logits)
    result = _as_pass(call, batch, found)
    _check_affine(found, result)
    single = ", whose single output is used as the logit of class 1 against class 0" if call.outputs == 1 else ""
    logger.info("the head is %s: %r%s", _quoted(found.name), found.head, single)
    return found, result


def run(model: nn.Module, found: FoundHead, batch: Batch) -> Pass:
    """Run one batch through a model whose head is known."""
    with record_calls({found.name: found.module}, batch.rows) as calls:
        outputs = outputs_of(forward(model, batch))
    call = next(iter(_calls_that_give(calls, outputs)), None) if found.gives_logits else _last_flat(calls)
    if call is None:
        raise UnsupportedHeadError(
            f"{_quoted(found.name)} computed the logits of the first batch but not of a later one. Does the model "
            "branch on its input? Wrap it so that all inputs use one head, or name a layer with head='module.name'."
        )
    result = _as_pass(call, batch, found)
    check_one_row(found, result)
    return result


def head_of(layer: nn.Module) -> Head:
    """Copy a layer's weights to the CPU, in float32 unless they are float64."""

    def copy(values: Tensor) -> Tensor:
        dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        return values.detach().to("cpu", dtype, copy=True)

    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    return Head(copy(weight.flatten(1)), copy(bias) if isinstance(bias, Tensor) else None)


def module_named(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module of a name, with or without prefixes of ``torch.compile``; None if there is none."""
    modules = {plain_name(key): module for key, module in model.named_modules(remove_duplicate=False)}
    return modules.get(plain_name(name))


def _linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    return {plain_name(name): module for name, module in model.named_modules() if is_linear(module)}


def _named_layer(model: nn.Module, name: str) -> nn.Module:
    layer = module_named(model, name)
    if layer is not None and is_linear(layer):
        return layer
    layers = list(_linear_layers(model))
    if layer is not None:
        problem = f"{_quoted(name)} is a {type(layer).__name__}."
    else:
        near = get_close_matches(name, layers, n=1, cutoff=0.4)
        problem = f"the model has no module {name!r}." + (f" Did you mean {near[0]!r}?" if near else "")
    raise UnsupportedHeadError(
        f"head= must name a linear layer or a 1x1 convolution; {problem} The model has {_listed(layers)}."
    )


def _call_of_head(calls: list[Call], outputs: list[Tensor], labels: Tensor | None) -> Call | None:
    """Return the call that computed the logits among the outputs of a model; None if no linear layer did.

    A layer whose output is the input of another is not the head, nor is one with fewer outputs than classes in the
    labels. If several remain, the user must name one.
    """
    given = _calls_that_give(calls, outputs)
    if len(given) > 1:
        given = [call for call in given if not any(_feeds(call, other) for other in given)]
        given = [call for call in given if labels is None or call.outputs > int(labels.max())] or given
    if len(given) > 1:
        both = " and ".join(f"{_quoted(call.name)} with {call.outputs} outputs" for call in given)
        raise UnsupportedHeadError(
            f"the model returns the outputs of several linear layers: {both}. Name the one that computes the logits, "
            f"such as head={given[-1].name!r}."
        )
    return given[0] if given else None


def _feeds(call: Call, other: Call) -> bool:
    """Return whether the output of one layer is the input of another one."""
    if call is other or call.logits is None or other.features is None or call.logits.shape != other.features.shape:
        return False
    return torch.equal(call.logits, other.features)


def _calls_that_give(calls: list[Call], outputs: list[Tensor]) -> list[Call]:
    """Return the calls whose output a model returns, in the order of its outputs and one per layer."""
    given = (_last_that_gives(calls, output) for output in outputs)
    return list({call.name: call for call in reversed([call for call in given if call is not None])}.values())[::-1]


def _last_that_gives(calls: list[Call], logits: Tensor) -> Call | None:
    """Return the last call whose output equals ``logits``, up to dimensions of size 1 and the dtype."""
    shape, logits = [n for n in logits.shape if n != 1], logits.detach().flatten()
    for call in reversed(calls):
        if call.logits is not None and [n for n in call.logits.shape if n != 1] == shape:
            output = call.logits.to(logits.device, logits.dtype).flatten()
            # The second comparison, which is slower, is only needed for NaN.
            if torch.equal(output, logits) or torch.allclose(output, logits, rtol=0, atol=0, equal_nan=True):
                return call
    return None


def _last_flat(calls: list[Call]) -> Call | None:
    return next((call for call in reversed(calls) if call.features is not None and call.logits is not None), None)


def _as_pass(call: Call, batch: Batch, found: FoundHead) -> Pass:
    assert call.features is not None
    assert call.logits is not None
    if len(call.features) != batch.rows:
        raise UnsupportedHeadError(
            f"the head needs one row of features per input, but {_quoted(call.name)} got {len(call.features)} rows for "
            f"a batch of {batch.rows}. Does the model split its inputs? Wrap it so that each input yields one row."
        )
    return Pass(call.features.to(found.head.weight.dtype), as_two_classes(call.logits, dim=1))


def _check_affine(found: FoundHead, result: Pass) -> None:
    """Raise unless ``W h + b`` is the layer's output: a subclass of ``nn.Linear`` may compute something else."""
    check_finite(result.features, "features")
    expected = found.head(result.features.cpu())
    actual = result.logits.to("cpu", expected.dtype)
    error, size = float((expected - actual).norm()), float(torch.maximum(expected.norm(), actual.norm()))
    if not error <= TOLERANCE[result.logits.dtype] * size:
        raise _not_affine(found, error, size)


def check_one_row(found: FoundHead, result: Pass) -> None:
    """Raise unless ``W h + b`` equals the logits of the row with the largest one, at that class and at some others.

    A layer may be linear on the first batch and clip its output later. If products cancel to small logits,
    the error is compared with the size of the products.
    """
    features, logits, head = *result, found.head
    if not len(logits):
        return
    row = int(logits.amax(dim=-1).argmax()) if len(logits) > 1 else 0
    h, z = features[row].to("cpu", head.weight.dtype), logits[row].to("cpu", head.weight.dtype)
    allowed, step = TOLERANCE[logits.dtype], max(1, len(z) // _CHECKED)
    place, start = divmod(int(z.argmax()), step)
    classes = slice(start, None, step)  # with the largest logit at ``place``
    weight, bias = head.weight[classes], None if head.bias is None else head.bias[classes]
    products = weight @ h if bias is None else torch.addmv(bias, weight, h)
    actual = z[classes].tolist()  # for a few numbers, Python is faster than torch
    errors = [expected - given for expected, given in zip(products.tolist(), actual, strict=True)]
    for some in (slice(place, place + 1), slice(None)):
        error, size = hypot(*errors[some]), hypot(*actual[some])
        if error > allowed * size:  # false for non-finite features, which are reported elsewhere
            size = max(size, float((weight[some].abs() @ h.abs()).norm()))
            if error > allowed * size:
                raise _not_affine(found, error, size)


def _not_affine(found: FoundHead, error: float, size: float) -> UnsupportedHeadError:
    return UnsupportedHeadError(
        f"the head must compute z = W h + b, but {_quoted(found.name)} ({type(found.module).__name__}) computes "
        f"something else: |W h + b - z| is {error:.3g} for |z| = {size:.3g}. "
        "Use a plain nn.Linear, or name another layer with head='module.name'."
    )


def _not_a_head(calls: list[Call], logits: Tensor, name: str | None) -> str:
    """Return the reason why none of the called linear layers is the head."""
    if name is not None and not calls:
        return f"{_quoted(name)} was never called. Name a layer that the model uses."
    shape = tuple(logits.shape)
    likely = [call for call in calls if name is not None or call.outputs in (shape[1:] or shape)]
    if not likely:
        called = _listed(list(dict.fromkeys(call.name for call in calls)))
        layers = f"{called}, but none has as many outputs as its logits {shape}" if calls else "no linear layer"
        return (
            f"The model called {layers}. Compute the logits with an nn.Linear, or name a layer with head='module.name'."
        )
    spread = next((call for call in likely if call.features is None), None)
    if spread is not None:
        return (
            f"{_quoted(spread.name)} runs at every token or pixel of an input: its output is {spread.shape}, the "
            f"logits are {shape}. Wrap the model so that it selects or pools before that layer, or name another layer "
            "with head='module.name'."
        )
    names = list(dict.fromkeys(call.name for call in likely))
    if len(names) > 1:
        return (
            f"{_listed(names)} have as many outputs as there are logits, but none alone computes them: are they "
            f"averaged or added? To use one of them, name it: head={names[-1]!r}."
        )
    return (
        f"{_quoted(names[0])} has as many outputs as there are logits, but the model changes them before returning (a "
        f"softmax, a scale, a second branch?). To use this layer anyway, name it: head={names[0]!r}."
    )


def _quoted(name: str) -> str:
    return repr(name) if name else "the model itself"


def _listed(names: list[str]) -> str:
    if not names:
        return "no linear layers"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the linear layer{'s' if len(names) > 1 else ''} " + ", ".join(map(_quoted, names[-_SHOWN:])) + more
