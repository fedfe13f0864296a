r"""Products of single inputs' gradients from passes back to the outputs of the layers, which serve all inputs at once.

For a cotangent u over the logits z of one input, the gradient of ``u' z`` by the weight of a layer is
``sum_t d_t a_t'``: over all positions t (pixels, tokens), what comes back to its output times what went in. So the
gradient of an input need not even be built:

.. math:: \Big\|\sum_t d_t a_t^\top\Big\|^2 = \sum_{s,t} (a_s^\top a_t)\,(d_s^\top d_t)

Every layer takes whichever side is cheaper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.precision import as_double
from .graph import Parameters, uses
from .layer_calls import Call

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
