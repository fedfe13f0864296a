"""Export a guard and its model as one graph for other runtimes, and compare the file with the guard on real inputs.

Model servers need the graph in a folder with a description of its inputs and outputs: a Triton model
repository, or an MLflow model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from .. import __version__
from ..data.batch import Batch, split_batch
from ..errors import MismatchError
from ..io.files import publishing, replacing
from ..io.progress import track
from ..network.calls import evaluating
from ..network.graph import (
    BATCH,
    by_name,
    check_onnx_packages,
    explain_export_errors,
    open_onnx,
    quiet,
    trace,
    write_onnx,
)
from ..network.heads import DensePass, Pass
from .calibrated import ROUNDING, Calibration, Verdict, spread_of
from .dense import DenseGuard, DenseOutputs, decide, decide_on_grid
from .positions import at_size

if TYPE_CHECKING:
    from .guard import Guard

MOST = 1024  # inputs to compare on
MOST_MAPS = 8  # of models with logits at every position
SIZES = (1, 7, 64)  # batch sizes to compare on
TOLERANCE = ROUNDING
P_VALUE_ROUNDING = 1e-6  # of a p-value in float32
FACTS = "flatfold.json"  # name of the extra file in a .pt2 file
GRAPH = "model.onnx"  # file name that Triton and MLflow expect
CONFIG = "config.pbtxt"
TYPES = {  # names of onnxruntime, numpy and Triton
    "bool": ("bool", "TYPE_BOOL"),
    "float": ("float32", "TYPE_FP32"),
    "float16": ("float16", "TYPE_FP16"),
    "double": ("float64", "TYPE_FP64"),
    **{
        f"{sign}int{bits}": (f"{sign}int{bits}", f"TYPE_{sign}INT{bits}".upper())
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}

Layout = Literal["triton", "mlflow"]
ExportedGraph = Callable[[Batch], Iterable[Any]]
"""Runs a batch in another runtime and returns logits, score, p-value and decision as arrays."""


@dataclass(frozen=True)
class Parity:
    """Agreement of an exported graph with its guard.

    Attributes:
        inputs: Number of real inputs compared.
        batch_sizes: Batch sizes compared.
        logits: Largest error of a logit, relative to the largest logit of its input.
        score: Largest error of a score, relative to the score or to the spread of the calibration scores.
        undecidable: Inputs whose score is within the tolerance of the threshold, so that either decision is right.
    """

    inputs: int
    batch_sizes: tuple[int, ...]
    logits: float
    score: float
    undecidable: int

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        near = f", {self.undecidable} too close to the threshold to compare" if self.undecidable else ""
        return (
            f"{self.inputs} inputs in batches of {sizes}: logits within {self.logits:.1e}, scores within "
            f"{self.score:.1e}, same decisions{near}"
        )


def export(guard: Guard, path: Path | str, inputs: Any, *, layout: Layout | None = None, name: str = "guard") -> Parity:
    """Write a guard and its model as one graph, ``x -> logits, score, p_value, is_ood``, for batches of any size.

    The file is only written if its outputs match those of the guard. Inputs of the graph are named x, or like
    the model's keyword arguments. The detector, its threshold and calibration are described in the metadata
    ``flatfold.*`` of ``.onnx`` files, and in the extra file ``flatfold.json`` of ``.pt2`` files::

        extra = {"flatfold.json": ""}
        program = torch.export.load("model.pt2", extra_files=extra)
        logits, score, p_value, is_ood = program.module()(x)

    The graph of a guard for every position is for images of one size and also returns image_score, image_p_value and
    image_is_ood (:class:`~flatfold.scoring.dense.DenseOutputs`).

    With ``layout="triton"``, ``path`` is a model repository of the Triton Inference Server; the ONNX graph is written
    to ``NAME/1/model.onnx``, with a ``NAME/config.pbtxt``. An existing model gets the next version and keeps its
    configuration, which must name the same inputs and outputs. With ``layout="mlflow"``, ``path`` becomes the folder of
    an MLflow model with the ONNX graph: ``mlflow.pyfunc.load_model(path).predict(x)``. Both are created atomically.

    Args:
        guard: A fitted guard.
        path: File to write; ``.onnx`` for ONNX runtimes, ``.pt2`` for torch without this library. With a layout, a
            folder.
        inputs: Real inputs of one shape, any data that ``Guard.fit`` accepts; a few hundred are enough.
        layout: ``"triton"`` or ``"mlflow"``; None for a file.
        name: Name of the model in a Triton repository.

    Returns:
        The agreement of the file with the guard.

    Raises:
        MismatchError: The outputs do not match those of the guard; nothing is written.
        ValueError: The suffix is not supported, the model cannot be exported or has changed since the guard was
            fitted, or a model of this name has other inputs or outputs.
        OSError: ``path`` is a folder instead of a file or vice versa, or already holds an MLflow model.
        ModuleNotFoundError: A package needed for ``.onnx`` or MLflow is not installed.
    """
    target = find_target(Path(path), layout, name)
    file = FORMATS[target.suffix]
    batch = _collect_inputs(guard, inputs, MOST if not guard.network.dense else MOST_MAPS)
    program = trace(guard.as_module(), batch)
    with LAYOUTS[layout](Path(path), target) as partial:
        file.write(partial, guard, program, batch)
        return compare(guard, file.open(partial), batch)


def find_target(path: Path, layout: Layout | None = None, name: str = "guard") -> Path:
    """Return the file to write a graph to; raise early if it cannot be written."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be 'triton', 'mlflow' or None, got {layout!r}.")
    if layout is None and path.suffix not in FORMATS:
        raise ValueError(
            f"the exported file must end in {' or '.join(FORMATS)}, got {path.name!r}. "
            "Use .onnx for other runtimes, .pt2 for torch."
        )
    if layout is None and path.is_dir():
        raise IsADirectoryError(f"the exported guard is one file, but {path} is a folder. Choose another name.")
    if layout == "triton" and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ValueError(
            f"the name of a Triton model, which is used in folders and URLs, must consist of letters, digits, '_', '-' "
            f"and '.', got {name!r}. Choose another name."
        )
    if layout is not None:
        for place in (path, path / name) if layout == "triton" else (path,):
            if place.exists() and not place.is_dir():
                raise NotADirectoryError(f"{place} must be a folder, but is a file. Choose another name.")
    if layout == "mlflow":
        if path.is_dir() and any(path.iterdir()):
            raise FileExistsError(f"an MLflow model needs a new folder, but {path} is not empty. Choose another name.")
        try:
            import_module("mlflow.onnx")
        except ImportError as error:
            raise ModuleNotFoundError(
                f"MLflow models need {error.name}, which is not installed. Install flatfold[mlflow].",
                name=error.name,
            ) from error
    if layout is not None or path.suffix == ".onnx":
        check_onnx_packages()
    if layout == "triton":
        versions = [int(place.name) for place in (path / name).glob("*") if re.fullmatch("[1-9][0-9]*", place.name)]
        return path / name / str(max(versions, default=0) + 1) / GRAPH
    return path if layout is None else path / GRAPH


