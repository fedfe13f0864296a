"""Convert a network to one graph: a module that also returns features, traced for compilers and written as ONNX."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..core.bank import as_two_classes
from ..data.batch import Batch
from ..errors import UnsupportedHeadError, cause
from .calls import COMPILED, call_of, evaluating, first_argument, outputs_of, spatial_axes
from .dense import Dense
from .heads import MASK, DensePass, FoundHead, Pass, module_named
from .relations import Record

if TYPE_CHECKING:
    from torch.export import ExportedProgram

M = TypeVar("M", bound=nn.Module)

TRACED = 4  # inputs of the traced batch; with one input, torch would treat the size as a constant
BATCH = "batch"  # name of the dynamic batch axis
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 18
LARGEST = 2**31 - 2**20  # bytes of weights: an ONNX file holds at most 2 GiB, including the graph
LARGEST_BATCH = 2**31  # inputs in a batch of a graph
INT64 = 7  # ONNX's code for the type

OnnxSession = Callable[[Batch], list[np.ndarray[Any, Any]]]
"""Runs a batch and returns the outputs of a graph."""


class HeadModule(nn.Module):
    """``x -> (features, logits)`` of a model in plain torch, without a search for the head or branches on values.

    The model is a copy that shares the memory of the original: neither the hooks on its layers nor ``.to()`` affect the
    original. It is always in evaluation mode, and its weights need no gradient, so that serving builds no graph.
    If the head is called several times for a batch, the call whose output the model returns is used; for a layer that
    the user named, and whose output is not returned, the last call with one row per input. The module is not
    thread-safe.
    """

    def __init__(self, model: nn.Module, found: FoundHead) -> None:
        super().__init__()
        self.model = _without_compilation(copy_around_memory(model))
        self._relation, self._dtype = found.relation, found.head.weight.dtype
        self._calls: list[tuple[Tensor, str, int, Tensor, Tensor]] = []
        for name in found.relation.layers:
            layer = module_named(self.model, name)
            assert layer is not None
            # Hooks that stay, not `watch_calls`: torch.export and torch.compile trace them together with the model, and
            # can trace neither a context that adds hooks nor a look at the thread.
            layer.register_forward_hook(partial(self._record_call, name, spatial_axes(layer)), with_kwargs=True)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Pass:
        """Return features ``(n, d)`` and logits ``(n, c)`` of a batch; arguments are those of the model.

        Of a model with logits at every position it is a :class:`~flatfold.network.heads.DensePass`.
        """
        self._calls.clear()  # an earlier batch may have failed half-way
        returned = outputs_of(self.model(*args, **kwargs))
        # Not len(), which makes the batch size a constant during tracing.
        rows = next(value.shape[0] for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        keep = self._relation.keep
        calls = [(output, call_of(name, axes, h, z, rows, keep)) for output, name, axes, h, z in self._calls]
        given = [call for each in returned for output, call in calls if output is each]
        seen = [call for _, call in calls]
        record = Record(self._relation.layers, seen, returned, rows, kwargs.get(MASK), given)
        result = self._result(record)
        self._calls.clear()
        if result is None:
            rows_of = "" if isinstance(self._relation, Dense) else ", with one row of features per input,"
            raise UnsupportedHeadError(
                f"{self._relation} in the first batch{rows_of} but not in this one. Pass inputs like those that the "
                "guard was fitted on."
            )
        return result

    def _result(self, record: Record) -> Pass | None:
        if isinstance(self._relation, Dense):
            return DensePass.read(self._relation, record, self._dtype, compared=False)
        reading = self._relation.read_in_graph(record)
        return None if reading is None else Pass(reading.features, as_two_classes(reading.logits, dim=1))

    def train(self, mode: bool = True) -> Self:
        """Ignore ``mode``: this module always runs in evaluation mode."""
        return super().train(False)

    def _record_call(
        self, name: str, axes: int, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> None:
        features = first_argument(args, kwargs)
        self._calls.append((output, name, axes, features.detach().clone(), output.detach().clone()))  # may change


def copy_around_memory(module: M) -> M:
    """Copy a module in evaluation mode; its tensors share the memory of the original."""

    def share(tensor: Tensor) -> Tensor:
        view = tensor.detach()
        return nn.Parameter(view, requires_grad=False) if isinstance(tensor, nn.Parameter) else view

    with evaluating(module):
        # A module that overrides train() may change its weights (LoRA merges them): its memory is copied too.
        own_train = any(type(part).train not in (nn.Module.train, HeadModule.train) for part in module.modules())
        tensors = (*module.parameters(), *module.buffers())
        shared: dict[int, Any] = {} if own_train else {id(tensor): share(tensor) for tensor in tensors}
        try:
            return deepcopy(module, shared).requires_grad_(False)
        except (RuntimeError, TypeError) as error:  # a lock, an open file, a non-leaf tensor that requires grad
            message = (
                f"the model must be copyable to become one module, but this {type(module).__name__} is not: "
                f"{str(error).partition('. ')[0]}. Register tensors as parameters or buffers, and keep locks and "
                "files outside of it."
            )
            raise ValueError(message) from cause(error, message)


def _without_compilation(model: nn.Module) -> nn.Module:
    """Undo ``torch.compile`` of a model and its parts: only the whole is compiled."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if hasattr(child, COMPILED) and name != COMPILED:
                setattr(parent, name, getattr(child, COMPILED))
    plain: nn.Module = getattr(model, COMPILED, model)
    return plain


