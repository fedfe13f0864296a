"""The body of a request, as far as it may be long and slow."""

from __future__ import annotations

import asyncio
import struct
from io import BytesIO
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request
from torch import Tensor

from ..core.validation import TooManyPixels, UnreadableImage
from ..models.decoding import read_image
from ..models.transform import Transform
from .batcher import Share
from .settings import AGAIN, Refusal, Settings


async def read_body(request: Request, settings: Settings, share: Share) -> bytes:
    """Return the body of a request.

    Args:
        request: Nothing of its body was read before.
        settings: How long it may be, in bytes and in seconds.
        share: Of the memory, from which its length is taken.

    Raises:
        Refusal: It is too long, too slow, empty or packed.
        ClientDisconnect: It will never be complete.
    """
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing != "identity":
        raise Refusal(415, "bodies are read as they are, but this one has a Content-Encoding. Send it unpacked.")
    if int(request.headers.get("content-length", "0")) > settings.max_body:  # its server has checked that it is one
        raise _too_large(settings.max_body)
    try:
        async with asyncio.timeout(settings.timeout):
            body = await _received(request, settings.max_body, share)
    except TimeoutError:
        raise Refusal(
            408,
            f"a request must arrive within {settings.timeout:g} seconds, but this one did not. Send less at once.",
            {"Connection": "close"},
        ) from None
    if not body:
        raise Refusal(400, "a request needs an image or features as its body, but this body is empty. Send some.")
    return bytes(body)


async def _received(request: Request, most: int, share: Share) -> bytearray:
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        part = message.get("body", b"")
        if len(body) + len(part) > most:
            raise _too_large(most)
        share.take(len(part))
        body += part
        if not message.get("more_body", False):
            return body


def _too_large(most: int) -> Refusal:
    return Refusal(
        413,
        f"a request may have {most / 1e6:g} MB, but this one has more. Send fewer inputs at once, or a smaller image.",
    )


# Files in the body of a form.


LONGEST = 200  # characters of a name that are kept


class Part(NamedTuple):
    """A file of a form."""

    name: str
    """As it was sent, without folders."""
    content: bytes


def files_of(body: bytes, content_type: str, most: int) -> list[Part]:
    """Return the files of a multipart/form-data body in their order.

    Args:
        body: All of it.
        content_type: The header that says what stands between two parts.
        most: Files that may be in it.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise Refusal(400, "a form says in its Content-Type what its boundary is, but this one does not. Add it.")
    reader = _Reader(most)
    try:
        MultipartParser(boundary, reader.callbacks()).write(body)  # type: ignore[arg-type]
    except FormParserError:
        raise _broken() from None
    if not reader.complete:
        raise _broken()
    if not reader.files:
        raise Refusal(400, "a form needs an image, but this one has no file in it. Add one to it.")
    return reader.files


class _Reader:
    """What the parser calls while it goes through a body."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.files: list[Part] = []
        self.complete = False
        self._field, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._content = bytearray()

    def callbacks(self) -> dict[str, object]:
        names = ("part_begin", "part_data", "part_end", "header_field", "header_value", "header_end", "end")
        return {f"on_{name}": getattr(self, f"_{name}") for name in names}

    def _part_begin(self) -> None:
        if len(self.files) == self.most:
            raise Refusal(413, f"a request may have {self.most} images, but this one has more. Send several requests.")
        self._headers, self._content = {}, bytearray()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[bytes(self._field).lower()] = bytes(self._value)
        self._field, self._value = bytearray(), bytearray()

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]

    def _part_end(self) -> None:
        options = parse_options_header(self._headers.get(b"content-disposition"))[1]
        if b"filename" not in options:
            raise Refusal(
                400, "every part of a form must be an image file, but one has no file name. Leave other fields out."
            )
        self.files.append(Part(plain_name(options[b"filename"]), bytes(self._content)))

    def _end(self) -> None:
        self.complete = True


def plain_name(name: bytes) -> str:
    r"""Return the last part of a path as text that can be printed, at most 200 characters of it.

    Example:
        >>> plain_name(b"..\\photos/a\ncat.png")
        'a?cat.png'
    """
    text = name.decode(errors="replace").replace("\\", "/").rpartition("/")[2]
    return "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST])


def _broken() -> Refusal:
    return Refusal(
        400, "a form must be complete and have its boundary around every part, but this one has not. Send it again."
    )


# Sizes that stand in the head of an image file, where its decoder takes memory for them without a look at a limit.


_TILE_WIDTH, _TILE_HEIGHT = 322, 323  # tags of TIFF

_NUMBERS = {3: "H", 4: "I"}  # its types for them

_ENDLESS = 2**32


def webp_size(content: bytes) -> tuple[int, int]:
    """Return the width and height of a WEBP file, (0, 0) for all others: it takes memory when it is only opened."""
    kind, head = content[12:16], content[20:30]
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or len(head) < 10:
        return 0, 0
    if kind == b"VP8X":
        return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    bits = int.from_bytes(head[1:5] if kind == b"VP8L" else head[6:10], "little")
    if kind == b"VP8L":
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return bits & 0x3FFF, bits >> 16 & 0x3FFF


