"""Estimate the memory, disk space and time of a benchmark before it runs, from the sizes of its data.

Methods declare their costs (:meth:`flatfold.detectors.base.Detector.costs`); the speed of this machine is measured with
two matrix products and a few inputs. Estimates are meant to be right within a factor of two.
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median

import torch
from torch import nn

from ..data.banks import BYTES_JOINED
from ..data.batch import split_batch
from ..data.sources import ImageSource, Source
from ..detectors import create, get_method, hyperparameters
from ..detectors.base import Detector
from ..errors import InsufficientResourcesError
from ..io.clock import time_call, time_in_turn
from ..io.cores import free_memory
from ..network.calls import evaluating
from ..network.network import Network
from ..passes.extract import first_inputs
from .banks import Settings, bank_folders, stored_bank
from .methods import Spec
from .tuning import grid_points

TIMED_INPUTS = 16
BASE_MEMORY = 3 * 10**8  # bytes of chunks, scores and intervals
GRADIENT = 3  # passes that take as long as one with a gradient
QUICK = 10**10  # multiplications that take less than a second anywhere
SHORT = 60  # seconds that are not divided further
LONG = 600  # seconds of a method that are worth a sentence
GIGABYTE = 1e9

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """Estimated needs of a benchmark.

    Args:
        inputs: Number of inputs whose features are to be extracted.
        extraction: Seconds of it; None if unknown, as on a cluster.
        disk: Bytes to be written, at most.
        memory: Bytes at the peak, by method; features that are mapped from files do not count.
        seconds: Seconds to fit and score, by method.
        hints: A cheaper variant, by method.
    """

    inputs: int
    extraction: float | None
    disk: int
    memory: dict[str, int]
    seconds: dict[str, float]
    hints: dict[str, str] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """Bytes of memory at the peak."""
        return max(self.memory.values(), default=0)

    @property
    def total(self) -> float:
        """Seconds of the whole benchmark, without intervals and pages."""
        return (self.extraction or 0.0) + sum(self.seconds.values())

    def __str__(self) -> str:
        largest = max(self.memory, key=lambda label: self.memory[label], default="")
        parts = [f"{_gigabytes(self.peak)} of memory ({largest})"]
        parts += [f"{_gigabytes(self.disk)} of disk space"] if self.disk > GIGABYTE / 20 else []
        time = f"{_duration(self.total)} on this machine"
        if self.inputs and (self.extraction is None or self.total >= SHORT):
            known = "an unknown time" if self.extraction is None else _duration(self.extraction)
            methods = _duration(sum(self.seconds.values()))
            time += f" ({known} for the features of {self.inputs:,} inputs, {methods} for the methods)"
        slow = sorted((label for label in self.seconds if self.seconds[label] > LONG), key=self.seconds.__getitem__)
        details = [
            f"{label} takes {_duration(self.seconds[label])}" + self.hints.get(label, "") for label in reversed(slow)
        ]
        return f"about {', '.join(parts)} and {time}" + "".join(f"; {detail}" for detail in details)

    def check(self, folder: Path) -> None:
        """Raise unless there is enough memory, and space on the disk of a folder."""
        place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        space, memory = shutil.disk_usage(place).free, free_memory()
        if self.disk > space:
            raise InsufficientResourcesError(
                f"the features need {_gigabytes(self.disk)} of disk space, but {place} has {_gigabytes(space)} left. "
                "Free some, or write to another disk."
            )
        if memory is not None and self.peak > memory:
            large = [label for label, needed in self.memory.items() if needed > memory]
            raise InsufficientResourcesError(
                f"{', '.join(large)} would need up to {_gigabytes(self.peak)} of memory, but "
                f"{_gigabytes(memory)} is free. Leave {'it' if len(large) == 1 else 'them'} out, or free memory."
            )


def make_plan(
    sources: Mapping[str, Source],
    model: nn.Module,
    methods: Sequence[Spec],
    folder: Path,
    settings: Settings | None = None,
    head: str | None = None,
) -> Plan | None:
    """Estimate the needs of a benchmark; None if the model cannot be run on the inputs.

    Args:
        sources: Data sets by name: ``train`` if there is one, ``val``, ``test``, and the others.
        model: The classifier. It runs on a few test inputs, which are timed.
        methods: The methods to evaluate.
        folder: The folder of the features; existing ones are not extracted again.
        settings: Settings of the run.
        head: Name of the last layer, if it cannot be found.
    """
    settings = settings or Settings()
    stored = {name for name, source in sources.items() if stored_bank(source, model, settings) is not None}
    try:
        with evaluating(model, settings.device) as place:
            few = first_inputs(sources["test"])[0].to(place)
            execution = replace(settings.execution.here(), runtime="torch", onnx_cache=None, head=head)
            network, _ = Network.of(model, few, execution)
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # the extraction reports it with its data set
        log.debug("no estimate of memory and time: %s", error)
        return None
    (classes, width), size = network.found.head.weight.shape, network.found.head.weight.itemsize
    nbytes = {name: source.rows * (size * width + 8 * (source.labels is not None)) for name, source in sources.items()}
    extracted = [name for name in sources if name not in stored]
    there = {
        name: sum(file.stat().st_size for file in path.glob("*.safetensors"))
        for name, path in bank_folders({name: sources[name] for name in extracted}, model, folder, settings).items()
    }
    missing = {name: max(0, nbytes[name] - there[name]) for name in extracted}
    # The parts of a large bank are replaced by one file, which is written beside them.
    joined = max((nbytes[name] for name in extracted if missing[name] and nbytes[name] > BYTES_JOINED), default=0)
    inputs = sum(round(sources[name].rows * missing[name] / nbytes[name]) for name in extracted)
    runs_network = any(get_method(spec.name).sees != "features" for spec in methods)
    per_input = 0.0
    if inputs or runs_network:
        with evaluating(model, settings.device):
            per_input = _seconds_per_input(network, sources["test"])
    in_memory = sum(count for count in nbytes.values() if count <= BYTES_JOINED)
    scored = sum(source.rows for name, source in sources.items() if name not in ("train", "val", "ood_val"))
    memory, seconds, hints = {}, {}, {}
    for spec in methods:
        fitted_on = get_method(spec.name).fits_on
        rows = sources[fitted_on].rows if fitted_on in sources else 0
        if fitted_on == "train" and not rows:
            continue  # the method is left out
        detector, times = create(spec.name, **spec.hyper), _trials(spec)
        if not isinstance(detector, Detector):
            if not all(isinstance(source, ImageSource) for source in sources.values()):
                continue
            memory[spec.label] = in_memory + BASE_MEMORY
            seconds[spec.label] = times * GRADIENT * per_input * (scored + rows)
            continue
        costs = detector.costs(rows, width, classes)
        memory[spec.label] = in_memory + BASE_MEMORY + costs.memory
        seconds[spec.label] = times * _seconds_of(costs.fit, torch.float64)
        seconds[spec.label] += times * _seconds_of(costs.score * scored, torch.float32)
        if hyperparameters(spec.name, **spec.hyper).get("share") == 1:
            hints[spec.label] = f" (a tenth of that with {spec.label}:share=0.1: a tenth of each class)"
    unknown = settings.execution.distributed
    return Plan(inputs, None if unknown else per_input * inputs, sum(missing.values()) + joined, memory, seconds, hints)


def _seconds_per_input(network: Network, source: Source) -> float:
    """Return the seconds that reading and running an input takes, measured on some inputs."""
    rows = range(min(TIMED_INPUTS, source.rows))

    def run() -> None:
        raw, _ = source.attempt(rows)
        if raw is not None:
            network.run_few(split_batch(raw))

    return time_call(run) / len(rows)


def _trials(spec: Spec) -> int:
    """Return how often a method is fitted."""
    return len(grid_points(spec.grid, spec.name)) if spec.tune else 1


def _seconds_of(multiplications: int, dtype: torch.dtype) -> float:
    return 0.0 if multiplications < QUICK else multiplications / _speed(dtype)


@cache
def _speed(dtype: torch.dtype) -> float:
    """Return the multiplications per second of a matrix product on this machine."""
    a, b = torch.ones(512, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    a @ b  # warm-up
    (times,) = time_in_turn([lambda: a @ b], 5, 0.5)
    return 512 * 1024 * 1024 / median(times)


def _gigabytes(count: float) -> str:
    return f"{count / GIGABYTE:.1f} GB"


def _duration(seconds: float) -> str:
    """Format a duration.

    Example:
        >>> _duration(59), _duration(500), _duration(9000)
        ('less than a minute', '8 min', '2 h 30 min')
    """
    if seconds < SHORT:
        return "less than a minute"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
