"""Build models by a user's function or by library name, and load weights from files."""

import hashlib
import json
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
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from ..core.validation import listed
from ..data.transform import Transform
from ..errors import cause
from .openood import NETWORKS, openood_network

logger = logging.getLogger(__name__)

State = dict[str, Tensor]

SHOWN = 3  # names in a message
ENTRIES = ("state_dict", "model", "net")  # entries of checkpoints that hold the weights
OF_TEXTS = "ForSequenceClassification"  # the end of the names of classes of transformers
TOKENISER_FILES = ("tokenizer.json", "tokenizer_config.json")
WRAPPER = "module"  # DataParallel's name for its network
DEFAULT = "DEFAULT"  # torchvision's name for the recommended weights
PUBLISHED = {
    "torchvision": f"weights of torchvision such as 'IMAGENET1K_V1', or {DEFAULT!r}",
    "timm": f"a tag of timm such as 'a1_in1k', or {DEFAULT!r}",
    "transformers": f"a revision on the hub such as 'main', or {DEFAULT!r}; or name a folder of save_pretrained",
}
BUILD = f"the build of torchvision that matches torch {torch.__version__}"
INSTALL = {
    "torchvision": f"Install {BUILD}: any other fails to import, or replaces torch.",
    "timm": f"Install timm, and {BUILD}, which timm imports.",
    "transformers": f"Install flatfold[hf]. If torchvision is installed, it must be {BUILD}.",
}


def make_model(factory: str, folder: Path | str, seed: int) -> nn.Module:
    """Call ``package.module:function`` with a fixed random seed and return its model.

    A file in ``folder`` takes precedence over an installed module; it can import modules from there and from its own
    folder.
    """
    name, function = factory.split(":")
    folder = Path(folder)
    file = folder / f"{name.replace('.', '/')}.py"
    with _importable({folder.resolve(), file.resolve().parent} if file.is_file() else set()):
        try:
            module = _execute(file) if file.is_file() else import_module(name)
        except Exception as error:  # raised by the user's code
            raise ValueError(
                f"{name} could not be imported: {type(error).__name__}: {error}. "
                f"Install it, or create it as a file in {file.parent}."
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


@contextmanager
def _importable(folders: set[Path]) -> Iterator[None]:
    """Make modules of some folders importable, and unload them after the block: other suites may use the same names."""
    new = [str(folder) for folder in folders if str(folder) not in sys.path]
    before = set(sys.modules)
    sys.path[:0] = new
    try:
        yield
    finally:
        for folder in new:
            sys.path.remove(folder)
        for name in set(sys.modules) - before:
            module = sys.modules[name]
            place = Path(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), ""))
            tops = [Path(folder, name.partition(".")[0]) for folder in new]  # not packages installed deeper in it
            if any(place == top.with_suffix(".py") or top in (place, *place.parents) for top in tops):
                del sys.modules[name]


