"""A model from ``package.module:function``."""

import hashlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from .openood import openood_network


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
        module = _imported_factory(name, file)
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


def _imported_factory(name: str, file: Path) -> ModuleType:
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


# Weights from a file, without running code from it, and what is wrong with them if they do not fit.


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


# Networks by name, ``library/name``, with trained weights: from a file, or those that the library publishes.


State = dict[str, Tensor]

DEFAULT = "DEFAULT"  # torchvision's word for the weights that a library recommends

PUBLISHED = {
    "torchvision": f"weights of torchvision such as 'IMAGENET1K_V1', or {DEFAULT!r}",
    "timm": f"a tag of timm such as 'a1_in1k', or {DEFAULT!r}",
    "transformers": f"a revision on the hub such as 'main', or {DEFAULT!r}; or name a folder of save_pretrained",
}

BUILD = f"the build of torchvision that matches torch {torch.__version__}"

INSTALL = {
    "torchvision": f"Install {BUILD}: another one does not import, or replaces torch.",
    "timm": f"Install timm, and {BUILD}, which timm imports.",
    "transformers": f"Install flatfold[hf]. If torchvision is installed, it must be {BUILD}.",
}


def named_model(name: str, weights: Path | None = None, pretrained: str | None = None) -> nn.Module:
    """Return a network of a library in evaluation mode, with trained weights: a random one is refused.

    Nothing is downloaded unless ``pretrained`` is given. Random numbers of torch are left as they were.

    Args:
        name: ``library/name``, where the library is one of

            * ``openood``: a network of ``openood_network``. Needs ``weights``, whose ``fc.weight`` gives the classes.
            * ``torchvision``: a classifier of ``torchvision.models.list_models()``.
            * ``timm``: a model of ``timm.list_models()``, with or without a tag.
            * ``transformers``: a model for image classification on the hub, or a folder that ``save_pretrained``
              wrote, which needs neither ``weights`` nor ``pretrained``. With ``weights``, the state dict of the model
              (not the file in such a folder, which has other names), only the configuration is taken from the folder
              or from the local cache of the hub.
        weights: A file that ``read_weights`` reads. Networks of torchvision and timm get as many classes as it has.
        pretrained: Which published weights: an entry of torchvision's list, a tag of timm, a revision on the hub.
            ``"DEFAULT"`` stands for those that the library recommends.

    Raises:
        ValueError: There is no such library, network or weights, or they cannot be had; the message says what to try.
        FileNotFoundError: There is no file ``weights``.
    """
    library, _, own_name = name.partition("/")
    if library not in MAKERS or not own_name:
        near = get_close_matches(library, MAKERS, n=1)
        hint = f"Did you mean {near[0]}/{own_name or 'NAME'}?" if near else f"Libraries are {', '.join(MAKERS)}."
        raise ValueError(f"a network is named library/name, got {name!r}. {hint}")
    _check_trained(name, weights, pretrained)
    state = None if weights is None else read_weights(weights)
    with torch.random.fork_rng(devices=[]):
        model = MAKERS[library](own_name, state, pretrained)
    if weights is not None and state is not None:
        load_state(model, state, weights)
    return model.eval()


def _check_trained(name: str, weights: Path | None, pretrained: str | None) -> None:
    """Raise unless there is one place that trained weights come from."""
    library, _, own_name = name.partition("/")
    if library == "openood" and weights is None:
        raise ValueError(
            f"{name} needs weights=, a checkpoint of OpenOOD, which has the number of classes too: OpenOOD publishes "
            "files, not weights that could be asked for by name."
        )
    in_folder = library == "transformers" and Path(own_name).is_dir()
    if weights is None and pretrained is None and not in_folder:
        raise ValueError(
            f"{name} would have random weights, and a random network is not worth judging. "
            f"Give weights=, a file, or pretrained=, {PUBLISHED[library]}."
        )
    if pretrained is not None and (weights is not None or in_folder):
        other = "weights=" if weights is not None else f"the folder {own_name}"
        raise ValueError(f"trained weights come from one place, got pretrained= and {other}. Leave one of them out.")


