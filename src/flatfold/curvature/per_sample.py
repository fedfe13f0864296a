"""Per-sample gradients with respect to the parameters: squared lengths and products, for many cotangents at once.

If every parameter belongs to one known layer, backward passes to the outputs of the layers serve all inputs of a batch
(:class:`LayerwiseForward`). If one is used in any other way, gradients are computed input by input
(:class:`AutogradForward`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil, log, prod
from typing import Any, NamedTuple
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.functional import batch_norm, group_norm, layer_norm, pad

from ..core.hessian import as_double
from ..data.batch import Batch
from ..network.calls import first_argument, forward, logits_of, watch_calls

Parameters = dict[str, nn.Parameter]

MEMORY = 2**28  # memory limit in bytes for the gradients of a part of a batch
AGREEMENT = 1e-2  # relative difference that rounding may cause: TensorFloat-32 stays well below
POWERS = 16  # number of powers of 2 that distinguish the rows
SMALL = 1e-12  # relative squared length above which millions of products that underflow below 1e-38 are negligible


class CachedForward(ABC):
    """A forward pass of a batch, cached for backward passes through it.

    Attributes:
        logits: ``(n, c)``, detached.
        bytes: Memory needed per cotangent, for all inputs.
    """

    logits: Tensor
    bytes: int

    @property
    def together(self) -> int:
        """Number of cotangents that fit into memory at a time, at least 1."""
        return max(1, MEMORY // max(1, self.bytes))

    @abstractmethod
    def products(self, cotangents: Tensor, pairs: bool = False) -> Tensor:
        """Return squared lengths ``(n, k)`` of the gradients of cotangents ``(k, n, c)``, or products ``(n, k, k)``."""


def cached_parts(
    model: nn.Module, parameters: Parameters, batch: Batch, cotangents: int | None = None
) -> Iterator[CachedForward]:
    """Yield forward passes of parts of a batch, small enough that the gradients of all cotangents fit into memory."""
    if batch.rows <= 1:
        yield cached_forward(model, parameters, batch)
        return
    one = cached_forward(model, parameters, batch.part(0, 1))
    classes = one.logits.shape[1]
    needed = one.bytes * (classes if cotangents is None else min(classes, cotangents))
    size = max(1, MEMORY // max(1, needed))
    del one
    for start in range(0, batch.rows, size):
        yield cached_forward(model, parameters, batch.part(start, start + size))


def cached_forward(model: nn.Module, parameters: Parameters, batch: Batch) -> CachedForward:
    """Return a cached forward pass of a batch, of the fastest kind that is correct for these parameters."""
    with record_calls(model, parameters) as calls:
        logits = logits_of(forward(model, batch))
    if _each_used_once(logits, parameters, calls) and _rows_are_inputs(logits, calls):
        return LayerwiseForward(logits, calls)
    return AutogradForward(model, parameters, batch, logits.detach())


def count_uses(logits: Tensor, parameters: Parameters) -> tuple[Counter[str], set[Any]]:
    """Count the uses of each parameter in the graph of the logits, and return the nodes of that graph."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    counts: Counter[str] = Counter()
    steps: set[Any] = set()
    waiting: list[Any] = [logits.grad_fn]
    while waiting:
        step = waiting.pop()
        if step is None or step in steps:
            continue
        steps.add(step)
        waiting.extend(before for before, _ in step.next_functions)
        used = (names.get(id(getattr(before, "variable", None))) for before, _ in step.next_functions)
        counts.update(name for name in used if name is not None)
    return counts, steps


def row_products(rows: Tensor, pairs: bool) -> Tensor:
    r"""Return the squared length of each row, or the products of all pairs of rows.

    .. math:: r_i^\top r_j = s_i s_j\, \Big(\frac{r_i}{s_i}\Big)^{\!\top} \frac{r_j}{s_j}, \qquad s_i = \max_m |r_{im}|
    """
    if not rows.shape[-1]:
        return as_double(rows @ rows.mT if pairs else rows.sum(dim=-1))
    largest = rows.abs().amax(dim=-1, keepdim=True)
    size = torch.where(largest > 0, largest, torch.ones_like(largest))
    scaled, size = rows / size, as_double(size)
    if pairs:
        return as_double(scaled @ scaled.mT) * size * size.mT
    return as_double(scaled.square().sum(dim=-1)) * size.squeeze(-1).square()


