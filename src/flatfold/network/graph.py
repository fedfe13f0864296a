"""A network as one graph: a module that also returns its features, traced for compilers and written as ONNX."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
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
from ..errors import UnsupportedHeadError
from .calls import COMPILED, evaluating, first_argument, one_row_each, outputs_of
from .heads import FoundHead, module_named

if TYPE_CHECKING:
    from torch.export import ExportedProgram

M = TypeVar("M", bound=nn.Module)

TRACED = 4  # inputs of the batch that is traced; with one input, torch would take the size for a constant
BATCH = "batch"  # name of the dimension that may change
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 18
LARGEST = 2**31 - 2**20  # bytes of weights: an ONNX file ends at 2 GiB, and the graph needs some of it
INT64 = 7  # ONNX's number for the type

OnnxSession = Callable[[Batch], list[np.ndarray[Any, Any]]]
"""Runs a batch and returns the outputs of a graph."""


class HeadModule(nn.Module):
    """``x -> (features, logits)`` of a model in plain torch: no search for the head, no branch on a value.

    The model is a copy that shares the memory of the original: neither the hook on its head nor ``.to()`` reaches the
    original. It is always in evaluation mode, and its weights need no gradient, so that serving keeps no graph.
    If the head is called several times for a batch, the call whose output the model returns counts; for a layer that
    the user named, and whose output it does not return, the last call with one row per input. Give each thread its own
    module.
    """

    def __init__(self, model: nn.Module, found: FoundHead) -> None:
        super().__init__()
        self.model = _without_compilation(copy_around_memory(model))
        self._name, self._gives_logits = found.name, found.gives_logits
        self._calls: list[tuple[Tensor, Tensor, Tensor]] = []
        # A hook that stays, not `watch_calls`: torch.export and torch.compile trace it together with the model, and
        # can trace neither a context that adds hooks nor a look at the thread.
        self._layer().register_forward_hook(self._record_call, with_kwargs=True)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return features ``(n, d)`` and logits ``(n, c)`` of a batch; takes what the model takes."""
        self._calls.clear()  # an earlier batch may have failed half-way
        returned = outputs_of(self.model(*args, **kwargs))
        # Not len(), which turns the size of a batch into a constant while a graph is traced.
        rows = next(value.shape[0] for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        features, logits = self._select_call(returned, rows)
        self._calls.clear()
        return features, as_two_classes(logits, dim=1)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever is asked for."""
        return super().train(False)

    def _layer(self) -> nn.Module:
        layer = module_named(self.model, self._name)
        assert layer is not None
        return layer

    def _record_call(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        features = first_argument(args, kwargs)
        self._calls.append((output, features.detach().clone(), output.detach().clone()))  # they may change in place

    def _select_call(self, returned: list[Tensor], rows: int) -> tuple[Tensor, Tensor]:
        """Return input and output of the head in the call whose output was returned, or else in the last."""
        layer, flat = self._layer(), []
        for output, *call in self._calls:
            features, logits = (one_row_each(layer, values, rows) for values in call)
            if features is not None and logits is not None:
                if any(output is each for each in returned):
                    return features, logits
                flat.append((features, logits))
        if not flat:
            raise UnsupportedHeadError(
                f"the head {self._name!r} must be given one row of features per input, but in this batch it never was. "
                "Give inputs such as those that the guard was fitted on."
            )
        if len(flat) > 1 and self._gives_logits:
            raise UnsupportedHeadError(
                f"the head {self._name!r} is called {len(flat)} times for a batch, and the model returns a copy of one "
                "of its outputs: a graph cannot tell which. Return that output itself."
            )
        return flat[-1]


def copy_around_memory(module: M) -> M:
    """Return a copy of a module in evaluation mode, whose tensors share the memory of the original."""

    def share(tensor: Tensor) -> Tensor:
        view = tensor.detach()
        return nn.Parameter(view, requires_grad=False) if isinstance(tensor, nn.Parameter) else view

    with evaluating(module):
        # A module with its own train() may change its weights there (LoRA merges them): its memory is copied too.
        own_train = any(type(part).train not in (nn.Module.train, HeadModule.train) for part in module.modules())
        tensors = (*module.parameters(), *module.buffers())
        shared: dict[int, Any] = {} if own_train else {id(tensor): share(tensor) for tensor in tensors}
        try:
            return deepcopy(module, shared).requires_grad_(False)
        except (RuntimeError, TypeError) as error:  # a lock, an open file, a tensor with a history of gradients
            raise ValueError(
                f"the structure of a model must be copied to make one module of it, but this {type(module).__name__} "
                f"cannot be: {str(error).partition('. ')[0]}. Keep tensors as parameters or buffers, and locks and "
                "files outside of it."
            ) from error


def _without_compilation(model: nn.Module) -> nn.Module:
    """Undo ``torch.compile`` of a model and its parts: the whole is compiled, if at all."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if hasattr(child, COMPILED) and name != COMPILED:
                setattr(parent, name, getattr(child, COMPILED))
    plain: nn.Module = getattr(model, COMPILED, model)
    return plain


class _TupleModule(nn.Module):
    """Gives a plain tuple, since a file with a class of this library could not be opened without it.

    Its arguments have the names that they have in a batch: ``torch.export`` knows them by these.
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
    """Return a module as one graph for batches of any size, traced on zeros: torch keeps its inputs in the file."""
    from torch.export import Dim, export  # late: it takes a while to import
    from torch.fx import GraphModule

    part = batch.part(0, TRACED)
    blank = part.with_each(lambda value: torch.zeros_like(value) if part.one_per_input(value) else value)
    with quiet(), torch.no_grad(), explain_export_errors("the model"):
        shapes = _dynamic_shapes(blank, Dim(BATCH))
        program = export(_TupleModule(module, blank), blank.args, blank.kwargs, dynamic_shapes=shapes)
    for graph in program.graph_module.modules():
        if isinstance(graph, GraphModule):
            for node in graph.graph.nodes:
                node.meta.pop("stack_trace", None)  # folders and lines of the user's code, which would be in the file
    return program


def by_name(batch: Batch) -> dict[str, Any]:
    """Return the arguments of a batch under the names that they have in a graph."""
    return {"x": batch.args[0], **batch.kwargs} if batch.args else batch.kwargs


def _dynamic_shapes(batch: Batch, size: Any) -> dict[str, Any]:
    """Return which dimensions of a batch may change: the first, of all values that come per input."""
    return {name: {0: size} if batch.one_per_input(value) else None for name, value in by_name(batch).items()}


def check_onnx_packages(names: Sequence[str] = ONNX_PACKAGES) -> None:
    """Raise unless what writes and runs ONNX graphs, or some of it, is installed."""
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"ONNX graphs are written and run with {name}, which is not installed. Install flatfold[onnx].",
                name=name,
            ) from error


def write_onnx(
    path: Path, program: ExportedProgram, batch: Batch, outputs: Sequence[str], metadata: Mapping[str, str]
) -> None:
    """Write a traced graph as one ONNX file, with names for its outputs."""
    tensors = [*program.state_dict.values(), *program.constants.values()]
    size = sum(value.numel() * value.element_size() for value in tensors if isinstance(value, Tensor))
    if size > LARGEST:
        raise ValueError(f"one ONNX file holds at most 2 GB, but the graph has {size / 1e9:.1f} GB. Use a .pt2 file.")
    with quiet(), explain_export_errors("the graph", "Use a .pt2 file instead, which needs no translation."):
        translated = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            external_data=False,
            opset_version=OPSET,
            input_names=[name for name, value in by_name(batch).items() if isinstance(value, Tensor)],
            output_names=list(outputs),
            dynamic_shapes=_dynamic_shapes(batch, BATCH),
            custom_translation_table={torch.ops.aten.searchsorted.Tensor: _onnx_searchsorted},
        )
        assert translated is not None
        translated.model.metadata_props.update(metadata)
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


def open_onnx(graph: Path | bytes, threads: int | None = None) -> OnnxSession:
    """Return an ONNX graph, a file or its content, that runs on the CPU with ``threads`` threads (default: any)."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = threads or 0
    # Threads that wait for work in a loop would take the cores from those that read images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with explain_export_errors("the graph", "onnxruntime cannot load what was exported."):
        session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    used = {entry.name for entry in session.get_inputs()}

    def run(batch: Batch) -> list[np.ndarray[Any, Any]]:
        feeds = {name: value.cpu().numpy() for name, value in by_name(batch).items() if name in used}
        outputs: list[np.ndarray[Any, Any]] = session.run(None, feeds)
        return outputs

    return run


@contextmanager
def explain_export_errors(what: str, advice: str = "") -> Iterator[None]:
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
def quiet() -> Iterator[None]:
    """Silence an exporter: everything important it raises."""
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # torch prints the graph of what it cannot export
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
