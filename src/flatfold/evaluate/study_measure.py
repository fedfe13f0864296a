"""Measurements of a curvature study: one data set in one space, with its finished parts on disk."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import __version__
from ..core.bank import FeatureBank, Head
from ..core.hessian import row_chunks, widen
from ..core.shaping import check_alpha, rescaled_logits, row_norms
from ..curvature.eigenvalues import param_lambda_max, param_spectrum
from ..curvature.estimate import LOSSES, MATRICES, Estimate, Loss, Matrix, Spectrum
from ..curvature.features import feature_eigenvalues, feature_spectrum, feature_trace, logit_spectrum, logit_trace
from ..curvature.trace import param_trace
from ..io.progress import track
from ..io.store import Part, PartStore
from ..models.extract import read_batches
from ..models.forward import evaluating
from ..models.sources import Source
from .banks import Settings, short_key
from .study_results import Name, Space, Statistic

TOP = 50  # eigenvalues of single inputs, as in the paper's figure
ROWS = 1024  # of features at once

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """The settings of a curvature study."""

    samples: int = 500  # most images of each data set
    matrix: Matrix = "hessian"  # over the parameters, as the loss
    loss: Loss = "energy"
    probes: int = 4  # random vectors for the spectrum over the parameters
    steps: int = 16  # of Lanczos from each
    alpha: float | None = None  # exponent of partial normalisation; None lets AutoFold choose on the validation data
    seed: int = 0  # of the random vectors; the images do not depend on it

    def __post_init__(self) -> None:
        for name, least in (("samples", 2), ("probes", 1), ("steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
        if self.matrix not in MATRICES:
            raise ValueError(f"matrix must be one of {', '.join(MATRICES)}, got {self.matrix!r}.")
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be energy or ce_pred, got {self.loss!r}.")
        if self.loss == "ce":
            raise ValueError("the loss ce needs labels, and OOD images have none. Use energy or ce_pred.")
        if self.alpha is not None:
            check_alpha(self.alpha)


@dataclass(frozen=True)
class DataSet:
    """A data set whose curvature is measured; images in ``left_out`` have no features, as they cannot be read."""

    name: str
    group: str
    source: Source
    left_out: Mapping[int, str]

    @property
    def key(self) -> dict[str, str]:
        """What distinguishes its images from others."""
        return {"data": self.source.fingerprint, "left_out": repr(sorted(self.left_out))}


@dataclass(frozen=True, eq=False)
class Measured:
    """The curvature of one data set in one space."""

    statistics: tuple[Statistic, ...]
    traces: Array  # of single inputs, (n,)
    stderr: Array | None  # of the traces, None where they are exact
    nodes: Array  # of the spectrum, (probes, m)
    weights: Array
    size: int  # number of eigenvalues


class StudyParts:
    """Finished parts of a study in a folder, each under the hash of everything that it depends on.

    ``asked`` counts the parts that were needed, ``found`` those that an earlier run had finished.
    """

    def __init__(self, folder: Path, weights: str) -> None:
        self.store = PartStore(folder, {"kind": "curvature"})
        self.key = {"flatfold": __version__, "weights": weights}
        self.asked = self.found = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def get(self, dataset: str, what: str, key: Mapping[str, str], compute: Callable[[], Part]) -> Part:
        """Return a part from its file, or compute and keep it."""
        everything = json.dumps({**self.key, "dataset": dataset, "what": what, **key})
        name = f"{what.replace(' ', '-')}-{short_key(everything)}"
        self.asked += 1
        if name in self.store:
            self.found += 1
        else:
            for _ in track((what,), f"{dataset}: {what}"):
                part = compute()
            self.store.write(name, part.tensors, {**part.info, "dataset": dataset})
        return self.store.read(name)


class ParameterCurvature:
    """The curvature over the parameters on one data set, part by part; what is finished is not computed again.

    Images are read when a part needs them, and then kept in memory: Lanczos steps go over them again and again.
    """

    def __init__(self, model: nn.Module, data: DataSet, plan: Plan, settings: Settings, parts: StudyParts) -> None:
        self.model, self.data, self.plan, self.settings, self.parts = model, data, plan, settings, parts
        names = [name for name, _ in model.named_parameters()]  # frozen ones too: the loss depends on them as well
        self.request: dict[str, Any] = {"matrix": plan.matrix, "loss": plan.loss, "seed": plan.seed, "params": names}

    def measure(self) -> Measured:
        """Return the largest eigenvalue, the trace, the traces of single inputs and the spectrum."""
        model, asked = self.model, self.request
        depth: dict[str, Any] = {"probes": self.plan.probes, "steps": self.plan.steps}
        largest = self._part(
            "largest eigenvalue", lambda: param_lambda_max(model, self._batches, level="dataset", **asked)
        )
        single = self._part(
            "traces of single inputs", lambda: param_trace(model, self._batches, level="sample", **asked)
        )
        stderr = single.tensors.get("stderr")
        if stderr is None:  # exact, and so is their mean
            trace = {**single.info, "value": float(single.tensors["value"].mean()), "stderr": None}
        else:
            trace = self._part("trace", lambda: param_trace(model, self._batches, level="dataset", **asked)).info
        spectrum = self._part("spectrum", lambda: param_spectrum(model, self._batches, **depth, **asked), **depth)
        return Measured(
            (self._statistic("lambda_max", largest.info), self._statistic("trace", trace)),
            single.tensors["value"].numpy(),
            None if stderr is None else stderr.numpy(),
            spectrum.tensors["nodes"].numpy(),
            spectrum.tensors["weights"].numpy(),
            spectrum.info["size"],
        )

    def _part(self, what: str, compute: Callable[[], Estimate | Spectrum], **depth: int) -> Part:
        def compute_part() -> Part:
            with evaluating(self.model, self.settings.device):
                result = vars(compute())
            tensors = {name: value.double() for name, value in result.items() if isinstance(value, Tensor)}
            kept = ("value", "stderr", "method", "matvecs", "size")
            return Part({name: result[name] for name in kept if name in result and name not in tensors}, tensors)

        plan = {"matrix": self.plan.matrix, "loss": self.plan.loss, "seed": self.plan.seed, **depth}
        key = {**self.data.key, **{name: str(value) for name, value in plan.items()}}
        return self.parts.get(self.data.name, what, key, compute_part)

    @cached_property
    def _batches(self) -> list[Tensor]:
        return readable_inputs(self.data, self.settings.workers)

    def _statistic(self, name: Name, estimate: Mapping[str, Any]) -> Statistic:
        numbers = (estimate["value"], estimate["stderr"], estimate["method"])
        plan = (self.plan.matrix, self.plan.loss, estimate["matvecs"])
        rows = self.data.source.rows - len(self.data.left_out)
        return Statistic(self.data.name, self.data.group, "parameter", name, *numbers, *plan, rows)


def readable_inputs(data: DataSet, workers: int = 0) -> list[Tensor]:
    """Return the inputs that have features, in batches; raise if other images can be read than at their extraction."""
    source = data.source
    unreadable: set[int] = set()
    batches = []
    for result in read_batches(source, source.batch_ranges([range(source.rows)]), f"{data.name}: reading", workers):
        unreadable |= result.unreadable.keys()
        if result.batch is not None:
            batches.append(result.batch.first_tensor)
    if unreadable != set(data.left_out):
        raise ValueError(
            f"{data.name}: {len(unreadable)} images cannot be read, but {len(data.left_out)} or other ones could not "
            "when features were extracted. Use --restart to do both again."
        )
    return batches


class FeatureCurvature:
    r"""The curvature over the features, or the logits, of one data set; all of it is exact.

    .. math:: H = W^\top (\operatorname{diag} p - p p^\top) W, \qquad
        p = \operatorname{softmax}(W \tilde h + b), \qquad \tilde h = h / \|h\|^\alpha

    and over the logits the same without W. It is that of the energy, and of the cross-entropy with any label.
    """

    def __init__(self, bank: FeatureBank, head: Head) -> None:
        self.bank, self.head = bank, head
        self.weight, _ = widen(head.weight, bank.features[:0])

    def logits(self, alpha: float, rows: int = ROWS) -> Iterator[Tensor]:
        """Yield the logits of partially normalised features, ``(rows, c)`` at a time."""
        for chunk in row_chunks(len(self.bank), rows):
            weight, h = widen(self.head.weight, self.bank.features[chunk])
            yield rescaled_logits(h @ weight.mT, row_norms(h) ** alpha, self.head.bias)

    def traces(self, space: Space, alpha: float) -> Array:
        """Return the trace at every input, ``(n,)``."""
        chunks = (
            feature_trace(self.weight, logits) if space == "feature" else logit_trace(logits)
            for logits in self.logits(alpha)
        )
        return torch.cat([chunk.double() for chunk in chunks]).numpy()

    def eigenvalues(self, alpha: float) -> Tensor:
        """Return the largest feature eigenvalues at every input, largest first, ``(n, k)``."""
        k = min(TOP, self.head.n_classes, self.head.width)
        return torch.cat([feature_eigenvalues(self.weight, logits, k=k).double() for logits in self.logits(alpha)])

    def measure(self, space: Space, dataset: str, group: str) -> Measured:
        """Return the largest eigenvalue, the trace, the traces of single inputs and the spectrum, at alpha = 0."""
        traces = self.traces(space, alpha=0.0)
        logits = self.logits(alpha=0.0)
        spectrum = feature_spectrum(self.weight, logits) if space == "feature" else logit_spectrum(logits)
        values: dict[Name, float] = {"lambda_max": spectrum.lambda_max, "trace": float(traces.mean())}
        about = (spectrum.method, spectrum.matrix, spectrum.loss, spectrum.matvecs, len(self.bank))
        statistics = tuple(
            Statistic(dataset, group, space, name, value, None, *about) for name, value in values.items()
        )
        nodes, weights = (values.double().numpy() for values in (spectrum.nodes, spectrum.weights))
        return Measured(statistics, traces, None, nodes, weights, spectrum.size)
