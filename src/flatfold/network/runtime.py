"""Runtimes: the forward pass of a network by torch, torch.compile or onnxruntime, or by the fastest of them.

All of them give the features and logits of a batch. They add up the same products in another order, so that logits
differ in the last digits of float32; ``TOLERANCE`` says by how much they may.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from math import ceil, inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, get_args

import msgspec
import torch
from torch import Tensor, nn

from .. import __version__
from ..core.validation import check_choice
from ..data.batch import Batch
from ..errors import DamagedFileError, UnsupportedHeadError
from ..io.artifacts import checksum, decode, encode, read_tensors, write_tensors
from ..io.clock import time_in_turn
from .calls import input_errors
from .execution import RuntimeName
from .fingerprint import weights_hash
from .graph import ONNX_PACKAGES, HeadModule, by_name, check_onnx_packages, open_onnx, trace, write_onnx
from .heads import FoundHead, Pass, check_rows, run

log = logging.getLogger(__name__)

TOLERANCE = 1e-5  # largest error of a logit, relative to the largest logit of its input
HALF_TOLERANCE = 3e-2  # the same for networks that compute in bfloat16 or float16
FEW = 4  # inputs that a runtime is first tried on, and from which on channels last is faster
TIMED_SECONDS = 0.05  # about so long is one forward pass that is timed
ROUNDS = 2  # of which the fastest counts
WORTH_EXPORT = 20.0  # seconds that a job must take with torch before a graph is exported for it, which takes about five
WORTH_COMPILE = 600.0  # the same for a compilation, which may take minutes
_FAILURES = (RuntimeError, ValueError, TypeError, UnsupportedHeadError, OSError, ModuleNotFoundError)


class Runtime(ABC):
    """One way to run a network in evaluation mode; the caller sees to that, and to the device of the batch."""

    name: ClassVar[RuntimeName]

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def __call__(self, batch: Batch) -> Pass:
        """Return the features and logits of a batch."""


class TorchRuntime(Runtime):
    """The network as it is; batches of images may be laid out with the channels last, which is faster on a CPU."""

    name = "torch"

    def __init__(
        self, model: nn.Module, found: FoundHead, channels_last: bool = False, dtype: torch.dtype | None = None
    ) -> None:
        self.model, self.found, self.channels_last, self.dtype = model, found, channels_last, dtype

    def __call__(self, batch: Batch) -> Pass:  # noqa: D102
        # One or two images would take longer with the channels last: weights are laid out anew for every batch.
        return self._run(batch.with_each(_channels_last) if self.channels_last and batch.rows >= FEW else batch)

    def _run(self, batch: Batch) -> Pass:
        with ExitStack() as contexts:
            if self.dtype is not None:
                contexts.enter_context(torch.autocast(batch.first_tensor.device.type, self.dtype))
            return run(self.model, self.found, batch)

    @classmethod
    def of(cls, model: nn.Module, found: FoundHead, batch: Batch, dtype: torch.dtype | None = None) -> TorchRuntime:
        """Return the runtime with channels last, if the network has convolutions and agrees with itself without."""
        plain = cls(model, found, False, dtype)
        images = batch.first_tensor.ndim == 4 and batch.first_tensor.device.type == "cpu"
        if not images or not any(isinstance(module, nn.Conv2d) for module in model.modules()):
            return plain
        few = batch.part(0, FEW)
        expected = plain(few)
        try:
            agrees = disagreement(plain._run(few.with_each(_channels_last)), expected) <= tolerance_of(expected)
        except _FAILURES:  # x.view(len(x), -1) refuses this layout
            return plain
        return cls(model, found, agrees, dtype)


class CompiledRuntime(Runtime):
    """The network compiled by ``torch.compile``; the first batch takes up to minutes."""

    name = "torch-compile"

    def __init__(self, model: nn.Module, found: FoundHead, channels_last: bool, dtype: torch.dtype | None) -> None:
        self.dtype, self.channels_last, self.found = dtype, channels_last, found
        self.module = torch.compile(HeadModule(model, found))

    def __call__(self, batch: Batch) -> Pass:  # noqa: D102
        if self.channels_last:
            batch = batch.with_each(_channels_last)
        if batch.rows > 1:  # a graph for one input is another one
            for value in filter(batch.one_per_input, (*batch.args, *batch.kwargs.values())):
                torch._dynamo.mark_dynamic(value, 0)
        with ExitStack() as contexts:
            contexts.enter_context(input_errors(batch.first_tensor))
            # Elsewhere evaluation is not compiled: hooks that were added later would be skipped.
            contexts.enter_context(torch.compiler.set_stance("default"))
            if self.dtype is not None:
                contexts.enter_context(torch.autocast(batch.first_tensor.device.type, self.dtype))
            features, logits = self.module(*batch.args, **batch.kwargs)
        result = Pass(features.to(self.found.head.weight.dtype), logits)
        check_rows(self.found, result)
        return result


class OnnxRuntime(Runtime):
    """The network as an ONNX graph, run by onnxruntime on the CPU; inputs of another shape or type go to torch.

    Several threads may run it at the same time.
    """

    name = "onnx"

    def __init__(self, graph: bytes, batch: Batch, torch_runtime: TorchRuntime) -> None:
        self.graph, self.torch_runtime, self.signature = graph, torch_runtime, signature_of(batch)
        self.session = open_onnx(graph, torch.get_num_threads())

    def use_threads(self, threads: int) -> None:
        """Set the number of threads."""
        self.session = open_onnx(self.graph, threads)

    def __call__(self, batch: Batch) -> Pass:  # noqa: D102
        if signature_of(batch) != self.signature:
            return self.torch_runtime(batch)
        with input_errors(batch.first_tensor):
            features, logits = map(torch.from_numpy, self.session(batch))
        found = self.torch_runtime.found
        result = Pass(features.to(found.head.weight.dtype), logits)
        check_rows(found, result)
        return result


class FastestRuntime(Runtime):
    """The runtime that is asked for, or with ``"auto"`` the fastest that agrees with torch, chosen on the first batch.

    Args:
        wanted: ``"auto"``, ``"torch"``, ``"torch-compile"`` or ``"onnx"``.
        model: The network.
        found: Its head.
        rows: How many inputs are to come; ``"auto"`` prepares nothing for a few. None means many.
        cache: A file in which the exported graph is kept for later jobs.
        dtype: ``torch.bfloat16`` for mixed precision, which only torch and torch.compile offer.

    Attributes:
        chosen: The runtime in use, None before the first batch.
        reason: Why it was chosen.
    """

    name = "auto"

    def __init__(
        self,
        wanted: RuntimeName,
        model: nn.Module,
        found: FoundHead,
        *,
        rows: int | None = None,
        cache: Path | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_choice("runtime", wanted, get_args(RuntimeName))
        if dtype is not None and wanted == "onnx":
            raise ValueError("onnxruntime does not compute in mixed precision. Use the runtime torch or torch-compile.")
        self.wanted, self.model, self.found, self.rows, self.cache, self.dtype = (
            wanted,
            model,
            found,
            rows,
            None if cache is None else Path(cache),
            dtype,
        )
        self.chosen: Runtime | None = None
        self.reason = "asked for"

    def __call__(self, batch: Batch) -> Pass:  # noqa: D102
        return self.choose(batch)(batch)

    def choose(self, batch: Batch) -> Runtime:
        """Return the runtime in use; the first call tries the available runtimes on some inputs of a batch."""
        if self.chosen is None:
            self.chosen = self._choose(batch)
        return self.chosen

    @property
    def chosen_name(self) -> RuntimeName:
        """The name of the runtime in use; before the first batch, of the one that is asked for."""
        return self.wanted if self.chosen is None else self.chosen.name

    def __str__(self) -> str:
        chosen = self.chosen or self
        layout = ", channels last" if isinstance(chosen, TorchRuntime) and chosen.channels_last else ""
        dtype = "" if self.dtype is None else f" in {str(self.dtype).removeprefix('torch.')}"
        return f"{chosen.name}{layout}{dtype} ({self.reason})"

    def _choose(self, batch: Batch) -> Runtime:
        base = TorchRuntime.of(self.model, self.found, batch, self.dtype)
        if self.wanted == "torch":
            return base
        if self.wanted != "auto":
            runtime = self._make(self.wanted, base, batch, self._read_graph(batch))
            error = self._check(runtime, base, batch.part(0, FEW))
            self.reason = f"asked for; logits agree with those of torch within {error:.0e}"
            return runtime
        return self._fastest(base, batch)

    def _fastest(self, base: TorchRuntime, batch: Batch) -> Runtime:
        if batch.first_tensor.device.type != "cpu":
            self.reason = "the only one for this device"
            return base
        few = batch.part(0, FEW)
        base(few)  # warm-up
        each = max(_seconds(base, few), 1e-9) / few.rows
        expected = inf if self.rows is None else self.rows * each
        part = batch.part(0, max(FEW, ceil(TIMED_SECONDS / each)))
        slow: float | None = None
        tried = []
        for name, worth in (("onnx", WORTH_EXPORT), ("torch-compile", WORTH_COMPILE)):
            if name == "onnx" and self.dtype is not None:
                continue
            kept = self._read_graph(batch) if name == "onnx" else None
            if expected < worth and kept is None:
                tried.append(f"the job of about {expected:.0f} s is too short to prepare {name}")
                break
            if name == "torch-compile" and self.rows is None:
                break  # a service would compile again for each new size of a batch, while requests wait
            try:
                runtime = self._make(name, base, batch, kept)
                error = self._check(runtime, base, part)
                slow = slow or _seconds(base, part)
                fast = _seconds(runtime, part)
            except _FAILURES as problem:
                tried.append(f"not {name}: {str(problem).strip().partition(chr(10))[0]}")
                log.info("the runtime %s cannot be used: %s", name, problem)
                continue
            if fast < slow:
                agreement = f"logits agree within {error:.0e}"
                self.reason = f"{slow / fast:.1f} times as fast as torch on {part.rows} inputs; {agreement}"
                return runtime
            tried.append(f"{name} takes {fast / slow:.2f} times as long")
            break
        self.reason = "; ".join(tried)
        return base

    def _check(self, runtime: Runtime, base: TorchRuntime, batch: Batch) -> float:
        """Return by how much the logits of a runtime differ from those of torch; raise if it is more than rounding."""
        expected = base(batch)
        error, allowed = disagreement(runtime(batch), expected), tolerance_of(expected)
        if not error <= allowed:
            raise ValueError(
                f"the logits of the runtime {runtime.name} differ from those of torch by {error:.1e} of the largest, "
                f"more than {allowed:g}. Does the model draw random numbers, mix the inputs of a batch, or take "
                "branches that depend on their values? Use the runtime torch."
            )
        return error

    def _make(self, name: str, base: TorchRuntime, batch: Batch, graph: bytes | None) -> Runtime:
        """Return a runtime by name; ``graph`` was exported earlier."""
        if name == "torch-compile":
            return CompiledRuntime(self.model, self.found, base.channels_last, self.dtype)
        check_onnx_packages(ONNX_PACKAGES if graph is None else ("onnxruntime",))
        if batch.first_tensor.device.type != "cpu":
            raise ValueError("the runtime onnx computes on the CPU. Use the device cpu, or the runtime torch.")
        if graph is not None:
            runtime = OnnxRuntime(graph, batch, base)
            try:
                self._check(runtime, base, batch.part(0, FEW))
                return runtime
            except _FAILURES as error:  # of a model that does something else with the same weights
                log.info("the graph in %s is exported again: %s", self.cache, error)
                check_onnx_packages()
        return OnnxRuntime(self._export_graph(batch), batch, base)

    def _key(self, batch: Batch) -> dict[str, str]:
        versions = f"flatfold {__version__}, torch {torch.__version__}"
        return {
            "weights": weights_hash(self.model),
            "head": self.found.key,
            "inputs": str(signature_of(batch)),
            "made_by": versions,
        }

    def _read_graph(self, batch: Batch) -> bytes | None:
        """Return the graph in the cache, None if there is none for this network and inputs."""
        if self.cache is None or not self.cache.exists():
            return None
        try:
            text, tensors = read_tensors(self.cache)
            header = decode(text, _GraphHeader)
            if header.key != self._key(batch) or header.sha256 != checksum(str(header.key), tensors):
                return None
            return tensors["graph"].numpy().tobytes()
        except (DamagedFileError, KeyError, OSError) as error:
            log.info("the graph in %s cannot be used: %s", self.cache, error)
            return None

    def _export_graph(self, batch: Batch) -> bytes:
        """Return the network as an ONNX graph with features and logits, and keep it in the cache."""
        program = trace(HeadModule(self.model, self.found), batch)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            write_onnx(path, program, batch, Pass._fields, {})
            graph = path.read_bytes()
        if self.cache is not None:
            key, tensors = self._key(batch), {"graph": torch.frombuffer(bytearray(graph), dtype=torch.uint8)}
            try:
                write_tensors(self.cache, encode(_GraphHeader(key, checksum(str(key), tensors)), indent=0), tensors)
            except OSError as error:  # a folder that cannot be written
                log.info("the exported graph is not kept: %s", error)
        return graph


class _GraphHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a graph in a file was exported from."""

    FORMAT: ClassVar[str] = "flatfold-graph"
    VERSION: ClassVar[int] = 1

    key: dict[str, str]
    sha256: str


