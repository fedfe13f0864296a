"""A model from ``package.module:function``, and weights for it from a file, without running code from the file."""

import hashlib
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

SHOWN = 3  # names of weights in a message; a network has hundreds


def make_model(factory: str, folder: Path, seed: int) -> nn.Module:
    """Return what ``package.module:function`` returns, with the same random numbers whenever it is called.

    Args:
        factory: A function without arguments.
        folder: A module file that lies here is taken before an installed module of that name.
        seed: Of torch's random numbers while it runs.
    """
    name, function = factory.split(":")
    try:
        module = _imported(name, folder)
    except Exception as error:  # whatever the user's file does when it is run
        raise ValueError(
            f"{name} could not be imported: {type(error).__name__}: {error}. "
            "It must be installed, or be a file beside the suite file."
        ) from error
    if not hasattr(module, function):
        near = get_close_matches(function, vars(module), n=1)
        raise ValueError(f"{name} has no function {function!r}." + (f" Did you mean {near[0]}?" if near else ""))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = getattr(module, function)()
    except Exception as error:
        raise ValueError(
            f"{function}() failed: {type(error).__name__}: {error}. It is called without arguments."
        ) from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{function}() must return a torch.nn.Module, not {type(model).__name__}.")
    return model


def _imported(name: str, folder: Path) -> ModuleType:
    """Return the module of that name that lies in ``folder``, or else the one that is installed."""
    file = folder / f"{name.replace('.', '/')}.py"
    if not file.is_file():
        return import_module(name)
    unique = f"flatfold_suite_{hashlib.sha256(bytes(file.resolve())).hexdigest()}"  # another suite may have a namesake
    spec = spec_from_file_location(unique, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[unique] = module_from_spec(spec)  # dataclasses look for their module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a state dict that was written by safetensors or ``torch.save``, without running code from it."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}. Check the path.")
    try:
        safe = path.suffix == ".safetensors"
        state = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zip and safetensors, which share no class
        raise ValueError(
            f"{path} must hold a state dict and nothing else, but cannot be read as one ({type(error).__name__}). "
            "Save model.state_dict(), with safetensors or with torch.save."
        ) from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} must hold a state dict, not {type(state).__name__}. Save model.state_dict().")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        misfit = _misfit(model.state_dict(), state) or error
        raise ValueError(f"{path} does not fit the network: {misfit}.") from error


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
