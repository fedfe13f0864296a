"""A model from ``package.module:function``."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
from torch import nn


def make_model(factory: str, folder: Path, seed: int) -> nn.Module:
    """Return what ``package.module:function`` returns, with the same random numbers whenever it is called.

    Args:
        factory: A function without arguments.
        folder: A module file that lies here is taken before an installed module of that name. While it and the
            function run, they can import modules from this folder and from their own.
        seed: Of torch's random numbers while it runs.
    """
    name, function = factory.split(":")
    file = folder / f"{name.replace('.', '/')}.py"
    with _importable({folder.resolve(), file.resolve().parent} if file.is_file() else set()):
        module = _imported(name, file)
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


@contextmanager
def _importable(folders: set[Path]) -> Iterator[None]:
    """Let modules of some folders be imported, and forget them after the block: another suite may have namesakes."""
    new = [str(folder) for folder in folders if str(folder) not in sys.path]
    before = set(sys.modules)
    sys.path[:0] = new
    try:
        yield
    finally:
        for folder in new:
            sys.path.remove(folder)
        for name in set(sys.modules) - before:
            if any(_lies_in(folder, name) for folder in new):
                del sys.modules[name]


def _lies_in(folder: str, name: str) -> bool:
    """Tell whether the import of a module was answered by ``folder``; installed packages may lie deeper in it."""
    module, top = sys.modules[name], Path(folder, name.partition(".")[0])
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "")
    return Path(place) == top.with_suffix(".py") or top in (Path(place), *Path(place).parents)


def _imported(name: str, file: Path) -> ModuleType:
    """Return the module in ``file``, or else the one of that name that is installed."""
    try:
        return _executed(file) if file.is_file() else import_module(name)
    except Exception as error:  # whatever the user's file does when it is run
        raise ValueError(
            f"{name} could not be imported: {type(error).__name__}: {error}. "
            f"It must be installed, or be a file in {file.parent}."
        ) from error


def _executed(file: Path) -> ModuleType:
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
