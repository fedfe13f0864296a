"""Decisions at every position of images as PNG files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data.images import ImageFiles, PathImages
from ..data.masks import mask_paths
from ..data.sources import ImageSource, NamedSource
from ..io.files import write_together
from .positions import at_size

ALARM = 255  # the value of a pixel with an alarm; that of all others is 0


def mask_places(source: NamedSource, folder: Path) -> list[Path]:
    """Return the file of the mask of each image of a source, below a folder.

    That of the image ``street/1.jpg`` of a folder or a list is ``street/1.png``; images of tables and arrays are
    numbered.
    """
    if not isinstance(source, ImageSource):
        raise ValueError("masks are pictures of images, but this guard is for texts. Leave out masks=.")
    if not isinstance(source, ImageFiles):
        return [folder / f"{row:08d}.png" for row in range(source.rows)]
    root = source.root.resolve()
    if not isinstance(source, PathImages) and (folder.resolve() == root or root in folder.resolve().parents):
        raise ValueError(
            f"masks must not be among the images, but {folder} is in {source.root}. Choose a folder outside of it."
        )
    return [folder / path for path in mask_paths(source)]


def png_of(alarms: Tensor, size: Sequence[int] | None = None) -> bytes:
    """Return a mask ``(h, w)`` of alarms as a grey PNG, 0 or 255, by default of its own size."""
    mask = alarms if size is None or tuple(alarms.shape) == tuple(size) else at_size(alarms[None], size)[0]
    file = io.BytesIO()
    Image.fromarray(np.where(mask.cpu().numpy(), ALARM, 0).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files, none of which is ever incomplete; create their folders."""
    for folder in dict.fromkeys(path.parent for path in contents):
        write_together(folder, {path.name: content for path, content in contents.items() if path.parent == folder})


def join_files(files: Sequence[bytes]) -> dict[str, Tensor]:
    """Return files as columns of a part: all of their bytes, and the length of each."""
    content = np.frombuffer(b"".join(files), np.uint8).copy()
    return {"mask_bytes": torch.from_numpy(content), "mask_length": torch.tensor([len(file) for file in files])}


def split_files(columns: dict[str, Tensor]) -> list[bytes]:
    """Return the files of a part, as :func:`join_files` has joined them."""
    lengths = columns["mask_length"].tolist()
    return [content.numpy().tobytes() for content in torch.split(columns["mask_bytes"], lengths)]
