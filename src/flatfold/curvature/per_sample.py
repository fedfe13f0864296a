"""Gradients of single inputs by the parameters: their squared lengths and products, for many cotangents at once.

Where every parameter belongs to one known layer, passes back to the outputs of the layers serve all inputs of a batch
(``by_layer``). Where one is used in any other way, gradients are built input by input (``by_input``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.functional import batch_norm, group_norm, layer_norm, pad

from ..core.hessian import as_double
from ..models.batches import Batch
from ..models.forward import forward, logits_of

Parameters = dict[str, nn.Parameter]


def uses(logits: Tensor, parameters: Parameters) -> tuple[Counter[str], set[Any]]:
    """Return how often each parameter is used on the way to the logits, and the steps of that way."""
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
        found = (names.get(id(getattr(before, "variable", None))) for before, _ in step.next_functions)
        counts.update(name for name in found if name is not None)
    return counts, steps


def row_products(rows: Tensor, pairs: bool) -> Tensor:
    r"""Return the squared length of each row, or the products of all pairs of rows.

    .. math:: r_i^\top r_j = s_i s_j\, \Big(\frac{r_i}{s_i}\Big)^{\!\top} \frac{r_j}{s_j}, \qquad s_i = \max_m |r_{im}|

    Args:
        rows: ``(..., k, m)``.
        pairs: Whether all pairs are wanted.

    Returns:
        ``(..., k)``, or ``(..., k, k)`` for pairs, in float64.

    Example:
        >>> row_products(torch.tensor([[3e-30, 4e-30]]), pairs=False)
        tensor([2.5000e-59], dtype=torch.float64)
    """
    if not rows.shape[-1]:
        return as_double(rows @ rows.mT if pairs else rows.sum(dim=-1))
    largest = rows.abs().amax(dim=-1, keepdim=True)
    size = torch.where(largest > 0, largest, torch.ones_like(largest))
    scaled, size = rows / size, as_double(size)
    if pairs:
        return as_double(scaled @ scaled.mT) * size * size.mT
    return as_double(scaled.square().sum(dim=-1)) * size.squeeze(-1).square()


AGREEMENT = 1e-2  # relative difference that rounding may leave: TensorFloat-32 stays well below


class ByInput:
    """Inputs to run again, one by one, or with vmap where that can follow the network.

    Attributes:
        logits: ``(n, c)``, detached.
        bytes: Memory that one cotangent takes, for all inputs.
    """

    def __init__(self, model: nn.Module, parameters: Parameters, batch: Batch, logits: Tensor) -> None:
        self.logits, self._model, self._batch, self._parameters = logits, model, batch, parameters
        self.bytes = batch.rows * sum(parameter.nbytes for parameter in parameters.values())
        self._fast, self._compared = batch.rows > 1, False

    def products(self, cotangents: Tensor, pairs: bool) -> Tensor:
        """Return squared lengths ``(n, k)`` of gradients, or all products ``(n, k, k)``, in float64."""
        cotangents = cotangents.to(self.logits)
        if self._fast:
            try:
                with catch_warnings():
                    filterwarnings("ignore", "There is a performance drop")  # it is still faster than one by one
                    found = self._together(cotangents, pairs)
                    self._fast = self._compared or (self._all_reached() and self._agrees(found, cotangents))
            except (RuntimeError, ValueError, TypeError, NotImplementedError):  # a network that vmap cannot take
                self._fast = False
            self._compared = True
        return found if self._fast else self._one_by_one(cotangents, pairs)

    def _all_reached(self) -> bool:
        """Tell whether a pass with other tensors in place of the parameters does without the parameters."""
        one = self._batch.part(0, 1)
        others = {name: parameter.detach() for name, parameter in self._parameters.items()}
        counts, _ = uses(logits_of(functional_call(self._model, others, one.args, one.kwargs)), self._parameters)
        return not counts

    def _agrees(self, found: Tensor, cotangents: Tensor) -> bool:
        """Tell whether the first gradient of the first input is as long by itself."""
        first = ByInput(self._model, self._parameters, self._batch.part(0, 1), self.logits[:1])
        length = first.products(cotangents[:1, :1], pairs=False)
        return bool(torch.isclose(found.flatten()[0], length.flatten()[0], rtol=AGREEMENT, atol=0.0))

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

        with torch.no_grad():  # vjp records what it needs; a graph to all other parameters would only fill the memory
            return vmap(products, in_dims=(1, *(0 if single else None for single in own)))(cotangents, *values)

    def _one_by_one(self, cotangents: Tensor, pairs: bool) -> Tensor:
        parameters = list(self._parameters.values())
        found = []
        for row in range(self._batch.rows):
            logits = logits_of(forward(self._model, self._batch.part(row, row + 1)))
            each = [
                torch.autograd.grad(logits, parameters, one[row : row + 1], retain_graph=True, materialize_grads=True)
                for one in cotangents
            ]
            found.append(_flat_products([torch.stack(gradients) for gradients in zip(*each, strict=True)], pairs))
        return torch.stack(found)


def _flat_products(gradients: Sequence[Tensor], pairs: bool) -> Tensor:
    """Return ``(k,)`` or ``(k, k)``, in float64, from the gradients of one input by each parameter, ``(k, ...)``."""
    return torch.stack([row_products(gradient.flatten(1), pairs) for gradient in gradients]).sum(0)


class Kind(NamedTuple):
    """How the gradient by a layer's weight is made of its input and of the gradients over its output.

    Attributes:
        inputs: Brings the input to ``(n, groups, inputs, positions)``.
        outputs: Brings what has the shape of the output to ``(n, groups, outputs, positions)``.
    """

    inputs: Callable[[Any, Tensor], Tensor]
    outputs: Callable[[Any, Tensor], Tensor]


def _tokens(_: nn.Linear, values: Tensor) -> Tensor:
    return values.reshape(len(values), 1, -1, values.shape[-1]).transpose(2, 3)


def _patches(module: Any, x: Tensor) -> Tensor:
    """Return what each position of a convolution sees."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = pad(x, module._reversed_padding_repeated_twice, mode=mode)
    dims = len(module.kernel_size)
    for dim, (size, step, gap) in enumerate(zip(module.kernel_size, module.stride, module.dilation, strict=True)):
        x = x.unfold(2 + dim, gap * (size - 1) + 1, step)[..., ::gap]
    x = x.permute(0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    kept = prod(x.shape[2 + dims :])
    return x.reshape(len(x), module.groups, -1, kept)


def _maps(module: Any, values: Tensor) -> Tensor:
    return values.reshape(len(values), module.groups, values.shape[1] // module.groups, -1)


def _channels(_: Any, values: Tensor) -> Tensor:
    return values.reshape(len(values), values.shape[1], 1, -1)


def _per_slope(module: nn.PReLU, values: Tensor) -> Tensor:
    return _channels(module, values) if module.num_parameters > 1 else values.reshape(len(values), 1, 1, -1)


def _negative(module: nn.PReLU, x: Tensor) -> Tensor:
    return _per_slope(module, x.clamp_max(0))


def _batch_normalised(module: Any, x: Tensor) -> Tensor:
    return _channels(module, batch_norm(x, module.running_mean, module.running_var, eps=module.eps))


def _group_normalised(module: nn.GroupNorm, x: Tensor) -> Tensor:
    return _channels(module, group_norm(x, module.num_groups, eps=module.eps))


def _layer_normalised(module: nn.LayerNorm, x: Tensor) -> Tensor:
    return _entries(module, layer_norm(x, module.normalized_shape, eps=module.eps))


def _entries(module: nn.LayerNorm, values: Tensor) -> Tensor:
    return values.reshape(len(values), -1, 1, prod(module.normalized_shape)).transpose(1, 3)


KINDS: dict[type[nn.Module], Kind] = {
    nn.Linear: Kind(_tokens, _tokens),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), Kind(_patches, _maps)),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), Kind(_batch_normalised, _channels)),
    nn.GroupNorm: Kind(_group_normalised, _channels),
    nn.LayerNorm: Kind(_layer_normalised, _entries),
    nn.PReLU: Kind(_negative, _per_slope),
}


