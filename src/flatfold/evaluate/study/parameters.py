"""The curvature of the loss over the network's parameters, on one data set."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor, nn

from ...curvature.eigenvalues import param_lambda_max, param_spectrum
from ...curvature.estimate import Estimate
from ...curvature.trace import param_trace
from ...models.at_rest import as_it_was
from ...models.stream import attempts
from ..settings import Settings
from .measured import Array, DataSet, Measured, as_array
from .parts import Part, Parts
from .plan import Plan
from .rows import Name, Statistic


class ParameterCurvature:
    """The curvature over the parameters on one data set, part by part; what is finished is not computed again.

    Images are read when a part needs them, and then kept in memory: Lanczos steps go over them again and again.
    """

    def __init__(self, model: nn.Module, data: DataSet, plan: Plan, settings: Settings, parts: Parts) -> None:
        self.model, self.data, self.plan, self.settings, self.parts = model, data, plan, settings, parts

    def measure(self) -> Measured:
        """Return the largest eigenvalue, the trace, the traces of single inputs and the spectrum."""
        largest = self._part("largest eigenvalue", {}, self._lambda_max)
        single = self._part("traces of single inputs", {}, self._traces)
        stderr = single.arrays.get("stderr")
        whole = self._mean(single) if stderr is None else self._part("trace", {}, self._trace)
        depth = {"probes": str(self.plan.probes), "steps": str(self.plan.steps)}
        spectrum = self._part("spectrum", depth, self._spectrum)
        return Measured(
            (self._statistic("lambda_max", largest.told), self._statistic("trace", whole.told)),
            single.arrays["value"],
            stderr,
            spectrum.arrays["nodes"],
            spectrum.arrays["weights"],
            spectrum.told["size"],
        )

    def _part(self, what: str, key: Mapping[str, str], compute: Callable[[], Part]) -> Part:
        plan = {"matrix": self.plan.matrix, "loss": self.plan.loss, "seed": str(self.plan.seed)}

        def at_rest() -> Part:
            with as_it_was(self.model, self.settings.device):  # whatever mode it came in
                return compute()

        return self.parts.get((self.data.name, what), {**self.data.key, **plan, **key}, at_rest)

    @cached_property
    def _asked(self) -> dict[str, Any]:
        plan = self.plan
        names = [name for name, _ in self.model.named_parameters()]  # frozen ones too: the loss bends there as well
        return {"matrix": plan.matrix, "loss": plan.loss, "seed": plan.seed, "params": names}

    @cached_property
    def _batches(self) -> list[Tensor]:
        return readable_inputs(self.data, self.settings.workers)

    def _lambda_max(self) -> Part:
        return Part(_told(param_lambda_max(self.model, self._batches, level="dataset", **self._asked)))

    def _trace(self) -> Part:
        return Part(_told(param_trace(self.model, self._batches, level="dataset", **self._asked)))

    def _traces(self) -> Part:
        found = param_trace(self.model, self._batches, level="sample", **self._asked)
        arrays = {"value": _per_input(found.value)}
        if found.stderr is not None:
            arrays["stderr"] = _per_input(found.stderr)
        return Part({"method": found.method, "matvecs": found.matvecs}, arrays)

    def _spectrum(self) -> Part:
        probes, steps = self.plan.probes, self.plan.steps
        found = param_spectrum(self.model, self._batches, steps=steps, probes=probes, **self._asked)
        return Part({"size": found.size}, {"nodes": as_array(found.nodes), "weights": as_array(found.weights)})

    def _mean(self, single: Part) -> Part:
        """Return the trace of the data set as what it is, the mean over its inputs, where these are exact."""
        return Part({"value": float(np.mean(single.arrays["value"])), "stderr": None, **single.told})

    def _statistic(self, name: Name, told: Mapping[str, Any]) -> Statistic:
        rows = self.data.source.rows - len(self.data.left_out)
        return Statistic(
            self.data.name,
            self.data.group,
            "parameter",
            name,
            told["value"],
            told["stderr"],
            told["method"],
            self.plan.matrix,
            self.plan.loss,
            told["matvecs"],
            rows,
        )


def readable_inputs(data: DataSet, workers: int = 0) -> list[Tensor]:
    """Return the inputs that have features, in their order and in batches.

    Raises:
        ValueError: Not the same images can be read as when the features were extracted.
    """
    source = data.source
    pieces = attempts(source, source.touched([range(source.rows)]), f"{data.name}: reading", workers)
    unreadable: set[int] = set()
    batches = []
    for piece in pieces:
        unreadable |= piece.unreadable.keys()
        if piece.batch is not None:
            batches.append(piece.batch.first_tensor)
    if unreadable != set(data.left_out):
        raise ValueError(
            f"{data.name}: the images that can be read must be those that have features, but {len(unreadable)} cannot "
            f"be read now and {len(data.left_out)} could not before, or other ones. Use --restart to do both again."
        )
    return batches


def _told(found: Estimate) -> dict[str, Any]:
    assert not isinstance(found.value, Tensor)
    assert not isinstance(found.stderr, Tensor)
    return {"value": found.value, "stderr": found.stderr, "method": found.method, "matvecs": found.matvecs}


def _per_input(values: float | Tensor) -> Array:
    assert isinstance(values, Tensor)
    return as_array(values)
