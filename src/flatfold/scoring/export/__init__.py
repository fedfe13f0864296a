"""Guards for other runtimes: one file that holds model, detector and threshold, checked on real inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .onnx import export_onnx
from .parity import Mismatch, Parity
from .program import export_program

if TYPE_CHECKING:
    from ..guard import Guard

__all__ = ["FORMATS", "Mismatch", "Parity", "check_target", "export", "export_onnx", "export_program"]

FORMATS: dict[str, Callable[[Guard, Path, Iterable[Any]], Parity]] = {".onnx": export_onnx, ".pt2": export_program}


def export(guard: Guard, path: Path | str, inputs: Iterable[Any]) -> Parity:
    """Write a guard and its model as one graph, ``x -> logits, score, p_value, is_ood``, for batches of any size.

    The file is only written after it has given the same answers as the guard.

    Args:
        guard: Fitted.
        path: Where to; ``.onnx`` for ONNX runtimes, ``.pt2`` for torch without this library.
        inputs: Batches of real inputs of one shape, like a loader, prepared as for the model; some hundred are plenty.

    Returns:
        How well the file agrees with the guard.

    Raises:
        Mismatch: The file would not give the guard's answers; nothing is written.
        ValueError: The suffix is another one, or the model cannot be exported, or has changed since the guard was
            fitted.
        IsADirectoryError: There is a folder at ``path``.
        ModuleNotFoundError: What ``.onnx`` needs is not installed.
    """
    check_target(Path(path))
    return FORMATS[Path(path).suffix](guard, Path(path), inputs)


def check_target(path: Path) -> None:
    """Raise unless the suffix of a path names a format, and a file can be there: to be asked before long work."""
    if path.suffix not in FORMATS:
        raise ValueError(
            f"a guard is exported to a file that ends in {' or '.join(FORMATS)}, got {path.name!r}. "
            "Take .onnx for other runtimes, .pt2 for torch."
        )
    if path.is_dir():
        raise IsADirectoryError(f"a guard is exported to one file, but {path} is a folder. Choose another name.")
