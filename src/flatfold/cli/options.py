"""Options shared by commands, groups of options (dataclasses whose fields are options), help panels and checks."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from functools import wraps
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from typer import Argument, Option
from typer.core import TyperCommand
from typer.models import OptionInfo

from .output import OutputOptions, get_output, log_steps, log_to_stderr, note, print_error, set_output

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..data.loading import Loading
    from ..data.sources import ImageSource
    from ..data.text_files import TextSource
    from ..data.texts import Tokeniser
    from ..data.transform import Transform
    from ..detectors.base import Detector
    from ..evaluate.banks import Settings
    from ..evaluate.suites.suite import Suite
    from ..network.execution import Execution

FPR = 0.05
DEFAULT_METHOD = "fourfold"  # of `fit` and `score-features`

IMAGES = "folder of images or of parquet files, .parquet or .npz file, or list of paths (.txt, .lst, .list)"

TEXTS = "texts in a .csv, .jsonl, .parquet or .txt file, for a model of texts"

NETWORK = (
    "Network: a function package.module:function, searched in the current folder first, or a library's network as "
    "torchvision/resnet50, timm/NAME, transformers/NAME or openood/NAME."
)

METHOD = "name from `flatfold methods`, hyper-parameters after colons (knn:k=10)"

Weights = Annotated[Path | None, Option(help="File with the network's state dict (safetensors or torch.save).")]
Pretrained = Annotated[
    str | None,
    Option(help="Name of published weights of a library's network, such as DEFAULT; brings their transform."),
]
Tokenizer = Annotated[
    Path | None,
    Option(help="Folder of the tokeniser of transformers. Default: that of --model transformers/FOLDER."),
]
Device = Annotated[str, Option(help="Torch device that runs the network: cpu, cuda, cuda:1, mps.")]


def count_option(least: int, help: str) -> Any:
    """Create an option for a number of threads or processes, or ``auto``, which becomes None."""

    def parse(text: str) -> int | None:
        if text == "auto":
            return None
        if not text.isdecimal() or int(text) < least:
            raise typer.BadParameter(f"{text!r} must be auto or an integer of at least {least}.")
        return int(text)

    return Option(parser=parse, metavar="N|auto", show_default="auto", help=help)


def share_option(help: str) -> Any:
    """Create an option for a share between 0 and 1, without both ends, which ``min`` and ``max`` would allow."""

    def parse(text: str) -> float:
        try:
            share = float(text)
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            raise typer.BadParameter(f"{text!r} must be a number above 0 and below 1.")
        return share

    return Option(parser=parse, metavar="0<x<1", help=help)


Workers = Annotated[int | None, count_option(0, "Threads that prefetch images; auto: one per core, up to four.")]
RuntimeOption = Annotated[
    Literal["auto", "torch", "torch-compile", "onnx"],
    Option(help="Runtime of the network; auto: the fastest that agrees with torch, timed on the first batch."),
]
Dtype = Annotated[
    Literal["bfloat16"] | None,
    Option(help="Run the network in mixed precision. A guard must be fitted with the same setting."),
]
BatchSize = Annotated[int, Option(min=1, help="Images per forward pass.")]
Rate = Annotated[
    float | None, share_option(f"Largest false-alarm rate on ID inputs. Default: the guard's, or {FPR} without.")
]
PerClass = Annotated[
    bool, Option("--per-class", help="Use one threshold per predicted class, so that the rate holds for each class.")
]
AnySize = Annotated[bool, Option("--allow-sizes", help="Accept image sizes that were not seen during calibration.")]
MaxUnreadable = Annotated[float, Option(min=0, max=1, help="Largest fraction of unreadable images per data set.")]
Limit = Annotated[int | None, Option(min=2, help="Largest number of images per data set for evaluation. Default: all.")]
LimitFit = Annotated[
    int | None,
    Option(min=2, help="Largest number of images per data set for fitting, which changes results. Default: all."),
]


def complete_suite(incomplete: str) -> list[str]:
    """Return the built-in suites with this prefix, for shell completion."""
    from ..evaluate.suites.schema import suite_names  # imports no torch, which takes seconds

    return [name for name in suite_names() if name.startswith(incomplete)]


SuiteName = Annotated[
    str,
    Argument(
        autocompletion=complete_suite,
        help="Built-in suite (digits, texts and scenes, which download nothing; cifar10, cifar100, imagenet200, "
        "imagenet1k of OpenOOD) or a suite file such as mine.toml, see `flatfold suite init`.",
    ),
]
Data = Annotated[
    Path | None, Option(help="Folder with OpenOOD's `data` and `results`. Default: the environment variable OPENOOD.")
]
Resume = Annotated[bool, Option("--resume/--restart", help="Resume an earlier run, or start again.")]
With = Annotated[
    list[Path] | None,
    Option(
        "--with",
        metavar="FILE",
        help="Python file that adds methods with @flatfold.register(...); repeat for more files.",
    ),
]


# Sections of --help and their parameters: an option has the same meaning in all commands.
PANELS = {
    "Model": "guard model weights pretrained head networks accuracy",
    "Images": (
        "train val test near far ood_val images resize crop squash mean std mode interpolation draft allow_sizes root "
        "image_column tokenizer text_column max_length label_column labels masks calibration_masks ignore_index data "
        "limit limit_fit samples shard max_unreadable any_counts read"
    ),
    "Method": (
        "methods method add own fit calibration fpr confidence per_class table anyway matrix loss probes steps alpha "
        "bootstrap figure"
    ),
    "Access": "host port token_file no_token allow_host allow_origin docs",
    "Limits": "max_batch max_waiting max_body max_images max_texts max_characters max_pixels timeout",
    "Output": (
        "out explain tokens triton name mlflow names metric sets csv latex report force access_log cite quiet verbose "
        "debug json"
    ),
    "Run": "seed device runtime dtype code batch_size workers processes resume rounds engine actors gpus",
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}


_NAMED = re.compile(r"(?<![\w:/.-])([a-z_]+)=(?:True\b|(?=[.,;)]?(?:\s|$)))")  # not a value such as alpha=2


def name_options(text: str) -> str:
    """Return an error of the library, which names its arguments as ``name=``, with the options that set them."""
    options = dict.fromkeys(f"--{name.replace('_', '-')}" for name in _NAMED.findall(text) if name in PANEL_OF)
    return f"{text} On the command line: {', '.join(options)}." if options else text


class Command(TyperCommand):
    """A command whose --help has one section of options per panel, as plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then the panels in the order of ``PANELS``, with --help at the end of the last."""
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *PANELS, "")}
        for parameter in self.get_params(ctx):
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or ""
            if (record := parameter.get_help_record(ctx)) is not None:
                sections[panel].append(record)
        rest = sections.pop("")
        written = {title: records for title, records in sections.items() if records}
        written[next(reversed(written))] += rest
        for title, records in written.items():
            with formatter.section(title):
                formatter.write_dl(records)


_held = ExitStack()  # folders locked and threads set by the running command


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: expand its groups of options, add the common options, and assign help panels.

    A group is a dataclass whose fields are options. An interrupted command exits with code 130.
    """
    groups, parameters = {}, []
    for parameter in signature(command, eval_str=True).parameters.values():
        group, options = parameter.annotation, [parameter]
        if isinstance(group, type) and is_dataclass(group):
            options = list(signature(group, eval_str=True).parameters.values())
            groups[parameter.name] = group, [option.name for option in options]
        parameters += [option.replace(kind=Parameter.KEYWORD_ONLY) for option in options]
    common = signature(OutputOptions, eval_str=True).parameters
    parameters += [option.replace(kind=Parameter.KEYWORD_ONLY) for option in common.values()]
    for parameter in parameters:
        for info in get_args(parameter.annotation):
            if isinstance(info, OptionInfo):
                info.rich_help_panel = PANEL_OF.get(parameter.name)

    @wraps(command)
    def run(**values: Any) -> None:
        set_output(get_output() | OutputOptions(**{name: values.pop(name) for name in common}))
        for name, (make, names) in groups.items():
            values[name] = make(**{option: values.pop(option) for option in names})
        try:
            with _held, log_to_stderr():  # an interrupt may also come while folders are unlocked
                command(**values)
        except KeyboardInterrupt:
            advice = "Run the same command again, without --restart, to resume."
            print_error(f"interrupted; no file is incomplete. {advice}", 130)
            raise typer.Exit(130) from None

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class ModelOptions:
    """Options of the network."""

    model: Annotated[str, Option(help=NETWORK)]
    weights: Weights = None
    pretrained: Pretrained = None

    def open(self) -> nn.Module:
        """Build the network in evaluation mode."""
        from ..network.model_loading import load_weights, make_model, named_model

        model = self.model
        if ".py:" in model:
            module, _, function = model.rpartition("/")[2].partition(".py:")
            raise ValueError(
                f"--model must name a module, not a file, got {model!r}. Use {module}:{function} and run the command "
                "in the folder of that file."
            )
        if re.fullmatch(r"[\w.]+:\w+", model):
            if self.pretrained is not None:
                raise ValueError(f"--pretrained applies to a library's network, not to {model}. Use --weights FILE.")
            network = make_model(model, Path.cwd(), seed=0)
            if self.weights is not None:
                load_weights(network, self.weights)
            return network.eval()
        if "/" not in model:
            raise ValueError(
                f"--model must be package.module:function or library/name, got {model!r}. "
                "Examples: nets:resnet20, torchvision/resnet50."
            )
        return named_model(model, self.weights, self.pretrained)

    def published_transform(self, network: nn.Module) -> Transform | None:
        """Return the transform of published weights, None for the user's own weights."""
        from ..network.model_loading import published_transform

        named = "/" in self.model and self.weights is None
        return published_transform(self.model, network, self.pretrained) if named else None


