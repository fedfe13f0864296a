"""Codec of all flatfold files: typed JSON documents, with arrays next to them, and tensors with a typed header.

Pickle is never used. A document is a ``msgspec.Struct`` or a dataclass with class attributes ``FORMAT`` and
``VERSION``; both are written before its fields and validated on reading, as are the types of all fields. A dataclass
with ``ARRAYS`` stores some fields in safetensors files, whose checksums are in its JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import numpy as numpy_files
from safetensors.torch import load, save_file
from torch import Tensor

from ..errors import DamagedFileError
from .files import replacing, write_atomically, write_together


class Document(Protocol):
    """A serialisable type: a struct or dataclass that names its format and version."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]


class ArrayDocument(Document, Protocol):
    """A dataclass that stores some fields, dicts of numpy arrays, in safetensors files next to its JSON.

    ``ARRAYS`` maps each such field to its file and to the prefix of its arrays' names in that file.
    """

    ARRAYS: ClassVar[Mapping[str, tuple[str, str]]]

    def check(self) -> None:
        """Raise a KeyError, IndexError, TypeError or ValueError if the content is incomplete."""


Blocks = Tensor | Sequence[Tensor]
"""A tensor, or consecutive rows of it as blocks ``(n_i, ...)``."""

D = TypeVar("D", bound=Document)
A = TypeVar("A", bound=ArrayDocument)

LARGEST_HEADER = 10 * 10**6  # bytes; safetensors headers are read into memory at once
LARGEST_DOCUMENT = 2**29  # bytes; larger files are rejected
LARGEST_ARRAYS = 2**36
_HEADER = "flatfold"
_LENGTH = 8  # bytes before a safetensors header
_SAFETENSORS = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}


class _Kind(msgspec.Struct):
    format: str
    version: int


def encode(document: Document, indent: int = 1) -> str:
    """Return the JSON text of a document, with ``indent=0`` on one line; raise ValueError if a number is not finite."""
    return _format(document, msgspec.to_builtins(document, str_keys=True), indent)


def _format(document: Document, content: dict[str, Any], indent: int = 1) -> str:
    _check_finite(content)
    text = msgspec.json.encode({"format": document.FORMAT, "version": document.VERSION, **content})
    return (msgspec.json.format(text, indent=indent) if indent else text).decode() + "\n" * bool(indent)


def decode(text: str | bytes, kind: type[D]) -> D:
    """Return the document in a JSON text; raise DamagedFileError unless it is complete and of this format."""
    return _convert(_read_content(text, kind), kind)