class Call(NamedTuple):
    """One call of a module with chosen parameters, ``own`` by their names in it."""

    module: Any
    own: set[str]
    input: Any
    output: Any
    version: int | None

    @property
    def kind(self) -> Kind | None:
        """How its gradients come about; None where that is not known."""
        kind = KINDS.get(type(self.module))  # a subclass may do anything with its weight
        tensors = isinstance(self.input, Tensor) and isinstance(self.output, Tensor)
        # A forward that somebody has replaced is not that of the class either.
        usual = tensors and self.own <= {"weight", "bias"} and "forward" not in vars(self.module)
        untouched = tensors and self.input._version == self.version
        return kind if usual and untouched else None

    def folded(self, gradient: Tensor) -> Tensor:
        """Return what has the shape of the output as ``(n, groups, outputs, positions)``."""
        return KINDS[type(self.module)].outputs(self.module, gradient)

    def factors(self) -> Tensor:
        """Return what the gradients over the output are multiplied with, ``(n, groups, inputs, positions)``."""
        values = KINDS[type(self.module)].inputs(self.module, self.input.detach())
        if "bias" not in self.own:
            return values
        ones = torch.ones_like(values[:, :, :1])  # a bias is the weight of one more input
        return torch.cat([values, ones], dim=2) if "weight" in self.own else ones


