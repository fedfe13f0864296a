"""`models.transform` against a slow resize in float64 and against arithmetic by hand."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from flatfold.models.transform import Transform


def make_pixels(h=6, w=9, grey=False):
    return np.random.default_rng(h * w).integers(0, 256, (h, w) if grey else (h, w, 3), dtype=np.uint8)


def test_without_steps_pixels_are_divided_by_255_and_channels_come_first():
    pixels = make_pixels()
    got = Transform()(pixels)
    assert got.dtype == torch.float32
    assert got.is_contiguous()
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


@pytest.mark.parametrize(
    ("h", "w", "size", "expected"), [(12, 20, 6, (6, 10)), (20, 12, 6, (10, 6)), (4, 7, 9, (9, 15))]
)
def test_the_shorter_side_is_resized_bilinearly(h, w, size, expected):
    pixels = make_pixels(h, w, grey=True)
    got = Transform(resize=size, mode="L")(pixels)
    assert got.shape == (1, *expected)
    slow = triangle_weights(h, expected[0]) @ pixels @ triangle_weights(w, expected[1]).T / 255
    assert np.abs(got[0].numpy() - slow).max() < 1.5 / 255  # Pillow rounds to 8 bits after each direction


@pytest.mark.parametrize(
    ("interpolation", "filter_"), [("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)]
)
@pytest.mark.parametrize(("h", "w", "size", "expected"), [(12, 20, 6, (10, 6)), (5, 4, 9, (9, 11))])
def test_the_interpolation_is_that_of_pillow(h, w, size, expected, interpolation, filter_):
    pixels = make_pixels(h, w)
    got = Transform(resize=size, interpolation=interpolation)(pixels)
    resized = np.array(Image.fromarray(pixels).resize(expected, filter_))
    assert torch.equal(got, torch.from_numpy(resized).permute(2, 0, 1).float() / 255)


def test_the_interpolation_is_bilinear_unless_said_otherwise():
    pixels = make_pixels(12, 20)
    assert torch.equal(Transform(resize=6)(pixels), Transform(resize=6, interpolation="bilinear")(pixels))
    assert not torch.equal(Transform(resize=6)(pixels), Transform(resize=6, interpolation="bicubic")(pixels))


def test_an_image_of_the_right_size_is_not_resampled():
    pixels = make_pixels(6, 9)
    assert torch.equal(Transform(resize=6)(pixels), Transform()(pixels))


@pytest.mark.parametrize(("h", "w", "top", "left"), [(6, 9, 1, 2), (5, 4, 0, 0), (4, 4, 0, 0), (7, 11, 2, 4)])
def test_the_crop_is_cut_from_the_middle_as_torchvision_does(h, w, top, left):
    pixels = make_pixels(h, w)
    assert torch.equal(Transform(crop=4)(pixels), Transform()(pixels[top : top + 4, left : left + 4]))


def test_grey_becomes_three_equal_channels_and_colour_becomes_grey():
    grey = Transform()(make_pixels(grey=True))
    assert grey.shape == (3, 6, 9)
    assert torch.equal(grey[0], grey[2])
    assert Transform(mode="L")(make_pixels()).shape == (1, 6, 9)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_8_bit_image_mode_is_converted(mode):
    assert Transform()(Image.new(mode, (4, 5))).shape == (3, 5, 4)


def test_a_palette_with_transparency_is_converted_without_a_warning():
    image = Image.new("P", (4, 5))
    image.info["transparency"] = b"\x00\x80"
    assert Transform()(image).shape == (3, 5, 4)


@pytest.mark.parametrize("mode", ["I", "I;16", "F"])
def test_more_than_8_bits_are_refused_rather_than_clipped(mode):
    with pytest.raises(
        ValueError, match=f"images must have 8 bits per channel, got mode '{mode}'.* Scale it to 8 bits"
    ):
        Transform()(Image.new(mode, (4, 5)))


def test_an_image_smaller_than_the_crop_is_refused():
    message = r"a crop of 8 needs an image at least that large, got 9 x 6\. Resize first: Transform\(resize=8"
    with pytest.raises(ValueError, match=message):
        Transform(crop=8)(make_pixels(6, 9))


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (make_pixels() / 255, ValueError, r"uint8 of shape \(h, w\) or \(h, w, 3\), got float64 of shape \(6, 9, 3\)"),
        (make_pixels()[..., :2], ValueError, r"got uint8 of shape \(6, 9, 2\)\. Bring the channels last"),
        (make_pixels()[None], ValueError, r"got uint8 of shape \(1, 6, 9, 3\)"),
        (torch.zeros(3, 4, 4), TypeError, "an image must be a PIL image or a numpy array, not Tensor"),
    ],
)
def test_what_is_no_image_is_refused(image, error, message):
    with pytest.raises(error, match=message):
        Transform()(image)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "HSV"}, 'mode must be "RGB" or "L", got \'HSV\''),
        ({"interpolation": "nearest"}, 'interpolation must be "bilinear" or "bicubic", got \'nearest\''),
        ({"resize": 0}, "resize must be a positive number of pixels or None, got 0"),
        ({"crop": 2.5}, "crop must be a positive number of pixels or None, got 2.5"),
        ({"crop": True}, "crop must be a positive number of pixels"),
        ({"mean": (0.5,)}, "mean must have one number per channel of RGB, 3, got 1"),
        ({"std": (1, 1, 1), "mode": "L"}, "std must have one number per channel of L, 1, got 3"),
        ({"std": (1, 0, 1)}, "mean|std must be finite, and std above 0"),
        ({"mean": (0, float("nan"), 1)}, "mean must be finite"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Transform(**options)


def test_equal_settings_have_one_representation():
    one, other = Transform(8, 4, [0, 0, 0], (1, 1, 1)), Transform(resize=8, crop=4, mean=(0.0, 0.0, 0.0), std=[1.0] * 3)
    assert one == other
    assert repr(one) == repr(other)
    assert repr(one) == (
        "Transform(resize=8, crop=4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), mode='RGB', interpolation='bilinear')"
    )
    assert json.loads(json.dumps(one.as_dict())) == one.as_dict()
    assert Transform(**one.as_dict()) == one


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_interpolation_is_always_among_the_settings(interpolation):
    settings = Transform(8, 4, (0, 0, 0), (1, 1, 1), "RGB", interpolation).as_dict()
    assert settings["interpolation"] == interpolation
    assert list(settings) == ["resize", "crop", "mean", "std", "mode", "interpolation"]
