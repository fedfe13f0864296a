"""The preparation of images as in training: resize, crop, scale, normalise. Needs Pillow only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Transform:
    """The usual preparation of an image, in the steps of torchvision.

    Args:
        resize: Length of the shorter side after a resize, or None to leave the size as it is.
        crop: Side of the square cut from the middle, or None for no crop.
        mean: Subtracted from the channels, which are in [0, 1]; one number per channel.
        std: Then divided by; one number per channel.
        mode: ``"RGB"`` or ``"L"`` (grey); images of the other kind are converted.
        interpolation: Of the resize, ``"bilinear"`` or ``"bicubic"``.
        draft: Decode JPEG files that are more than four times as large as ``resize`` at a half, a quarter or an eighth
            of their size. This is faster and changes pixels a little, so a model's guard must be fitted with it too.

    Example:
        >>> Transform(resize=8, crop=4)(np.zeros((20, 30), np.uint8)).shape
        torch.Size([3, 4, 4])
    """

    resize: int | None = None
    crop: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    mode: Literal["RGB", "L"] = "RGB"
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    draft: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("RGB", "L"):
            raise ValueError(f'mode must be "RGB" or "L", got {self.mode!r}.')
        if self.interpolation not in RESAMPLING:
            raise ValueError(f'interpolation must be "bilinear" or "bicubic", got {self.interpolation!r}.')
        if self.draft and self.resize is None:
            raise ValueError("draft decodes large images at the size of the resize, but there is none. Give resize=.")
        for name in ("resize", "crop"):
            size = getattr(self, name)
            if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
                raise ValueError(f"{name} must be a positive number of pixels or None, got {size!r}.")
        for name in ("mean", "std"):
            if getattr(self, name) is None:
                continue
            values, channels = tuple(map(float, getattr(self, name))), len(self.mode)  # "RGB" has 3, "L" has 1
            if len(values) != channels:
                raise ValueError(
                    f"{name} must have one number per channel of {self.mode}, {channels}, got {len(values)}."
                )
            if not np.isfinite(values).all() or (name == "std" and min(values) <= 0):
                raise ValueError(f"{name} must be finite, and std above 0, got {values}. Channels are in [0, 1].")
            object.__setattr__(self, name, values)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values for JSON."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        if not self.draft:
            del values["draft"]  # so that files and fingerprints stay those of versions without it
        return values

    @property
    def draft_size(self) -> int | None:
        """The length of the shorter side for which files may be decoded in draft mode, None if they may not."""
        return self.resize if self.draft else None

    def __call__(self, image: Image.Image | NDArray[np.uint8]) -> Tensor:
        """Return the tensor ``(c, h, w)``, float32, of a PIL image or a uint8 array ``(h, w)`` or ``(h, w, 3)``."""
        pixels = self.pixels(image)
        values = np.empty((pixels.shape[2], *pixels.shape[:2]), np.float32)
        self.normalise(pixels, values)
        return torch.from_numpy(values)

    def pixels(self, image: Image.Image | NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the resized and cropped pixels of an image, ``(h, w, c)``."""
        picture = in_mode(_as_image(image), self.mode)
        if self.resize is not None:
            short = min(picture.size)
            width, height = (int(self.resize * side / short) if side != short else self.resize for side in picture.size)
            picture = picture.resize((width, height), RESAMPLING[self.interpolation])
        if self.crop is not None:
            if min(picture.size) < self.crop:
                raise ValueError(
                    f"a crop of {self.crop} needs an image at least that large, got {picture.width} x "
                    f"{picture.height}. Resize first: Transform(resize={self.crop}, ...)."
                )
            left, top = (round((side - self.crop) / 2) for side in picture.size)
            picture = picture.crop((left, top, left + self.crop, top + self.crop))
        return np.asarray(picture).reshape(picture.height, picture.width, -1)

    def normalise(self, pixels: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Write pixels ``(h, w, c)``, scaled to [0, 1] and normalised, to ``out`` ``(c, h, w)``.

        With numpy, not torch: in each of several reading threads, torch would start a team of threads of its own.
        """
        out[...] = pixels.transpose(2, 0, 1)
        out /= np.float32(255)
        if self.mean is not None:
            out -= np.array(self.mean, np.float32)[:, None, None]
        if self.std is not None:
            out /= np.array(self.std, np.float32)[:, None, None]


@dataclass(frozen=True)
class InputSizes:
    """Shapes of single inputs ``(c, h, w)``: every side from that of ``least`` to that of ``most``, both included.

    A calibration holds for inputs like those it was made of, and a network takes time and memory for every pixel, so a
    guard keeps the sizes that it was calibrated on.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]

    def __str__(self) -> str:
        texts = (" x ".join(map(str, shape[-2:])) for shape in dict.fromkeys((self.least, self.most)))
        return " to ".join(texts)

    def check(self, pixels: NDArray[np.uint8], called: str) -> None:
        """Raise a ValueError if a prepared image, ``(h, w, c)``, has another height or width."""
        sides = zip(self.least[-2:], pixels.shape[:2], self.most[-2:], strict=False)
        if not all(low <= side <= high for low, side, high in sides):
            raise ValueError(
                f"{called} has (h, w) = {pixels.shape[0]} x {pixels.shape[1]} after preparation, but the guard was "
                f"calibrated on {self}. Scale it to that size, or allow other sizes with --allow-sizes."
            )


def join_sizes(first: InputSizes | None, second: InputSizes | None) -> InputSizes | None:
    """Return the sizes of both, with all in between; None if one is unknown or they have other numbers of sides."""
    if first is None or second is None or len(first.most) != len(second.most):
        return None
    pairs = ((min, first.least, second.least), (max, first.most, second.most))
    least, most = (tuple(map(choose, one, other)) for choose, one, other in pairs)
    return InputSizes(least, most)


def _as_image(image: Image.Image | NDArray[np.uint8]) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    if not isinstance(image, np.ndarray):
        raise TypeError(f"an image must be a PIL image or a numpy array, not {type(image).__name__}.")
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.shape[2:] not in ((), (3,)):
        raise ValueError(
            f"an image array must be uint8 of shape (h, w) or (h, w, 3), got {image.dtype} of shape {image.shape}. "
            "Bring the channels last and the values to 0..255."
        )
    return Image.fromarray(image)


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Return an image in ``"RGB"`` or ``"L"``; one with more than 8 bits per channel is refused."""
    if image.mode == "F" or image.mode.startswith("I"):
        raise ValueError(
            f"images must have 8 bits per channel, got mode {image.mode!r}: Pillow would clip its values to 255. "
            "Scale it to 8 bits first."
        )
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # the way Pillow asks for: it warns about the direct one
    return image if image.mode == mode else image.convert(mode)
