"""Curvature of the energy over the output of each layer: ``python examples/layer_curvature.py``.

A parameter that is zero and added to the output of a layer moves that output, so the curvature over this parameter is
the curvature over the output. The Gauss-Newton matrix is exact for every network; where everything after the layer is
piecewise linear, it is the Hessian.
"""

from copy import deepcopy

import torch
from guard import images, trained
from torch import Tensor, nn

from flatfold.curvature import param_lambda_max, param_trace


class Shifted(nn.Module):
    """A layer plus a shift of its output, the same for every input of a batch."""

    def __init__(self, layer: nn.Module, like: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.shift = nn.Parameter(torch.zeros_like(like))

    def forward(self, x: Tensor) -> Tensor:
        """Return the shifted output."""
        output: Tensor = self.layer(x)
        return output + self.shift


def layer_curvature(model: nn.Module, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the trace and the largest eigenvalue over a layer's output, ``(n,)`` each, for inputs ``(n, ...)``."""
    model = deepcopy(model).eval()
    layer, outputs = model.get_submodule(name), []
    with layer.register_forward_hook(lambda _, __, output: outputs.append(output.detach())), torch.no_grad():
        model(x[:1])
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, Shifted(layer, outputs[0][0]))
    shift = [f"{name}.shift"]
    trace = param_trace(model, [x], level="sample", matrix="ggn", params=shift)
    largest = param_lambda_max(model, [x], level="sample", matrix="ggn", params=shift)
    return torch.as_tensor(trace.value), torch.as_tensor(largest.value)


def main() -> None:
    """Compare ID with OOD images, layer by layer."""
    model = trained()
    known, unknown = (images(40, known=known, seed=7)[0] for known in (True, False))
    for name, _ in model.named_children():
        rows = [[float(values.mean()) for values in layer_curvature(model, name, x)] for x in (known, unknown)]
        print(f"layer {name}: trace {rows[0][0]:.3g} ID, {rows[1][0]:.3g} OOD; λmax {rows[0][1]:.3g}, {rows[1][1]:.3g}")


if __name__ == "__main__":
    main()