def _openood(name: str, state: State | None, pretrained: str | None) -> nn.Module:
    classes = (state or {}).get("fc.weight")
    if classes is None or classes.ndim != 2:
        raise ValueError(
            f"openood/{name} needs weights with a matrix 'fc.weight', whose rows are the classes, but there is none. "
            "Are they of a network of OpenOOD?"
        )
    return openood_network(name, len(classes))


def _torchvision(name: str, state: State | None, pretrained: str | None) -> nn.Module:
    models = _imported_library("torchvision.models")
    _check_known("torchvision", "classifier", name, models.list_models(module=models))
    if pretrained is not None:
        _check_known(f"torchvision/{name}", "weights", pretrained, models.get_model_weights(name).__members__)
    with _told("torchvision"):
        return _sized(partial(models.get_model, name, weights=pretrained), state)


def _timm(name: str, state: State | None, pretrained: str | None) -> nn.Module:
    timm = _imported_library("timm")
    base, _, tag = name.partition(".")
    _check_known("timm", "model", base, timm.list_models())
    if pretrained not in (None, DEFAULT):
        tag = f"{tag}.{pretrained}".strip(".")  # two tags are no tag
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{base}.*")]
    if tag or (pretrained is not None and not tags):
        _check_known(f"timm/{base}", "weights", tag or DEFAULT, tags)
    full = f"{base}.{tag}" if tag else base
    with _told("timm"):
        return _sized(partial(timm.create_model, full, pretrained=pretrained is not None), state)


def _transformers(name: str, state: State | None, pretrained: str | None) -> nn.Module:
    library = _imported_library("transformers")
    with _told("transformers"):
        kind = library.AutoModelForImageClassification
        if state is not None:
            empty: nn.Module = kind.from_config(library.AutoConfig.from_pretrained(name, local_files_only=True))
            return empty
        options = {} if pretrained in (None, DEFAULT) else {"revision": pretrained}
        model, report = kind.from_pretrained(
            name, local_files_only=pretrained is None, output_loading_info=True, **options
        )
    missing = sorted(report["missing_keys"])
    if missing:  # transformers fills them with random numbers and goes on
        raise ValueError(
            f"transformers/{name} has no trained weights for {_listed(missing)}. "
            "Take a model that was trained to classify images."
        )
    trained: nn.Module = model
    return trained


MAKERS: dict[str, Callable[[str, State | None, str | None], nn.Module]] = {
    "openood": _openood,
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}


def _sized(make: Callable[..., nn.Module], state: State | None) -> nn.Module:
    """Return a network with as many classes as the weights have that it is going to get."""
    model = make()
    own = model.state_dict()
    pairs = [(own[key].shape, value.shape) for key, value in (state or {}).items() if key in own]
    other = [(was, now) for was, now in pairs if was != now]
    # Another number of classes changes the first dimension of the last weights, from the same to the same, and no more.
    sizes = {(was[0], now[0]) for was, now in other if len(was) == len(now) and was[1:] == now[1:]}
    return make(num_classes=sizes.pop()[1]) if len(sizes) == 1 else model


def _imported_library(module: str) -> Any:
    library = module.partition(".")[0]
    try:
        return import_module(module)
    except Exception as error:  # a build for another torch fails with an error of any class
        raise ValueError(
            f"{library} is needed but cannot be imported: {type(error).__name__}: {error}. {INSTALL[library]}"
        ) from error


def _check_known(where: str, what: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name in names:
        return
    near = get_close_matches(name, names, n=SHOWN)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are {_listed(names)}."
    raise ValueError(
        f"{where} has no {what} {name!r}. {hint if names else 'None are published: give weights=, a file.'}"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


@contextmanager
def _told(library: str) -> Iterator[None]:
    """Say which library failed, and what may help."""
    try:
        yield
    except Exception as error:  # of the network, the hub and the file system, which share no class
        download = "If it had to be downloaded, check the connection or give weights=, a file."
        hint = INSTALL[library] if isinstance(error, ImportError) else download  # transformers imports late as well
        reason = f"{type(error).__name__}: {str(error).rstrip('. ')}"
        raise ValueError(f"{library} could not make the network: {reason}. {hint}") from error
