"""What is measured: a data set, and everything about it in one space."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save
from torch import Tensor, nn

from .. import __version__
from ..core.bank import FeatureBank, Head
from ..core.hessian import row_chunks, widen
from ..core.shaping import check_alpha, rescaled_logits, row_norms
from ..curvature.eigenvalues import param_lambda_max, param_spectrum
from ..curvature.estimate import LOSSES, MATRICES, Estimate, Loss, Matrix, Spectrum
from ..curvature.features import feature_eigenvalues, feature_spectrum, feature_trace, logit_spectrum, logit_trace
from ..curvature.trace import param_trace
from ..io.files import sweep, write_atomically
from ..io.progress import track
from ..models.eval_mode import evaluating
from ..models.extract import read_batches
from ..models.sources import ImageSource, Source
from .banks import Settings, short_key
from .study_results import Name, Space, Statistic
from .suites.data import picked
from .suites.library import even_rows
from .suites.suite import Suite

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DataSet:
    """A data set whose curvature is measured.

    Attributes:
        name: ``id`` for the known test images.
        group: ``id``, ``near`` or ``far``.
        source: Its images.
        left_out: Images that have no features because they could not be read, and why.
    """

    name: str
    group: str
    source: Source
    left_out: Mapping[int, str]

    @property
    def key(self) -> dict[str, str]:
        """What tells its images from others."""
        return {"data": self.source.fingerprint, "left_out": repr(sorted(self.left_out))}


@dataclass(frozen=True, eq=False)
class Measured:
    """The curvature of one data set in one space.

    Attributes:
        statistics: Its largest eigenvalue and its trace.
        traces: Of single inputs, ``(n,)``.
        stderr: Their standard errors, None where they are exact.
        nodes, weights: The spectrum, ``(probes, m)``.
        size: Number of eigenvalues.
    """

    statistics: tuple[Statistic, ...]
    traces: Array
    stderr: Array | None
    nodes: Array
    weights: Array
    size: int


def as_array(values: Tensor) -> Array:
    """Return a tensor as numpy's float64."""
    array: Array = values.detach().cpu().to(torch.float64).numpy()
    return array


# What a curvature study measures, and of which images.


@dataclass(frozen=True)
class Plan:
    """What is measured; how the network is run stands in ``Settings``.

    Args:
        samples: Most images to take of each data set.
        matrix: ``"hessian"`` or ``"ggn"``, of the loss over the parameters.
        loss: ``"energy"`` or ``"ce_pred"``. Unknown images have no labels, so there is no ``"ce"`` here.
        probes: Random directions behind the spectrum over the parameters.
        steps: Lanczos steps from each.
        alpha: Exponent of partial normalisation; None lets AutoFold choose it on the validation data.
        seed: Of what is random in the estimates. The images do not depend on it.
    """

    samples: int = 500
    matrix: Matrix = "hessian"
    loss: Loss = "energy"
    probes: int = 4
    steps: int = 16
    alpha: float | None = None
    seed: int = 0

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
            raise ValueError(
                "the loss ce is the cross-entropy of the label, and unknown images have none. Use energy, which needs "
                "no label, or ce_pred, which takes the predicted class for it."
            )
        if self.alpha is not None:
            check_alpha(self.alpha)


def studied(suite: Suite, samples: int) -> Suite:
    """Return a suite with at most ``samples`` random images of each judged data set, evenly of all classes.

    All validation images stay, for AutoFold. Training data and unknown validation images are of no use here and left
    out. The images are the same for every network, and a sentence says that there are more.
    """
    judged = [suite.test, *(ood.images for ood in suite.ood)]
    deviations = list(suite.deviations)
    if any(source.rows > samples for source in judged):
        deviations.append(f"at most {samples} images of each data set were taken")
    if not all(isinstance(source, ImageSource) for source in judged):
        deviations.append("the suite holds features only, so the parameters are those of the last layer alone")

    def some(source: Source) -> Source:
        return source if source.rows <= samples else picked(source, even_rows(source, samples, seed=0))

    return replace(
        suite,
        train=None,
        ood_val=None,
        test=some(suite.test),
        ood=tuple(replace(ood, images=some(ood.images)) for ood in suite.ood),
        deviations=tuple(deviations),
    )


# Finished parts of a study on disk, so that an interrupted one goes on where it stopped.


FORMAT, VERSION = "flatfold-curvature-part", 1


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """One finished part: what can be told in JSON, and arrays."""

    told: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[np.float64]] = field(default_factory=dict)


