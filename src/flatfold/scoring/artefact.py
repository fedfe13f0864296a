"""Guards on disk: one safetensors file with its settings as JSON in the header. Nothing in it is executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from .. import __version__
from ..detectors import create
from ..detectors.base import Detector
from ..files import write_atomically
from ..models.affine import head_of
from ..models.forward import is_linear
from ..models.heads import FoundHead
from ..models.identity import weights_hash

FORMAT, VERSION = "flatfold-guard", 1
_AGAIN = "Fit and save the guard again."


def save(path: Path, model: nn.Module, found: FoundHead, detector: Detector, calibration: Tensor, fpr: float) -> None:
    """Write a guard to ``path`` in one step."""
    if detector.made_by is None:
        raise ValueError(
            f"a file can only name a detector that has a name, but this {type(detector).__name__} was built by hand. "
            'Make it with create("...") and fit the guard again.'
        )
    name, hyper = detector.made_by
    settings = {
        "format": FORMAT,
        "version": VERSION,
        "flatfold": __version__,
        "detector": name,
        "hyper": hyper,
        "fpr": fpr,
        "head": found.name,
        "gives_logits": found.gives_logits,
        "weights_sha256": weights_hash(model),
    }
    tensors = {f"detector.{key}": value.contiguous() for key, value in detector.state_dict().items()}
    write_atomically(path, to_bytes({**tensors, "calibration": calibration}, {"guard": json.dumps(settings)}))


def load(path: Path, model: nn.Module) -> tuple[FoundHead, Detector, Tensor, float]:
    """Return the head, the fitted detector, the calibration scores and the rate that ``path`` holds for ``model``."""
    settings, tensors = _read(path)
    try:
        found = _head(settings, model, path)
        detector = create(settings["detector"], **settings["hyper"])
        state = {key.removeprefix("detector."): value for key, value in tensors.items() if key != "calibration"}
        detector.load_state_dict(state)
        calibration = tensors["calibration"]
        _check_tensors(detector, calibration, found)
        return found, detector, calibration, float(settings["fpr"])
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}. {_AGAIN}") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no guard at {path}. Check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            settings = json.loads((file.metadata() or {}).get("guard", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as a guard: {error}. {_AGAIN}") from error
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise ValueError(f"{path} holds no guard: its format must be {FORMAT!r}. Check the path.")
    if settings.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {settings.get('version')!r}, this flatfold reads version {VERSION}. "
            "Upgrade flatfold, or fit the guard again."
        )
    return settings, tensors


def _head(settings: dict[str, Any], model: nn.Module, path: Path) -> FoundHead:
    name = settings["head"]
    module = dict(model.named_modules(remove_duplicate=False)).get(name)
    if module is None or not is_linear(module):
        raise ValueError(f"{path} was made for a model with a last layer {name!r}, this one has none. Is it the same?")
    if weights_hash(model) != settings["weights_sha256"]:
        raise ValueError(
            f"{path} was made for a model with other weights: its calibration means nothing here. "
            "Load the model that the guard was fitted on, or fit a new guard."
        )
    return FoundHead(name, module, head_of(module), settings["gives_logits"] is True)


def _check_tensors(detector: Detector, calibration: Tensor, found: FoundHead) -> None:
    """Raise unless the tensors can have been written by :func:`save`."""
    if not torch.equal(detector.fitted_weight, found.head.weight):
        raise TypeError("the detector's weights are not those of the head")
    if calibration.ndim != 1 or not calibration.isfinite().all() or (calibration.diff() < 0).any():
        raise TypeError("the calibration scores are not in order")
    if not all(buffer.isfinite().all() for buffer in detector.buffers()):
        raise TypeError("the detector holds values that are not finite")