def _collect_inputs(guard: Guard, inputs: Any, most: int) -> Batch:
    """Join the first inputs of the data into one batch, on the model's device and without labels."""
    batches: list[Batch] = []
    rows = 0
    for raw in guard.batches(inputs):
        batches.append(split_batch(raw)._replace(labels=None))
        rows += batches[-1].rows
        if rows >= most:
            break
    if rows < 2:
        raise ValueError(f"validating an export needs at least 2 real inputs, got {rows}. Pass a few hundred.")

    def join(name: str) -> Any:
        values = [by_name(batch)[name] for batch in batches]
        if not batches[0].one_per_input(values[0]):
            return values[0]
        shapes = sorted({tuple(value.shape[1:]) for value in values})
        if len(shapes) > 1:
            raise ValueError(
                f"inputs of an exported graph must have one shape apart from the batch axis, got {shapes[0]} and "
                f"{shapes[1]} for {name}. Resize or pad them."
            )
        return torch.cat(values)

    args = (join("x"),) if batches[0].args else ()
    with evaluating(guard.model) as device:
        return Batch(args, {name: join(name) for name in batches[0].kwargs}, None, rows).part(0, most).to(device)


def _describe(guard: Guard) -> dict[str, Any]:
    """Describe a guard as plain values for JSON."""
    made_by = guard.detector.made_by or (type(guard.detector).__name__, None)
    return {
        "version": __version__,
        "detector": made_by[0],
        "hyper": made_by[1],
        "fpr": guard.fpr,
        "confidence": guard.calibration.confidence,
        "threshold": guard.calibration.threshold.tolist(),
        "calibration_samples": guard.calibration.samples,
        "weights_sha256": guard.network.weights,
        "head": guard.network.found.name,
        "transform": None if guard.transform is None else guard.transform.as_dict(),
        **({"image_threshold": guard.images.calibration.threshold.tolist()} if isinstance(guard, DenseGuard) else {}),
    }


