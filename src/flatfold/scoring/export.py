"""Guards for other runtimes: one file that holds model, detector and threshold, checked on real inputs."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, Signature
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from .. import __version__
from ..io.files import replacing
from ..io.progress import track
from ..models.batches import Batch, split_batch
from ..models.eval_mode import evaluating
from ..models.extract import check_loader
from .calibrated import Verdict
from .guard_module import GuardModule

if TYPE_CHECKING:
    from .calibrated import Calibration
    from .guard import Guard


# What exporters say: nothing while they work, one sentence when they fail.


LOUD = ("torch.onnx", "torch.export", "torch.fx", "torch._dynamo", "onnxscript", "onnx_ir")


@contextmanager
def explained(what: str, advice: str = "") -> Iterator[None]:
    """Turn any error of an exporter into a sentence with its first cause."""
    try:
        yield
    except Exception as error:  # exporters raise errors of every class, of theirs and of Python's
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), "no reason given")
        raise ValueError(
            f"{what} cannot be exported: {type(cause).__name__}: {reason.rstrip('.')}. "
            f"{advice or 'Its graph must be the same for all inputs and every batch size.'}"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep an exporter from talking: what it has to say of importance it raises."""
    loggers = [logging.getLogger(name) for name in LOUD]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # torch prints the graph of what it cannot export
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# What an exported file says about itself.


def facts(guard: Guard) -> dict[str, Any]:
    """Return where a guard's decisions come from, as plain values for JSON."""
    made_by = guard.detector.made_by or (type(guard.detector).__name__, None)
    return {
        "version": __version__,
        "detector": made_by[0],
        "hyper": made_by[1],
        "fpr": guard.fpr,
        "threshold": guard.calibration.threshold.tolist(),
        "calibration_samples": guard.calibration.samples,
        "weights_sha256": guard.weights,
        "head": guard.found.name,
        "transform": None if guard.transform is None else guard.transform.as_dict(),
    }


def as_text(value: Any) -> str:
    """Return a fact as text: words as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


# A guard as a graph of torch, from a batch of real inputs.


MOST = 1024  # inputs that are looked at: more of them would tell no more

TRACED = 4  # inputs of the batch that is traced; with one input, torch would take the size for a constant

BATCH = "batch"


class _Plain(nn.Module):
    """Gives a plain tuple: a file with a class of this library in it could not be opened without it.

    Its arguments have the names that they have in a batch: ``torch.export`` knows them by these.
    """

    def __init__(self, guarded: GuardModule, batch: Batch) -> None:
        super().__init__()
        self.guarded = guarded

        def forward(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
            return tuple(guarded(*args, **kwargs))

        parameters = [Parameter("x", Parameter.POSITIONAL_ONLY)] * len(batch.args)
        parameters += [Parameter(name, Parameter.KEYWORD_ONLY) for name in batch.kwargs]
        forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward


def gathered(guard: Guard, inputs: Iterable[Any]) -> Batch:
    """Return the first inputs of a loader as one batch, where the model lies; labels are left out."""
    check_loader(inputs)
    batches: list[Batch] = []
    for batch in inputs:
        batches.append(split_batch(batch)._replace(labels=None))
        if sum(each.rows for each in batches) >= MOST:
            break
    rows = sum(each.rows for each in batches)
    if rows < 2:
        raise ValueError(f"an export is checked on real inputs, at least 2, got {rows}. Give some hundred of them.")
    args = tuple(_joined("x", batches, [each.args[i] for each in batches]) for i in range(len(batches[0].args)))
    kwargs = {name: _joined(name, batches, [each.kwargs[name] for each in batches]) for name in batches[0].kwargs}
    with evaluating(guard.model) as device:
        return Batch(args, kwargs, None, rows).part(0, MOST).to(device)


def _joined(name: str, batches: list[Batch], values: list[Any]) -> Any:
    if not batches[0].one_per_input(values[0]):
        return values[0]
    shapes = {tuple(value.shape[1:]) for value in values}
    if len(shapes) > 1:
        one, two, *_ = sorted(shapes)
        raise ValueError(
            f"an exported graph takes batches of any size, but inputs of one shape, got {one} and {two} for {name}. "
            "Resize or pad them."
        )
    return torch.cat(values)


def names_of(batch: Batch) -> list[str]:
    """Return what the tensors of a batch are called in an exported graph: x, or as the model calls them."""
    return ["x"] * len(batch.args) + [name for name, value in batch.kwargs.items() if isinstance(value, Tensor)]


def shapes_of(batch: Batch, size: Any) -> dict[str, Any]:
    """Return which dimensions of a batch may change, for ``torch.export``: the first, of all that comes per input."""

    def shape(value: Any) -> dict[int, Any] | None:
        return {0: size} if batch.one_per_input(value) else None

    named = [("x", value) for value in batch.args] + list(batch.kwargs.items())
    return {name: shape(value) for name, value in named}


def _blank(batch: Batch) -> Batch:
    """Return a batch of zeros: torch keeps what it traced in the file, and nobody's images belong there."""

    def blank(value: Any) -> Any:
        return torch.zeros_like(value) if batch.one_per_input(value) else value

    kwargs = {name: blank(value) for name, value in batch.kwargs.items()}
    return batch._replace(args=tuple(map(blank, batch.args)), kwargs=kwargs)


