"""Whether a model is the one that a guard's file was made for, and in which way it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...models.affine import head_of
from ...models.forward import is_linear
from ...models.heads import FoundHead, module_named
from ...models.identity import weights_hash
from .settings import head_hash

_ANOTHER = "Load the model that the guard was fitted on, with its weights, or fit a new guard."


def matching_head(path: Path, settings: dict[str, Any], model: nn.Module) -> FoundHead:
    """Return the head of ``model`` that the settings name, or say how the model differs from the one they are for."""
    name = settings["head"]
    layer = module_named(model, name)
    if layer is None or not is_linear(layer):
        raise ValueError(
            f"{path} was made for a model with a last layer {ascii(name)[:60]}, this one has none. {_ANOTHER}"
        )
    if type_name(layer) != settings["dtype"]:
        raise ValueError(
            f"{path} was made for a model in {ascii(settings['dtype'])[:60]}, this one is in {type_name(layer)!r}: "
            "its scores are others. Convert the model back, or fit a new guard."
        )
    head = head_of(layer)
    needed = (settings["classes"], settings["features"])
    if (head.n_classes, head.width) != needed:
        raise ValueError(
            f"{path} was made for a model with {needed[0]} classes and {needed[1]} features, this one has "
            f"{head.n_classes} and {head.width}. {_ANOTHER}"
        )
    if weights_hash(model) != settings["weights_sha256"] or head_hash(head) != settings["head_sha256"]:
        raise ValueError(
            f"{path} was made for a model with other weights: its calibration means nothing here. {_ANOTHER}"
        )
    return FoundHead(name, layer, head, settings["gives_logits"])


def type_name(layer: nn.Module) -> str:
    """Return the type of a layer's weight, such as ``"float32"``."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return str(weight.dtype).removeprefix("torch.")