@dataclass(frozen=True)
class TransformOptions:
    """Options for converting images to tensors."""

    resize: Annotated[int | None, Option(min=1, help="Length of the shorter side after resizing.")] = None
    crop: Annotated[int | None, Option(min=1, help="Side of the square cropped from the centre.")] = None
    mean: Annotated[str | None, Option(help="Channel means to subtract, such as 0.485,0.456,0.406.")] = None
    std: Annotated[str | None, Option(help="Channel deviations to divide by, such as 0.229,0.224,0.225.")] = None
    mode: Annotated[str | None, Option(help="Colour mode of the network's input: RGB or L (grey).")] = None
    interpolation: Annotated[
        str | None, Option(help="Interpolation used for resizing: bilinear (default) or bicubic.")
    ] = None
    draft: Annotated[
        bool | None, Option("--draft", help="Decode much larger JPEG files at reduced size: faster, changes pixels.")
    ] = None
    squash: Annotated[
        bool | None, Option("--squash", help="Resize both sides to --resize, ignoring the aspect ratio.")
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def transform(
        self, guard: Path | None = None, stored: Transform | None = None, published: Transform | None = None
    ) -> Transform:
        """Return the transform stored in the guard's file, else that of the options, else the published one.

        Raises if both a stored transform and options are given.
        """
        from ..data.transform import Transform

        given = self.given
        if stored is not None:
            if given:
                raise ValueError(
                    f"{guard} stores the transform it was calibrated with: {stored}. Remove --{next(iter(given))}."
                )
            return stored
        if not given and published is not None:
            return published
        if not given:
            silent = "no option sets" if guard is None else f"{guard} does not store"
            raise ValueError(
                f"{silent} the transform of the images. Pass --resize, --crop, --mean or --std as in training, or "
                "--mode RGB if pixels are only scaled to the range from 0 to 1."
            )
        for name in {"mean", "std"} & given.keys():
            given[name] = parse_numbers(f"--{name}", given[name])
        return Transform(**given)


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be numbers separated by commas, such as 0.5,0.5,0.5, got {text!r}.") from None


@dataclass(frozen=True)
class ImageOptions:
    """Options for reading images from lists, tables and arrays."""

    root: Annotated[
        Path | None, Option(help="Folder that the paths of a list are relative to. Default: the list's folder.")
    ] = None
    image_column: Annotated[
        str | None, Option(help="Parquet column or .npz array that holds the images. Default: image, or x.")
    ] = None
    batch_size: BatchSize = 64

    def open(
        self, place: Path, transform: Transform, labels: str | bool = False, masks: Path | None = None
    ) -> ImageSource:
        """Open images, optionally with labels, whose column or array a string names, or with masks instead."""
        from ..data.images import open_images
        from ..data.masks import with_masks

        size, column = self.batch_size, self.image_column
        try:
            labels = labels if masks is None else False
            images = open_images(place, transform, size, labels=labels, root=self.root, images=column)
            return images if masks is None else with_masks(images, masks)
        except ValueError as error:
            hint = "--root, --image-column" + ("" if labels is False else ", --label-column, --no-labels")
            raise ValueError(f"{error} See also the options {hint}.") from error


@dataclass(frozen=True)
class TextOptions:
    """Options for reading texts."""

    tokenizer: Tokenizer = None
    text_column: Annotated[str | None, Option(help="Column or entry that holds the texts. Default: text.")] = None
    max_length: Annotated[
        int | None, Option(min=1, help="Largest number of tokens of a text. Default: that of the tokeniser.")
    ] = None

    def tokeniser(self, model: ModelOptions) -> Tokeniser | None:
        """Return the tokeniser of --tokenizer, else that of the network's folder; None for a network of images."""
        from ..data.texts import Tokeniser
        from ..network.model_loading import read_config, tokeniser_folder

        folder = self.tokenizer or tokeniser_folder(model.model)
        if folder is None:
            self._reject("it applies to texts, which need a tokeniser. Pass its folder as --tokenizer.")
            return None
        if not folder.is_dir():
            raise NotADirectoryError(f"--tokenizer must be a folder of save_pretrained, but {folder} is none.")
        tokeniser = Tokeniser.in_folder(folder, self.max_length)
        limit = read_config(tokeniser_folder(model.model) or folder).longest
        if tokeniser.longest is None and limit is not None:
            return Tokeniser.in_folder(folder, limit)  # longer texts would make the network fail
        return tokeniser

    def stored(self, model: ModelOptions, loading: Loading) -> Tokeniser | None:
        """Return the tokeniser of a guard's file, from the folder of --tokenizer, the network or the fit."""
        from ..data.texts import NotStored, Tokeniser
        from ..network.model_loading import tokeniser_folder

        folder = self.tokenizer or tokeniser_folder(model.model)
        if isinstance(loading.collate, NotStored) and folder is not None:
            return Tokeniser.in_folder(folder, self.max_length)
        own = Tokeniser.of(loading.collate)
        if own is None:
            self._reject("the guard was fitted on images. Leave it out.")
        elif self.max_length is not None:
            message = "the guard stores the length of its texts. Leave it out."
            raise typer.BadParameter(message, param_hint="--max-length")
        return own if own is None or folder is None else own.placed(folder)

    def _reject(self, problem: str) -> None:
        """Raise if an option is given."""
        for name, value in asdict(self).items():
            if value is not None:
                raise typer.BadParameter(problem, param_hint=f"--{name.replace('_', '-')}")

    def open(
        self,
        place: Path,
        tokeniser: Tokeniser,
        batch_size: int,
        labels: str | bool = False,
        classes: Mapping[str, int] | None = None,
    ) -> TextSource:
        """Open texts, optionally with labels, whose names are numbered by ``classes``."""
        from ..data.text_files import open_texts

        try:
            return open_texts(place, tokeniser, batch_size, labels=labels, text=self.text_column, classes=classes)
        except ValueError as error:
            hint = "--text-column" + ("" if labels is False else ", --label-column, --no-labels")
            raise ValueError(f"{error} See also the options {hint}.") from error


@dataclass(frozen=True)
class SuiteOptions:
    """Options for the networks and images of a suite, and for the results folder."""

    networks: Annotated[
        str | None,
        Option(
            help="Names of the suite's networks, separated by commas. Default: all; for digits, which has cnn, mlp and "
            "residual, bench and curvature run cnn only."
        ),
    ] = None
    seed: Annotated[
        str | None,
        Option(help="Random seed for data splits and training; several as 0,1,2. Default: the suite file's, or 0."),
    ] = None
    out: Annotated[
        Path | None, Option(help="Folder for all files of the run. Default: out/SUITE; for reproduce, out/paper/SUITE.")
    ] = None
    resume: Resume = True
    report: Annotated[
        bool, Option("--report/--no-report", help="Write the HTML page, or only remove an outdated one.")
    ] = True
    data: Data = None
    any_counts: Annotated[
        bool, Option("--any-counts", help="Accept data sets with an unexpected number of images.")
    ] = False

    def suites(
        self,
        suite: str,
        folder: Path,
        batch_size: int,
        limits: tuple[int | None, int | None] = (None, None),
        default: list[str] | None = None,
    ) -> dict[Path, Suite]:
        """Return the suite of each network and seed, keyed by its results folder; ``default`` names the networks.

        The folders are locked until the command ends.
        """
        from ..evaluate.suites.library import load_suites
        from ..io.files import check_writable, locked

        place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if not place.is_dir():
            raise NotADirectoryError(f"--out must be a folder, but {place} is a file. Choose another folder.")
        check_writable(folder)
        seeds = None if self.seed is None else split_words(self.seed)
        if seeds and not all(word.isdecimal() and int(word) < 2**32 for word in seeds):
            raise ValueError(
                f"--seed must be integers from 0 to 2^32 - 1, separated by commas as in 0,1,2, got {self.seed!r}."
            )
        numbers = None if seeds is None else list(dict.fromkeys(map(int, seeds)))
        names = default if self.networks is None else split_words(self.networks)
        suites = load_suites(suite, folder, numbers, batch_size, self.data, self.any_counts, names, *limits)
        several = len(suites[0].siblings) > 1
        if several and any((folder / name).exists() for name in ("results.json", "curvature.json")):
            raise ValueError(f"{folder} holds the results of a single run. Choose another --out for several runs.")
        if not several and ((folder / "summary.json").exists() or any(folder.glob("*/curvature.json"))):
            raise ValueError(f"{folder} holds the results of several runs. Choose another --out for a single run.")
        places = {folder / each.network if several else folder: each for each in suites}
        for place in places:
            _held.enter_context(locked(place))
        return places


@dataclass(frozen=True)
class TableOptions:
    """Options for the metrics and columns of a table of results."""

    metric: Annotated[
        str | None,
        Option(
            metavar="NAMES",
            help="Metrics to show, separated by commas: auroc, fpr95 (OOD as positive), fpr95-id, aupr-out, aupr-in. "
            "Default: auroc,fpr95; if the table is wider than the terminal, auroc.",
        ),
    ] = None
    sets: Annotated[
        str | None,
        Option(
            metavar="NAMES",
            help="Columns to show, separated by commas: OOD data sets, near, far, average. Default: all.",
        ),
    ] = None

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics in results."""
        from ..evaluate.metrics import SHOWN, find_metrics

        with invalid_usage("--metric"):
            return SHOWN if self.metric is None else find_metrics(split_words(self.metric))

    def columns(self, known: Iterable[str]) -> list[str] | None:
        """Return the chosen ones of the columns that there are, or None for all."""
        from ..evaluate.results import select_columns

        with invalid_usage("--sets"):
            return None if self.sets is None else select_columns(split_words(self.sets), known)


def split_words(text: str) -> list[str]:
    """Split a list at its commas."""
    return [word.strip() for word in text.split(",")]


@dataclass(frozen=True)
class LoadingOptions:
    """Options for reading images."""

    workers: Workers = None
    max_unreadable: MaxUnreadable = 0.01

    def loading(self) -> Loading:
        """Return the loading settings; transform and batch size are those of the sources."""
        from ..data.loading import Loading

        return Loading(workers=self.workers, max_unreadable=self.max_unreadable)


@dataclass(frozen=True)
class EngineOptions:
    """Options for running the network."""

    device: Device = "cpu"
    runtime: RuntimeOption = "auto"
    engine: Annotated[
        Literal["local", "ray"],
        Option(help="Run in this process or on a Ray cluster (the joined one, RAY_ADDRESS, or a local one)."),
    ] = "local"
    actors: Annotated[int | None, Option(min=1, help="Number of Ray actors. Default: as many as fit.")] = None
    gpus: Annotated[float, Option(min=0, max=1, help="GPUs per Ray actor; use with --device cuda.")] = 0.0

    def execution(self, workers: int | None = None, dtype: str | None = None, head: str | None = None) -> Execution:
        """Return the execution settings after checking the device, and limit threads to the free cores.

        ``workers`` is the number of reader threads, which only the local engine supports.
        """
        from ..network.calls import usable_device
        from ..network.execution import Execution

        if self.engine == "local" and (self.actors is not None or self.gpus):
            raise typer.BadParameter("--actors and --gpus apply to --engine ray only.")
        if self.engine == "ray" and workers is not None:
            raise typer.BadParameter("on Ray, every actor reads its own images. Use --actors.", param_hint="--workers")
        if self.engine == "local":
            usable_device(self.device)
        use_free_cores()
        return Execution(
            self.device, mixed_precision(dtype), self.runtime, None, head, self.engine, self.actors, self.gpus
        )


@dataclass(frozen=True)
class ExecutionOptions(EngineOptions):
    """Options for running the network, including its dtype."""

    dtype: Dtype = None

    def settings(self, loading: LoadingOptions, bootstrap: int = 1000) -> Settings:
        """Return the settings of a run, and log its steps to stderr."""
        from ..evaluate.banks import Settings

        log_steps()
        command = " ".join(["flatfold", *sys.argv[1:]])
        return Settings(loading.loading(), self.execution(loading.workers, self.dtype), bootstrap, command)


def mixed_precision(dtype: str | None) -> torch.dtype | None:
    """Return the dtype of --dtype, with a note if this processor does not support it natively."""
    import torch

    if dtype is None:
        return None
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        note("this processor has no bfloat16 instructions, so --dtype makes it slower, not faster")
    return torch.bfloat16


def load_plugins(paths: Iterable[Path] | None) -> tuple[str, ...]:
    """Run Python files and return the names of the methods that they register.

    A file may import modules from its own folder.
    """
    from ..detectors import METHODS

    before = set(METHODS)
    for path in dict.fromkeys(path.resolve() for path in paths or ()):
        if path.suffix != ".py" or not path.is_file():
            raise ValueError(f"--with must be a Python file, but {path} is not. Check the path.")
        registered, name = len(METHODS), f"flatfold_own_{path.stem}"
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)  # dataclasses look up their module there
        sys.path.insert(0, str(path.parent))
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # raised by the user's file
            from ..evaluate.methods import describe_error

            raise ValueError(f"{path} failed to run: {describe_error(error)}") from error
        finally:
            sys.path.remove(str(path.parent))
        if len(METHODS) == registered:
            raise ValueError(
                f"{path} registers no method. "
                'Put @flatfold.register("name") above a class that derives from flatfold.Detector.'
            )
    return tuple(name for name in METHODS if name not in before)


@contextmanager
def invalid_usage(option: str) -> Iterator[None]:
    """Convert errors of the library to usage errors of an option, with exit code 2."""
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        if get_output().debug:
            traceback.print_exc()
        raise typer.BadParameter(name_options(str(error)), param_hint=option) from error


def use_free_cores() -> None:
    """Let torch use the cores that are free until the command ends, unless ``OMP_NUM_THREADS`` is set."""
    from ..io.cores import free_threads, torch_threads

    _held.enter_context(torch_threads(free_threads()))


def check_out(out: Path, *inputs: Path | None, option: str = "--out") -> None:
    """Raise unless ``out`` can be written, is not an input, and is not a table in an input folder of tables."""
    from ..io.files import check_writable

    parent = next(folder for folder in out.absolute().parents if folder.exists())
    there = [path for path in inputs if path is not None and path.exists()]
    neighbours = [path for path in there if path.is_dir() and path.resolve() == out.absolute().parent.resolve()]
    problems = {
        "it is a folder": out.is_dir(),
        "it is a device or a pipe": out.exists() and not out.is_file(),
        f"{parent} is a file": not parent.is_dir(),
        "it is an input of this command": out.exists() and any(out.samefile(path) for path in there),
        "every .parquet file in this folder is an input": out.suffix.lower() == ".parquet" and bool(neighbours),
    }
    for reason in (reason for reason, found in problems.items() if found):
        raise typer.BadParameter(f"{out} cannot be written: {reason}. Choose another file.", param_hint=option)
    with invalid_usage(option):
        check_writable(out.parent)


def check_folder(folder: Path, option: str) -> None:
    """Raise unless files can be written to a folder, which may not exist yet."""
    from ..io.files import check_writable

    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file. Choose a folder.", param_hint=option)
    with invalid_usage(option):
        check_writable(folder)


def check_table(out: Path, *inputs: Path | None) -> None:
    """Raise unless a table of scores can be written to ``out``."""
    from ..scoring.tables import check_out as check_format

    with invalid_usage("--out"):
        check_format(out)
    check_out(out, *inputs)


def check_no_images(
    transform: TransformOptions, options: ImageOptions | None = None, masks: Path | None = None
) -> None:
    """Raise if an option for images is given with texts."""
    given = transform.given
    if options is not None:
        given |= {name: getattr(options, name) for name in ("root", "image_column") if getattr(options, name)}
    if masks is not None:
        given |= {"masks": masks}
    if given:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise typer.BadParameter("it applies to images, but the model classifies texts. Remove it.", param_hint=option)


def make_detector(method: str, fit: Path | None, calibration: Path | None, fit_option: str = "--fit") -> Detector:
    """Create the unfitted detector of --method; it must score features, and have separate data to fit on."""
    from ..detectors import create, get_method, parse_method

    with invalid_usage("--method"):
        name, hyper = parse_method(method.partition("@")[0])
    entry = get_method(name)
    if "@" in method:
        problem = "requests tuning, which only `flatfold bench` supports. Remove the @ and the text after it."
    elif entry.sees != "features":
        problem = "runs the network on images instead of scoring features. Choose another method."
    elif entry.fits_on == "nothing":
        return create(name, **hyper)
    elif fit is None:
        problem = (
            "learns from ID data. Pass ID features, with labels if needed, as --fit, or choose a method that needs the "
            "head only, such as --method fold."
        )
    elif calibration is not None and calibration.resolve() == fit.resolve():
        problem = f"is fitted on {fit_option}, so --calibration must be other data."
    else:
        return create(name, **hyper)
    raise typer.BadParameter(f"{method} {problem}", param_hint="--method")
