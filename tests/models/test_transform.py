"""`Transform` against a slow resize in float64 and against arithmetic by hand."""

import json

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