class Parts:
    """The finished parts in a folder.

    A part lies under a name that holds everything it depends on, so that one of another network, of other images or
    with another setting is never taken for it. A damaged one is computed again.

    Args:
        folder: Where they are kept.
        key: What all of them depend on; the version of this package is added.

    Attributes:
        asked: How many parts were asked for.
        found: How many of them an earlier run had finished.
    """

    def __init__(self, folder: Path, key: Mapping[str, str]) -> None:
        self.folder = folder
        self.key = {"flatfold": __version__, **key}
        self.asked = self.found = 0
        sweep(folder)

    def get(self, title: tuple[str, str], key: Mapping[str, str], compute: Callable[[], Part]) -> Part:
        """Return a part from its file, or compute and keep it.

        Args:
            title: Name of the data set, and of what is computed of it.
            key: What it depends on besides.
            compute: How to come by it.
        """
        dataset, what = title
        complete = {**self.key, "dataset": dataset, "what": what, **key}
        path = self.folder / f"{dataset}-{what.replace(' ', '-')}-{short_key(json.dumps(complete))}.safetensors"
        part = _read(path, complete)
        self.asked += 1
        self.found += part is not None
        if part is None:
            for _ in track((what,), f"{dataset}: {what}"):
                part = compute()
            assert part is not None
            _write(path, complete, part)
        return part


def forget_parts(folder: Path) -> None:
    """Remove the parts that earlier studies kept in a folder, and nothing that somebody else put there."""
    for path in folder.glob("*.safetensors"):
        if _header(path) is not None:
            path.unlink()


def _write(path: Path, key: Mapping[str, str], part: Part) -> None:
    arrays = {name: np.ascontiguousarray(values) for name, values in part.arrays.items()}
    header = {"format": FORMAT, "version": VERSION, "key": key, "told": part.told, "sha256": _checksum(part)}
    write_atomically(path, save(arrays, {"part": json.dumps(header, allow_nan=False)}))


def _read(path: Path, key: Mapping[str, str]) -> Part | None:
    """Return the part in a file, None if there is none or not that one."""
    if not path.exists():
        return None
    header = _header(path)
    try:
        if header is not None and header["version"] == VERSION and header["key"] == key:
            part = Part(header["told"], load(path.read_bytes()))
            if _checksum(part) == header["sha256"]:
                return part
    except (KeyError, OSError, SafetensorError, TypeError, ValueError):
        pass  # whatever is wrong with it, the answer is the same
    log.warning("%s is damaged: that part is computed again.", path)
    return None


def _header(path: Path) -> dict[str, Any] | None:
    """Return what the header of a part says, None if the file is something else."""
    try:
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {}).get("part", "null"))
    except (OSError, SafetensorError, ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and header.get("format") == FORMAT else None


def _checksum(part: Part) -> str:
    """Return the sha256 of what a part tells and of its arrays."""
    text = json.dumps(part.told, sort_keys=True, allow_nan=False)
    arrays = {name: np.ascontiguousarray(values) for name, values in part.arrays.items()}
    return hashlib.sha256(text.encode() + save(arrays)).hexdigest()


# The curvature of the loss over the network's parameters, on one data set.


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
            with evaluating(self.model, self.settings.device):  # whatever mode it came in
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
    pieces = read_batches(source, source.batch_ranges([range(source.rows)]), f"{data.name}: reading", workers)
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


# The curvature of the energy over features and logits, on one data set: all of it exact.


TOP = 50  # eigenvalues of single inputs, as in the paper's figure

ROWS = 1024  # at once


Traces = Callable[[Tensor, Tensor], Tensor]

TRACES: dict[Space, Traces] = {"feature": feature_trace, "logit": lambda weight, logits: logit_trace(logits)}

SPECTRA: dict[Space, Callable[[Tensor, Iterable[Tensor]], Spectrum]] = {
    "feature": feature_spectrum,
    "logit": lambda weight, logits: logit_spectrum(logits),
}


class FeatureCurvature:
    r"""The curvature over the features, or the logits, of one data set.

    .. math:: H = W^\top (\operatorname{diag} p - p p^\top) W, \qquad
        p = \operatorname{softmax}(W \tilde h + b), \qquad \tilde h = h / \|h\|^\alpha

    and over the logits the same without W. It is that of the energy, and of the cross-entropy with any label.

    Args:
        bank: The features.
        head: The network's last layer.
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
        return np.concatenate([as_array(TRACES[space](self.weight, logits)) for logits in self.logits(alpha)])

    def eigenvalues(self, alpha: float) -> Array:
        """Return the largest feature eigenvalues at every input, largest first, ``(n, k)``."""
        k = min(TOP, self.head.n_classes, self.head.width)
        return np.concatenate(
            [as_array(feature_eigenvalues(self.weight, logits, k=k)) for logits in self.logits(alpha)]
        )

    def measure(self, space: Space, dataset: str, group: str) -> Measured:
        """Return the largest eigenvalue, the trace, the traces of single inputs and the spectrum, at alpha = 0."""
        traces = self.traces(space, alpha=0.0)
        spectrum = SPECTRA[space](self.weight, self.logits(alpha=0.0))
        values: Mapping[str, float] = {"lambda_max": spectrum.lambda_max, "trace": float(traces.mean())}
        statistics = tuple(
            Statistic(
                dataset,
                group,
                space,
                name,  # type: ignore[arg-type]  # one of the two above
                value,
                None,
                spectrum.method,
                spectrum.matrix,
                spectrum.loss,
                spectrum.matvecs,
                len(self.bank),
            )
            for name, value in values.items()
        )
        return Measured(statistics, traces, None, as_array(spectrum.nodes), as_array(spectrum.weights), spectrum.size)
