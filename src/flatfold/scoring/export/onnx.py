"""Guards as ONNX files, which onnxruntime and many other runtimes can run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from ...files import written
from ..verdict import Verdict
from .exporters import explained, quiet
from .facts import as_text, facts
from .graph import BATCH, gathered, names_of, shapes_of, traced
from .parity import Parity, Runtime, compare

if TYPE_CHECKING:
    from ...models.batches import Batch
    from ..guard import Guard

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
    with written(target) as partial:
        with quiet():
            translated.save(partial, external_data=False)
        return compare(guard, _runtime(partial), batch)


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


def _runtime(path: Path) -> Runtime:
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
