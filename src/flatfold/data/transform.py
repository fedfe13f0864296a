"""Preprocess images as in training: resize, crop, scale, normalise. Needs Pillow only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import floor
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
TRIED = 640, 448  # width and height of the picture used to compare a foreign preprocessing with its transform
ROUNDING = 0.01  # mean difference of values in [0, 1] that counts as equal
WARPED = 384  # from this size on, processors with a crop_pct resize both sides and do not crop


@dataclass(frozen=True)
class Transform:
    """The usual preprocessing of an image, in the steps of torchvision.

    Args:
        resize: Length of the shorter side after the resize, or None to keep the size.
        crop: Side of the square cut from the middle, or None for no crop.
        mean: Subtracted from the channels, which are in [0, 1]; one number per channel.
        std: Divides the channels afterwards; one number per channel.
        mode: ``"RGB"`` or ``"L"`` (grey); images of the other kind are converted.
        interpolation: Interpolation of the resize, ``"bilinear"`` or ``"bicubic"``.
        draft: Decode JPEG files that are more than four times as large as ``resize`` at a half, a quarter or an eighth
            of their size. This is faster and changes pixels a little, so a model's guard must be fitted with it too.
        squash: Resize both sides to ``resize``, whatever the aspect ratio.

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
    squash: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("RGB", "L"):
            raise ValueError(f'mode must be "RGB" or "L", got {self.mode!r}.')
        if self.interpolation not in RESAMPLING:
            raise ValueError(f'interpolation must be "bilinear" or "bicubic", got {self.interpolation!r}.')
        if self.draft and self.resize is None:
            raise ValueError("draft decodes large images at the size of the resize, but there is none. Pass resize=.")
        if self.squash and self.resize is None:
            raise ValueError("squash is a way to resize, but there is no size. Pass resize=.")
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

    @classmethod
    def of(cls, preparation: Any) -> Transform:
        """Convert the preprocessing of published weights to a transform.

        Args:
            preparation: ``weights`` or ``weights.transforms()`` of torchvision, a ``Compose`` of ``Resize``,
                ``CenterCrop``, ``ToTensor`` and ``Normalize``, the dict of timm's ``resolve_data_config``, an image
                processor of transformers, or a transform, which is returned.

        Returns:
            The same preprocessing. Unless it is a dict, both are compared on a picture first.

        Raises:
            ValueError: No transform is equivalent; the message says why.
            TypeError: This is not a preprocessing of images.

        Example:
            >>> config = {"input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bicubic",
            ...     "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
            >>> transform = Transform.of(config)
            >>> transform.resize, transform.crop, transform.interpolation
            (256, 224, 'bicubic')
        """
        if isinstance(preparation, cls):
            return preparation
        if callable(getattr(preparation, "transforms", None)):  # an entry of torchvision's weights
            preparation = preparation.transforms()
        if isinstance(preparation, Mapping) and "input_size" in preparation:
            return _checked(cls(**_timm_settings(preparation)))
        if hasattr(preparation, "crop_size") and hasattr(preparation, "resize_size"):
            settings, run = _preset_settings(preparation), preparation
        elif isinstance(getattr(preparation, "transforms", None), (list, tuple)):
            settings, run = _compose_settings(preparation.transforms), preparation
        elif hasattr(preparation, "image_mean") and hasattr(preparation, "to_dict"):
            settings = _processor_settings(preparation.to_dict())
            run = lambda picture: preparation(images=picture, return_tensors="pt")["pixel_values"][0]  # noqa: E731
        else:
            raise TypeError(
                f"transform must be a Transform or a preprocessing of images, not {type(preparation).__name__}. "
                "Transform.of accepts torchvision's weights.transforms(), timm's resolve_data_config and an image "
                "processor of transformers."
            )
        return _checked(cls(**settings), run)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values for JSON."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        if not self.draft:
            del values["draft"]  # files and fingerprints stay equal to those of versions without it
        if not self.squash:
            del values["squash"]
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
        picture = self._place(in_mode(_as_image(image), self.mode), RESAMPLING[self.interpolation])
        return np.asarray(picture).reshape(picture.height, picture.width, -1)

    def place_mask(self, mask: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the classes ``(h, w)`` of an image's pixels at those of :meth:`pixels`, the nearest one of each."""
        return np.asarray(self._place(Image.fromarray(mask), Image.Resampling.NEAREST))

    def _place(self, picture: Image.Image, resampling: Image.Resampling) -> Image.Image:
        """Return the resized and cropped picture."""
        if self.resize is not None:
            short = min(picture.size)
            width, height = (
                self.resize if self.squash or side == short else int(self.resize * side / short)
                for side in picture.size
            )
            picture = picture.resize((width, height), resampling)
        if self.crop is not None:
            if min(picture.size) < self.crop:
                raise ValueError(
                    f"a crop of {self.crop} needs an image at least that large, got {picture.width} x "
                    f"{picture.height}. Resize first: Transform(resize={self.crop}, ...)."
                )
            left, top = (round((side - self.crop) / 2) for side in picture.size)
            picture = picture.crop((left, top, left + self.crop, top + self.crop))
        return picture

    def normalise(self, pixels: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Write pixels ``(h, w, c)``, scaled to [0, 1] and normalised, to ``out`` ``(c, h, w)``.

        With numpy, not torch: torch would start a thread pool in each of the reader threads.
        """
        out[...] = pixels.transpose(2, 0, 1)
        out /= np.float32(255)
        if self.mean is not None:
            out -= np.array(self.mean, np.float32)[:, None, None]
        if self.std is not None:
            out /= np.array(self.std, np.float32)[:, None, None]


def _reject(reason: str) -> NoReturn:
    raise ValueError(
        f"this preprocessing cannot be expressed as a Transform: {reason}. Apply it in a Dataset or DataLoader of your "
        "own, which yields tensors, and leave transform= out."
    )


def _side(size: Any, what: str) -> int:
    """Return the side of a square given as an integer or as a sequence of one or two integers."""
    sides = [*size] if isinstance(size, (list, tuple)) else [size]
    if not sides or any(side != sides[0] for side in sides) or not isinstance(sides[0], int):
        _reject(f"{what} must be a square, and is {size!r}")
    return sides[0]


def _interpolation(kind: Any) -> str:
    """Return the name of an interpolation given by name, as torchvision's enumeration or as Pillow's number."""
    name = Image.Resampling(kind).name.lower() if isinstance(kind, int) else str(getattr(kind, "value", kind))
    if name not in RESAMPLING:
        _reject(f"it resizes with {name}, not with {' or '.join(RESAMPLING)}")
    return name


def _channels(values: Any) -> dict[str, Any]:
    """Return the mean and standard deviation of the channels, and the mode for their number."""
    # The shortest decimal of each float32 entry: 0.485, not 0.48500001430511475
    mean, std = (tuple(float(str(x)) for x in np.asarray(value)) for value in values)
    if len(mean) not in (1, 3):
        _reject(f"its images have {len(mean)} channels, not 1 or 3")
    return {"mean": mean, "std": std, "mode": "RGB" if len(mean) == 3 else "L"}


def _timm_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of timm's evaluation transform: resize to ``size / crop_pct``, then crop."""
    mode = config.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        _reject(f"crop_mode {mode!r} pads images, and a transform only crops")
    crop = _side(tuple(config["input_size"])[1:], "its input_size")
    return {
        "resize": floor(crop / (config.get("crop_pct") or 0.875)),
        "crop": crop,
        "squash": mode == "squash",
        "interpolation": _interpolation(config.get("interpolation") or "bilinear"),
        **_channels((config["mean"], config["std"])),
    }


def _preset_settings(preset: Any) -> dict[str, Any]:
    """Return the settings of torchvision's preset for classification."""
    return {
        "resize": _side(preset.resize_size, "the size to resize to"),
        "crop": _side(preset.crop_size, "the crop"),
        "interpolation": _interpolation(preset.interpolation),
        **_channels((preset.mean, preset.std)),
    }


def _compose_settings(steps: list[Any] | tuple[Any, ...]) -> dict[str, Any]:
    """Return the settings of torchvision steps, recognised by their class names."""
    settings: dict[str, Any] = {}
    for step in steps:
        kind = type(step).__name__
        if kind == "Resize":
            both = isinstance(step.size, (list, tuple)) and len(step.size) == 2
            settings |= {"resize": _side(step.size, "the size to resize to"), "squash": both}
            settings["interpolation"] = _interpolation(step.interpolation)
        elif kind == "CenterCrop":
            settings["crop"] = _side(step.size, "the crop")
        elif kind == "Normalize":
            settings |= _channels((step.mean, step.std))
        elif kind not in ("ToTensor", "MaybeToTensor", "PILToTensor", "ToImage", "ConvertImageDtype", "ToDtype"):
            _reject(f"a transform has no step {kind}")
    return settings


def _processor_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an image processor of transformers."""
    settings: dict[str, Any] = {}
    size = values.get("size") or {}
    if not values.get("do_rescale") or abs(values.get("rescale_factor", 0) * 255 - 1) > 1e-6:
        _reject("pixels are not divided by 255")
    if values.get("do_center_crop"):
        settings["crop"] = _side(tuple((values.get("crop_size") or {}).values()), "the crop")
    if values.get("do_resize"):
        if not size or not size.keys() <= {"height", "width", "shortest_edge"}:
            _reject(f"it resizes to {dict(size)}, not to a square or a shortest_edge")
        resize = _side(tuple(size.values()), "the size to resize to")
        squash = "shortest_edge" not in size
        if values.get("crop_pct") and not squash:
            squash = resize >= WARPED
            settings |= {} if squash else {"crop": settings.get("crop", resize)}
            resize = resize if squash else int(resize / values["crop_pct"])
        settings |= {"resize": resize, "squash": squash, "interpolation": _interpolation(values.get("resample"))}
    if values.get("do_normalize"):
        settings |= _channels((values["image_mean"], values["image_std"]))
    return settings


def _checked(transform: Transform, run: Callable[[Image.Image], Any] | None = None) -> Transform:
    """Return the transform after checking that it equals ``run`` on a picture, up to rounding."""
    if transform.crop is not None and transform.resize is not None and transform.crop > transform.resize:
        _reject(f"it resizes to {transform.resize} and pads to {transform.crop}, and a transform only crops")
    if run is None:
        return transform
    coarse = np.random.default_rng(0).integers(0, 256, (7, 10, 3), dtype=np.uint8)
    picture = in_mode(Image.fromarray(coarse).resize(TRIED, Image.Resampling.BICUBIC), transform.mode)
    try:
        theirs = torch.as_tensor(run(picture)).float()
    except Exception as error:  # raised by another library
        _reject(f"it failed on a picture of {TRIED[0]} x {TRIED[1]} pixels ({type(error).__name__}: {error})")
    ours = transform(picture)
    if ours.shape != theirs.shape:
        _reject(f"it returns shape {tuple(theirs.shape)} where {transform} returns {tuple(ours.shape)}")
    scale = torch.tensor(transform.std or (1.0,))[:, None, None]
    difference = float(((ours - theirs) * scale).abs().mean())
    # Libraries round the position of a crop differently, so it may be shifted by one pixel.
    aside = float(((ours[:, 1:, 1:] - ours[:, :-1, :-1]) * scale).abs().mean())
    if not difference <= max(ROUNDING, aside):
        _reject(f"its values differ by {difference:.2g} on average from those of {transform}")
    return transform


@dataclass(frozen=True)
class InputSizes:
    """Range of shapes of single inputs ``(c, h, w)``: every side lies between ``least`` and ``most``, inclusive.

    A calibration is valid for inputs like the calibration data, and a network needs time and memory for every pixel, so
    a guard stores the range of sizes seen during calibration.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]

    def __str__(self) -> str:
        texts = (" x ".join(map(str, shape[-2:])) for shape in dict.fromkeys((self.least, self.most)))
        return " to ".join(texts)

    def check(self, pixels: NDArray[np.uint8], called: str) -> None:
        """Raise a ValueError if a preprocessed image ``(h, w, c)`` is outside the range."""
        sides = zip(self.least[-2:], pixels.shape[:2], self.most[-2:], strict=False)
        if not all(low <= side <= high for low, side, high in sides):
            raise ValueError(
                f"{called} has (h, w) = {pixels.shape[0]} x {pixels.shape[1]} after preprocessing, but the guard was "
                f"calibrated on {self}. Scale it to that size, or accept other sizes with allow_sizes=True."
            )


def join_sizes(first: InputSizes | None, second: InputSizes | None) -> InputSizes | None:
    """Return the smallest range that contains both; None if one is unknown or their dimensions differ."""
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
            "Move the channels last and scale the values to 0..255."
        )
    return Image.fromarray(image)


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Convert an image to ``"RGB"`` or ``"L"``; reject more than 8 bits per channel."""
    if image.mode == "F" or image.mode.startswith("I"):
        raise ValueError(
            f"images must have 8 bits per channel, got mode {image.mode!r}: Pillow would clip its values to 255. "
            "Scale it to 8 bits first."
        )
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # as Pillow recommends: it warns about a direct conversion
    return image if image.mode == mode else image.convert(mode)
