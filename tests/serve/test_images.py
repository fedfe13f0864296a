"""`serve.images` and `serve.sizes`: files that were made to cost more than they look."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

import flatfold as ff
from flatfold.serve import images
from flatfold.serve.images import prepared
from flatfold.serve.refusal import Refusal
from flatfold.serve.sizes import tile_size
from tests.serve.small_service import encoded

TRANSFORM = ff.Transform(mode="L", resize=4, crop=4)


def prepare(content, most_pixels=50_000_000):
    return prepared(content, "the image", TRANSFORM, most_pixels)


def segment(kind, content):
    return bytes([255, kind]) + struct.pack(">H", len(content) + 2) + content


def scans(side, count):
    """A grey JPEG whose blocks are gone through once per scan; each scan says in a few bytes that there is nothing."""
    blocks = (-(-side // 8)) ** 2
    bits = "010101010101010" * -(-blocks // 27306)  # the end of a band of 2^14 + 10922 blocks, again and again
    bits += "1" * (-len(bits) % 8)
    nothing = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
    tables = [segment(0xC4, bytes([kind, 1, *[0] * 15, symbol])) for kind, symbol in ((0, 0), (16, 0xE0))]
    frame = segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\x01\x11\x00")
    first = segment(0xDA, b"\x01\x01\x00\x00\x00\x00") + bytes(-(-blocks // 8))
    again = segment(0xDA, b"\x01\x01\x00\x01\x3f\x00") + nothing
    return b"".join([b"\xff\xd8", segment(0xDB, b"\0" + b"\1" * 64), frame, *tables, first, again * count, b"\xff\xd9"])


def tiff(entries, order="<", big=False, tail=b""):
    """A TIFF of (tag, type, value), each a single number."""
    head, count, entry, place = ("H2xQ", "Q", "HHQ", 16) if big else ("I", "H", "HHI", 8)
    out = (b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if big else 42)
    out += struct.pack(order + head, *((8, place) if big else (place,))) + struct.pack(order + count, len(entries))
    for tag, kind, value in entries:
        packed = struct.pack(order + {3: "H", 4: "I", 16: "Q"}[kind], value)
        out += struct.pack(order + entry, tag, kind, 1) + packed.ljust(8 if big else 4, b"\0")
    return out + bytes(8 if big else 4) + tail


def tiled(side, *more):
    """A TIFF of 16 x 16 pixels in one packed tile of another size."""
    tile = zlib.compress(bytes(side * side))
    sizes = [(256, 3, 16), (257, 3, 16), (258, 3, 8), (259, 3, 8), (262, 3, 1), (277, 3, 1)]
    tags = [*sizes, (322, 4, side), (323, 4, side), *more, (324, 4, 0), (325, 4, len(tile))]
    start = len(tiff(tags))
    return tiff([(tag, kind, start if tag == 324 else value) for tag, kind, value in tags], tail=tile)


def test_a_file_that_takes_too_long_is_given_up(monkeypatch):
    content = scans(4000, 3000)
    assert len(content) < 200_000
    monkeypatch.setattr(images, "SECONDS", 0.05)
    with pytest.raises(
        Refusal, match=r"the image takes too long to be decoded. Save it anew, as PNG or as JPEG"
    ) as got:
        prepare(content)
    assert got.value.status == 413


def test_a_file_of_many_scans_that_is_decoded_in_time_is_an_image():
    assert prepare(scans(64, 10)).shape == (1, 4, 4)


@pytest.mark.parametrize("text", [b"P1 4 4 " + b"0 " * 16, b"P2 4 4 255 " + b"7 " * 16, b"P3 4 4 255 " + b"7 " * 48])
def test_images_that_are_written_as_text_are_refused(text):
    assert Image.open(io.BytesIO(text)).size == (4, 4)
    with pytest.raises(
        Refusal, match=r"must be encoded in bytes, but is a PPM, PGM or PBM written as text. Save"
    ) as got:
        prepare(text)
    assert got.value.status == 422


def test_a_tile_that_is_far_larger_than_its_image_is_refused():
    assert prepare(tiled(64), most_pixels=64 * 64).shape == (1, 4, 4)
    with pytest.raises(
        Refusal, match=r"has a tile of 80 x 80, and up to 4,096 pixels are read. Make it smaller"
    ) as got:
        prepare(tiled(80), most_pixels=64 * 64)
    assert got.value.status == 413


def test_of_two_sizes_of_a_tile_the_larger_counts():
    for first, last in ((16, 9000), (9000, 16)):
        tags = [(322, 4, first), (322, 4, last), (323, 4, 9000)]
        assert tile_size(tiff(tags)) == (9000, 9000)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("kind", [3, 4])
def test_the_tile_is_found_in_every_kind_of_tiff(order, big, kind):
    assert tile_size(tiff([(256, 3, 7), (322, kind, 300), (323, kind, 200)], order, big)) == (300, 200)


def test_a_size_of_an_odd_type_counts_as_endless():
    assert tile_size(tiff([(322, 16, 5), (323, 3, 1)], big=True)) == (2**32, 1)


def test_other_files_and_cut_ones_have_no_tile():
    whole = tiff([(322, 3, 300), (323, 3, 200)])
    assert tile_size(encoded(np.zeros((4, 4), np.uint8), "TIFF")) == (0, 0)
    assert tile_size(encoded(np.zeros((4, 4), np.uint8))) == (0, 0)
    assert [tile_size(whole[:length]) for length in (0, 3, 12, 16, 24)] == [
        *[(0, 0)] * 4,
        (300, 0),
    ]  # an entry is there
    assert tile_size(b"II+\0" + b"\xff" * 30) == (0, 0)
