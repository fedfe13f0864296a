"""The settings in a guard's file: what they are, in which types, and which of them follow from the tensors."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from ... import __version__
from ...core.head import Head
from ..calibration import Calibration
from ..judge import Judge
from .strict_json import canonical, parsed

FORMAT, VERSION = "flatfold-guard", 2
QUANTILES = (0, 5, 25, 50, 75, 95, 100)  # percent
_TYPES: dict[str, tuple[type, ...]] = {
    "calibration": (dict,),
    "classes": (int,),
    "detector": (str,),
    "dtype": (str,),
    "features": (int,),
    "flatfold": (str,),
    "format": (str,),
    "fpr": (float,),
    "gives_logits": (bool,),
    "head": (str,),
    "head_sha256": (str,),
    "hyper": (dict,),
    "per_class": (bool,),
    "sha256": (str,),
    "thresholds": (list,),
    "transform": (dict, type(None)),
    "version": (int,),
    "weights_sha256": (str,),
}


def made(judge: Judge, **of_the_model: Any) -> dict[str, Any]:
    """Return all settings of a guard but the checksum, in the form that JSON gives them."""
    detector = judge.detector
    if detector.made_by is None:
        raise ValueError(
            f"a file can only name a detector that has a name, but this {type(detector).__name__} was built by hand. "
            'Make it with create("...") and fit the guard again.'
        )
    name, hyper = detector.made_by
    fixed = {"format": FORMAT, "version": VERSION, "flatfold": __version__, "detector": name}
    try:
        plain = parsed(canonical(hyper))
    except (TypeError, ValueError) as error:
        raise ValueError(
            "a file can only hold hyper-parameters that are finite numbers, words, True, False, None or lists of them, "
            f"but {name} has others: {error}. Fit the guard with plain values."
        ) from error
    return {**fixed, "hyper": plain, **following(judge), **of_the_model}


def following(judge: Judge) -> dict[str, Any]:
    """Return the settings that follow from the tensors, so that people and other programs need not look at these."""
    calibration, head = judge.calibration, head_within(judge)
    return {
        "fpr": float(calibration.fpr),
        "per_class": calibration.per_class,
        "thresholds": calibration.threshold.tolist(),
        "calibration": _summary(calibration),
        "classes": head.n_classes,
        "features": head.width,
        "head_sha256": head_hash(head),
    }


def checked(text: str) -> dict[str, Any]:
    """Return the settings in a text, every one of them there and of its type."""
    settings = parsed(text)
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise ValueError(f"it holds no guard, for its header does not say that its format is {FORMAT!r}")
    _check_version(settings.get("version"))
    unknown, missing = sorted(set(settings) - set(_TYPES)), sorted(set(_TYPES) - set(settings))
    if unknown or missing:
        word, name = ("unknown", unknown[0]) if unknown else ("missing", missing[0])
        raise ValueError(f"the setting {ascii(name)[:60]} is {word}")
    for name, types in _TYPES.items():
        if type(settings[name]) not in types:
            needed = " or ".join(kind.__name__ for kind in types)
            raise ValueError(f"the setting {name} must be {needed}, got {type(settings[name]).__name__}")
    if canonical(settings) != text:
        raise ValueError("its settings are not written the way flatfold writes them")
    return settings


def head_within(judge: Judge) -> Head:
    """Return the head that a judge was fitted with."""
    weight = judge.detector.fitted_weight
    return Head(weight, judge.detector.innermost._buffers.get("bias"))


def head_hash(head: Head) -> str:
    """Return the sha256 of the types, shapes and bytes of a head's weight and bias.

    Example:
        >>> head_hash(Head(torch.eye(2))) == head_hash(Head(torch.eye(2), torch.zeros(2)))
        False
    """
    digest = hashlib.sha256()
    for values in (head.weight, head.bias):
        digest.update(b"none" if values is None else f"{values.dtype} {tuple(values.shape)}\n".encode())
        if values is not None:
            digest.update(values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_version(version: Any) -> None:
    if version == VERSION:
        return
    newer = isinstance(version, int) and version > VERSION
    advice = "upgrade flatfold" if newer else "guards of that version are read no more"
    raise ValueError(f"it has version {ascii(version)[:60]}, this flatfold reads version {VERSION}: {advice}")


def _summary(calibration: Calibration) -> dict[str, Any]:
    counts = calibration.counts.tolist()
    scores: Tensor = torch.cat([row[:count] for row, count in zip(calibration.scores, counts, strict=True)])
    ordered = scores.sort().values.tolist()
    quantiles = {str(percent): ordered[percent * (len(ordered) - 1) // 100] for percent in QUANTILES}
    return {"samples": len(ordered), "least": min(counts), "most": max(counts), "quantiles": quantiles}