def _execute(file: Path) -> ModuleType:
    unique = f"flatfold_suite_{hashlib.sha256(bytes(file.resolve())).hexdigest()}"  # suites may share file names
    spec = spec_from_file_location(unique, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[unique] = module_from_spec(spec)  # dataclasses look up their module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def load_weights(model: nn.Module, path: Path | str, state: State | None = None) -> None:
    """Load weights from a file, or from ``state`` if given, into a network with exactly these parameters.

    If all parameter names of the network start with ``module.``, the weights are loaded into the wrapped network.
    """
    state = read_weights(path) if state is None else state
    if _is_wrapped(model.state_dict()):
        model = model.get_submodule(WRAPPER)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        own = {name: getattr(value, "shape", None) for name, value in model.state_dict().items()}
        differences = {
            "it lacks": [name for name in own if name not in state],
            "the network has no": [name for name in state if name not in own],
            "shapes differ for": [name for name in own if name in state and state[name].shape != own[name]],
        }
        reasons = [f"{what} {listed(list(map(repr, names)))}" for what, names in differences.items() if names]
        raise ValueError(f"{path} does not fit the network: {'; '.join(reasons) or error}.") from error


def read_weights(path: Path | str) -> State:
    """Read the state dict in a file of safetensors or ``torch.save``, without running code from it.

    It may be the entry ``state_dict``, ``model`` or ``net`` of a checkpoint; a prefix ``module.`` of all names, from
    ``DataParallel``, is removed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}. Check the path.")
    try:
        safe = path.suffix == ".safetensors"
        content: Any = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # from pickle, zip and safetensors, which share no base class
        raise ValueError(
            f"{path} must hold a state dict (alone, or in a checkpoint of plain values), but cannot be read "
            f"({type(error).__name__}). Save model.state_dict(), with safetensors or with torch.save."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a state dict, not {type(content).__name__}. Save model.state_dict().")
    entries = [name for name in ENTRIES if isinstance(content.get(name), dict)]  # in a state dict no value is a dict
    if len(entries) > 1:
        raise ValueError(
            f"{path} must hold one state dict, but has {' and '.join(map(repr, entries))}. Save the intended one alone."
        )
    if entries:
        logger.info("the weights in %s are its entry %r", path, entries[0])
    state: State = content[entries[0]] if entries else content
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            kind = type(value).__name__
            raise ValueError(f"{path} must hold named tensors, but {name!r} is a {kind}. Save model.state_dict().")
    if _is_wrapped(state):
        logger.info("removed the prefix %s. of all names of weights in %s", WRAPPER, path)
        consume_prefix_in_state_dict_if_present(state, f"{WRAPPER}.")
    return state


def _is_wrapped(state: dict[str, Any]) -> bool:
    return bool(state) and all(name.startswith(f"{WRAPPER}.") for name in state)


def named_model(name: str, weights: Path | str | None = None, pretrained: str | None = None) -> nn.Module:
    """Build a network of a library in evaluation mode, with trained weights; random weights are rejected.

    Nothing is downloaded unless ``pretrained`` is given: an entry of torchvision's list, a tag of timm, a revision on
    the hub, or ``"DEFAULT"`` for the recommended weights. ``weights`` is a file for ``read_weights``, which also
    determines the number of classes. A folder of ``save_pretrained`` (transformers) needs neither.
    """
    library, _, network = name.partition("/")
    if library not in MAKERS or not network:
        near = get_close_matches(library, MAKERS, n=1)
        hint = f"Did you mean {near[0]}/{network or 'NAME'}?" if near else f"Libraries are {', '.join(MAKERS)}."
        raise ValueError(f"a network is named library/name, got {name!r}. {hint}")
    in_folder = library == "transformers" and Path(network).is_dir()
    if weights is None and pretrained is None and library in PUBLISHED and not in_folder:
        raise ValueError(
            f"{name} needs trained weights, got none. Pass weights=, a file, or pretrained=, {PUBLISHED[library]}."
        )
    if pretrained is not None and (weights is not None or in_folder):
        other = "weights=" if weights is not None else f"the folder {network}"
        raise ValueError(f"trained weights must have one source, got pretrained= and {other}. Leave one of them out.")
    state = None if weights is None else read_weights(weights)
    with torch.random.fork_rng(devices=[]):
        model = MAKERS[library](network, state, pretrained)
    if weights is not None:
        load_weights(model, weights, state)
    return model.eval()


def published_transform(name: str, model: nn.Module, pretrained: str | None) -> Transform | None:
    """Return the preprocessing that a library publishes with the weights of a network, None if there is none.

    Args:
        name: As in ``named_model``.
        model: The model that ``named_model`` returned.
        pretrained: As in ``named_model``; None for a folder of ``save_pretrained``.
    """
    library, _, network = name.partition("/")
    if library not in PREPARATIONS or (pretrained is None and library != "transformers"):
        return None
    with _library_errors(library, "load the preprocessing of images"):
        preparation = PREPARATIONS[library](network, model, pretrained)
    if preparation is None:
        return None
    try:
        return Transform.of(preparation)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the preprocessing of {name} is not supported: {error}") from None


def _torchvision_preparation(name: str, model: nn.Module, pretrained: str | None) -> Any:
    return _import_library("torchvision.models").get_model_weights(name)[pretrained].transforms()


def _timm_preparation(name: str, model: nn.Module, pretrained: str | None) -> Any:
    return _import_library("timm.data").resolve_data_config({}, model=model)


def _transformers_preparation(name: str, model: nn.Module, pretrained: str | None) -> Any:
    folder = Path(name)
    if folder.is_dir() and not (folder / "preprocessor_config.json").is_file():
        return None
    options = {} if pretrained in (None, DEFAULT) else {"revision": pretrained}
    library = _import_library("transformers")
    return library.AutoImageProcessor.from_pretrained(name, local_files_only=pretrained is None, **options)


def tokeniser_folder(name: str) -> Path | None:
    """Return the folder of a network of transformers, if it also holds a tokeniser and no preprocessing of images."""
    library, _, network = name.partition("/")
    folder = Path(network)
    if library != "transformers" or not folder.is_dir() or (folder / "preprocessor_config.json").is_file():
        return None
    return folder if any((folder / file).is_file() for file in TOKENISER_FILES) else None


class TextConfig(NamedTuple):
    """What the config of a network of texts says: class indices by name, and the largest number of tokens."""

    classes: dict[str, int] | None = None
    longest: int | None = None


def read_config(folder: Path | str) -> TextConfig:
    """Read ``config.json`` in a folder of transformers, which a folder with a tokeniser alone does not have."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        return TextConfig()
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        classes, longest = content.get("label2id"), content.get("max_position_embeddings")
        usable = isinstance(longest, int) and longest > 0
        return TextConfig(
            classes and {str(name): int(index) for name, index in classes.items()}, longest if usable else None
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{file} must be the config of a network: {error}. Save it again.") from error


PREPARATIONS: dict[str, Callable[[str, nn.Module, str | None], Any]] = {
    "torchvision": _torchvision_preparation,
    "timm": _timm_preparation,
    "transformers": _transformers_preparation,
}


def _openood(name: str, state: State | None, pretrained: str | None) -> nn.Module:
    _check_known("openood", "network", name, NETWORKS)
    classes = (state or {}).get("fc.weight")
    if classes is None or classes.ndim != 2:
        raise ValueError(
            f"openood/{name} needs weights=, a checkpoint of OpenOOD with a matrix 'fc.weight', one row per class. "
            "OpenOOD publishes files, not named weights."
        )
    return openood_network(name, len(classes))


def _torchvision(name: str, state: State | None, pretrained: str | None) -> nn.Module:
    models = _import_library("torchvision.models")
    _check_known("torchvision", "classifier", name, models.list_models(module=models))
    if pretrained is not None:
        _check_known(f"torchvision/{name}", "weights", pretrained, models.get_model_weights(name).__members__)
    with _library_errors("torchvision"):
        return _with_classes_of(partial(models.get_model, name, weights=pretrained), state)


def _timm(name: str, state: State | None, pretrained: str | None) -> nn.Module:
    timm = _import_library("timm")
    base, _, tag = name.partition(".")
    _check_known("timm", "model", base, timm.list_models())
    if pretrained not in (None, DEFAULT):
        tag = f"{tag}.{pretrained}".strip(".")  # two tags together are unknown
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{base}.*")]
    if tag or (pretrained is not None and not tags):
        _check_known(f"timm/{base}", "weights", tag or DEFAULT, tags)
    full = f"{base}.{tag}" if tag else base
    with _library_errors("timm"):
        return _with_classes_of(partial(timm.create_model, full, pretrained=pretrained is not None), state)


def _transformers(name: str, state: State | None, pretrained: str | None) -> nn.Module:
    library = _import_library("transformers")
    with _library_errors("transformers"):
        options: dict[str, Any] = {} if pretrained in (None, DEFAULT) else {"revision": pretrained}
        local = state is not None or pretrained is None
        config = library.AutoConfig.from_pretrained(name, local_files_only=local, trust_remote_code=False, **options)
        texts = any(kind.endswith(OF_TEXTS) for kind in getattr(config, "architectures", None) or ())
        kind = library.AutoModelForSequenceClassification if texts else library.AutoModelForImageClassification
        if state is not None:
            empty: nn.Module = kind.from_config(config, trust_remote_code=False)
            return empty
        options |= {"use_safetensors": True} if texts else {}
        trained: nn.Module
        trained, report = kind.from_pretrained(
            name, local_files_only=pretrained is None, output_loading_info=True, trust_remote_code=False, **options
        )
    missing = sorted(report["missing_keys"])
    if missing:  # transformers silently initialises them at random
        raise ValueError(
            f"transformers/{name} has no trained weights for {listed(missing)}. "
            "Use a model trained for the classification of images or texts."
        )
    return trained


MAKERS: dict[str, Callable[[str, State | None, str | None], nn.Module]] = {
    "openood": _openood,
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}


def _with_classes_of(make: Callable[..., nn.Module], state: State | None) -> nn.Module:
    """Build a network with the number of classes of the weights that it will load."""
    model = make()
    own = model.state_dict()
    pairs = [(own[key].shape, value.shape) for key, value in (state or {}).items() if key in own]
    # A different number of classes changes only the first dimension of the last weights, equally for all of them.
    sizes = {(old[0], new[0]) for old, new in pairs if old != new and len(old) == len(new) and old[1:] == new[1:]}
    return make(num_classes=sizes.pop()[1]) if len(sizes) == 1 else model


def _import_library(module: str) -> Any:
    library = module.partition(".")[0]
    try:
        return import_module(module)
    except Exception as error:  # a build for another torch may raise any error
        raise ValueError(
            f"{library} is needed but cannot be imported: {type(error).__name__}: {error}. {INSTALL[library]}"
        ) from error


def _check_known(where: str, what: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name not in names:
        near = get_close_matches(name, names, n=SHOWN)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Available: {listed(names)}."
        hint = hint if names else "None are published: pass weights=, a file."
        raise ValueError(f"{where} has no {what} {name!r}. {hint}")


@contextmanager
def _library_errors(library: str, what: str = "build the network") -> Iterator[None]:
    """Convert any error to a ``ValueError`` that names the library and a possible fix."""
    try:
        yield
    except Exception as error:  # from the network, the hub and the file system, which share no base class
        download = "If it had to be downloaded, check the connection or pass weights=, a file."
        hint = INSTALL[library] if isinstance(error, ImportError) else download  # transformers imports late as well
        reason = f"{type(error).__name__}: {str(error).rstrip('. ')}"
        message = f"{library} could not {what}: {reason}. {hint}"
        raise ValueError(message) from cause(error, message)