def traced(guard: Guard, batch: Batch) -> ExportedProgram:
    """Return model and calibrated as one graph for batches of any size."""
    some = _blank(batch.part(0, TRACED))
    module = _Plain(guard.as_module(), some)  # whose refusals are sentences already
    with quiet(), torch.no_grad(), explained("the model"):
        program = torch.export.export(module, some.args, some.kwargs, dynamic_shapes=shapes_of(some, Dim(BATCH)))
    _forget_sources(program)
    return program


def _forget_sources(program: ExportedProgram) -> None:
    """Drop where each node comes from: folders and lines of the user's code, which torch would write to the file."""
    for part in program.graph_module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)


# Whether an exported graph gives the answers of its guard, on real inputs and in batches of several sizes.


TOLERANCE = 1e-4

ROUNDING = 1e-6  # of a p-value in float32

SIZES = (1, 7, 64)


Runtime = Callable[[Batch], Iterable[Any]]

"""Runs a batch in another runtime and returns logits, score, p-value and decision as arrays."""


class Mismatch(ValueError):  # noqa: N818 - as those in core/errors.py
    """An exported graph does not give the answers of its guard."""


@dataclass(frozen=True)
class Parity:
    """How well an exported graph agrees with its guard.

    Attributes:
        inputs: How many real inputs were compared.
        batch_sizes: In batches of how many.
        logits: The worst error of a logit, relative to the largest of its input.
        score: The worst error of a score, relative to it or to the spread of the calibration scores.
        undecidable: Inputs whose score is nearer to the threshold than the tolerance, so that either decision is right.
    """

    inputs: int
    batch_sizes: tuple[int, ...]
    logits: float
    score: float
    undecidable: int

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        near = f", {self.undecidable} too near to the threshold to tell" if self.undecidable else ""
        return (
            f"{self.inputs} inputs in batches of {sizes}: logits within {self.logits:.1e}, scores within "
            f"{self.score:.1e}, same decisions{near}"
        )


def compare(guard: Guard, runtime: Runtime, batch: Batch) -> Parity:
    """Run all inputs of a batch through a guard and another runtime, in batches of 1, 7 and 64, and compare.

    Raises:
        Mismatch: They differ by more than rounding; the message names the output, the input and the error.
    """
    calibration = deepcopy(guard.calibration).cpu().double()
    sizes = tuple(sorted({min(size, batch.rows) for size in SIZES}))
    worst = {"logits": 0.0, "score": 0.0}
    unsure = torch.zeros(batch.rows, dtype=torch.bool)
    for size in track(sizes, "comparing"):
        parts = [batch.part(start, start + size) for start in range(0, batch.rows, size)]
        ours = _joined_answers([guard((part.args[0] if part.args else part.kwargs,)) for part in parts])
        theirs = _joined_answers([runtime(part) for part in parts])
        errors, near = _differences(ours, theirs, calibration, f"in batches of {size}")
        worst = {name: max(worst[name], error) for name, error in errors.items()}
        unsure |= near
    return Parity(batch.rows, sizes, worst["logits"], worst["score"], int(unsure.sum()))


def _joined_answers(verdicts: list[Iterable[Any]]) -> Verdict:
    """Return all verdicts as one, in float64 on the CPU."""
    columns = zip(*verdicts, strict=True)
    return Verdict(*(torch.cat([torch.as_tensor(part).cpu().double() for part in column]) for column in columns))


