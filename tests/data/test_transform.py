"""`Transform` against a slow resize in float64 and against arithmetic by hand."""

import json
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from flatfold import Transform
from tests.refusals import refused


def make_pixels(h=6, w=9, grey=False):
    return np.random.default_rng(h * w).integers(0, 256, (h, w) if grey else (h, w, 3), dtype=np.uint8)


def test_without_steps_pixels_are_divided_by_255_and_channels_come_first():
    pixels = make_pixels()
    got = Transform()(pixels)
    assert got.dtype == torch.float32
    assert_close(got, torch.from_numpy(pixels / 255).permute(2, 0, 1).float())


def test_mean_is_subtracted_and_std_divides():
    pixels = make_pixels()
    got = Transform(mean=(0.1, 0.2, 0.3), std=(1, 2, 4))(pixels)
    expected = (pixels / 255 - [0.1, 0.2, 0.3]) / [1, 2, 4]
    assert_close(got, torch.from_numpy(expected).permute(2, 0, 1).float())


def triangle_weights(old, new):
    """The antialiased bilinear filter, entry by entry."""
    scale = old / new
    support = max(scale, 1.0)
    rows = []
    for i in range(new):
        centre = (i + 0.5) * scale
        weights = np.maximum(0, 1 - np.abs((np.arange(old) + 0.5 - centre) / support))
        rows.append(weights / weights.sum())
    return np.array(rows)


def test_the_shorter_side_is_resized_bilinearly():
    for h, w, size, expected in [(12, 20, 6, (6, 10)), (20, 12, 6, (10, 6)), (4, 7, 9, (9, 15))]:
        pixels = make_pixels(h, w, grey=True)
        got = Transform(resize=size, mode="L")(pixels)
        assert got.shape == (1, *expected)
        slow = triangle_weights(h, expected[0]) @ pixels @ triangle_weights(w, expected[1]).T / 255
        assert np.abs(got[0].numpy() - slow).max() < 1.5 / 255  # Pillow rounds to 8 bits after each direction