def signature_of(batch: Batch) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the type and shape of each tensor of a batch, without the number of inputs."""
    return {
        name: (str(value.dtype), tuple(value.shape[1:] if batch.one_per_input(value) else value.shape))
        for name, value in by_name(batch).items()
        if isinstance(value, Tensor)
    }


def disagreement(given: Pass, expected: Pass) -> float:
    """Return the largest error of a logit, relative to the largest of its input; infinite if one is not finite."""
    if given.logits.shape != expected.logits.shape or given.features.shape != expected.features.shape:
        return inf
    worst = 0.0
    for values, wanted in zip(given, expected, strict=True):
        values, wanted = values.double(), wanted.double()
        error, scale = (values - wanted).abs().amax(dim=-1), wanted.abs().amax(dim=-1)
        relative = torch.where(error == 0, 0.0, error / scale).nan_to_num(nan=inf, posinf=inf)
        worst = max(worst, float(relative.max()))
    return worst


def tolerance_of(result: Pass) -> float:
    """Return how far the results of another runtime may be from these."""
    return HALF_TOLERANCE if result.logits.dtype in (torch.float16, torch.bfloat16) else TOLERANCE


def _channels_last(value: object) -> object:
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _seconds(runtime: Callable[[Batch], Pass], batch: Batch) -> float:
    """Return how long a runtime takes for a batch that it has had before."""
    (seconds,) = time_in_turn([lambda: runtime(batch)], ROUNDS)
    return min(seconds)