def _differences(
    ours: Verdict, theirs: Verdict, calibration: Calibration, where: str
) -> tuple[dict[str, float], Tensor]:
    """Return the worst errors, and which inputs cannot be decided; raise if something differs by more than rounding."""
    for name, one, other in zip(Verdict._fields, ours, theirs, strict=True):
        if one.shape != other.shape:
            raise Mismatch(
                f"the exported graph gives {name} of shape {tuple(other.shape)} {where}, not {tuple(one.shape)}."
            )
    largest = ours.logits.abs().amax(dim=1)
    allowed = TOLERANCE * ours.score.abs().clamp_min(_spread(calibration))
    predicted, tied = _predicted(ours.logits, calibration)
    threshold = calibration.threshold[predicted if calibration.per_class else 0]
    unsure = tied | ((ours.score - threshold).abs() <= allowed)
    highest, lowest = (calibration(ours.score + shift, predicted)[0] for shift in (-allowed, allowed))
    inside = (theirs.p_value >= lowest - ROUNDING) & (theirs.p_value <= highest + ROUNDING)
    off = {
        "logits": _error((ours.logits - theirs.logits).abs().amax(dim=1), largest),
        "score": _error((ours.score - theirs.score).abs(), allowed / TOLERANCE),
        "p_value": torch.where(inside | tied, 0.0, (ours.p_value - theirs.p_value).abs()),
        "is_ood": torch.where(unsure, 0.0, (ours.is_ood - theirs.is_ood).abs()),
    }
    for name, allowance in zip(off, (TOLERANCE, TOLERANCE, 0.0, 0.0), strict=True):
        _check(name, off[name], allowance, where)
    return {name: float(off[name].max()) for name in ("logits", "score")}, unsure


def _check(name: str, errors: Tensor, allowed: float, where: str) -> None:
    row = int(errors.argmax())
    if errors[row] > allowed:
        what = "the decision is another one" if name == "is_ood" else f"it is off by {float(errors[row]):.1e}"
        raise Mismatch(
            f"the exported graph does not give the {name} of the guard for input {row}: {what} {where}, where "
            f"{allowed:g} is allowed. Does the model draw random numbers, mix the inputs of a batch, or take ways that "
            "depend on their values?"
        )


def _error(difference: Tensor, scale: Tensor) -> Tensor:
    """Return relative errors: none where nothing differs, infinite ones where only one is a number."""
    return torch.where(difference == 0, 0.0, difference / scale).nan_to_num(nan=torch.inf)


def _spread(calibration: Calibration) -> float:
    scores = calibration.scores[calibration.scores.isfinite()].sort().values
    return float(scores[(3 * len(scores)) // 4] - scores[len(scores) // 4])


def _predicted(logits: Tensor, calibration: Calibration) -> tuple[Tensor, Tensor]:
    """Return the likeliest class, and where a second one is so close that another threshold may be taken."""
    top = logits.topk(min(2, logits.shape[1]), dim=1).values
    close = top[:, 0] - top[:, -1] <= 2 * TOLERANCE * logits.abs().amax(dim=1)
    return logits.argmax(dim=1), close & calibration.per_class


# Guards as ONNX files, which onnxruntime and many other runtimes can run.


NEEDED = ("onnx", "onnxscript", "onnxruntime")

OPSET = 18

LARGEST = 2**31 - 2**20  # bytes of weights: an ONNX file ends at 2 GiB, and the graph needs some of it

INT64 = 7  # ONNX's number for the type

ERRORS_ONLY = 3


def export_onnx(guard: Guard, path: Path | str, inputs: Iterable[Any]) -> Parity:
    """Write a guard as one ONNX file; see :func:`flatfold.scoring.export.export`.

    Inputs are called x, or as the model's keyword arguments, outputs logits, score, p_value and is_ood, and their first
    dimension batch. The file's metadata says where its decisions come from, each fact under ``flatfold.`` and its name.
    """
    _check_installed()
    batch = gathered(guard, inputs)
    program = traced(guard, batch)
    _check_size(program)
    translated = _translated(guard, program, batch)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as partial:
        with quiet():
            translated.save(partial, external_data=False)
        return compare(guard, _onnx_runtime(partial), batch)


def _translated(guard: Guard, program: ExportedProgram, batch: Batch) -> Any:
    """Return a graph in ONNX's operators, with names and facts."""
    with quiet(), explained("the graph", "Export a .pt2 file instead, which needs no translation."):
        translated = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            external_data=False,
            opset_version=OPSET,
            input_names=names_of(batch),
            output_names=list(Verdict._fields),
            dynamic_shapes=shapes_of(batch, BATCH),
            custom_translation_table={torch.ops.aten.searchsorted.Tensor: _search()},
        )
        assert translated is not None
    translated.model.metadata_props.update({f"flatfold.{key}": as_text(value) for key, value in facts(guard).items()})
    return translated


def _search() -> Callable[..., Any]:
    """Return ``searchsorted``, which ONNX does not have: the number of sorted values that are not at least a value."""
    op = import_module("onnxscript").opset18

    def search(sorted_sequence: Any, self: Any, **options: Any) -> Any:
        if any(options.values()):
            raise NotImplementedError(f"searchsorted with {', '.join(key for key, on in options.items() if on)}")
        each = len(sorted_sequence.shape) > 1  # a row of sorted values for each row of values
        values = self if each else op.Unsqueeze(self, [1])
        # "Not at least" instead of "below": a NaN has all of them before it, as in torch.
        before = op.Not(op.GreaterOrEqual(sorted_sequence, values))
        return op.ReduceSum(op.Cast(before, to=INT64), [1], keepdims=int(each))

    return search


def _onnx_runtime(path: Path) -> Runtime:
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    with explained("the graph", "onnxruntime cannot load what was exported."):
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    used = {entry.name for entry in session.get_inputs()}

    def run(batch: Batch) -> list[Any]:
        tensors = [value for value in (*batch.args, *batch.kwargs.values()) if isinstance(value, Tensor)]
        feeds = {name: value.cpu().numpy() for name, value in zip(names_of(batch), tensors, strict=True)}
        answer: list[Any] = session.run(None, {name: value for name, value in feeds.items() if name in used})
        return answer

    return run


def _check_installed() -> None:
    for name in NEEDED:
        try:
            import_module(name)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"ONNX files are written and checked with {name}, which is not installed. Install flatfold[onnx].",
                name=name,
            ) from error