class _TupleModule(nn.Module):
    """Return a plain tuple, since a file with a class of this library could not be opened without the library.

    Arguments have the same names as in a batch: ``torch.export`` identifies them by name.
    """

    def __init__(self, module: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.guarded = module

        def forward(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
            return tuple(module(*args, **kwargs))

        parameters = [Parameter("x", Parameter.POSITIONAL_ONLY)] * len(batch.args)
        parameters += [Parameter(name, Parameter.KEYWORD_ONLY) for name in batch.kwargs]
        forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward


def trace(module: nn.Module, batch: Batch) -> ExportedProgram:
    """Trace a module as one graph with a dynamic batch axis, on zeros: torch stores the inputs in the file."""
    from torch.export import Dim, export  # late: slow to import
    from torch.fx import GraphModule

    part = batch.part(0, TRACED)
    blank = part.with_each(lambda value: torch.zeros_like(value) if part.one_per_input(value) else value)
    with quiet(), torch.no_grad(), explain_export_errors("the model"):
        # Both are for torch 2.6: it traces models of transformers only if it is not strict, and excludes no size of a
        # batch by itself, not even the largest integer, which slices take for "to the end".
        size = Dim(BATCH, max=LARGEST_BATCH)
        shapes = {name: {0: size} if blank.one_per_input(value) else None for name, value in by_name(blank).items()}
        program = export(_TupleModule(module, blank), blank.args, blank.kwargs, dynamic_shapes=shapes, strict=False)
    for graph in program.graph_module.modules():
        if isinstance(graph, GraphModule):
            for node in graph.graph.nodes:
                node.meta.pop("stack_trace", None)  # would write paths and lines of the user's code to the file
    return program


def by_name(batch: Batch) -> dict[str, Any]:
    """Return the arguments of a batch by their names in a graph."""
    return {"x": batch.args[0], **batch.kwargs} if batch.args else batch.kwargs


def check_onnx_packages(names: Sequence[str] = ONNX_PACKAGES) -> None:
    """Raise unless the packages that write and run ONNX graphs, or the given ones, are installed."""
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"ONNX graphs need {name}, which is not installed. Install flatfold[onnx].",
                name=name,
            ) from error


def write_onnx(
    path: Path, program: ExportedProgram, batch: Batch, outputs: Sequence[str], metadata: Mapping[str, str]
) -> None:
    """Write a traced graph as one ONNX file, with names for its outputs."""
    tensors = [*program.state_dict.values(), *program.constants.values()]
    size = sum(value.numel() * value.element_size() for value in tensors if isinstance(value, Tensor))
    if size > LARGEST:
        raise ValueError(f"an ONNX file holds at most 2 GB, but the weights have {size / 1e9:.1f} GB. Use a .pt2 file.")
    advice = f"Use a .pt2 file, which needs no conversion, or a newer torch than {torch.__version__}."
    with quiet(), explain_export_errors("the graph", advice):
        translated = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            external_data=False,
            opset_version=OPSET,
            input_names=[name for name, value in by_name(batch).items() if isinstance(value, Tensor)],
            output_names=list(outputs),
            custom_translation_table={
                torch.ops.aten.searchsorted.Tensor: _onnx_searchsorted,
                torch.ops.aten._native_batch_norm_legit_no_training.default: _onnx_batch_norm,
            },
        )
        assert translated is not None
        _remove_traced_shapes(translated.model.graph)
        _name_batch_axis(translated.model.graph, batch)
        translated.model.metadata_props.update(metadata)
        translated.save(path, external_data=False)


