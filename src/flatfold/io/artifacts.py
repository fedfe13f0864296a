"""One codec for our files: typed JSON documents, and tensors with a typed header. No pickle.

A document is a ``msgspec.Struct`` or a dataclass with class attributes ``FORMAT`` and ``VERSION``; both are written in
front of its fields and checked when it is read, as are the types of all fields.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from .files import write_atomically, written


class Document(Protocol):
    """A type that can be written: a struct or dataclass that names its format and version."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]


D = TypeVar("D", bound=Document)

LARGEST_HEADER = 10 * 10**6  # bytes; safetensors headers are read into memory at once
LARGEST_DOCUMENT = 2**29  # bytes; a larger file is not read into memory
_HEADER = "flatfold"
_LENGTH = 8  # bytes in front of a safetensors header


class DamagedFile(ValueError):  # noqa: N818 - named like DamagedBank, which users catch
    """A file is not what flatfold has written: cut, altered, of another format or of another version."""


class _Kind(msgspec.Struct):
    format: str
    version: int


def encode(document: Document, indent: int = 1) -> str:
    """Return the JSON text of a document; with ``indent=0`` on one line.

    Raises:
        ValueError: A number is not finite.
    """
    kind = {"format": document.FORMAT, "version": document.VERSION}
    content = {**kind, **msgspec.to_builtins(document, str_keys=True)}
    _check_finite(content)
    text = msgspec.json.encode(content)
    return (msgspec.json.format(text, indent=indent) if indent else text).decode() + "\n" * bool(indent)


def decode(text: str | bytes, kind: type[D]) -> D:
    """Return the document in a JSON text.

    Raises:
        DamagedFile: It is not JSON, or of another format or version, or a field is missing or has another type.
    """
    try:
        content = msgspec.json.decode(text, type=dict[str, Any])
        there = msgspec.convert(content, _Kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFile(f"it is not a document of flatfold ({error})") from error
    if there.format != kind.FORMAT:
        raise DamagedFile(f"its format must be {kind.FORMAT!r}, got {there.format[:60]!r}")
    if there.version != kind.VERSION:
        advice = "upgrade flatfold" if there.version > kind.VERSION else "older versions are not read"
        raise DamagedFile(f"it has version {there.version}, this flatfold reads version {kind.VERSION}: {advice}")
    try:
        del content["format"], content["version"]
        return msgspec.convert(content, type=kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DamagedFile(str(error)) from error


def write_json(path: Path, document: Document) -> None:
    """Write a document to a JSON file in one step."""
    write_atomically(path, encode(document))


def read_json(path: Path, kind: type[D]) -> D:
    """Return the document in a JSON file.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedFile: The file is not a whole document of this kind; the message names the file.
    """
    try:
        if path.stat().st_size > LARGEST_DOCUMENT:
            raise DamagedFile("it is larger than any document of flatfold")
        return decode(path.read_bytes(), kind)
    except DamagedFile as error:
        raise DamagedFile(f"{path} cannot be read: {error}.") from error


def write_tensors(path: Path, header: str, tensors: Mapping[str, Tensor], name: str = _HEADER) -> None:
    """Write tensors to a safetensors file in one step, with a text in its header under ``name``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path) as partial:
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, partial, {name: header})


def read_tensors(path: Path, name: str = _HEADER) -> tuple[str, dict[str, Tensor]]:
    """Return the text in the header and the tensors of a safetensors file, read into memory.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedFile: It is not a regular file, is cut, or was not written by :func:`write_tensors` under this name.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
        raise DamagedFile("it is not a regular file")
    content = path.read_bytes()
    header = content[_LENGTH : _LENGTH + header_length(content)]
    try:
        tensors = load(content)  # compares the header with the bytes before it makes anything
        metadata = msgspec.json.decode(header, type=dict[str, Any]).get("__metadata__")
    except (SafetensorError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFile(f"it is cut, damaged, or not a safetensors file ({error})") from error
    if not isinstance(metadata, dict) or set(metadata) != {name}:
        raise DamagedFile(f"its header must hold {name!r} alone")
    return metadata[name], tensors


def header_length(content: bytes) -> int:
    """Return the number of bytes of a safetensors header, after checking that it is no larger than we write."""
    length = int.from_bytes(content[:_LENGTH], "little")
    if length > LARGEST_HEADER:
        raise DamagedFile(f"its header has {length} bytes, at most {LARGEST_HEADER} are read")
    return length


def checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of a text and of the names, types, shapes and bytes of tensors."""
    digest = hashlib.sha256(json.dumps(header).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_finite(value: Any, at: str = "") -> None:
    """Raise if a number is not finite: msgspec would write null for it."""
    if isinstance(value, float) and not (-float("inf") < value < float("inf")):
        raise ValueError(f"a document holds finite numbers only, got {value} at {at or 'its top'}.")
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_finite(each, f"{at}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            _check_finite(each, f"{at}[{index}]")
