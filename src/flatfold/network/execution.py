"""Settings for running a network: device, dtype, runtime and engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self, get_args

import torch

from ..core.validation import check_choice

RuntimeName = Literal["auto", "torch", "torch-compile", "onnx"]
Engine = Literal["local", "ray"]


@dataclass(frozen=True)
class Execution:
    """Settings for running a network.

    Args:
        device: A torch device; by default the device of the model.
        dtype: ``torch.bfloat16`` for mixed precision. A guard stores it, since its calibration is only valid for scores
            of the same precision.
        runtime: ``"torch"``, ``"torch-compile"``, ``"onnx"``, or ``"auto"`` for the fastest of them, measured on the
            first batch (:mod:`flatfold.network.runtime`). On Ray, ``"auto"`` is ``"torch"``, so that all workers agree.
        onnx_cache: File that caches the graph exported for the runtime ``"onnx"``.
        head: Name of the last linear layer, if it cannot be found automatically (see ``find_head``); several names,
            separated by commas, for layers whose outputs are averaged or added.
        engine: ``"local"`` runs in this process, ``"ray"`` distributes the data over a Ray cluster: the one that this
            process has joined, that ``RAY_ADDRESS`` names, or that was started on this machine; else a local one.
            Results have the same bytes. Only sources can be distributed, such as ``FolderImages`` and arrays.
        actors: Largest number of Ray workers; by default as many as fit. Each has one CPU, one thread and a model.
        gpus: GPUs per Ray worker, a fraction such as 0.5 if several share one; use it with ``device="cuda"``.
    """

    device: torch.device | str | None = None
    dtype: torch.dtype | None = None
    runtime: RuntimeName = "torch"
    onnx_cache: Path | str | None = None
    head: str | None = None
    engine: Engine = "local"
    actors: int | None = None
    gpus: float = 0.0

    def __post_init__(self) -> None:
        check_choice("runtime", self.runtime, get_args(RuntimeName))
        check_choice("engine", self.engine, get_args(Engine))
        if self.dtype is not None and self.runtime == "onnx":
            raise ValueError("onnxruntime does not compute in mixed precision. Use the runtime torch or torch-compile.")
        if self.actors is not None and self.actors < 1:
            raise ValueError(f"actors must be at least 1, got {self.actors}. By default, as many run as fit.")
        if not 0 <= self.gpus <= 1:
            raise ValueError(f"gpus must be from 0 to 1, since a model runs on one device, got {self.gpus:g}.")
        if self.engine == "local" and (self.actors is not None or self.gpus):
            raise ValueError("actors and gpus apply to Ray workers only. Use them with engine='ray'.")

    @property
    def distributed(self) -> bool:
        """Whether other processes run the network."""
        return self.engine != "local"

    def here(self) -> Self:
        """Return settings for running a few inputs in this process, whatever the engine."""
        if not self.distributed:
            return self
        return replace(self, device=None, runtime="torch", onnx_cache=None, engine="local", actors=None, gpus=0.0)

    def on_worker(self) -> Self:
        """Return the settings of a worker that runs a part of the data."""
        runtime: RuntimeName = "torch" if self.runtime == "auto" else self.runtime
        return replace(self, runtime=runtime, onnx_cache=None, engine="local", actors=None, gpus=0.0)