def _convert(content: dict[str, Any], kind: type[D]) -> D:
    try:
        return msgspec.convert(content, type=kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DamagedFileError(str(error)) from error


def _read_content(text: str | bytes, kind: type[Document]) -> dict[str, Any]:
    """Return the fields of a document in JSON after checking its format and version."""
    try:
        content = msgspec.json.decode(text, type=dict[str, Any])
        there = msgspec.convert(content, _Kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFileError(f"it is not a document of flatfold in JSON ({error})") from error
    if there.format != kind.FORMAT:
        raise DamagedFileError(f"its format must be {kind.FORMAT!r}, got {there.format[:60]!r}")
    if there.version != kind.VERSION:
        advice = "upgrade flatfold" if there.version > kind.VERSION else "older versions are not supported"
        raise DamagedFileError(
            f"it has version {there.version}, but this flatfold reads version {kind.VERSION}: {advice}"
        )
    del content["format"], content["version"]
    return content


def write_json(path: Path, document: Document) -> None:
    """Write a document to a JSON file atomically."""
    write_atomically(path, encode(document))


def read_json(path: Path, kind: type[D]) -> D:
    """Return the document in a JSON file; raise FileNotFoundError, or DamagedFileError if it is not valid."""
    try:
        return decode(read_regular(path), kind)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path} cannot be read: {error}.") from error


def write_document(path: Path, document: ArrayDocument, tables: Mapping[str, str] | None = None) -> None:
    """Write a document, its arrays, and text files next to it; the JSON is written last, with the sha256 of the arrays.

    If a number in the JSON is not finite, raise ValueError and write nothing.
    """
    names = [field.name for field in fields(document) if field.name not in document.ARRAYS]  # type: ignore[arg-type]
    values = {name: getattr(document, name) for name in names}
    content: dict[str, Any] = msgspec.to_builtins(values, str_keys=True, enc_hook=_to_plain)
    arrays: dict[str, dict[str, Any]] = {file: {} for file, _ in document.ARRAYS.values()}
    for name, (file, prefix) in document.ARRAYS.items():
        arrays[file] |= {f"{prefix}{key}": np.ascontiguousarray(a) for key, a in getattr(document, name).items()}
    saved = {file: numpy_files.save(entries) for file, entries in arrays.items()}
    content["sha256"] = {file: hashlib.sha256(data).hexdigest() for file, data in saved.items()}
    text = _format(document, content)
    write_together(path.parent, {**saved, **(tables or {}), path.name: text})


def _to_plain(value: Any) -> str | float:
    """Convert subclasses of str and float, such as numpy's floats and torch's version, to plain values."""
    if not isinstance(value, (str, float)):
        raise TypeError(f"{type(value).__name__} cannot be written to a JSON file")
    return str(value) if isinstance(value, str) else float(value)


def read_document(path: Path, kind: type[A], command: str) -> A:
    """Return the document that :func:`write_document` wrote; error messages suggest the ``command`` that writes it.

    Raise ValueError if the JSON file does not exist, DamagedFileError if a file is missing, altered, or belongs to
    another document.
    """
    if not path.exists():
        inside = ", ".join(str(place.parent) for place in sorted(path.parent.glob(f"*/{path.name}")))
        advice = (
            f"It holds several runs: choose one of {inside}"
            if inside
            else f"Run `{command}`, or name the folder of its output"
        )
        raise ValueError(f"there is no {path.name} in {path.parent}. {advice}.")
    try:
        document = _convert(_read_fields(path, kind), kind)
        document.check()
    except (DamagedFileError, KeyError, IndexError, TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{path} is damaged or has another version: {error or 'it is incomplete'}. Run `{command}` again."
        ) from error
    return document


def read_regular(path: Path, limit: int = LARGEST_DOCUMENT) -> bytes:
    """Return the content of a regular file of limited size; a pipe would block, and a device may never end."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise DamagedFileError(f"{path.name} is not a regular file")
    if about.st_size > limit:
        raise DamagedFileError(f"{path.name} is larger than {limit} bytes")
    return path.read_bytes()


def _read_fields(path: Path, kind: type[ArrayDocument]) -> dict[str, Any]:
    """Return the fields of a document, from its JSON and from its arrays."""
    content = _read_content(read_regular(path), kind)
    sums = content.pop("sha256", None)
    known = {field.name for field in fields(kind)} - kind.ARRAYS.keys()  # type: ignore[arg-type]
    if not isinstance(sums, dict) or not content.keys() <= known:
        raise DamagedFileError("it has no checksums, or an unknown field")
    content |= {name: {} for name in kind.ARRAYS}
    for file in dict.fromkeys(file for file, _ in kind.ARRAYS.values()):
        try:
            data = read_regular(path.with_name(file), LARGEST_ARRAYS)
        except DamagedFileError:
            raise
        except OSError as error:
            raise DamagedFileError(f"{file} cannot be read ({error})") from error
        if hashlib.sha256(data).hexdigest() != sums.get(file):
            raise DamagedFileError(f"the checksum of {file} does not match")
        prefixes = {name: prefix for name, (its_file, prefix) in kind.ARRAYS.items() if its_file == file}
        try:
            loaded = numpy_files.load(data)
        except SafetensorError as error:
            raise DamagedFileError(f"{file} is truncated, damaged, or not a safetensors file ({error})") from error
        for key, array in loaded.items():
            name = max((n for n in prefixes if key.startswith(prefixes[n])), key=lambda n: len(prefixes[n]))
            content[name][key.removeprefix(prefixes[name])] = array
    return content


def write_tensors(path: Path, header: str, tensors: Mapping[str, Blocks], name: str = _HEADER) -> None:
    """Write tensors to a safetensors file atomically, with a text in its header under ``name``.

    The rows of one that is given in blocks are written one block after the other and never joined in memory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if any(not isinstance(each, Tensor) for each in tensors.values()):
        with replacing(path) as partial:
            _write_blocks(partial, {name: header}, tensors)
        return
    content = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items() if isinstance(tensor, Tensor)}
    with replacing(path) as partial:
        try:
            save_file(content, partial, {name: header})
        except SafetensorError as error:  # not an OSError, even if the disk is full
            number = re.search(r"os error (\d+)", str(error))
            raise error if number is None else OSError(int(number[1]), str(error)) from error


