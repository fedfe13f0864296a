"""Request bodies: read them within limits, and convert images, forms, texts and features to tensors."""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncGenerator, Callable
from io import BytesIO
from time import monotonic
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import torch
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import Message
from torch import Tensor

from ..data.decoding import read_image
from ..data.texts import Tokeniser
from ..data.transform import InputSizes, Transform
from ..errors import TooManyPixelsError, UnreadableImageError
from .settings import too_large, unavailable

FEATURES, FORM, JSON = "application/octet-stream", "multipart/form-data", "application/json"
DECODE_SECONDS = 10.0  # time limit for one file, checked whenever a decoder reads more bytes
MAX_NAME = 200  # longer file names are truncated
_CONTROL = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]")  # except tabs and line breaks
_TILE_WIDTH, _TILE_HEIGHT = 322, 323  # TIFF tags
_TIFF_NUMBERS = {3: "H", 4: "I"}  # TIFF types of these tags


class File(NamedTuple):
    """A file of a request; its name is None if it is the whole body."""

    name: str | None
    content: bytes


def limit_body(request: Request, max_body: int, take: Callable[[int], None]) -> Request:
    """Return the request with a body that raises as soon as it exceeds ``max_body`` or the memory limit ``take``."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HTTPException(415, "unsupported Content-Encoding. Send the body uncompressed.")
    received = 0

    def check(size: int) -> None:
        if size > max_body:
            advice = "Send fewer inputs at once or a smaller image"
            raise too_large("the request body is too large", f"{max_body / 1e6:g} MB", advice)

    async def receive() -> Message:
        nonlocal received
        message = await request.receive()
        size = len(message.get("body", b""))
        received += size
        check(received)
        take(size)
        return message

    check(int(request.headers.get("content-length", "0")))  # the server has validated that it is an integer
    return Request(request.scope, receive)


async def read_form(request: Request, max_files: int) -> list[File]:
    """Return the files of a multipart form in their order."""

    async def stream() -> AsyncGenerator[bytes, None]:
        async for chunk in request.stream():
            yield chunk
        if not parser.complete:  # starlette would return the parts received so far
            raise HTTPException(400, "incomplete form: the closing boundary is missing. Send it again.")

    parser = _FormParser(request.headers, stream(), max_files=max_files, max_fields=0)
    try:
        form = await parser.parse()
    except (MultiPartException, ValueError) as error:  # ValueError for a charset such as "undefined"
        reason = getattr(error, "message", "Invalid multipart data.")
        raise HTTPException(400, f"invalid form: {reason} Each part must be an image with a file name.") from None
    if not form:
        raise HTTPException(400, "the form has no file. Add an image.")
    uploads = [upload for _, upload in form.multi_items() if isinstance(upload, UploadFile)]
    files = [File(plain_name(upload.filename or ""), await upload.read()) for upload in uploads]
    await form.close()
    return files


class _FormParser(MultiPartParser):
    """The parser of ``request.form()`` with three changes: 413 for too many files, no disk, and a completion flag."""

    spool_max_size = max_file_size = 0  # files stay in memory, which is limited; older versions use the second name
    complete = False
    parts = 0

    def on_part_begin(self) -> None:
        self.parts += 1
        if self.parts > self.max_files:
            raise too_large("too many images", f"{self.max_files} images per request", "Send several requests")
        super().on_part_begin()

    def on_end(self) -> None:
        self.complete = True


def plain_name(name: str) -> str:
    r"""Return the last part of a path as printable text of at most 200 characters.

    Example:
        >>> plain_name("..\\photos/a\ncat.png")
        'a?cat.png'
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter if letter.isprintable() else "?" for letter in last[:MAX_NAME])


def decode_features(body: bytes, width: int, max_rows: int) -> Tensor:
    """Decode little-endian float32 numbers, row by row, to features ``(n, d)``.

    Example:
        >>> decode_features(bytes(24), width=3, max_rows=2)
        tensor([[0., 0., 0.],
                [0., 0., 0.]])
    """
    count, rest = divmod(len(body), 4 * width)
    if rest:
        raise HTTPException(
            422,
            f"features must be rows of {width} little-endian float32 numbers, {4 * width} bytes each, got {len(body)} "
            "bytes. Were they taken from the input of this model's last linear layer?",
        )
    if count > max_rows:
        raise too_large(f"{count} rows of features", f"{max_rows} rows per request", "Send several requests")
    values = np.frombuffer(body, "<f4").astype(np.float32).reshape(count, width)  # a copy in this machine's byte order
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        message = f"features must be finite, but row {int(finite.argmin())} has a NaN or infinite entry."
        raise HTTPException(400, f"{message} Check this input and the model's weights.")
    return torch.from_numpy(values)


