"""The model that a command is about: options, and from them to a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import nn

Model = Annotated[
    str,
    typer.Option(
        help="A function that returns the network, as package.module:function (a module in this folder or an installed "
        "one), or a network of a library, as library/name: torchvision/resnet50, timm/..., transformers/..., "
        "openood/...",
        show_default=False,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="File of its weights: a state dict, by safetensors or torch.save.", show_default=False),
]
Pretrained = Annotated[
    str | None, typer.Option(help="Which published weights of a library to take, such as DEFAULT.", show_default=False)
]


def open_model(model: str, weights: Path | None = None, pretrained: str | None = None) -> nn.Module:
    """Return the network that the options name, in evaluation mode.

    Args:
        model: ``package.module:function``, looked for in the current folder first, or ``library/name``.
        weights: File of its weights; a function may load its own instead.
        pretrained: Which published weights of a library to take.
    """
    if ".py:" in model:
        module, _, function = model.rpartition("/")[2].partition(".py:")
        raise ValueError(
            f"--model names a module and not a file, got {model!r}. "
            f"Write {module}:{function}, in the folder of the file."
        )
    if re.fullmatch(r"[\w.]+:\w+", model):
        if pretrained is not None:
            raise ValueError(
                f"--pretrained belongs to a network of a library, but {model} is a function. Give --weights, a file."
            )
        from ..models.factory import make_model
        from ..models.weights import load_weights

        network = make_model(model, Path.cwd(), seed=0)
        if weights is not None:
            load_weights(network, weights)
        return network.eval()
    if "/" not in model:
        raise ValueError(
            f"--model is written package.module:function or library/name, got {model!r}. "
            "Examples: nets:resnet20, torchvision/resnet50."
        )
    from ..models.named import named_model

    return named_model(model, weights, pretrained)