class AutogradForward(CachedForward):
    """Recompute inputs one by one, or with vmap if it supports the network."""

    def __init__(self, model: nn.Module, parameters: Parameters, batch: Batch, logits: Tensor) -> None:
        self.logits, self._model, self._batch, self._parameters = logits, model, batch, parameters
        self.bytes = batch.rows * sum(parameter.nbytes for parameter in parameters.values())
        self._fast, self._compared = batch.rows > 1, False

    def products(self, cotangents: Tensor, pairs: bool = False) -> Tensor:
        """Compute the products from the gradients with respect to all parameters."""
        cotangents = cotangents.to(self.logits)
        if self._fast:
            try:
                with catch_warnings():
                    filterwarnings("ignore", "There is a performance drop")  # still faster than one by one
                    products = self._together(cotangents, pairs)
                    self._fast = self._compared or (self._all_reached() and self._agrees(products, cotangents))
            except (RuntimeError, ValueError, TypeError, NotImplementedError):  # vmap does not support the network
                self._fast = False
            self._compared = True
        return products if self._fast else self._one_by_one(cotangents, pairs)

    def _all_reached(self) -> bool:
        """Return whether a forward pass with substituted parameters uses none of the original ones."""
        one = self._batch.part(0, 1)
        others = {name: parameter.detach() for name, parameter in self._parameters.items()}
        counts, _ = count_uses(logits_of(functional_call(self._model, others, one.args, one.kwargs)), self._parameters)
        return not counts

    def _agrees(self, products: Tensor, cotangents: Tensor) -> bool:
        """Return whether the first gradient of the first input has the same length when computed alone."""
        first = AutogradForward(self._model, self._parameters, self._batch.part(0, 1), self.logits[:1])
        length = first.products(cotangents[:1, :1], pairs=False)
        return bool(torch.isclose(products.flatten()[0], length.flatten()[0], rtol=AGREEMENT, atol=0.0))

    def _together(self, cotangents: Tensor, pairs: bool) -> Tensor:
        values = [*self._batch.args, *self._batch.kwargs.values()]
        names = list(self._batch.kwargs)
        own = [self._batch.one_per_input(value) for value in values]
        parameters = {name: parameter.detach() for name, parameter in self._parameters.items()}

        def products(cotangents: Tensor, *inputs: Any) -> Tensor:
            rows = [value[None] if single else value for value, single in zip(inputs, own, strict=True)]
            args, kwargs = rows[: len(rows) - len(names)], dict(zip(names, rows[len(rows) - len(names) :], strict=True))
            back = vjp(lambda new: logits_of(functional_call(self._model, new, tuple(args), kwargs))[0], parameters)[1]
            (gradients,) = vmap(back)(cotangents)
            return _flat_products(list(gradients.values()), pairs)

        with torch.no_grad():  # vjp records its own graph; one to all other parameters would waste memory
            return vmap(products, in_dims=(1, *(0 if single else None for single in own)))(cotangents, *values)

    def _one_by_one(self, cotangents: Tensor, pairs: bool) -> Tensor:
        parameters = list(self._parameters.values())
        rows = []
        for row in range(self._batch.rows):
            logits = logits_of(forward(self._model, self._batch.part(row, row + 1)))
            gradients = [
                torch.autograd.grad(logits, parameters, one[row : row + 1], retain_graph=True, materialize_grads=True)
                for one in cotangents
            ]
            # detached, because the zeros of torch 2.6 for an unused parameter require a gradient
            rows.append(_flat_products([torch.stack(by).detach() for by in zip(*gradients, strict=True)], pairs))
        return torch.stack(rows)


def _flat_products(gradients: Sequence[Tensor], pairs: bool) -> Tensor:
    """Return ``(k,)`` or ``(k, k)`` products in float64, from one input's gradients by each parameter, ``(k, ...)``."""
    return torch.stack([row_products(gradient.flatten(1), pairs) for gradient in gradients]).sum(0)


class LayerKind(NamedTuple):
    """How the gradient of a layer's weight is computed from its input and the gradients of its output."""

    multiplied: Callable[[Any, Tensor], Tensor]  # converts the input to the factor of the weight
    folded: Callable[[Any, Tensor], Tensor]  # reshapes that, or an output, to (n, groups, channels, positions)