def compare(guard: Guard, runtime: ExportedGraph, batch: Batch) -> Parity:
    """Compare a guard with another runtime in batches of 1, 7 and 64; raise MismatchError beyond rounding errors."""
    calibration = deepcopy(guard.calibration).cpu().double()
    sizes = tuple(sorted({min(size, batch.rows) for size in SIZES}))
    logits = score = 0.0
    undecidable = torch.zeros(batch.rows, dtype=torch.bool)
    for size in track(sizes, "comparing"):
        parts = [batch.part(start, start + size) for start in range(0, batch.rows, size)]
        where = f"in batches of {size}"
        given = _join([runtime(part) for part in parts])
        if isinstance(guard, DenseGuard):
            errors, near = _compare_maps(guard, [guard.network.run(part) for part in parts], given, calibration, where)
        else:
            expected = Verdict(*_join([guard((part.args[0] if part.args else part.kwargs,)) for part in parts]))
            errors, near = _compare_verdicts(expected, Verdict(*given), calibration, where)
        logits, score = max(logits, errors["logits"]), max(score, errors["score"])
        undecidable |= near
    return Parity(batch.rows, sizes, logits, score, int(undecidable.sum()))


def _join(outputs: list[Iterable[Any]]) -> list[Tensor]:
    """Concatenate the outputs of several batches, in float64 on the CPU."""
    columns = zip(*outputs, strict=True)
    return [torch.cat([torch.as_tensor(part).cpu().double() for part in column]) for column in columns]


@torch.no_grad()
def _compare_maps(
    guard: DenseGuard, results: list[Pass], given: list[Tensor], calibration: Calibration, where: str
) -> tuple[dict[str, float], Tensor]:
    """Return the largest errors of maps and of images, and a mask of images with something undecidable."""
    passes = [result for result in results if isinstance(result, DensePass)]
    expected = _join([decide(result, guard.calibrated, guard.images) for result in passes])
    for name, ours, theirs in zip(DenseOutputs._fields, expected, given, strict=True):
        _check_shape(name, ours, theirs, where)
    # Decisions are those of the nearest position, scores are interpolated.
    (nearest,) = _join([[at_size(decide_on_grid(result, guard.calibrated)[0], result.size)] for result in passes])
    channels = 1 if not passes[0].channels_last else -1
    padding = torch.ones_like(nearest, dtype=torch.bool)
    if passes[0].counted is not None:
        padding = torch.cat([each.counted.cpu() for each in passes if each.counted is not None])

    def rows(values: list[Tensor]) -> Verdict:
        logits, *maps = values[:4]
        return Verdict(*(each[padding] for each in (logits.movedim(channels, -1), *maps)))

    errors, near = _compare_verdicts(rows(expected), rows(given), calibration, where, nearest[padding])
    numbers, others = (Verdict(torch.zeros(len(nearest), 2), *values[4:]) for values in (expected, given))
    of_images, unclear = _compare_verdicts(numbers, others, deepcopy(guard.images.calibration).cpu().double(), where)
    at = padding.clone()
    at[padding] = near
    errors["score"] = max(errors["score"], of_images["score"])
    return errors, unclear | at.flatten(1).any(dim=1)