def _write_blocks(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Blocks]) -> None:
    """Write a safetensors file: the length of its header, the header in JSON, and the bytes of all tensors."""
    blocks = {key: _as_blocks(each) for key, each in tensors.items()}
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    kinds = {key: each[0].dtype for key, each in blocks.items()}
    # The largest entries first, so that all are aligned, as the library does.
    order = sorted(blocks, key=lambda key: (-kinds[key].itemsize, kinds[key].is_floating_point, key))
    for key in order:
        start, end = end, end + sum(block.nbytes for block in blocks[key])
        entries[key] = {"dtype": _SAFETENSORS[kinds[key]], "shape": _shape(blocks[key]), "data_offsets": [start, end]}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _LENGTH)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(_LENGTH, "little") + header)
        for block in (block for key in order for block in blocks[key]):
            file.write(_bytes_of(block))


def _as_blocks(tensor: Blocks) -> Sequence[Tensor]:
    return [tensor] if isinstance(tensor, Tensor) else tensor


def _shape(blocks: Sequence[Tensor]) -> list[int]:
    """Return the shape of a tensor whose rows are given in blocks."""
    return list(blocks[0].shape) if len(blocks) == 1 else [sum(map(len, blocks)), *blocks[0].shape[1:]]


def _bytes_of(tensor: Tensor) -> memoryview:
    if not tensor.numel():  # an empty tensor may have strides that cannot be viewed as bytes
        return memoryview(b"")
    content: memoryview = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return content


def read_tensors(path: Path, name: str = _HEADER) -> tuple[str, dict[str, Tensor]]:
    """Return the text in the header and the tensors of a safetensors file, read into memory.

    Raise DamagedFileError if it is not a regular file, is truncated, or was not written by :func:`write_tensors` under
    this name.
    """
    content = read_regular(path, LARGEST_ARRAYS)
    header = content[_LENGTH : _LENGTH + header_length(content)]
    try:
        tensors = load(content)  # validates the header against the bytes before allocating
        metadata = json.loads(header, object_pairs_hook=_without_duplicates).get("__metadata__")
    except (SafetensorError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"it is truncated, damaged, or not a safetensors file ({error})") from error
    if not isinstance(metadata, dict) or set(metadata) != {name}:
        raise DamagedFileError(f"its header must hold {name!r} alone")
    return metadata[name], tensors


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(content := dict(pairs)) != len(pairs):
        raise ValueError("its header has a duplicate key")
    return content


def header_length(content: bytes) -> int:
    """Return the length of a safetensors header in bytes; raise DamagedFileError if it exceeds the limit."""
    length = int.from_bytes(content[:_LENGTH], "little")
    if length > LARGEST_HEADER:
        raise DamagedFileError(f"its header has {length} bytes; the limit is {LARGEST_HEADER}")
    return length


def checksum(header: str, tensors: Mapping[str, Blocks]) -> str:
    """Return the sha256 of a text and of the names, types, shapes and bytes of tensors."""
    digest = hashlib.sha256(json.dumps(header).encode())
    for name in sorted(tensors):
        blocks = _as_blocks(tensors[name])
        digest.update(json.dumps([name, str(blocks[0].dtype), _shape(blocks)]).encode())
        for block in blocks:
            digest.update(_bytes_of(block))
    return digest.hexdigest()


def _check_finite(value: Any, at: str = "") -> None:
    """Raise if a number is not finite: msgspec would write null for it."""
    if isinstance(value, float) and not (-float("inf") < value < float("inf")):
        raise ValueError(f"numbers in a document must be finite, got {value} at {at or 'the top level'}.")
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_finite(each, f"{at}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            _check_finite(each, f"{at}[{index}]")
