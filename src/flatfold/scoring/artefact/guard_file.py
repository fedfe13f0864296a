"""Guards on disk: one safetensors file with its settings as JSON in the header. Nothing in it is executed.

A file holds what :mod:`.settings` lists and these tensors: ``detector.*``, what the detector has learnt;
``calibration.scores`` and ``calibration.counts``; ``probe.features`` and ``probe.scores``, its self-test. It is
believed after its checksum, the type, shape and order of all its parts, and the self-test have been looked at. This
finds damage, mixtures and other versions; who can write the file can write another guard, so take it from people you
trust, as you would their model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...models.at_rest import as_it_was
from ...models.heads import FoundHead
from ...models.transform import Transform
from ..judge import Judge
from .match import matching_head, type_name
from .probes import make_probes
from .rebuild import LEARNT, rebuilt
from .settings import checked, head_within, made
from .sound import check_calibration
from .strict_json import canonical
from .tensor_file import TYPES, checksum, read, write

_LONGEST = 200  # characters of an error from elsewhere
_OTHERS = {"calibration.scores", "calibration.counts", "probe.features", "probe.scores"}
# What torch and the methods may raise when parts do not belong together.
_UNFIT = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def save(path: Path, found: FoundHead, judge: Judge, transform: Transform | None, weights: str) -> None:
    """Write a guard to ``path`` in one step; the same guard gives the same bytes.

    Args:
        path: Where to.
        found: The head of the model.
        judge: Of its features.
        transform: How images are prepared for the model, if that is known.
        weights: The sha256 of the model's weights.
    """
    if path.is_dir():
        raise IsADirectoryError(f"a guard is one file, but {path} is a folder. Try {path / 'guard.safetensors'}.")
    if any(buffer.device.type != "cpu" for buffer in judge.buffers()):
        judge = deepcopy(judge).cpu()  # the original stays where it is
    _check_calibration(judge)
    with as_it_was(found.module):  # while it is trained, a look at a weight may change it (spectral norm)
        dtype = type_name(found.module)
    settings = made(
        judge,
        dtype=dtype,
        gives_logits=found.gives_logits,
        head=found.name,
        transform=None if transform is None else transform.as_dict(),
        weights_sha256=weights,
    )
    tensors = _tensors(judge)
    settings["sha256"] = checksum(canonical(settings), tensors)
    write(path, canonical(settings), tensors)


def load(path: Path, model: nn.Module) -> tuple[FoundHead, Judge, Transform | None, str]:
    """Return the head, the judge, the transform and the sha256 of the weights that ``path`` holds for ``model``."""
    settings, tensors = _read(path)
    with as_it_was(model):
        found = matching_head(path, settings, model)
    with _about(path):
        return found, *rebuilt(settings, tensors), settings["weights_sha256"]


def load_judge(path: Path) -> tuple[Judge, Transform | None, dict[str, Any]]:
    """Return the judge, the transform and the settings that ``path`` holds, for features without their model."""
    settings, tensors = _read(path)
    with _about(path):
        return *rebuilt(settings, tensors), settings


def _tensors(judge: Judge) -> dict[str, Tensor]:
    """Return all tensors of a file, or say why reading it would fail."""
    learnt = {f"{LEARNT}{name}": value for name, value in judge.detector.state_dict().items()}
    for name, value in learnt.items():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        if kind not in TYPES:
            raise ValueError(
                f"a file holds tensors of the types {', '.join(map(str, TYPES))}, but {name} is {kind}. Let the method "
                "keep one of those."
            )
    features, scores = make_probes(judge, head_within(judge))
    known = {"calibration.scores": judge.calibration.scores, "calibration.counts": judge.calibration.counts}
    return learnt | known | {"probe.features": features, "probe.scores": scores}


def _check_calibration(judge: Judge) -> None:
    try:
        check_calibration(judge.calibration.scores, judge.calibration.counts)
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