def _compare_verdicts(
    expected: Verdict, given: Verdict, calibration: Calibration, where: str, decided: Tensor | None = None
) -> tuple[dict[str, float], Tensor]:
    """Return the largest errors and a mask of undecidable inputs; raise MismatchError beyond rounding errors.

    ``decided`` are the scores that p-values and decisions are about, if they are others.
    """
    for name, ours, theirs in zip(Verdict._fields, expected, given, strict=True):
        _check_shape(name, ours, theirs, where)
    decided = expected.score if decided is None else decided
    allowed = TOLERANCE * torch.maximum(expected.score.abs(), decided.abs()).clamp_min(spread_of(calibration.scores))
    largest = expected.logits.abs().amax(dim=1)
    predicted = expected.predicted
    top = expected.logits.topk(min(2, expected.logits.shape[1]), dim=1).values
    tied = (top[:, 0] - top[:, -1] <= 2 * TOLERANCE * largest) & calibration.per_class  # another threshold may apply
    threshold = calibration.threshold[predicted if calibration.per_class else 0]
    undecidable = tied | ((decided - threshold).abs() <= allowed)
    highest, lowest = (calibration(decided + shift, predicted)[0] for shift in (-allowed, allowed))
    inside = (given.p_value >= lowest - P_VALUE_ROUNDING) & (given.p_value <= highest + P_VALUE_ROUNDING)
    errors = {
        "logits": _relative((expected.logits - given.logits).abs().amax(dim=1), largest),
        "score": _relative((expected.score - given.score).abs(), allowed / TOLERANCE),
        "p_value": torch.where(inside | tied, 0.0, (expected.p_value - given.p_value).abs()),
        "is_ood": torch.where(undecidable, 0.0, (expected.is_ood - given.is_ood).abs()),
    }
    for name, tolerance in zip(errors, (TOLERANCE, TOLERANCE, 0.0, 0.0), strict=True):
        row = int(errors[name].argmax())
        if (error := float(errors[name][row])) > tolerance:
            what = "the decision differs" if name == "is_ood" else f"the error is {error:.1e}"
            raise MismatchError(
                f"the exported graph does not reproduce the {name} of the guard for input {row}: {what} {where}, where "
                f"{tolerance:g} is allowed. Is the model random, does it mix the inputs of a batch, or branch on their "
                "values?"
            )
    return {name: float(values.max()) for name, values in errors.items()}, undecidable


def _check_shape(name: str, ours: Tensor, theirs: Tensor, where: str) -> None:
    if ours.shape != theirs.shape:
        raise MismatchError(
            f"the exported graph returns {name} of shape {tuple(theirs.shape)} {where}, not {tuple(ours.shape)}."
        )


def _relative(difference: Tensor, scale: Tensor) -> Tensor:
    """Return relative errors: 0 where values are equal, infinite where only one is NaN."""
    return torch.where(difference == 0, 0.0, difference / scale).nan_to_num(nan=torch.inf)


def _write_onnx(path: Path, guard: Guard, program: ExportedProgram, batch: Batch) -> None:
    facts = {
        f"flatfold.{key}": value if isinstance(value, str) else json.dumps(value)
        for key, value in _describe(guard).items()
    }
    outputs = DenseOutputs._fields if guard.network.dense else Verdict._fields
    write_onnx(path, program, batch, outputs, facts)


def _write_program(path: Path, guard: Guard, program: ExportedProgram, batch: Batch) -> None:
    with quiet(), explain_export_errors("the graph"), path.open("wb") as file:
        torch.export.save(program, file, extra_files={FACTS: json.dumps(_describe(guard))})


def open_program(path: Path) -> ExportedGraph:
    """Load a ``.pt2`` file as a runtime."""
    with quiet(), path.open("rb") as file:
        module = torch.export.load(file).module()
    return torch.no_grad()(lambda batch: module(*batch.args, **batch.kwargs))


class Format(NamedTuple):
    """File format: how to write a traced guard and how to open it as a runtime."""

    write: Callable[[Path, Guard, ExportedProgram, Batch], None]
    open: Callable[[Path], ExportedGraph]


FORMATS = {".onnx": Format(_write_onnx, open_onnx), ".pt2": Format(_write_program, open_program)}


