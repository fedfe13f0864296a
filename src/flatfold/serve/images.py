"""From the bytes of an image to the tensor that the model takes."""

from __future__ import annotations

from io import BytesIO

from PIL import Image
from torch import Tensor

from ..core.errors import TooManyPixels, UnreadableImage
from ..models.folders import read_image
from ..models.transform import Transform
from .refusal import AGAIN, Refusal


def prepared(content: bytes, called: str, transform: Transform, most_pixels: int) -> Tensor:
    """Return an image as the model takes it, ``(c, h, w)``.

    Args:
        content: The encoded file.
        called: What an answer calls it, such as ``the image 'cat.png'``.
        transform: How images are prepared.
        most_pixels: Of the file, by the size that it declares, and of the image after a resize.
    """
    try:
        _check_webp(content, called, most_pixels)
        image = read_image(BytesIO(content), called, most_pixels)
        _check_resized(image, called, transform, most_pixels)
        return transform(image)
    except TooManyPixels as error:
        raise Refusal(413, str(error)) from None
    except UnreadableImage as error:
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


def _check_webp(content: bytes, called: str, most_pixels: int) -> None:
    """Raise if a WEBP declares too many pixels: its decoder takes the memory for them when it is only opened."""
    width, height = webp_size(content)
    if width * height > most_pixels:
        raise TooManyPixels(
            f"{called} is {width} x {height}, and images of up to {most_pixels:,} pixels are read. Make it smaller."
        )


def webp_size(content: bytes) -> tuple[int, int]:
    """Return the width and height that stand in the head of a WEBP file, (0, 0) for all others."""
    kind, head = content[12:16], content[20:30]
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or len(head) < 10:
        return 0, 0
    if kind == b"VP8X":
        return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    bits = int.from_bytes(head[1:5] if kind == b"VP8L" else head[6:10], "little")
    if kind == b"VP8L":
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return bits & 0x3FFF, bits >> 16 & 0x3FFF


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