def _patches(module: Any, x: Tensor) -> Tensor:
    """Return the receptive field of each position of a convolution, ``(n, inputs, *positions)``."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = pad(x, module._reversed_padding_repeated_twice, mode=mode)
    dims = len(module.kernel_size)
    for dim, (size, step, gap) in enumerate(zip(module.kernel_size, module.stride, module.dilation, strict=True)):
        x = x.unfold(2 + dim, gap * (size - 1) + 1, step)[..., ::gap]
    return x.permute(0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims)).flatten(1, 1 + dims)


def _by_token(_: nn.Linear, values: Tensor) -> Tensor:
    return values.reshape(len(values), 1, -1, values.shape[-1]).transpose(2, 3)


def _by_group(module: Any, values: Tensor) -> Tensor:
    return values.reshape(len(values), module.groups, values.shape[1] // module.groups, -1)


def _by_channel(_: Any, values: Tensor) -> Tensor:
    return values.reshape(len(values), values.shape[1], 1, -1)


def _by_slope(module: nn.PReLU, values: Tensor) -> Tensor:
    return values.reshape(len(values), values.shape[1] if module.num_parameters > 1 else 1, 1, -1)


def _by_entry(module: nn.LayerNorm, values: Tensor) -> Tensor:
    return values.reshape(len(values), -1, 1, prod(module.normalized_shape)).transpose(1, 3)


_BATCH_NORM = LayerKind(lambda m, x: batch_norm(x, m.running_mean, m.running_var, eps=m.eps), _by_channel)

KINDS: dict[type[nn.Module], LayerKind] = {
    nn.Linear: LayerKind(lambda _, x: x, _by_token),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), LayerKind(_patches, _by_group)),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _BATCH_NORM),
    nn.GroupNorm: LayerKind(lambda m, x: group_norm(x, m.num_groups, eps=m.eps), _by_channel),
    nn.LayerNorm: LayerKind(lambda m, x: layer_norm(x, m.normalized_shape, eps=m.eps), _by_entry),
    nn.PReLU: LayerKind(lambda _, x: x.clamp_max(0), _by_slope),
}


class Call(NamedTuple):
    """One call of a module that has chosen parameters; ``own`` are their names in the module."""

    module: Any
    own: set[str]
    input: Any
    output: Any
    version: int | None

    @property
    def kind(self) -> LayerKind | None:
        """How its gradients are computed; None if unknown."""
        kind = KINDS.get(type(self.module))  # not for subclasses, which may use their weight differently
        tensors = isinstance(self.input, Tensor) and isinstance(self.output, Tensor)
        usual = tensors and self.own <= {"weight", "bias"} and "forward" not in vars(self.module)  # not replaced
        untouched = tensors and self.input._version == self.version
        return kind if usual and untouched else None

    def folded(self, gradient: Tensor) -> Tensor:
        """Reshape a tensor of the output's shape to ``(n, groups, outputs, positions)``."""
        return KINDS[type(self.module)].folded(self.module, gradient)

    def factors(self) -> Tensor:
        """Return the factor of the gradients of the output, ``(n, groups, inputs, positions)``."""
        kind = KINDS[type(self.module)]
        values = kind.folded(self.module, kind.multiplied(self.module, self.input.detach()))
        if "bias" not in self.own:
            return values
        ones = torch.ones_like(values[:, :, :1])  # a bias is the weight of a constant input
        return torch.cat([values, ones], dim=2) if "weight" in self.own else ones


