"""Network: a model with its head, dtype, runtime and the sizes of its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from ..data.batch import Batch, split_batch
from ..data.transform import InputSizes, join_sizes
from .calls import check_model, evaluating, usable_device
from .dense import Dense
from .evidence import Evidence, InputSpec
from .execution import Execution, RuntimeName
from .fingerprint import weights_hash
from .graph import HeadModule
from .heads import FoundHead, Pass, probe, warn_of_other_logits
from .runtime import FastestRuntime, OnnxRuntime, Runtime, TorchRuntime

WARM_UP = 8  # synthetic inputs on which a service chooses its runtime


class Network:
    """A model with everything needed to run it. The model itself is never changed.

    Create one with :meth:`of`. It can be pickled together with its model.

    Attributes:
        model: The classifier.
        found: Its last linear layer, or the layers that its logits come from.
        dtype: ``torch.bfloat16`` if the model computes in mixed precision, else None.
        weights: The sha256 of the weights at the time the network was created.
        inputs: Call signature of the model; None if such inputs cannot be synthesised.
        shape: Shape of one input, ``(c, h, w)`` for images; None if unknown.
        sizes: Range of sizes of the inputs seen; None if unknown or if they differ in the number of dimensions.
        evidence: Features of the model for synthetic inputs, to detect a model that computes something else with
            the same weights; None before :meth:`record_evidence`, or if it cannot be recorded.
        runtime: Runs the model (:meth:`use_runtime`).
    """

    runtime: Runtime

    def __init__(
        self,
        model: nn.Module,
        found: FoundHead,
        dtype: torch.dtype | None = None,
        *,
        weights: str | None = None,
        inputs: InputSpec | None = None,
        shape: tuple[int, ...] | None = None,
        sizes: InputSizes | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        self.model = model
        self.found = found
        self.dtype = dtype
        self.weights = weights_hash(model) if weights is None else weights
        self.inputs = inputs
        self.shape = shape
        self.sizes = sizes
        self.evidence = evidence
        self.reset_runtime()

    @classmethod
    def of(
        cls, model: nn.Module, batch: Batch, execution: Execution | None = None, rows: int | None = None
    ) -> tuple[Self, Pass]:
        """Find the head of a model with a batch on its device; return the network and the result of the batch.

        The caller sets evaluation mode. ``rows`` is the number of inputs to follow, None if unknown.
        """
        execution = execution or Execution()
        found, result = probe(model, batch, execution.head)
        warn_of_other_logits(found)
        shape = tuple(batch.first_tensor.shape[1:])
        network = cls(
            model, found, execution.dtype, inputs=InputSpec.of(batch), shape=shape, sizes=InputSizes(shape, shape)
        )
        if execution.dtype is not None:
            result = network.runtime(batch)
        network.use_runtime(execution.runtime, rows, execution.onnx_cache)
        return network, result

    def __call__(self, batch: Any) -> Pass:
        """Return features ``(n, d)`` and logits ``(n, c)`` of a batch: a tensor, a pair ``(x, y)`` or a dict.

        The model runs in evaluation mode, without gradients and on its device.
        """
        return self.run(split_batch(batch))

    def run(self, batch: Batch) -> Pass:
        """Return features and logits of a batch that is split into inputs and labels."""
        try:
            with evaluating(self.model) as device:
                return self.runtime(batch.to(device))
        except (RuntimeError, ValueError) as error:
            check_model(self.model)  # it may have been moved to "meta" since
            first = batch.first_tensor
            if self.shape is not None and first.ndim == len(self.shape):
                raise ValueError(
                    f"got one input of shape {tuple(first.shape)} without a batch axis: use x[None]."
                ) from error
            raise

    def run_few(self, batch: Batch) -> Pass:
        """Return the result of a few inputs, without choosing a runtime on them."""
        with evaluating(self.model) as device:
            return TorchRuntime(self.model, self.found, dtype=self.dtype)(batch.to(device))

    def use_runtime(
        self, runtime: RuntimeName = "auto", rows: int | None = None, onnx_cache: Path | str | None = None
    ) -> None:
        """Set the runtime: ``"torch"``, ``"torch-compile"``, ``"onnx"``, or the fastest of them (``"auto"``).

        The runtime is prepared and compared with torch on the next batch; logits may differ by 1e-5 of the
        largest. The weights must not change afterwards.

        Args:
            runtime: Name of the runtime.
            rows: Number of inputs to follow: for a few, ``"auto"`` prepares nothing. None means many.
            onnx_cache: File that caches the graph exported for ``"onnx"``.
        """
        if self.dense:
            if runtime not in ("auto", "torch"):
                raise ValueError(
                    f"a model with logits at every position runs with the runtime torch, not {runtime}. Leave it out."
                )
            self.reset_runtime()
            return
        self.runtime = FastestRuntime(runtime, self.model, self.found, rows=rows, cache=onnx_cache, dtype=self.dtype)

    def reset_runtime(self) -> None:
        """Set the runtime to plain torch."""
        self.runtime = TorchRuntime(self.model, self.found, dtype=self.dtype)

    def warm_up(self, inputs: Batch | None = None) -> None:
        """Choose and prepare the runtime on a batch, so that the next batch does not wait for it.

        By default synthetic inputs are used; if their shape is unknown, the runtime becomes torch.
        """
        if inputs is None and self.evidence is not None:
            inputs = self.evidence.inputs.make(WARM_UP)
        elif inputs is None and self.shape is not None:  # not by an InputSpec, which there is none of for huge inputs
            dtype, generator = next(self.model.parameters()).dtype, torch.Generator().manual_seed(0)
            inputs = split_batch(torch.randn(WARM_UP, *self.shape, generator=generator).to(dtype))
        if inputs is None:
            self.use_runtime("torch")
        elif isinstance(self.runtime, FastestRuntime):
            with evaluating(self.model) as device:
                self.runtime.choose(inputs.to(device))

    @property
    def dense(self) -> bool:
        """Whether the model gives logits at every position."""
        return isinstance(self.found.relation, Dense)

    @property
    def onnx(self) -> OnnxRuntime | None:
        """The runtime in use if it is onnxruntime, which can run several batches concurrently; else None."""
        chosen = self.runtime.chosen if isinstance(self.runtime, FastestRuntime) else self.runtime
        return chosen if isinstance(chosen, OnnxRuntime) else None

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next((tensor.device for tensor in self.model.parameters()), torch.device("cpu"))

    def to(self, device: torch.device | str | None) -> Self:
        """Move the model to a device; None leaves it where it is."""
        if device is not None:
            self.model.to(usable_device(device))
        return self

    def add_sizes(self, sizes: InputSizes | None) -> None:
        """Extend the range of input sizes seen."""
        self.sizes = join_sizes(self.sizes, sizes)

    def record_evidence(self) -> None:
        """Run synthetic inputs through the model and store the features, if the model accepts them."""
        if self.inputs is not None:
            self.evidence = Evidence.of(self.model, self.found, self.inputs, self.dtype)

    def check_unchanged(self) -> None:
        """Raise if the weights of the model, or what it computes with them, have changed."""
        if weights_hash(self.model) != self.weights:
            raise ValueError(
                "a guard is only valid for the weights that it was fitted on, but the weights of its model have "
                "changed. Was the model trained further, or converted? Fit the guard again."
            )
        if self.evidence is not None and self.evidence.difference(self.model, self.found, self.dtype):
            raise ValueError(
                "a guard is only valid for the function that its model computed when it was fitted, but the same "
                "inputs now give other features. Was a layer without weights, or a setting of one, replaced? Fit the "
                "guard again."
            )

    def as_module(self) -> HeadModule:
        """Return the model as one module that outputs features and logits, for graphs and compilers."""
        if self.dtype is not None:
            raise ValueError(
                f"this guard runs in {self.dtype}, which is not part of the model's graph. Fit it without dtype= "
                "to export it."
            )
        return HeadModule(self.model, self.found)

    def __repr__(self) -> str:
        shape = "" if self.shape is None else f", inputs {self.shape}"
        return f"Network({type(self.model).__name__}, {self.found.head}{shape})"

    def __getstate__(self) -> dict[str, Any]:
        # Compiled code and onnxruntime sessions cannot be pickled; the other process creates its own.
        runtime = self.runtime
        wanted = runtime.chosen_name if isinstance(runtime, FastestRuntime) else runtime.name
        return {**vars(self), "runtime": wanted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        wanted = state.pop("runtime")
        vars(self).update(state)
        self.use_runtime(wanted)