@contextmanager
def _single_file(path: Path, target: Path) -> Iterator[Path]:
    """Yield the temporary path of a graph that becomes the file ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as partial:
        yield partial


@contextmanager
def _triton_version(repository: Path, target: Path) -> Iterator[Path]:
    """Yield the path for the graph of a new version; then write the model's configuration, or check an existing one."""
    version, model = target.parent, target.parent.parent
    new = not model.is_dir() or not any(model.iterdir())
    with publishing(model if new else version, repository) as folder:
        partial = (folder / version.name if new else folder) / target.name
        partial.parent.mkdir(exist_ok=True)
        yield partial
        tensors = _describe_tensors(partial)
        signature = "\n".join(_triton_signature(tensors))
        if new:
            batching = _has_batches(tensors)
            head = f'name: "{model.name}"\nbackend: "onnxruntime"\nmax_batch_size: {SIZES[-1] if batching else 0}\n'
            text = head + signature + ("\ndynamic_batching { }\n" if batching else "\n")
            (folder / CONFIG).write_text(text, encoding="utf-8")
        elif not _says(model / CONFIG, signature):
            raise ValueError(
                f"all versions of a Triton model share its {CONFIG}, but {model / CONFIG} declares other inputs or "
                "outputs than this guard. Choose another name."
            )


def _says(config: Path, signature: str) -> bool:
    """Return whether a configuration, which users may have edited, contains a signature, ignoring white space."""
    return config.is_file() and "".join(signature.split()) in "".join(config.read_text(encoding="utf-8").split())


class _Tensor(NamedTuple):
    """An input or output of a graph; -1 in its shape means any size."""

    role: str
    name: str
    type: str
    shape: tuple[int, ...]
    per_input: bool


def _describe_tensors(graph: Path) -> list[_Tensor]:
    """Return the inputs and outputs of an ONNX graph, as reported by onnxruntime."""
    session = import_module("onnxruntime").InferenceSession(graph, providers=["CPUExecutionProvider"])
    return [
        _Tensor(
            role,
            entry.name,
            entry.type.removeprefix("tensor(").removesuffix(")"),
            tuple(size if isinstance(size, int) else -1 for size in entry.shape),
            entry.shape[:1] == [BATCH],
        )
        for role, entries in (("input", session.get_inputs()), ("output", session.get_outputs()))
        for entry in entries
    ]


def _has_batches(tensors: list[_Tensor]) -> bool:
    """Return whether Triton may batch requests: all inputs and outputs have the batch axis first."""
    return all(tensor.per_input for tensor in tensors)


def _triton_signature(tensors: list[_Tensor]) -> Iterator[str]:
    """Yield inputs and outputs in the syntax of ``config.pbtxt``, without the batch axis, which Triton adds."""
    for tensor in tensors:
        dims = tensor.shape[1:] if _has_batches(tensors) else tensor.shape
        yield f"{tensor.role} {{"
        yield f'  name: "{tensor.name}"'
        yield f"  data_type: {TYPES[tensor.type][1]}"
        yield f"  dims: [ {', '.join(map(str, dims or (1,)))} ]"
        if not dims:  # Triton does not allow empty shapes
            yield "  reshape { shape: [ ] }"
        yield "}"


@contextmanager
def _mlflow_folder(folder: Path, target: Path) -> Iterator[Path]:
    """Yield the path for a graph; then let MLflow's ONNX flavour add its files, without code or pickle."""
    onnx, flavour, models, types = map(import_module, ("onnx", "mlflow.onnx", "mlflow.models", "mlflow.types"))
    with publishing(folder, folder) as partial:
        graph = partial / target.name
        yield graph
        schemas = {
            f"{role}s": types.Schema(
                [
                    types.TensorSpec(np.dtype(TYPES[tensor.type][0]), tensor.shape, tensor.name)
                    for tensor in _describe_tensors(graph)
                    if tensor.role == role
                ]
            )
            for role in ("input", "output")
        }
        content = graph.read_bytes()
        graph.unlink()  # MLflow needs an empty folder
        with quiet():
            flavour.save_model(
                onnx.load_model_from_string(content),
                partial,
                signature=models.ModelSignature(**schemas),
                pip_requirements=flavour.get_default_pip_requirements(),  # else MLflow infers them by running the graph
                onnx_execution_providers=["CPUExecutionProvider"],  # the one it was validated on
                save_as_external_data=False,
            )
        graph.write_bytes(content)  # the validated graph, byte for byte


LAYOUTS: dict[Layout | None, Callable[[Path, Path], AbstractContextManager[Path]]] = {
    None: _single_file,
    "triton": _triton_version,
    "mlflow": _mlflow_folder,
}
