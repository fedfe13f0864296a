"""Networks by name, ``library/name``, with trained weights: from a file, or those that the library publishes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .openood import openood_network
from .weights import SHOWN, load_state, read_weights

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
    models = _imported("torchvision.models")
    _check_known("torchvision", "classifier", name, models.list_models(module=models))
    if pretrained is not None:
        _check_known(f"torchvision/{name}", "weights", pretrained, models.get_model_weights(name).__members__)
    with _told("torchvision"):
        return _sized(partial(models.get_model, name, weights=pretrained), state)


def _timm(name: str, state: State | None, pretrained: str | None) -> nn.Module:
    timm = _imported("timm")
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
    library = _imported("transformers")
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


def _imported(module: str) -> Any:
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