def tile_size(content: bytes) -> tuple[int, int]:
    """Return the width and height of the tiles of a TIFF file, (0, 0) for all others.

    A tile is decoded as a whole, and may be far larger than the image. Where a file says a size twice, one reader
    believes the first and another the last, so that the larger one counts here.
    """
    order = {b"II": "<", b"MM": ">"}.get(content[:2])
    if order is None or len(content) < 16:
        return 0, 0
    big = struct.unpack_from(order + "H", content, 2)[0] == 43  # BigTIFF: longer counts and places
    start, count, entry = ("Q", "Q", "HHQ8s") if big else ("I", "H", "HHI4s")
    found = {_TILE_WIDTH: 0, _TILE_HEIGHT: 0}
    try:
        at = struct.unpack_from(order + start, content, 8 if big else 4)[0]
        entries = struct.unpack_from(order + count, content, at)[0]
        for i in range(min(entries, 2**16)):
            place = at + struct.calcsize(order + count) + i * struct.calcsize(order + entry)
            tag, kind, _, value = struct.unpack_from(order + entry, content, place)
            if tag in found:
                size = struct.unpack_from(order + _NUMBERS[kind], value)[0] if kind in _NUMBERS else _ENDLESS
                found[tag] = max(found[tag], size)
    except (struct.error, OverflowError):
        pass  # it ends before, and so says no more
    return found[_TILE_WIDTH], found[_TILE_HEIGHT]


# From the bytes of an image to the tensor that the model takes.


SECONDS = 10.0

"""In which a file must be decoded: one of 2 MB can be made to take minutes, as a JPEG of 30,000 scans is."""

_TEXT = (b"P1", b"P2", b"P3")


def prepared(content: bytes, called: str, transform: Transform, most_pixels: int) -> Tensor:
    """Return an image as the model takes it, ``(c, h, w)``.

    Args:
        content: The encoded file.
        called: What an answer calls it, such as ``the image 'cat.png'``.
        transform: How images are prepared.
        most_pixels: Of the file, by the size that it declares, and of the image after a resize.
    """
    try:
        _check_kind(content, called)
        _check_declared(content, called, most_pixels)
        image = read_image(_Hurried(content), called, most_pixels)
        _check_resized(image, called, transform, most_pixels)
        return transform(image)
    except TooManyPixels as error:
        raise Refusal(413, str(error)) from None
    except UnreadableImage as error:
        if isinstance(error.__cause__, TimeoutError):
            raise Refusal(413, f"{called} takes too long to be decoded. Save it anew, as PNG or as JPEG.") from None
        raise Refusal(400, _sentence(error, called)) from None
    except ValueError as error:  # of the transform
        raise Refusal(422, f"{called} cannot be prepared for the model: {error}") from None
    except MemoryError:
        raise Refusal(503, f"there is no memory for {called} at the moment. Send it again.", AGAIN) from None


def _sentence(error: UnreadableImage, called: str) -> str:
    """Return what is wrong with an image; a decoder that says nothing is known by a name that is of no use here."""
    if str(error.__cause__):
        return str(error)
    return f"{called} could not be read as an image: its bytes are broken. Open it in a viewer, and send it again."


class _Hurried(BytesIO):
    """The bytes of a file, as long as there is time to decode them: decoders take them bit by bit."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._end = monotonic() + SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        if monotonic() > self._end:
            raise TimeoutError
        return super().read(size)


def _check_kind(content: bytes, called: str) -> None:
    """Raise for the kinds of PPM whose numbers are text: their decoder is slow enough to keep all others waiting."""
    if content.startswith(_TEXT):
        raise Refusal(
            422, f"{called} must be encoded in bytes, but is a PPM, PGM or PBM written as text. Save it as PNG."
        )


def _check_declared(content: bytes, called: str, most_pixels: int) -> None:
    """Raise for sizes that others do not check before they take the memory for them."""
    for what, (width, height) in (("is", webp_size(content)), ("has a tile of", tile_size(content))):
        if width * height > most_pixels:
            raise TooManyPixels(
                f"{called} {what} {width} x {height}, and up to {most_pixels:,} pixels are read. Make it smaller."
            )


def _check_resized(image: Image.Image, called: str, transform: Transform, most_pixels: int) -> None:
    """Raise if an image is so narrow that it would become enormous: a resize says how long the shorter side is."""
    if transform.resize is None:
        return
    short, long = sorted(image.size)
    if transform.resize**2 * long > most_pixels * short:
        raise TooManyPixels(
            f"{called} is {image.width} x {image.height}, and resized to a shorter side of {transform.resize} it would "
            f"have more than {most_pixels:,} pixels. Cut it to a shape that is nearer to a square."
        )


# From bytes to features.


def rows_of(body: bytes, width: int, most: int) -> Tensor:
    """Return little-endian float32 numbers as features ``(n, d)``.

    Args:
        body: ``4 n d`` bytes, row after row.
        width: d, of the head.
        most: Rows that may be in it.

    Example:
        >>> rows_of(bytes(24), width=3, most=2)
        tensor([[0., 0., 0.],
                [0., 0., 0.]])
    """
    count, left = divmod(len(body), 4 * width)
    if left:
        raise Refusal(
            422,
            f"features are rows of {width} little-endian float32 numbers, {4 * width} bytes each, but {len(body)} "
            "bytes are no whole number of them. Were they taken from the input of this model's last linear layer?",
        )
    if count > most:
        raise Refusal(413, f"a request may have {most} rows of features, but this one has {count}. Send them in parts.")
    values = np.frombuffer(body, "<f4").astype(np.float32).reshape(count, width)  # a copy, in this machine's order
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise Refusal(
            400,
            f"features must be finite, but row {int(finite.argmin())} has a NaN or infinite entry. "
            "Look at that input and at the model's weights.",
        )
    return torch.from_numpy(values)
