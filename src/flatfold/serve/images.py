"""From the bytes of an image to the tensor that the model takes."""

from __future__ import annotations

from io import BytesIO
from time import monotonic

from PIL import Image
from torch import Tensor

from ..core.errors import TooManyPixels, UnreadableImage
from ..models.folders import read_image
from ..models.transform import Transform
from .refusal import AGAIN, Refusal
from .sizes import tile_size, webp_size

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