def _check_size(program: ExportedProgram) -> None:
    tensors = [*program.state_dict.values(), *program.constants.values()]
    size = sum(value.numel() * value.element_size() for value in tensors if isinstance(value, Tensor))
    if size > LARGEST:
        raise ValueError(
            f"one ONNX file holds at most 2 GB, but model and detector have {size / 1e9:.1f} GB. Export a .pt2 file."
        )


# Guards as ``.pt2`` files, which torch alone can run: ``torch.export.load(path).module()(x)``.


FACTS = "flatfold.json"  # name of the extra file inside


def export_program(guard: Guard, path: Path | str, inputs: Iterable[Any]) -> Parity:
    """Write a guard as a program of ``torch.export``; see :func:`flatfold.scoring.export.export`.

    Its extra file ``flatfold.json`` says where its decisions come from::

        extra = {"flatfold.json": ""}
        program = torch.export.load("model.pt2", extra_files=extra)
        logits, score, p_value, is_ood = program.module()(x)
    """
    batch = gathered(guard, inputs)
    program = traced(guard, batch)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as partial:
        with quiet(), explained("the graph"), partial.open("wb") as file:
            torch.export.save(program, file, extra_files={FACTS: json.dumps(facts(guard))})
        return compare(guard, _program_runtime(partial), batch)


def _program_runtime(path: Path) -> Runtime:
    with quiet(), path.open("rb") as file:
        module = torch.export.load(file).module()

    @torch.no_grad()
    def run(batch: Batch) -> tuple[Any, ...]:
        answer: tuple[Any, ...] = module(*batch.args, **batch.kwargs)
        return answer

    return run


__all__ = ["FORMATS", "Mismatch", "Parity", "check_target", "export", "export_onnx", "export_program"]


FORMATS: dict[str, Callable[[Guard, Path, Iterable[Any]], Parity]] = {".onnx": export_onnx, ".pt2": export_program}


def export(guard: Guard, path: Path | str, inputs: Iterable[Any]) -> Parity:
    """Write a guard and its model as one graph, ``x -> logits, score, p_value, is_ood``, for batches of any size.

    The file is only written after it has given the same answers as the guard.

    Args:
        guard: Fitted.
        path: Where to; ``.onnx`` for ONNX runtimes, ``.pt2`` for torch without this library.
        inputs: Batches of real inputs of one shape, like a loader, prepared as for the model; some hundred are plenty.

    Returns:
        How well the file agrees with the guard.

    Raises:
        Mismatch: The file would not give the guard's answers; nothing is written.
        ValueError: The suffix is another one, or the model cannot be exported, or has changed since the guard was
            fitted.
        IsADirectoryError: There is a folder at ``path``.
        ModuleNotFoundError: What ``.onnx`` needs is not installed.
    """
    check_target(Path(path))
    return FORMATS[Path(path).suffix](guard, Path(path), inputs)


def check_target(path: Path) -> None:
    """Raise unless the suffix of a path names a format, and a file can be there: to be asked before long work."""
    if path.suffix not in FORMATS:
        raise ValueError(
            f"a guard is exported to a file that ends in {' or '.join(FORMATS)}, got {path.name!r}. "
            "Take .onnx for other runtimes, .pt2 for torch."
        )
    if path.is_dir():
        raise IsADirectoryError(f"a guard is exported to one file, but {path} is a folder. Choose another name.")