def test_the_interpolation_is_that_of_pillow_and_bilinear_unless_said_otherwise():
    for h, w, size, expected in [(12, 20, 6, (10, 6)), (5, 4, 9, (9, 11))]:
        pixels = make_pixels(h, w)
        for name, kind in [("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)]:
            got = Transform(resize=size, interpolation=name)(pixels)
            resized = np.array(Image.fromarray(pixels).resize(expected, kind))
            assert torch.equal(got, torch.from_numpy(resized).permute(2, 0, 1).float() / 255), (name, size)
            assert torch.equal(got, Transform(resize=size)(pixels)) is (name == "bilinear")
    assert torch.equal(Transform(resize=6)(make_pixels(6, 9)), Transform()(make_pixels(6, 9)))  # of the right size


def test_the_crop_is_cut_from_the_middle_as_torchvision_does():
    for h, w, top, left in [(6, 9, 1, 2), (5, 4, 0, 0), (4, 4, 0, 0), (7, 11, 2, 4)]:
        pixels = make_pixels(h, w)
        assert torch.equal(Transform(crop=4)(pixels), Transform()(pixels[top : top + 4, left : left + 4])), (h, w)


def test_every_8_bit_mode_is_converted_and_deeper_ones_are_refused_rather_than_clipped():
    grey = Transform()(make_pixels(grey=True))
    assert grey.shape == (3, 6, 9)
    assert torch.equal(grey[0], grey[2])
    assert Transform(mode="L")(make_pixels()).shape == (1, 6, 9)
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"):
        assert Transform()(Image.new(mode, (4, 5))).shape == (3, 5, 4), mode
    transparent = Image.new("P", (4, 5))
    transparent.info["transparency"] = b"\x00\x80"  # of which Pillow would warn
    assert Transform()(transparent).shape == (3, 5, 4)
    for mode in ("I", "I;16", "F"):
        with refused(mode, f"8 bits .*'{mode}'"):
            Transform()(Image.new(mode, (4, 5)))


def test_images_and_settings_that_make_no_sense_are_refused():
    for image, error, keyword in [
        (make_pixels() / 255, ValueError, "float64"),
        (make_pixels()[..., :2], ValueError, r"\(6, 9, 2\)"),
        (make_pixels()[None], ValueError, r"\(1, 6, 9, 3\)"),
        (torch.zeros(3, 4, 4), TypeError, "Tensor"),
    ]:
        with refused(keyword, keyword, error):
            Transform()(image)
    with pytest.raises(ValueError, match="crop of 8"):
        Transform(crop=8)(make_pixels(6, 9))
    for options, keyword in [
        ({"mode": "HSV"}, "mode"), ({"interpolation": "nearest"}, "interpolation"), ({"resize": 0}, "resize"),
        ({"crop": 2.5}, "crop"), ({"crop": True}, "crop"), ({"mean": (0.5,)}, "mean"),
        ({"std": (1, 1, 1), "mode": "L"}, "std"), ({"std": (1, 0, 1)}, "std"),
        ({"mean": (0, float("nan"), 1)}, "mean"),
    ]:  # fmt: skip
        with refused(options, keyword):
            Transform(**options)


def test_equal_settings_have_one_representation():
    one, other = Transform(8, 4, [0, 0, 0], (1, 1, 1)), Transform(resize=8, crop=4, mean=(0.0, 0.0, 0.0), std=[1.0] * 3)
    assert one == other
    assert repr(one) == repr(other)
    assert json.loads(json.dumps(one.as_dict())) == one.as_dict()
    assert list(one.as_dict()) == ["resize", "crop", "mean", "std", "mode", "interpolation"]
    assert Transform(**one.as_dict()) == one


def test_squash_resizes_both_sides():
    pixels = make_pixels(12, 20)
    got = Transform(resize=6, squash=True)(pixels)
    resized = np.array(Image.fromarray(pixels).resize((6, 6), Image.Resampling.BILINEAR))
    assert torch.equal(got, torch.from_numpy(resized).permute(2, 0, 1).float() / 255)
    assert Transform(**Transform(resize=6, squash=True).as_dict()).squash
    assert "squash" not in Transform(resize=6).as_dict()  # as in files of versions without it
    with refused("squash", "resize="):
        Transform(squash=True)


class InterpolationMode(Enum):
    """Of torchvision."""

    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BICUBIC = {"mean": MEAN, "std": STD, "interpolation": "bicubic"}


class ImageClassification:
    """Torchvision's preset: its attributes, and what it does to a PIL image."""

    def __init__(self, crop_size, resize_size=256, interpolation=InterpolationMode.BICUBIC, odd=False):
        self.crop_size, self.resize_size = [crop_size], [resize_size]
        self.mean, self.std, self.interpolation, self.antialias = list(MEAN), list(STD), interpolation, True
        self.odd = odd

    def __call__(self, picture):
        width, height = picture.size
        scale, crop = self.resize_size[0] / min(width, height), self.crop_size[0]
        picture = picture.resize((int(width * scale), int(height * scale)), Image.Resampling.BICUBIC)
        left, top = (picture.width - crop) // 2, (picture.height - crop) // 2
        values = torch.from_numpy(np.array(picture)[top : top + crop, left : left + crop] / 255.0)
        values = ((values - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1).float()
        return values.flip(0) if self.odd else values


class Compose:
    """Torchvision's list of steps, which are recognised by the names of their classes."""

    def __init__(self, *steps):
        self.transforms = [type(name, (), values)() for name, values in steps]

    def __call__(self, picture):
        return ImageClassification(224)(picture)


RESIZE = ("Resize", {"size": 256, "interpolation": InterpolationMode.BICUBIC})
CROP, NORMALISE = ("CenterCrop", {"size": (224, 224)}), ("Normalize", {"mean": torch.tensor(MEAN), "std": STD})
TIMM = {"input_size": (3, 224, 224), "crop_pct": 0.9, "crop_mode": "center", **BICUBIC}


def test_published_preparations_become_transforms():
    preset = ImageClassification(224)
    for preparation, expected in [
        (preset, Transform(256, 224, **BICUBIC)),
        (SimpleNamespace(transforms=lambda: preset), Transform(256, 224, **BICUBIC)),  # an entry of the weights
        (Compose(RESIZE, CROP, ("ToTensor", {}), NORMALISE), Transform(256, 224, **BICUBIC)),
        (TIMM, Transform(248, 224, **BICUBIC)),
        (TIMM | {"crop_mode": "squash", "crop_pct": 1.0}, Transform(224, 224, squash=True, **BICUBIC)),
        (TIMM | {"input_size": (1, 28, 28), "mean": (0.5,), "std": (0.5,)},
            Transform(31, 28, (0.5,), (0.5,), "L", "bicubic")),
        (Transform(crop=4), Transform(crop=4)),
    ]:  # fmt: skip
        assert Transform.of(preparation) == expected, preparation


def test_preparations_that_a_transform_cannot_do_are_refused_with_the_reason():
    for preparation, error, keyword in [
        (ImageClassification(224, interpolation=InterpolationMode.LANCZOS), ValueError, "lanczos"),
        (ImageClassification(224, odd=True), ValueError, "differ by"),
        (ImageClassification(256, 224), ValueError, "pads"),
        (Compose(RESIZE, ("RandomCrop", {})), ValueError, r"random numbers \(RandomCrop\).*evaluation"),
        (Compose(RESIZE, ("Grayscale", {})), ValueError, "no step Grayscale"),
        (Compose(RESIZE, NORMALISE), ValueError, "returns"),
        (TIMM | {"crop_mode": "border"}, ValueError, "'border'"),
        (TIMM | {"input_size": (3, 224, 160)}, ValueError, "160"),
        (TIMM | {"input_size": (4, 9, 9), "mean": (0.5,) * 4}, ValueError, "4 channels"),
        (TIMM | {"crop_pct": 1.1}, ValueError, "pads"),
        ({"resize": 256}, TypeError, "dict"), (len, TypeError, "image processor"),
    ]:  # fmt: skip
        with refused(preparation, keyword, error):
            Transform.of(preparation)


@pytest.mark.slow
def test_image_processors_of_transformers_become_transforms_or_are_refused():
    transformers = pytest.importorskip("transformers")
    half = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    picture = Image.fromarray(make_pixels(90, 130))
    for name, options, expected in [
        ("ViT", {"size": 64}, Transform(64, squash=True, **half)),
        ("DeiT", {}, Transform(256, 224, squash=True, interpolation="bicubic", **half)),
        ("ConvNext", {"size": {"shortest_edge": 56}}, Transform(64, 56, interpolation="bicubic", **half)),
        ("ConvNext", {}, Transform(384, squash=True, interpolation="bicubic", **half)),
        ("MobileNetV2", {"do_normalize": False}, Transform(256, 224)),
    ]:
        processor = getattr(transformers, f"{name}ImageProcessorPil")(**options)
        assert Transform.of(processor) == expected, name
        assert_close(
            expected(picture), processor(images=picture, return_tensors="pt")["pixel_values"][0], atol=1e-5, rtol=0
        )
    for name, options, keyword in [
        ("ViT", {"rescale_factor": 1.0}, "255"), ("ViT", {"resample": 1}, "lanczos"), ("Detr", {}, "longest_edge"),
        ("Levit", {}, "differ by"), ("MobileViT", {"size": {"shortest_edge": 288}}, "differ by"),
    ]:  # fmt: skip
        with refused(name, keyword):
            Transform.of(getattr(transformers, f"{name}ImageProcessorPil")(**options))
