"""Where a command finds images: options, and from them to a source."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import nn

    from ..evaluate.spec import Spec
    from ..models.sources import ImageSource
    from ..models.transform import Transform


BATCH_SIZE = 64

PLACES = "a folder of them or of parquet files, a .parquet or .npz file, or a list of paths (.txt, .lst, .list)"

Root = Annotated[
    Path | None,
    typer.Option(help="Folder in which the paths of a list start. Default: that of the list.", show_default=False),
]

ImageColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of a parquet file, or array of an .npz file, with the images. Default: image, or x.",
        show_default=False,
    ),
]

LabelColumn = Annotated[
    str | None,
    typer.Option(help="The same with the labels. Default: label, or y.", show_default=False),
]

SAID = {  # arguments of the library that its sentences speak of, as options
    "x='...'": "--image-column",
    "image='...'": "--image-column",
    "y='...'": "--label-column",
    "label='...'": "--label-column",
    "y=None": "--no-labels",
    "label=None": "--no-labels",
    "labels=False": "--no-labels",
}


def opened(
    place: Path,
    transform: Transform,
    batch_size: int,
    root: Path | None,
    images: str | None,
    labels: str | bool | None = False,
) -> ImageSource:
    """Return the images that the options name.

    Args:
        place: As in ``open_images``.
        transform: Applied to every image.
        batch_size: Images in a batch.
        root: Of a list.
        images: Column or array of the images, if not that of the default.
        labels: Column or array of the labels, None for that of the default, False for no labels.
    """
    from ..models.images import open_images

    try:
        return open_images(
            place, transform, batch_size, labels=True if labels is None else labels, root=root, images=images
        )
    except ValueError as error:
        raise ValueError(_in_options(str(error))) from error


def _in_options(sentence: str) -> str:
    """Return a sentence of the library in the words of the command line."""
    for argument, option in SAID.items():
        sentence = sentence.replace(argument, option)
    return sentence


def is_list(place: Path) -> bool:
    """Tell whether a place is a list of paths, by its name."""
    from ..models.images import LISTS

    return place.suffix.lower() in LISTS


# The model that a command is about: options, and from them to a network.


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
        from ..models.model_loading import load_weights, make_model

        network = make_model(model, Path.cwd(), seed=0)
        if weights is not None:
            load_weights(network, weights)
        return network.eval()
    if "/" not in model:
        raise ValueError(
            f"--model is written package.module:function or library/name, got {model!r}. "
            "Examples: nets:resnet20, torchvision/resnet50."
        )
    from ..models.model_loading import named_model

    return named_model(model, weights, pretrained)


# How a command prepares images: options, and from them to a transform.


Resize = Annotated[int | None, typer.Option(min=1, help="Shorter side of an image after a resize.")]

Crop = Annotated[int | None, typer.Option(min=1, help="Side of the square cut from its middle.")]

Mean = Annotated[str | None, typer.Option(help="Subtracted from the channels, such as 0.485,0.456,0.406.")]

Std = Annotated[str | None, typer.Option(help="Then divided by, such as 0.229,0.224,0.225.")]

Mode = Annotated[str | None, typer.Option(help="RGB or L (grey).")]

Interpolation = Annotated[str | None, typer.Option(help="Of the resize: bilinear (default) or bicubic.")]


def prepared_by(known: Transform | None, options: Mapping[str, int | str | None], guard: Path | None) -> Transform:
    """Return how images are prepared: as is known already, or else as the options say.

    A guard that knows how the images were prepared that it was calibrated on takes no options: others would make its
    threshold wrong. While one is fitted nothing is settled, and the options given replace those parts of what is known.

    Args:
        known: What a guard's file says, or while fitting what comes with a model; None if nothing does.
        options: Values of the options above by their names in lower case; None for those that were not given.
        guard: The guard's file, None while fitting.

    Raises:
        ValueError: Nothing is known and no option given, or both for a guard; or an option has a value that is none.
    """
    from ..models.transform import Transform

    given = {name: value for name, value in options.items() if value is not None}
    if known is not None and given and guard is not None:
        raise ValueError(
            f"{guard} says how images are prepared, as those it was calibrated on: {known}. "
            f"Leave out --{next(iter(given))}."
        )
    if known is None and not given:
        silent = "nothing says" if guard is None else f"{guard} does not say"
        raise ValueError(
            f"{silent} how images are prepared. Say it with --resize, --crop, --mean, --std; "
            "or with --mode RGB if their pixels are only brought to the range from 0 to 1."
        )
    settings: dict[str, Any] = {name: _value(name, value) for name, value in given.items()}
    return replace(Transform() if known is None else known, **settings)


def _value(name: str, value: int | str) -> int | str | tuple[float, ...]:
    if name not in ("mean", "std"):
        return value
    try:
        return tuple(float(word) for word in str(value).split(","))
    except ValueError:
        raise ValueError(
            f"--{name} takes numbers with commas between them, such as 0.5,0.5,0.5, got {value!r}."
        ) from None


# ``--with``: methods of one's own, from Python files that register them.


With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="FILE",
        help="Python file with methods of your own, each below @flatfold.register(...); repeat for more files.",
        show_default=False,
    ),
]


def load_own(paths: Iterable[Path] | None) -> tuple[str, ...]:
    """Run Python files, each once, and return the names of the methods that they registered.

    From then on these are methods like all others: for ``--methods``, in tables, figures and result files.

    Args:
        paths: Files that call :func:`flatfold.register`; None for no files.
    """
    from ..detectors import METHODS

    before = set(METHODS)
    for path in dict.fromkeys(path.resolve() for path in paths or ()):
        known = len(METHODS)
        _run(path)
        if len(METHODS) == known:
            raise ValueError(
                f"{path} was run, but registered no method. "
                'Put @flatfold.register("name") above a class that derives from flatfold.Detector.'
            )
    return tuple(name for name in METHODS if name not in before)


def _run(path: Path) -> None:
    """Run a file as a module with a name of its own; it may import modules that lie beside it."""
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"--with needs a Python file, *.py, but {path} is none. Is the path right?")
    name = f"flatfold_own_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look for their module there
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file does when it is run
        raise ValueError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))


# Whether the values of options can be used: asked before anything is read, and so before long work.


FPR = 0.05


def check_writable(out: Path, what: str) -> None:
    """Raise unless a file can be written to ``out``, whose folder may be made for it.

    Args:
        out: Where to.
        what: What a message calls the file.
    """
    folder = next(folder for folder in (out.absolute().parent, *out.absolute().parents) if folder.exists())
    if out.is_dir():
        why = "that is a folder"
    elif out.exists() and not out.is_file():
        why = "that is a device or a pipe"
    elif not folder.is_dir():
        why = f"{folder} is a file and no folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"nothing can be written in {folder}"
    else:
        return
    raise typer.BadParameter(f"{out} is where {what} goes, but {why}. Choose another.", param_hint="--out")


def check_kept(out: Path, *read: Path | None) -> None:
    """Raise if the file to be written is one of those that are read, or would lie among the tables of a folder.

    Args:
        out: Where to.
        read: Files and folders that the command reads; None for those that were not given.
    """
    for path in read:
        if path is None or not path.exists():
            continue
        if out.exists() and out.samefile(path):
            why = "that is what is read, and would be lost"
        elif path.is_dir() and out.suffix.lower() == ".parquet" and out.absolute().parent.resolve() == path.resolve():
            why = f"all tables in {path} are read as images"
        else:
            continue
        raise typer.BadParameter(f"{out} is where the result goes, but {why}. Choose another.", param_hint="--out")


def check_values(fpr: float | None, out: Path | None) -> None:
    """Raise unless the rate is one and the table can be written."""
    from ..scoring.tables import check_out

    if fpr is not None:
        check_fpr(fpr)
    if out is None:
        return
    try:
        check_out(out)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--out") from error
    check_writable(out, "the table")


def check_fpr(fpr: float) -> None:
    """Raise unless the rate is one."""
    from ..scoring.calibrated import check_rate

    try:
        check_rate(fpr)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--fpr") from error


def parsed_method(method: str, fit: Path | None, calibration: Path | None, fit_option: str = "--fit") -> Spec:
    """Return what --method asks for, if it can be had from features.

    Args:
        method: A name, with hyper-parameters behind colons.
        fit: Known data to learn from.
        calibration: Known data to compare with.
        fit_option: What a message calls ``fit``.
    """
    from ..detectors import get_method
    from ..evaluate.spec import parse_spec

    try:
        spec = parse_spec(method)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--method") from error
    entry = get_method(spec.name)
    learns = entry.fits_on != "nothing"
    if spec.tune:
        why = "asks for tuning, which is for benchmarks. Leave out the @, and give hyper-parameters behind colons."
    elif entry.sees != "features":
        why = "runs the network on images, but here features are scored. `flatfold methods` lists what can do that."
    elif learns and fit is None:
        why = f"learns from known data ({entry.fits_on}). Give its features, and labels if it needs them, as --fit."
    elif learns and calibration is not None and fit is not None and calibration.resolve() == fit.resolve():
        why = f"has seen what is in {fit_option}, so --calibration must be other data, or its rate would mean nothing."
    else:
        return spec
    raise typer.BadParameter(f"{spec.label} {why}", param_hint="--method")
