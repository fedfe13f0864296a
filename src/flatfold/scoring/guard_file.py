"""Guards on disk: one safetensors file with its settings as JSON in the header. Nothing in it is executed.

A file holds what :mod:`.settings` lists and these tensors: ``detector.*``, what the detector has learnt;
``calibration.scores`` and ``calibration.counts``; ``probe.features`` and ``probe.scores``, its self-test. It is
believed after its checksum, the type, shape and order of all its parts, and the self-test have been looked at. This
finds damage, mixtures and other versions; who can write the file can write another guard, so take it from people you
trust, as you would their model.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor, nn

from .. import __version__
from ..core.bank import Head
from ..core.validation import FLOATS
from ..detectors import create
from ..detectors.base import Detector
from ..detectors.registry import METHODS
from ..io.files import replacing, sha256_of
from ..models.eval_mode import evaluating
from ..models.fingerprint import weights_hash
from ..models.forward import is_linear
from ..models.heads import FoundHead, head_of, module_named
from ..models.transform import Transform
from .calibrated import CalibratedDetector, Calibration
from .self_test import COUNT, check_probes, make_probes

# JSON as flatfold writes it and nothing beyond: what a text from elsewhere may cost is bounded.


MOST_BRACKETS = 10_000  # each costs some ten times the memory of its character

_DIGITS = 20


def parsed(text: str) -> Any:
    """Return what a JSON text says.

    Raises:
        ValueError: It is no JSON, or has a key twice in one object, a number that is not finite or has more digits
            than any size, or very many or very deeply nested lists.

    Example:
        >>> parsed('{"k": [1, 2.5, null]}')
        {'k': [1, 2.5, None]}
    """
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        raise ValueError(f"its JSON has more than {MOST_BRACKETS} lists and objects")
    try:
        return json.loads(
            text, object_pairs_hook=_distinct, parse_int=_whole, parse_float=_finite, parse_constant=_finite
        )
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def canonical(value: Any) -> str:
    """Return the one JSON text of a value, with keys in order.

    Raises:
        TypeError: It holds something that JSON has no form for.
        ValueError: It holds a number that is not finite.

    Example:
        >>> canonical({"b": (1, 2), "a": None})
        '{"a": null, "b": [1, 2]}'
    """
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("its JSON has a key twice in one object")
    return table


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"its JSON has a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError("its JSON has a number that is not finite")
    return number


# The settings in a guard's file: what they are, in which types, and which of them follow from the tensors.


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


def made(calibrated: CalibratedDetector, **of_the_model: Any) -> dict[str, Any]:
    """Return all settings of a guard but the checksum, in the form that JSON gives them."""
    detector = calibrated.detector
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
    return {**fixed, "hyper": plain, **following(calibrated), **of_the_model}


def following(calibrated: CalibratedDetector) -> dict[str, Any]:
    """Return the settings that follow from the tensors, so that people and other programs need not look at these."""
    calibration, head = calibrated.calibration, head_within(calibrated)
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


def head_within(calibrated: CalibratedDetector) -> Head:
    """Return the head that a calibrated was fitted with."""
    weight = calibrated.detector.fitted_weight
    return Head(weight, calibrated.detector.innermost._buffers.get("bias"))


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


# Whether a model is the one that a guard's file was made for, and in which way it is not.


_ANOTHER = "Load the model that the guard was fitted on, with its weights, or fit a new guard."


def matching_head(path: Path, settings: dict[str, Any], model: nn.Module) -> FoundHead:
    """Return the head of ``model`` that the settings name, or say how the model differs from the one they are for."""
    name = settings["head"]
    layer = module_named(model, name)
    if layer is None or not is_linear(layer):
        raise ValueError(
            f"{path} was made for a model with a last layer {ascii(name)[:60]}, this one has none. {_ANOTHER}"
        )
    if type_name(layer) != settings["dtype"]:
        raise ValueError(
            f"{path} was made for a model in {ascii(settings['dtype'])[:60]}, this one is in {type_name(layer)!r}: "
            "its scores are others. Convert the model back, or fit a new guard."
        )
    head = head_of(layer)
    needed = (settings["classes"], settings["features"])
    if (head.n_classes, head.width) != needed:
        raise ValueError(
            f"{path} was made for a model with {needed[0]} classes and {needed[1]} features, this one has "
            f"{head.n_classes} and {head.width}. {_ANOTHER}"
        )
    if weights_hash(model) != settings["weights_sha256"] or head_hash(head) != settings["head_sha256"]:
        raise ValueError(
            f"{path} was made for a model with other weights: its calibration means nothing here. {_ANOTHER}"
        )
    return FoundHead(name, layer, head, settings["gives_logits"])


def type_name(layer: nn.Module) -> str:
    """Return the type of a layer's weight, such as ``"float32"``."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return str(weight.dtype).removeprefix("torch.")