def _onnx_searchsorted(sorted_sequence: Any, self: Any, **options: Any) -> Any:
    """Implement ``searchsorted``, which ONNX lacks: count the sorted values that are not at least a value."""
    if any(options.values()):
        raise NotImplementedError(f"searchsorted with {', '.join(key for key, on in options.items() if on)}")
    op = import_module("onnxscript").opset18
    # "Not at least" instead of "below": a NaN sorts after all values, as in torch.
    if len(sorted_sequence.shape) > 1:  # a row of sorted values for each row of values
        before = op.Not(op.GreaterOrEqual(sorted_sequence, self))
        return op.ReduceSum(op.Cast(before, to=INT64), [1], keepdims=1)
    # A binary search, because values may be those of all positions of images: a table of all pairs would be huge.
    size = int(sorted_sequence.shape[0])
    count = op.Expand(op.Constant(value_int=0), op.Shape(self))
    for power in reversed(range(size.bit_length())):
        more = op.Add(count, op.Constant(value_int=2**power))
        last = op.Min(op.Sub(more, op.Constant(value_int=1)), op.Constant(value_int=size - 1))
        before = op.Not(op.GreaterOrEqual(op.Gather(sorted_sequence, last), self))
        inside = op.LessOrEqual(more, op.Constant(value_int=size))
        count = op.Where(op.And(before, inside), more, count)
    return count


# torch 2.6 matches arguments by the names of its own operator, and accepts None for those with a default.
def _onnx_batch_norm(
    input: Any, weight: Any = None, bias: Any = None, running_mean: Any = None, running_var: Any = None,
    momentum: Any = None, eps: Any = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Implement ``batch_norm`` in evaluation; the implementation of onnxscript needs a newer torch than 2.6."""
    op = import_module("onnxscript").opset18

    def each(number: float) -> Any:
        return op.Expand(op.CastLike(op.Constant(value_floats=[number]), running_var), op.Shape(running_var))

    weight, bias = each(1.0) if weight is None else weight, each(0.0) if bias is None else bias
    outputs = op.BatchNormalization(input, weight, bias, running_mean, running_var, epsilon=eps)
    normalised = outputs[0] if isinstance(outputs, Sequence) else outputs  # torch 2.6 adds the outputs of the training
    return normalised, op.Identity(running_mean), op.Identity(running_var)  # the model reads the first only


def _remove_traced_shapes(graph: Any) -> None:
    """Remove the shapes of intermediate values if their symbols are the sizes of the trace, as torch 2.6 names them.

    A runtime may take the size '192' of a batch for that of a constant of 192 entries.
    """
    sizes = [size for entry in graph.inputs for size in entry.shape]
    if any(not isinstance(size, int) and str(size).isdigit() for size in sizes):
        for node in graph:
            for value in node.outputs:
                value.shape = value.shape if any(value is output for output in graph.outputs) else None


def _name_batch_axis(graph: Any, batch: Batch) -> None:
    """Give the batch axis of all inputs and outputs its name; not all versions of torch keep that of the program."""
    axes = {entry.name: entry.shape for entry in graph.inputs}
    names = [name for name, value in by_name(batch).items() if name in axes and batch.one_per_input(value)]
    sizes = {str(axes[name][0]) for name in names}
    for entry in (*graph.inputs, *graph.outputs):
        for axis, size in enumerate(entry.shape):
            if str(size) in sizes:
                entry.shape[axis] = BATCH


def open_onnx(graph: Path | bytes, threads: int | None = None) -> OnnxSession:
    """Load an ONNX graph, a file or its content, to run on the CPU with ``threads`` threads (default: any)."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = threads or 0
    # Threads that spin while idle would take the cores from those that read images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with explain_export_errors("the graph", "onnxruntime cannot load the exported graph."):
        session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    used = {entry.name for entry in session.get_inputs()}

    def run(batch: Batch) -> list[np.ndarray[Any, Any]]:
        feeds = {name: value.cpu().numpy() for name, value in by_name(batch).items() if name in used}
        outputs: list[np.ndarray[Any, Any]] = session.run(None, feeds)
        return outputs

    return run


@contextmanager
def explain_export_errors(what: str, advice: str = "") -> Iterator[None]:
    """Convert any error of an exporter to a ``ValueError`` with the root cause."""
    try:
        yield
    except Exception as error:  # exporters raise errors of every class, their own and Python's
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        reason = next((line.strip() for line in str(root).splitlines() if line.strip()), "no reason given")
        message = (
            f"{what} cannot be exported: {type(root).__name__}: {reason.rstrip('.')}. "
            f"{advice or 'Its graph must be the same for all inputs and every batch size.'}"
        )
        raise ValueError(message) from cause(error, message)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output of an exporter: important problems are raised."""
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # torch prints graphs that it cannot export
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
