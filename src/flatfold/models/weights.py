"""Weights from a file, without running code from it, and what is wrong with them if they do not fit."""

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

logger = logging.getLogger(__name__)

SHOWN = 3  # names of weights in a message; a network has hundreds
ENTRIES = ("state_dict", "model", "net")  # where checkpoints keep their weights
WRAPPER = "module"  # where DataParallel keeps its network


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a file, as ``read_weights`` returns them, into a network that has exactly these.

    A network whose own names all begin with ``module.`` is one that is wrapped too; the weights go to what is in it.
    """
    load_state(model, read_weights(path), path)


def load_state(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load weights that were read from ``path``, which a message about them names; see ``load_weights``."""
    if _is_wrapped(model.state_dict()):
        model = model.get_submodule(WRAPPER)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        misfit = _misfit(model.state_dict(), state) or error
        raise ValueError(f"{path} does not fit the network: {misfit}.") from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the state dict in a file that was written by safetensors or ``torch.save``, without running code from it.

    Two wrappings are taken off, which a line of the log tells: a checkpoint that holds the state dict as its entry
    ``state_dict``, ``model`` or ``net``, and the ``module.`` with which all names begin that ``DataParallel`` wrote.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}. Check the path.")
    try:
        safe = path.suffix == ".safetensors"
        content = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zip and safetensors, which share no class
        raise ValueError(
            f"{path} must hold a state dict (alone, or in a checkpoint of plain values), but cannot be read as one "
            f"({type(error).__name__}). Save model.state_dict(), with safetensors or with torch.save."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a state dict, not {type(content).__name__}. Save model.state_dict().")
    state = _state_dict(content, path)
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            kind = type(value).__name__
            raise ValueError(f"{path} must hold named tensors, but {name!r} is a {kind}. Save model.state_dict().")
    if _is_wrapped(state):
        logger.info("the names of the weights in %s all begin with %s., which is left out", path, WRAPPER)
        consume_prefix_in_state_dict_if_present(state, f"{WRAPPER}.")
    return state


def _state_dict(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the state dict in a checkpoint, or what is one already: its values are never dicts."""
    found = [name for name in ENTRIES if isinstance(content.get(name), dict)]
    if len(found) > 1:
        raise ValueError(
            f"{path} must hold one state dict, but has {' and '.join(map(repr, found))}. Save the one that is meant."
        )
    if not found:
        return content
    logger.info("the weights in %s are its entry %r", path, found[0])
    state: dict[str, Any] = content[found[0]]
    return state


def _is_wrapped(state: dict[str, Any]) -> bool:
    return bool(state) and all(name.startswith(f"{WRAPPER}.") for name in state)


def _misfit(own: dict[str, Any], state: dict[str, Any]) -> str:
    """Say in which names or shapes two state dicts differ."""
    own_shapes, shapes = ({name: getattr(x, "shape", None) for name, x in each.items()} for each in (own, state))
    differences = {
        "it lacks": [name for name in own if name not in state],
        "the network has no": [name for name in state if name not in own],
        "another shape has": [name for name in own if name in state and shapes[name] != own_shapes[name]],
    }
    return "; ".join(
        f"{what} {', '.join(map(repr, names[:SHOWN]))}"
        + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        for what, names in differences.items()
        if names
    )