# Whether the tensors in a guard's file can be what they are called.


def check_shapes(tensors: Mapping[str, Tensor], classes: int, width: int) -> None:
    """Raise unless calibration and probes are those of a head with so many classes and features."""
    groups = len(tensors["calibration.counts"].flatten())
    if groups not in (1, classes):
        raise ValueError(
            f"it has calibration scores of {groups} groups, and a model with {classes} classes has 1 or {classes}"
        )
    features, scores = tensors["probe.features"], tensors["probe.scores"]
    if features.shape != (COUNT, width) or scores.shape != (COUNT,):
        raise ValueError(f"its self-test must have {COUNT} rows of {width} features")
    dtype = tensors["calibration.scores"].dtype
    if dtype not in FLOATS or features.dtype != dtype or scores.dtype != dtype:
        raise ValueError("its scores must have one type, float32 or float64")


def check_calibration(scores: Tensor, counts: Tensor) -> None:
    """Raise unless scores ``(g, m)`` ascend, finite as far as ``counts`` ``(g,)`` says and infinite from there on."""
    if scores.ndim != 2 or counts.shape != scores.shape[:1] or counts.dtype != torch.int64 or counts.numel() == 0:
        raise ValueError("its calibration must have a row of scores and a count for each group")
    if int(counts.min()) < 1 or int(counts.max()) != scores.shape[1]:
        raise ValueError("its calibration counts must go from 1 to the length of the longest row")
    counted = torch.arange(scores.shape[1], device=scores.device) < counts.to(scores.device)[:, None]
    if not torch.equal(scores.isfinite(), counted) or not (scores[~counted] == torch.inf).all():
        raise ValueError("its calibration scores must be finite numbers, as many as are counted")
    if not (scores[:, 1:] >= scores[:, :-1]).all():
        raise ValueError("its calibration scores are not in order")


# From the settings and tensors of a file to a calibrated, with every check on the way that needs more than one of them.


LEARNT = "detector."

"""What the names of a detector's tensors begin with."""

MOST_PIXELS = 2**16