@contextmanager
def noted_calls(model: nn.Module, parameters: Parameters) -> Iterator[list[Call]]:
    """Yield a list that fills with the calls of all modules that have some of these parameters."""
    chosen = {id(parameter) for parameter in parameters.values()}
    calls: list[Call] = []
    with ExitStack() as hooks:
        for module in model.modules():
            own = {name for name, value in module.named_parameters(recurse=False) if id(value) in chosen}
            if own:
                hook = module.register_forward_hook(_note(own, calls), with_kwargs=True, prepend=True)
                hooks.callback(hook.remove)
        yield calls


def _note(own: set[str], calls: list[Call]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        value = next(iter((*args, *kwargs.values())), None)
        calls.append(Call(module, own, value, output, getattr(value, "_version", None)))
        return output.clone() if isinstance(output, Tensor) else None  # what follows may change it in place

    return hook


def check_graphs(model: nn.Module, calls: Sequence[Call]) -> None:
    """Raise if a layer ran where no gradient is recorded: its parameters would pass for ones without any effect."""
    for call in calls:
        if isinstance(call.output, Tensor) and not call.output.requires_grad:
            name = next(name for name, module in model.named_modules() if module is call.module)
            raise ValueError(
                f"gradients by the parameters of {name or 'the model'} are needed, but it runs without recording any. "
                "Take torch.no_grad() out of the forward pass, and use checkpoint(..., use_reentrant=False)."
            )


SMALL = 1e-12  # of what comes back, squared: a length from here on loses nothing to millions of products below 1e-38


class ByLayer:
    """A forward pass whose layers' inputs and outputs are kept; right where ``goes_by_layer`` says so.

    Attributes:
        logits: ``(n, c)``, detached.
        bytes: Memory that one cotangent takes, for all inputs.
    """

    def __init__(self, logits: Tensor, calls: Sequence[Call]) -> None:
        self.logits, self._logits = logits.detach(), logits
        _, steps = uses(logits, {})
        self._calls = [call for call in calls if call.output.grad_fn in steps]
        self.bytes: int = sum(call.output.nbytes for call in self._calls)

    def products(self, cotangents: Tensor, pairs: bool) -> Tensor:
        """Return squared lengths ``(n, k)`` of gradients, or all products ``(n, k, k)``, in float64."""
        k, n = cotangents.shape[:2]
        total = as_double(self.logits.new_zeros((n, k, k) if pairs else (n, k)))
        if not self._calls or not k:
            return total
        for call, gradients in zip(self._calls, self._back(cotangents.to(self.logits)), strict=True):
            total += layer_products(call.factors(), gradients, pairs)
        return total

    def _back(self, cotangents: Tensor) -> Sequence[Tensor]:
        """Return the gradients over the output of each layer, ``(n, groups, k, outputs, positions)``."""
        outputs = [call.output for call in self._calls]
        shapes = [call.folded(call.output.detach()).shape for call in self._calls]
        found = [cotangents.new_empty(*shape[:2], len(cotangents), *shape[2:]) for shape in shapes]
        for number, cotangent in enumerate(cotangents):
            gradients = torch.autograd.grad(self._logits, outputs, cotangent, retain_graph=True)
            for call, each, gradient in zip(self._calls, found, gradients, strict=True):
                each[:, :, number] = call.folded(gradient)
        return found


def layer_products(a: Tensor, d: Tensor, pairs: bool) -> Tensor:
    """Multiply gradients ``sum_t d_t a_t'`` of one layer.

    Inputs for which a result in float32 is so small or so large that its terms may have left the range of float32 are
    done again in float64.

    Args:
        a: What went in, ``(n, groups, inputs, positions)``.
        d: What comes back for each of k cotangents, ``(n, groups, k, outputs, positions)``.
        pairs: Whether all pairs are wanted.

    Returns:
        ``(n, k)``, or ``(n, k, k)`` for pairs, in float64.
    """
    found = as_double(_multiplied(a, d, pairs))
    if a.dtype == torch.float64:
        return found
    lengths = found.diagonal(dim1=1, dim2=2) if pairs else found
    size = as_double(torch.linalg.vector_norm(d.flatten(1), dim=1, keepdim=True)).clamp_min(1)
    trusted = (lengths.isfinite() & (lengths >= SMALL * size.square())).all(dim=1)
    for row in (~trusted).nonzero().flatten().tolist():
        if d[row].any():  # a layer that nothing comes back to is rightly at 0
            one, back = as_double(a[row : row + 1]), as_double(d[row : row + 1])
            found[row] = _multiplied(one, back, pairs)[0]
    return found


def _multiplied(a: Tensor, d: Tensor, pairs: bool) -> Tensor:
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


def goes_by_layer(logits: Tensor, parameters: Parameters, calls: Sequence[Call]) -> bool:
    """Tell whether each parameter is used by one known layer, once, with inputs first, or does not reach the logits."""
    return _each_used_once(logits, parameters, calls) and _rows_are_inputs(logits, calls)


def _each_used_once(logits: Tensor, parameters: Parameters, calls: Sequence[Call]) -> bool:
    """Tell whether each parameter is used by one known layer, once, or does not reach the logits."""
    counts, steps = uses(logits, parameters)
    called = Counter(id(value) for call in calls for value in call.module.parameters(recurse=False))
    if not all(call.kind and len(call.output) == len(logits) for call in calls):
        return False
    reached = {id(value) for call in calls if call.output.grad_fn in steps for value in call.module.parameters()}
    return all(
        not counts[name] or (counts[name] == 1 == called[id(parameter)] and id(parameter) in reached)
        for name, parameter in parameters.items()
    )


def _rows_are_inputs(logits: Tensor, calls: Sequence[Call]) -> bool:
    """Tell whether every output has the inputs in its rows, in their order: that of the first logits is the first.

    Tokens may come first as well, and a model may turn its rows around on the way. Looking costs one pass back.
    """
    outputs = [call.output for call in calls]
    if len(logits) == 1 or not logits.requires_grad or not outputs:
        return True
    first = torch.zeros_like(logits)
    first[0] = torch.randn(logits.shape[1], generator=torch.Generator().manual_seed(0))
    gradients = torch.autograd.grad(logits, outputs, first, retain_graph=True, allow_unused=True)
    return all(gradient is None or not gradient[1:].any() for gradient in gradients)


__all__ = ["MEMORY", "Kept", "Parameters", "kept", "kept_parts"]


MEMORY = 2**28  # bytes that the gradients of a part of a batch may take


@dataclass(frozen=True)
class Kept:
    """A forward pass of some inputs, kept to go back through it.

    Attributes:
        way: How that is done.
    """

    way: ByLayer | ByInput

    @property
    def logits(self) -> Tensor:
        """The logits, ``(n, c)``, detached."""
        return self.way.logits

    @property
    def bytes(self) -> int:
        """Memory that one cotangent takes, for all inputs."""
        return self.way.bytes

    @property
    def together(self) -> int:
        """How many cotangents fit into memory at a time, at least one."""
        return max(1, MEMORY // max(1, self.bytes))

    def products(self, cotangents: Tensor, pairs: bool = False) -> Tensor:
        """Return the squared length of each gradient, or the products of all pairs of one input's gradients.

        Args:
            cotangents: Over the logits, ``(k, n, c)``.
            pairs: Whether all pairs are wanted.

        Returns:
            ``(n, k)``, or ``(n, k, k)`` for pairs, in float64.
        """
        return self.way.products(cotangents, pairs)


def kept_parts(model: nn.Module, parameters: Parameters, batch: Batch, cotangents: int | None = None) -> Iterator[Kept]:
    """Yield a forward pass of a batch, or of one part of it after the other, so that gradients fit into memory.

    Args:
        model: In evaluation mode, on the device of the batch; gradients must be enabled.
        parameters: Those to differentiate by, named as in the model.
        batch: Inputs.
        cotangents: How many of them should fit at a time, by default and at most as many as there are classes.
    """
    if batch.rows <= 1:
        yield kept(model, parameters, batch)
        return
    one = kept(model, parameters, batch.part(0, 1))
    classes = one.logits.shape[1]
    needed = one.bytes * (classes if cotangents is None else min(classes, cotangents))
    size = max(1, MEMORY // max(1, needed))
    del one
    for start in range(0, batch.rows, size):
        yield kept(model, parameters, batch.part(start, start + size))


def kept(model: nn.Module, parameters: Parameters, batch: Batch) -> Kept:
    """Return a forward pass of a batch, kept in the fastest way that is right for these parameters."""
    with noted_calls(model, parameters) as calls:
        logits = logits_of(forward(model, batch))
    check_graphs(model, calls)
    if goes_by_layer(logits, parameters, calls):
        return Kept(ByLayer(logits, calls))
    return Kept(ByInput(model, parameters, batch, logits.detach()))
