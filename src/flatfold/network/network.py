"""A model as flatfold runs it: with its head, in a type, by a runtime, for inputs of known sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from ..data.batch import Batch, split_batch
from ..data.transform import InputSizes, join_sizes
from .calls import evaluating, usable_device
from .evidence import Evidence, InputSpec
from .execution import Execution, RuntimeName
from .fingerprint import weights_hash
from .graph import HeadModule
from .heads import FoundHead, Pass, probe, warn_of_other_logits
from .runtime import FastestRuntime, OnnxRuntime, Runtime, TorchRuntime

WARM_UP = 8  # made-up inputs on which a service chooses its runtime


class Network:
    """A model with everything that is known about how to run it. The model itself is never changed.

    Make one with :meth:`of`. It can be sent to another process together with its model.

    Attributes:
        model: The classifier.
        found: Its last linear layer.
        dtype: ``torch.bfloat16`` if the model computes in mixed precision, else None.
        weights: The sha256 of the weights, as they were when the network was made.
        inputs: How the model is called; None where inputs like them cannot be made up.
        shape: That of one input, ``(c, h, w)`` for images; None if it is not known.
        sizes: Sizes of the inputs it has seen; None if they are not known or differ in the number of dimensions.
        evidence: Features that the model gave for made-up inputs, by which a model that computes something else with
            the same weights is recognised; None before :meth:`record_evidence`, or where that is not possible.
        runtime: What runs the model (:meth:`use_runtime`).
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
        """Find the head of a model by a batch on its device; return the network and the result of the batch.

        The caller puts the model into evaluation mode. ``rows`` is the number of inputs to come, None if it is unknown.
        """
        execution = execution or Execution()
        found, result = probe(model, batch, execution.head)
        warn_of_other_logits(found, stacklevel=5)  # towards the caller of extract or Guard.fit
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
        """Return features and logits of a batch that was split into inputs and labels."""
        with evaluating(self.model) as device:
            return self.runtime(batch.to(device))

    def run_few(self, batch: Batch) -> Pass:
        """Return the result of a few inputs, on which no runtime is chosen."""
        with evaluating(self.model) as device:
            return TorchRuntime(self.model, self.found, dtype=self.dtype)(batch.to(device))

    def use_runtime(
        self, runtime: RuntimeName = "auto", rows: int | None = None, onnx_cache: Path | None = None
    ) -> None:
        """Run the model with ``"torch"``, ``"torch-compile"``, ``"onnx"``, or with the fastest of them (``"auto"``).

        The runtime is prepared and compared with torch when the next batch comes; logits may differ by 1e-5 of the
        largest. The weights must not change afterwards.

        Args:
            runtime: Name of the runtime.
            rows: Number of inputs to come: for a few, ``"auto"`` prepares nothing. None means many.
            onnx_cache: File in which a graph that is exported for ``"onnx"`` is kept.
        """
        self.runtime = FastestRuntime(runtime, self.model, self.found, rows=rows, cache=onnx_cache, dtype=self.dtype)

    def reset_runtime(self) -> None:
        """Run the model with torch, as it is."""
        self.runtime = TorchRuntime(self.model, self.found, dtype=self.dtype)

    def warm_up(self, inputs: Batch | None = None) -> None:
        """Choose and prepare the runtime on a batch, so that the next one does not wait for it.

        By default inputs are made up; where their shape is not known, the runtime becomes torch.
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
    def onnx(self) -> OnnxRuntime | None:
        """The runtime in use if it is onnxruntime, which computes several batches at the same time; else None."""
        chosen = self.runtime.chosen if isinstance(self.runtime, FastestRuntime) else self.runtime
        return chosen if isinstance(chosen, OnnxRuntime) else None

    @property
    def device(self) -> torch.device:
        """The device that holds the model."""
        return next((tensor.device for tensor in self.model.parameters()), torch.device("cpu"))

    def to(self, device: torch.device | str | None) -> Self:
        """Move the model to a device, by default nowhere."""
        if device is not None:
            self.model.to(usable_device(device))
        return self

    def see(self, sizes: InputSizes | None) -> None:
        """Add the sizes of more inputs to those that were seen."""
        self.sizes = join_sizes(self.sizes, sizes)

    def record_evidence(self) -> None:
        """Run made-up inputs through the model and keep the features, if the model accepts them."""
        if self.inputs is not None:
            self.evidence = Evidence.of(self.model, self.found, self.inputs, self.dtype)

    def check_unchanged(self) -> None:
        """Raise if the model has other weights, or computes something else with them, than when this was made."""
        if weights_hash(self.model) != self.weights:
            raise ValueError(
                "a guard belongs to the weights that it was fitted on, but those of its model have changed since. "
                "Was the model trained on, or converted? Fit the guard again."
            )
        if self.evidence is not None and self.evidence.difference(self.model, self.found, self.dtype):
            raise ValueError(
                "a guard belongs to what its model computed when it was fitted, but the same inputs give other "
                "features now. Was a layer without weights exchanged, or a setting of one? Fit the guard again."
            )

    def as_module(self) -> HeadModule:
        """Return the model as one module that gives features and logits, for graphs and compilers."""
        if self.dtype is not None:
            raise ValueError(
                f"this guard computes in {self.dtype}, which is not a part of the model's graph. Fit it without dtype= "
                "to export it."
            )
        return HeadModule(self.model, self.found)

    def __getstate__(self) -> dict[str, Any]:
        # Compiled code and sessions of onnxruntime stay in their process; the other one makes its own.
        runtime = self.runtime
        wanted = runtime.chosen_name if isinstance(runtime, FastestRuntime) else runtime.name
        return {**vars(self), "runtime": wanted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        wanted = state.pop("runtime")
        vars(self).update(state)
        self.use_runtime(wanted)
