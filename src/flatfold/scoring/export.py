"""Export a guard and its model as one graph for other runtimes, and compare the file with the guard on real inputs."""

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
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from .. import __version__
from ..io.files import replacing
from ..io.progress import track
from ..models.extract import check_loader
from ..models.forward import Batch, evaluating, split_batch
from .calibrated import Calibration, Verdict
from .guard_module import GuardModule

if TYPE_CHECKING:
    from .guard import Guard

MOST = 1024  # inputs to compare on
TRACED = 4  # inputs of the batch that is traced; with one input, torch would take the size for a constant
BATCH = "batch"  # name of the dimension that may change
SIZES = (1, 7, 64)  # of the batches to compare on
TOLERANCE = 1e-4
ROUNDING = 1e-6  # of a p-value in float32
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 18
LARGEST = 2**31 - 2**20  # bytes of weights: an ONNX file ends at 2 GiB, and the graph needs some of it
INT64 = 7  # ONNX's number for the type
FACTS = "flatfold.json"  # name of the extra file in a .pt2 file

Runtime = Callable[[Batch], Iterable[Any]]
"""Runs a batch in another runtime and returns logits, score, p-value and decision as arrays."""


class Mismatch(ValueError):  # noqa: N818 - named like UnsupportedHead, which users catch
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


def export(guard: Guard, path: Path | str, inputs: Iterable[Any]) -> Parity:
    """Write a guard and its model as one graph, ``x -> logits, score, p_value, is_ood``, for batches of any size.

    The file is only written after it has given the same answers as the guard. Inputs of the graph are called x, or as
    the model's keyword arguments. In ``.onnx`` files, metadata under ``flatfold.*`` says where the decisions come from;
    in ``.pt2`` files, the extra file ``flatfold.json``::

        extra = {"flatfold.json": ""}
        program = torch.export.load("model.pt2", extra_files=extra)
        logits, score, p_value, is_ood = program.module()(x)

    Args:
        guard: Fitted.
        path: File to write; ``.onnx`` for ONNX runtimes, ``.pt2`` for torch without this library.
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
    path = Path(path)
    check_target(path)
    for name in ONNX_PACKAGES if path.suffix == ".onnx" else ():
        try:
            import_module(name)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"ONNX files are written and checked with {name}, which is not installed. Install flatfold[onnx].",
                name=name,
            ) from error
    batch = _collect_inputs(guard, inputs)
    program = _trace(guard, batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        FORMATS[path.suffix].write(partial, guard, program, batch)
        return compare(guard, FORMATS[path.suffix].open(partial), batch)


def check_target(path: Path) -> None:
    """Raise unless the suffix of a path names a format and a file can be there; call it before long work."""
    if path.suffix not in FORMATS:
        raise ValueError(
            f"a guard is exported to a file that ends in {' or '.join(FORMATS)}, got {path.name!r}. "
            "Take .onnx for other runtimes, .pt2 for torch."
        )
    if path.is_dir():
        raise IsADirectoryError(f"a guard is exported to one file, but {path} is a folder. Choose another name.")


class _TupleModule(nn.Module):
    """Gives a plain tuple, since a file with a class of this library could not be opened without it.

    Its arguments have the names that they have in a batch: ``torch.export`` knows them by these.
    """

    def __init__(self, module: GuardModule, batch: Batch) -> None:
        super().__init__()
        self.guarded = module

        def forward(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
            return tuple(module(*args, **kwargs))

        parameters = [Parameter("x", Parameter.POSITIONAL_ONLY)] * len(batch.args)
        parameters += [Parameter(name, Parameter.KEYWORD_ONLY) for name in batch.kwargs]
        forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward


def _collect_inputs(guard: Guard, inputs: Iterable[Any]) -> Batch:
    """Return the first inputs of a loader as one batch, on the model's device and without labels."""
    check_loader(inputs)
    batches: list[Batch] = []
    rows = 0
    for raw in inputs:
        batches.append(split_batch(raw)._replace(labels=None))
        rows += batches[-1].rows
        if rows >= MOST:
            break
    if rows < 2:
        raise ValueError(f"an export is checked on real inputs, at least 2, got {rows}. Give some hundred of them.")

    def join(name: str) -> Any:
        values = [_by_name(batch)[name] for batch in batches]
        if not batches[0].one_per_input(values[0]):
            return values[0]
        shapes = sorted({tuple(value.shape[1:]) for value in values})
        if len(shapes) > 1:
            raise ValueError(
                f"an exported graph takes batches of any size, but inputs of one shape, got {shapes[0]} and "
                f"{shapes[1]} for {name}. Resize or pad them."
            )
        return torch.cat(values)

    args = (join("x"),) if batches[0].args else ()
    with evaluating(guard.model) as device:
        return Batch(args, {name: join(name) for name in batches[0].kwargs}, None, rows).part(0, MOST).to(device)