class _Texts(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request with texts."""

    texts: Annotated[list[str], msgspec.Meta(min_length=1)]


class Tokens(NamedTuple):
    """The tokens of one text: the names of the arguments of the model, and their values, one row each."""

    names: tuple[str, ...]
    values: Tensor
    truncated: bool


def decode_texts(body: bytes, max_texts: int, max_characters: int) -> list[str]:
    """Decode the texts of a request; errors never quote them.

    Example:
        >>> decode_texts(b'{"texts": ["a", "b"]}', max_texts=2, max_characters=9)
        ['a', 'b']
    """
    form = 'the body must be {"texts": ["...", ...]} with at least one text and nothing else'
    try:
        texts = msgspec.json.decode(body, type=_Texts).texts
    except msgspec.ValidationError:
        raise HTTPException(422, f"{form}.") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise HTTPException(400, f"the body is not valid JSON in UTF-8: {form}.") from None
    if len(texts) > max_texts:
        raise too_large(f"{len(texts)} texts", f"{max_texts} texts per request", "Send several requests")
    for number, text in enumerate(texts):
        if len(text) > max_characters:
            limit = f"{max_characters:,} characters"
            raise too_large(f"text {number} has {len(text):,} characters", limit, "Send its beginning")
        if not text.strip():
            raise HTTPException(422, f"text {number} is empty. Leave it out.")
        if _CONTROL.search(text):
            raise HTTPException(422, f"text {number} has a control character. Remove it.")
    return texts


def encode_text(text: str, label: str, tokeniser: Tokeniser) -> Tokens:
    """Tokenise a text alone, so that its padding does not depend on others; errors use its label."""
    try:
        arguments, truncated = tokeniser.encode([text])
        values = torch.stack([torch.as_tensor(value)[0] for value in arguments.values()])
    except Exception:  # whatever a tokeniser raises, which may quote the text
        raise HTTPException(422, f"{label} cannot be tokenised. Send plain text.") from None
    if not values.numel():
        raise HTTPException(422, f"{label} has no token. Leave it out.")
    return Tokens(tuple(arguments), values, truncated[0])


def decode_image(
    content: bytes, label: str, transform: Transform, max_pixels: int, sizes: InputSizes | None = None
) -> Tensor:
    """Decode an image to the input of the model, ``(c, h, w)``; raise for other ``sizes``; errors use its label."""

    def check_pixels(size: tuple[int, int], problem: str) -> None:
        if size[0] * size[1] > max_pixels:
            limit = f"{max_pixels:,} pixels"
            raise too_large(f"{label} {problem} {size[0]} x {size[1]} pixels", limit, "Send a smaller image")

    if content.startswith((b"P1", b"P2", b"P3")):  # their decoder is slow enough to block all other requests
        raise HTTPException(422, f"{label} is a PPM, PGM or PBM written as text. Save it as PNG.")
    check_pixels(webp_size(content), "has")
    check_pixels(tile_size(content), "has a tile of")
    try:
        image = read_image(_TimedBytes(content), label, max_pixels, transform.draft_size)
        if transform.resize is not None:  # resized by the shorter side, a narrow image may become huge
            scale = transform.resize / min(image.size)
            check_pixels((round(image.width * scale), round(image.height * scale)), "would be resized to")
        pixels = transform.pixels(image)
        if sizes is not None:
            sizes.check(pixels, "it")
        values = np.empty((pixels.shape[2], *pixels.shape[:2]), np.float32)
        transform.normalise(pixels, values)
        return torch.from_numpy(values)
    except TooManyPixelsError as error:
        raise HTTPException(413, str(error)) from None
    except UnreadableImageError as error:
        if isinstance(error.__cause__, TimeoutError):
            limit = f"{DECODE_SECONDS:g} seconds"
            raise too_large(f"{label} takes too long to decode", limit, "Save it again as PNG or JPEG") from None
        # For a decoder error without a message, the text would be the name of its class.
        message = str(error) if str(error.__cause__) else f"{label} could not be read as an image: broken file."
        raise HTTPException(400, message) from None
    except ValueError as error:  # raised by the transform
        raise HTTPException(422, f"{label} cannot be prepared for the model: {error}") from None
    except MemoryError:
        raise unavailable(f"not enough memory to decode {label}") from None


class _TimedBytes(BytesIO):
    """The bytes of a file, readable until the decoding timeout: decoders read them in small parts."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._end = monotonic() + DECODE_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        if monotonic() > self._end:
            raise TimeoutError
        return super().read(size)


# Sizes in the headers of image formats whose decoders allocate memory before any limit is checked.


def webp_size(content: bytes) -> tuple[int, int]:
    """Return width and height of a WEBP file, (0, 0) for other files; opening it allocates memory for all pixels."""
    kind, head = content[12:16], content[20:30]
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or len(head) < 10:
        return 0, 0
    if kind == b"VP8X":
        return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    bits = int.from_bytes(head[6:10], "little")
    return bits & 0x3FFF, bits >> 16 & 0x3FFF


def tile_size(content: bytes) -> tuple[int, int]:
    """Return width and height of the tiles of a TIFF file, (0, 0) for other files.

    A tile is decoded as a whole and may be far larger than the image. If a file contains a size twice, the larger one
    counts, because some readers use the first and others the last.
    """
    order = {b"II": "<", b"MM": ">"}.get(content[:2])
    if order is None or len(content) < 16:
        return 0, 0
    big = struct.unpack_from(order + "H", content, 2)[0] == 43  # BigTIFF
    offset, count, entry = ("Q", "Q", "HHQ8s") if big else ("I", "H", "HHI4s")
    sizes = {_TILE_WIDTH: 0, _TILE_HEIGHT: 0}
    try:
        start = struct.unpack_from(order + offset, content, 8 if big else 4)[0]
        entries = struct.unpack_from(order + count, content, start)[0]
        start += struct.calcsize(order + count)
        for i in range(min(entries, 2**16)):
            tag, kind, _, value = struct.unpack_from(order + entry, content, start + i * struct.calcsize(order + entry))
            if tag in sizes:  # a size of an unexpected type counts as unlimited
                size = struct.unpack_from(order + _TIFF_NUMBERS[kind], value)[0] if kind in _TIFF_NUMBERS else 2**32
                sizes[tag] = max(sizes[tag], size)
    except (struct.error, OverflowError):
        pass  # truncated file
    return sizes[_TILE_WIDTH], sizes[_TILE_HEIGHT]