def rebuilt(settings: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[CalibratedDetector, Transform | None]:
    """Return the calibrated and the transform of a file, once they have passed its self-test."""
    scores, counts = tensors["calibration.scores"], tensors["calibration.counts"]
    check_calibration(scores, counts)
    check_shapes(tensors, settings["classes"], settings["features"])
    detector = _detector(settings)
    learnt = {name.removeprefix(LEARNT): value for name, value in tensors.items() if name.startswith(LEARNT)}
    detector.load_state_dict(learnt, assign=True)  # a bank of features is not copied
    calibrated = CalibratedDetector(detector, Calibration(scores, counts, settings["fpr"]))
    _check_following(calibrated, settings)
    check_probes(calibrated, tensors["probe.features"], tensors["probe.scores"])
    return calibrated, _transform(settings)


def _detector(settings: dict[str, Any]) -> Detector:
    """Return the unfitted detector that settings name; only registered methods that see features can be named."""
    name, hyper = settings["detector"], settings["hyper"]
    if name not in METHODS or METHODS[name].sees != "features":
        raise ValueError(
            f"its method is {ascii(name)[:60]}, and no method that sees features has this name here. If it is one of "
            "your own, register it before the guard is loaded"
        )
    if {"name", "preset"} & set(hyper):
        raise ValueError("its hyper-parameters have names that no method can have")
    detector = create(name, **hyper)
    if not isinstance(detector, Detector) or detector.made_by is None:
        raise ValueError(f"what {name} makes here is no detector of features")
    if canonical(detector.made_by[1]) != canonical(hyper):
        raise ValueError(f"its hyper-parameters are not all that {name} has")
    return detector


def _transform(settings: dict[str, Any]) -> Transform | None:
    """Return the transform in settings, if there is one."""
    values = settings["transform"]
    if values is None:
        return None
    transform = Transform(**values)
    if (
        canonical(transform.as_dict()) != canonical(values)
        or max(transform.resize or 0, transform.crop or 0) > MOST_PIXELS
    ):
        raise ValueError("its transform is none that a guard can have")
    return transform


def _check_following(calibrated: CalibratedDetector, settings: dict[str, Any]) -> None:
    """Raise unless the settings that follow from the tensors do."""
    for name, value in following(calibrated).items():
        if settings[name] != value:
            raise ValueError(f"the setting {name} does not follow from its tensors")


# Tensors and one JSON text in a safetensors file, read into memory of their own.


MOST_HEADER = 10 * 10**6  # bytes; a threshold for each of 100,000 classes takes 2 MB

TYPES = (torch.float16, torch.float32, torch.float64, torch.int64, torch.bool)

_LENGTH = 8  # bytes in front of the header that say how long it is

_TEXT = "guard"


def write(path: Path, text: str, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and a text in one step; the folder is made if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, {_TEXT: text})


def read(path: Path) -> tuple[str, dict[str, Tensor]]:
    """Return the text and the tensors of a file; whatever is not a regular file is refused without opening it."""
    if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe is to wait for somebody at its other end
        raise ValueError("it is a folder or a device, and no regular file")
    content = path.read_bytes()
    length = int.from_bytes(content[:_LENGTH], "little")
    if length > MOST_HEADER:
        raise ValueError(f"its header has {length} bytes, and at most {MOST_HEADER} are read")
    try:
        tensors = load_tensors(
            content
        )  # which compares the header with the bytes that are there, before anything is made
    except SafetensorError as error:
        raise ValueError(f"it is cut, damaged, or no safetensors file ({error})") from error
    if odd := sorted(name for name, tensor in tensors.items() if tensor.dtype not in TYPES):
        raise ValueError(f"{ascii(odd[0])[:60]} has none of the types {', '.join(map(str, TYPES))}")
    metadata = parsed(content[_LENGTH : _LENGTH + length].decode()).get("__metadata__")
    if not isinstance(metadata, dict) or set(metadata) != {_TEXT}:
        raise ValueError("it holds no guard, but something else")
    return metadata[_TEXT], tensors


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of a text and of the names, types, shapes and bytes of tensors."""
    digest = hashlib.sha256(json.dumps(text).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


_LONGEST = 200  # characters of an error from elsewhere

_OTHERS = {"calibration.scores", "calibration.counts", "probe.features", "probe.scores"}

# What torch and the methods may raise when parts do not belong together.
_UNFIT = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def save_guard(
    path: Path, found: FoundHead, calibrated: CalibratedDetector, transform: Transform | None, weights: str
) -> None:
    """Write a guard to ``path`` in one step; the same guard gives the same bytes.

    Args:
        path: Where to.
        found: The head of the model.
        calibrated: Of its features.
        transform: How images are prepared for the model, if that is known.
        weights: The sha256 of the model's weights.
    """
    if path.is_dir():
        raise IsADirectoryError(f"a guard is one file, but {path} is a folder. Try {path / 'guard.safetensors'}.")
    if any(buffer.device.type != "cpu" for buffer in calibrated.buffers()):
        calibrated = deepcopy(calibrated).cpu()  # the original stays where it is
    _check_calibration(calibrated)
    with evaluating(found.module):  # while it is trained, a look at a weight may change it (spectral norm)
        dtype = type_name(found.module)
    settings = made(
        calibrated,
        dtype=dtype,
        gives_logits=found.gives_logits,
        head=found.name,
        transform=None if transform is None else transform.as_dict(),
        weights_sha256=weights,
    )
    tensors = _tensors(calibrated)
    settings["sha256"] = checksum(canonical(settings), tensors)
    write(path, canonical(settings), tensors)


@dataclass(frozen=True)
class GuardFile:
    """The verified content of a guard's file; read it once with :func:`read_guard`.

    Attributes:
        path: The file.
        sha256: Of its bytes.
        calibrated: The detector and its calibration, which passed the self-test.
        transform: How images are prepared for the model, if that is known.
        settings: All settings in the header.
    """

    path: Path
    sha256: str
    calibrated: CalibratedDetector
    transform: Transform | None
    settings: dict[str, Any]

    @property
    def weights(self) -> str:
        """The sha256 of the weights of the guard's model."""
        weights: str = self.settings["weights_sha256"]
        return weights

    def match(self, model: nn.Module) -> FoundHead:
        """Return the head of ``model``; raise if the file was made for another model."""
        with evaluating(model):
            return matching_head(self.path, self.settings, model)


def read_guard(path: Path) -> GuardFile:
    """Read and verify a guard's file, for features without their model or, by ``Guard.load``, for a model."""
    settings, tensors = _read(path)
    with _about(path):
        return GuardFile(path, sha256_of(path), *rebuilt(settings, tensors), settings)


def _tensors(calibrated: CalibratedDetector) -> dict[str, Tensor]:
    """Return all tensors of a file, or say why reading it would fail."""
    learnt = {f"{LEARNT}{name}": value for name, value in calibrated.detector.state_dict().items()}
    for name, value in learnt.items():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        if kind not in TYPES:
            raise ValueError(
                f"a file holds tensors of the types {', '.join(map(str, TYPES))}, but {name} is {kind}. Let the method "
                "keep one of those."
            )
    features, scores = make_probes(calibrated, head_within(calibrated))
    known = {"calibration.scores": calibrated.calibration.scores, "calibration.counts": calibrated.calibration.counts}
    return learnt | known | {"probe.features": features, "probe.scores": scores}


def _check_calibration(calibrated: CalibratedDetector) -> None:
    try:
        check_calibration(calibrated.calibration.scores, calibrated.calibration.counts)
    except ValueError as error:
        raise ValueError(
            f"this guard cannot be saved: {error}. Look at the inputs that it was calibrated on."
        ) from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return settings and tensors of a file whose checksum is right."""
    with _about(path):
        text, tensors = read(path)
        settings = checked(text)
        _check_names(tensors)
        said = settings.pop("sha256")
        if checksum(canonical(settings), tensors) != said:
            raise ValueError("its checksum is not that of its content, so it was changed or cut on its way here")
        return settings, tensors


def _check_names(names: Iterable[str]) -> None:
    missing = sorted(_OTHERS - set(names))
    unknown = sorted(name for name in set(names) - _OTHERS if not name.startswith(LEARNT))
    if missing or unknown:
        word, name = ("missing", missing[0]) if missing else ("unknown", unknown[0])
        raise ValueError(f"the tensor {ascii(name)[:60]} is {word}")


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with a file into a sentence about it."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no guard at {path}. Check the path.") from None
    except PermissionError:
        raise
    except _UNFIT as error:
        words = " ".join(str(error).split())
        reason = (words if len(words) <= _LONGEST else f"{words[:_LONGEST]} ...").removesuffix(".")
        raise ValueError(
            f"{path} cannot be used as a guard: {reason}. Check the path, or fit and save the guard again."
        ) from error