def _trace(guard: Guard, batch: Batch) -> ExportedProgram:
    """Return model and detector as one graph for batches of any size, traced on zeros: torch keeps them in the file."""
    part = batch.part(0, TRACED)
    blank = part.with_each(lambda value: torch.zeros_like(value) if part.one_per_input(value) else value)
    module = _TupleModule(guard.as_module(), blank)  # outside of the contexts below: its errors need no explanation
    with _quiet(), torch.no_grad(), _explain("the model"):
        shapes = _dynamic_shapes(blank, Dim(BATCH))
        program = torch.export.export(module, blank.args, blank.kwargs, dynamic_shapes=shapes)
    for graph in program.graph_module.modules():
        if isinstance(graph, GraphModule):
            for node in graph.graph.nodes:
                node.meta.pop("stack_trace", None)  # folders and lines of the user's code, which would be in the file
    return program


def _by_name(batch: Batch) -> dict[str, Any]:
    return {"x": batch.args[0], **batch.kwargs} if batch.args else batch.kwargs


def _dynamic_shapes(batch: Batch, size: Any) -> dict[str, Any]:
    """Return which dimensions of a batch may change: the first, of all values that come per input."""
    return {name: {0: size} if batch.one_per_input(value) else None for name, value in _by_name(batch).items()}


def _describe(guard: Guard) -> dict[str, Any]:
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


def compare(guard: Guard, runtime: Runtime, batch: Batch) -> Parity:
    """Compare a guard with another runtime in batches of 1, 7 and 64; raise Mismatch on more than rounding."""
    calibration = deepcopy(guard.calibration).cpu().double()
    sizes = tuple(sorted({min(size, batch.rows) for size in SIZES}))
    logits = score = 0.0
    undecidable = torch.zeros(batch.rows, dtype=torch.bool)
    for size in track(sizes, "comparing"):
        parts = [batch.part(start, start + size) for start in range(0, batch.rows, size)]
        expected = _join_verdicts([guard((part.args[0] if part.args else part.kwargs,)) for part in parts])
        given = _join_verdicts([runtime(part) for part in parts])
        errors, near = _compare_verdicts(expected, given, calibration, f"in batches of {size}")
        logits, score = max(logits, errors["logits"]), max(score, errors["score"])
        undecidable |= near
    return Parity(batch.rows, sizes, logits, score, int(undecidable.sum()))


def _join_verdicts(verdicts: list[Iterable[Any]]) -> Verdict:
    """Return all verdicts as one, in float64 on the CPU."""
    columns = zip(*verdicts, strict=True)
    return Verdict(*(torch.cat([torch.as_tensor(part).cpu().double() for part in column]) for column in columns))


