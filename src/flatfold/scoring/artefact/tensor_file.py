"""Tensors and one JSON text in a safetensors file, read into memory of their own.

A mapped file would do with less, but then a guard would change, or end the process, with the file under it.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from ...files import written
from .strict_json import parsed

MOST_HEADER = 10 * 10**6  # bytes; a threshold for each of 100,000 classes takes 2 MB
TYPES = (torch.float16, torch.float32, torch.float64, torch.int64, torch.bool)
_LENGTH = 8  # bytes in front of the header that say how long it is
_TEXT = "guard"


def write(path: Path, text: str, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and a text in one step; the folder is made if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path) as partial:
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
        tensors = load(content)  # which compares the header with the bytes that are there, before anything is made
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