@contextmanager
def record_calls(model: nn.Module, parameters: Parameters) -> Iterator[list[Call]]:
    """Yield a list that records the calls of all modules with any of these parameters.

    Raise if one of them ran without recording gradients: its parameters would seem to have no effect.
    """
    chosen = {id(parameter) for parameter in parameters.values()}
    calls: list[Call] = []

    def record(own: set[str], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        value = first_argument(args, kwargs)
        calls.append(Call(module, own, value, output, getattr(value, "_version", None)))
        return output.clone() if isinstance(output, Tensor) else None  # later layers may modify it in place

    owners = [
        (module, {name for name, value in module.named_parameters(recurse=False) if id(value) in chosen})
        for module in model.modules()
    ]
    with watch_calls(((module, partial(record, own)) for module, own in owners if own), prepend=True):
        yield calls
    for call in calls:
        if isinstance(call.output, Tensor) and not call.output.requires_grad:
            name = next(name for name, module in model.named_modules() if module is call.module)
            raise ValueError(
                f"{name or 'the model'} must record gradients of its parameters, but it runs without recording any. "
                "Remove torch.no_grad() from the forward pass, and use checkpoint(..., use_reentrant=False)."
            )


class LayerwiseForward(CachedForward):
    """Cache the inputs and outputs of all layers; each layer must use its parameters once."""

    def __init__(self, logits: Tensor, calls: Sequence[Call]) -> None:
        self.logits, self._logits = logits.detach(), logits
        _, steps = count_uses(logits, {})
        self._calls = [call for call in calls if call.output.grad_fn in steps]
        self.bytes = sum(call.output.nbytes for call in self._calls)

    def products(self, cotangents: Tensor, pairs: bool = False) -> Tensor:
        """Compute the products from the inputs of each layer and the gradients of its output."""
        k, n = cotangents.shape[:2]
        total = as_double(self.logits.new_zeros((n, k, k) if pairs else (n, k)))
        if not self._calls or not k:
            return total
        for call, gradients in zip(self._calls, self._back(cotangents.to(self.logits)), strict=True):
            total += layer_products(call.factors(), gradients, pairs)
        return total

    def _back(self, cotangents: Tensor) -> Sequence[Tensor]:
        """Return the gradients of the output of each layer, ``(n, groups, k, outputs, positions)``."""
        outputs = [call.output for call in self._calls]
        shapes = [call.folded(call.output.detach()).shape for call in self._calls]
        layers = [cotangents.new_empty(*shape[:2], len(cotangents), *shape[2:]) for shape in shapes]
        for number, cotangent in enumerate(cotangents):
            gradients = torch.autograd.grad(self._logits, outputs, cotangent, retain_graph=True)
            for call, layer, gradient in zip(self._calls, layers, gradients, strict=True):
                layer[:, :, number] = call.folded(gradient)
        return layers


def layer_products(a: Tensor, d: Tensor, pairs: bool) -> Tensor:
    """Return the products of one layer's gradients ``sum_t d_t a_t'``, as :meth:`CachedForward.products` does.

    ``a``, ``(n, groups, inputs, positions)``, is the input; ``d``, ``(n, groups, k, outputs, positions)``, the output's
    gradients. Rows with a term that may exceed the range of float32 are recomputed in float64.
    """
    products = as_double(_multiply(a, d, pairs))
    if a.dtype == torch.float64:
        return products
    lengths = products.diagonal(dim1=1, dim2=2) if pairs else products
    size = as_double(torch.linalg.vector_norm(d.flatten(1), dim=1, keepdim=True)).clamp_min(1)
    trusted = (lengths.isfinite() & (lengths >= SMALL * size.square())).all(dim=1)
    for row in (~trusted).nonzero().flatten().tolist():
        if d[row].any():  # otherwise 0 is correct
            one, back = as_double(a[row : row + 1]), as_double(d[row : row + 1])
            products[row] = _multiply(one, back, pairs)[0]
    return products


def _multiply(a: Tensor, d: Tensor, pairs: bool) -> Tensor:
    """Return the products in the type of the factors."""
    n, groups, inputs, positions = a.shape
    k, outputs = d.shape[2:4]
    rows = d.reshape(n, groups, k * outputs, positions)
    built = k * outputs * positions * inputs
    if built <= positions**2 * (inputs + k * outputs):
        left = right = (rows @ a.transpose(2, 3)).reshape(n, groups, k, -1)
    else:
        left = (rows @ (a.transpose(2, 3) @ a)).reshape(n, groups, k, -1)
        right = rows.reshape(n, groups, k, -1)
    return (left @ right.transpose(2, 3)).sum(dim=1) if pairs else (left * right).sum(dim=(1, 3))


def _each_used_once(logits: Tensor, parameters: Parameters, calls: Sequence[Call]) -> bool:
    """Return whether each parameter is used once, by one known layer, or does not reach the logits."""
    counts, steps = count_uses(logits, parameters)
    called = Counter(id(value) for call in calls for value in call.module.parameters(recurse=False))
    if not all(call.kind and len(call.output) == len(logits) for call in calls):
        return False
    reached = {id(value) for call in calls if call.output.grad_fn in steps for value in call.module.parameters()}
    return all(
        not counts[name] or (counts[name] == 1 == called[id(parameter)] and id(parameter) in reached)
        for name, parameter in parameters.items()
    )


def _rows_are_inputs(logits: Tensor, calls: Sequence[Call]) -> bool:
    """Return whether row i of every output belongs to input i: the batch axis may not be first, and rows may be sorted.

    A row of cotangents times a power of 2 must multiply the same row of the gradients by it; with 16 powers per digit
    of the row, any two rows differ in one of two backward passes (three with 17 rows or more).
    """
    outputs = [call.output for call in calls]
    if len(logits) == 1 or not logits.requires_grad or not outputs:
        return True
    cotangent = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
    plain = torch.autograd.grad(logits, outputs, cotangent, retain_graph=True, allow_unused=True)
    for digit in range(ceil(log(len(logits), POWERS))):
        powers = 2.0 ** (torch.arange(len(logits)) // POWERS**digit % POWERS).to(logits)[:, None]
        scaled = torch.autograd.grad(logits, outputs, cotangent * powers, retain_graph=True, allow_unused=True)
        for before, after in zip(plain, scaled, strict=True):
            if before is None or after is None:
                continue
            expected = before.flatten(1) * powers
            change = (after.flatten(1) - expected).abs().amax(dim=1)
            if not (change <= AGREEMENT * expected.abs().amax(dim=1)).all():
                return False
    return True