def _compare_verdicts(
    expected: Verdict, given: Verdict, calibration: Calibration, where: str
) -> tuple[dict[str, float], Tensor]:
    """Return the worst errors, and which inputs cannot be decided; raise if something differs by more than rounding."""
    for name, ours, theirs in zip(Verdict._fields, expected, given, strict=True):
        if ours.shape != theirs.shape:
            raise Mismatch(
                f"the exported graph gives {name} of shape {tuple(theirs.shape)} {where}, not {tuple(ours.shape)}."
            )
    scores = calibration.scores[calibration.scores.isfinite()].sort().values
    spread = float(scores[3 * len(scores) // 4] - scores[len(scores) // 4])
    allowed = TOLERANCE * expected.score.abs().clamp_min(spread)
    largest = expected.logits.abs().amax(dim=1)
    predicted = expected.predicted
    top = expected.logits.topk(min(2, expected.logits.shape[1]), dim=1).values
    tied = (top[:, 0] - top[:, -1] <= 2 * TOLERANCE * largest) & calibration.per_class  # another threshold may apply
    threshold = calibration.threshold[predicted if calibration.per_class else 0]
    undecidable = tied | ((expected.score - threshold).abs() <= allowed)
    highest, lowest = (calibration(expected.score + shift, predicted)[0] for shift in (-allowed, allowed))
    inside = (given.p_value >= lowest - ROUNDING) & (given.p_value <= highest + ROUNDING)
    errors = {
        "logits": _relative((expected.logits - given.logits).abs().amax(dim=1), largest),
        "score": _relative((expected.score - given.score).abs(), allowed / TOLERANCE),
        "p_value": torch.where(inside | tied, 0.0, (expected.p_value - given.p_value).abs()),
        "is_ood": torch.where(undecidable, 0.0, (expected.is_ood - given.is_ood).abs()),
    }
    for name, tolerance in zip(errors, (TOLERANCE, TOLERANCE, 0.0, 0.0), strict=True):
        row = int(errors[name].argmax())
        if (error := float(errors[name][row])) > tolerance:
            what = "the decision is another one" if name == "is_ood" else f"it is off by {error:.1e}"
            raise Mismatch(
                f"the exported graph does not give the {name} of the guard for input {row}: {what} {where}, where "
                f"{tolerance:g} is allowed. Does the model draw random numbers, mix the inputs of a batch, or take "
                "branches that depend on their values?"
            )
    return {name: float(values.max()) for name, values in errors.items()}, undecidable


def _relative(difference: Tensor, scale: Tensor) -> Tensor:
    """Return relative errors: 0 where nothing differs, infinite where only one is a number."""
    return torch.where(difference == 0, 0.0, difference / scale).nan_to_num(nan=torch.inf)


def _write_onnx(path: Path, guard: Guard, program: ExportedProgram, batch: Batch) -> None:
    tensors = [*program.state_dict.values(), *program.constants.values()]
    size = sum(value.numel() * value.element_size() for value in tensors if isinstance(value, Tensor))
    if size > LARGEST:
        raise ValueError(
            f"one ONNX file holds at most 2 GB, but model and detector have {size / 1e9:.1f} GB. Export a .pt2 file."
        )
    with _quiet(), _explain("the graph", "Export a .pt2 file instead, which needs no translation."):
        translated = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            external_data=False,
            opset_version=OPSET,
            input_names=[name for name, value in _by_name(batch).items() if isinstance(value, Tensor)],
            output_names=list(Verdict._fields),
            dynamic_shapes=_dynamic_shapes(batch, BATCH),
            custom_translation_table={torch.ops.aten.searchsorted.Tensor: _onnx_searchsorted},
        )
        assert translated is not None
        for key, value in _describe(guard).items():
            translated.model.metadata_props[f"flatfold.{key}"] = value if isinstance(value, str) else json.dumps(value)
        translated.save(path, external_data=False)


def _onnx_searchsorted(sorted_sequence: Any, self: Any, **options: Any) -> Any:
    """Return ``searchsorted``, which ONNX does not have: the number of sorted values that are not at least a value."""
    if any(options.values()):
        raise NotImplementedError(f"searchsorted with {', '.join(key for key, on in options.items() if on)}")
    op = import_module("onnxscript").opset18
    by_row = len(sorted_sequence.shape) > 1  # a row of sorted values for each row of values
    values = self if by_row else op.Unsqueeze(self, [1])
    # "Not at least" instead of "below": a NaN has all of them before it, as in torch.
    before = op.Not(op.GreaterOrEqual(sorted_sequence, values))
    return op.ReduceSum(op.Cast(before, to=INT64), [1], keepdims=int(by_row))


def open_onnx(path: Path) -> Runtime:
    """Return an ONNX file as a runtime."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    with _explain("the graph", "onnxruntime cannot load what was exported."):
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    used = {entry.name for entry in session.get_inputs()}

    def run(batch: Batch) -> list[Any]:
        feeds = {name: value.cpu().numpy() for name, value in _by_name(batch).items() if name in used}
        answer: list[Any] = session.run(None, feeds)
        return answer

    return run


def _write_program(path: Path, guard: Guard, program: ExportedProgram, batch: Batch) -> None:
    with _quiet(), _explain("the graph"), path.open("wb") as file:
        torch.export.save(program, file, extra_files={FACTS: json.dumps(_describe(guard))})


def open_program(path: Path) -> Runtime:
    """Return a ``.pt2`` file as a runtime."""
    with _quiet(), path.open("rb") as file:
        module = torch.export.load(file).module()
    return torch.no_grad()(lambda batch: module(*batch.args, **batch.kwargs))


class Format(NamedTuple):
    """A kind of file: how a traced guard is written to it, and how it is run."""

    write: Callable[[Path, Guard, ExportedProgram, Batch], None]
    open: Callable[[Path], Runtime]


FORMATS = {".onnx": Format(_write_onnx, open_onnx), ".pt2": Format(_write_program, open_program)}


@contextmanager
def _explain(what: str, advice: str = "") -> Iterator[None]:
    """Turn any error of an exporter into a sentence with its first cause."""
    try:
        yield
    except Exception as error:  # exporters raise errors of every class, their own and Python's
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), "no reason given")
        raise ValueError(
            f"{what} cannot be exported: {type(cause).__name__}: {reason.rstrip('.')}. "
            f"{advice or 'Its graph must be the same for all inputs and every batch size.'}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence an exporter: everything important it raises."""
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # torch prints the graph of what it cannot export
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
