"""From the bytes of a request to tensors: forms, images, features, and files made to cost more than they look."""

import asyncio
import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request

import flatfold as ff
from flatfold.serve import requests as images
from flatfold.serve.requests import decode_features, decode_image, plain_name, read_form, tile_size, webp_size
from tests.serve.small_service import encoded, form, pixels, png

TRANSFORM = ff.Transform(mode="L", resize=4, crop=4)
GOOD = encoded(pixels(1)[0][0])


def refused(status, keyword, function, *arguments):
    with pytest.raises(HTTPException, match=keyword) as caught:
        function(*arguments)
    assert caught.value.status_code == status, caught.value
    return caught.value.detail


def files_of(body, kind, max_files):
    async def receive():
        return {"type": "http.request", "body": body}

    request = Request({"type": "http", "headers": [(b"content-type", kind.encode())]}, receive)
    return asyncio.run(read_form(request, max_files))


def prepare(content, most_pixels=50_000_000, transform=TRANSFORM):
    return decode_image(content, "the image", transform, most_pixels)


def test_files_of_a_form_come_in_their_order_with_all_their_bytes_and_not_from_the_disk(monkeypatch):
    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", None)
    contents = [bytes([i]) * 10 ** (2 * i) + b"\r\n--limi\r\n" for i in range(5)]
    files = files_of(*form([(f"{i}.png", content) for i, content in enumerate(contents)]), 5)
    assert [file.name for file in files] == [f"{i}.png" for i in range(5)]
    assert [file.content for file in files] == contents


def test_of_a_file_name_the_last_part_is_kept_as_printable_text():
    for sent, kept in [
        ("../../etc/passwd", "passwd"),
        ("C:\\photos\\a.png", "a.png"),
        ('say "hi".png', 'say "hi".png'),
        ("größe.png", "größe.png"),
        ("", ""),
        ("x" * 1000, "x" * 200),
        ("a\u202eb", "a?b"),
    ]:
        assert files_of(*form([(sent, b"x")]), 1)[0].name == kept, sent
    assert plain_name("a\x07\nb") == "a??b"


def test_broken_forms_are_refused():
    body, kind = form([("a", b"x")])
    for status, keyword, *arguments in [
        (400, "boundary", body, "multipart/form-data", 1),
        (400, "complete", body[:-6], kind, 1),
        (400, "Invalid", b"nothing of the kind", kind, 1),
        (400, "Invalid", body, "multipart/form-data; boundary=" + "x" * 999, 1),
        (400, "Invalid", body, f"{kind}; charset=undefined", 1),
        (400, "no file", b"--limit--\r\n", kind, 1),
        (400, "file name", *form([("a", b"x"), (None, b"y")]), 9),
        (413, "2 images", *form([("a", b"x")] * 3), 2),
    ]:
        refused(status, keyword, files_of, *arguments)
    assert len(files_of(*form([("a", b"x")] * 2), 2)) == 2


def test_images_of_every_kind_are_prepared_as_the_transform_does_it():
    for kind in ("PNG", "BMP", "GIF", "TIFF", "PPM", "WEBP", "JPEG"):
        content = encoded(pixels(1)[0][0], kind)
        assert torch.equal(prepare(content, 99), TRANSFORM(Image.open(io.BytesIO(content)))), kind


def test_broken_images_are_called_by_their_name_and_nothing_internal_is_told(shared, monkeypatch):
    answer = shared.score(*form([("good.png", GOOD), ("a/bad.png", GOOD[:60])]))
    assert (answer.status, "'bad.png'" in answer.error) == (400, True)
    assert "image 1" in shared.score(*form([("", GOOD), ("", b"x")])).error
    assert "BytesIO" not in refused(400, "format", prepare, b"nothing")
    refused(400, "format", prepare, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")

    class WeirdError(Exception):
        pass

    for error, status in ((WeirdError, 400), (MemoryError, 503)):

        def fail(*arguments, error=error, **options):
            raise error

        monkeypatch.setattr(Image, "open", fail)
        assert "Error" not in refused(status, "the image", prepare, b"x")


def test_a_declared_size_is_checked_before_anything_is_decoded(monkeypatch):
    def fail(self):
        raise AssertionError("decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", fail)
    refused(413, "pixels", prepare, png(100, 101), 10_000)
    refused(413, "pixels", prepare, png(60_000, 60_000), 10_000)
    refused(400, "decoded", prepare, png(100, 100), 10_000)


def test_the_size_of_a_webp_is_known_before_it_is_opened(monkeypatch):
    contents = []
    for options in ({"lossless": True}, {"quality": 50}, {"exif": b"Exif\0\0MM"}):
        file = io.BytesIO()
        Image.new("RGB", (333, 7)).save(file, "WEBP", **options)
        contents.append(file.getvalue())
        assert webp_size(contents[-1]) == (333, 7), options
        assert prepare(contents[-1], 2331).shape == (1, 4, 4), options
    for content in (b"", b"RIFF", GOOD, b"RIFF\0\0\0\0WEBPVP8X"):
        assert webp_size(content) == (0, 0), content
    monkeypatch.setattr(Image, "open", None)
    for content in contents:
        refused(413, "333 x 7", prepare, content, 2330)


def test_an_image_that_a_resize_would_make_enormous_is_refused():
    narrow = encoded(np.zeros((1, 2000), np.uint8))
    wide = ff.Transform(mode="L", resize=50, crop=50)
    refused(413, "1,000,000 pixels", prepare, narrow, 10**6, wide)
    assert prepare(narrow, 5 * 10**6, wide).shape == (1, 50, 50)
    assert prepare(narrow, 2000, ff.Transform(mode="L")).shape == (1, 1, 2000)


def test_images_that_the_transform_cannot_take_are_refused():
    deep = io.BytesIO()
    Image.new("I;16", (4, 4)).save(deep, "PNG")
    refused(422, "8 bits", prepare, deep.getvalue(), 99)
    refused(422, "crop", prepare, GOOD, 99, ff.Transform(mode="L", crop=9))
    for text in (b"P1 4 4 " + b"0 " * 16, b"P2 4 4 255 " + b"7 " * 16, b"P3 4 4 255 " + b"7 " * 48):
        assert Image.open(io.BytesIO(text)).size == (4, 4)
        refused(422, "text", prepare, text)  # slow to decode


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


def test_a_file_that_takes_too_long_to_decode_is_given_up(monkeypatch):
    assert prepare(scans(64, 10)).shape == (1, 4, 4)
    refused(413, "9001 scans", prepare, scans(800, 9000))  # 150 kB that would take seconds, and do not
    monkeypatch.setattr(images, "DECODE_SECONDS", -0.01)
    refused(413, "too long", prepare, scans(64, 10))


def tiff(entries, order="<", big=False, tail=b""):
    """A TIFF of (tag, type, value), each a single number."""
    head, count, entry, place = ("H2xQ", "Q", "HHQ", 16) if big else ("I", "H", "HHI", 8)
    out = (b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if big else 42)
    out += struct.pack(order + head, *((8, place) if big else (place,))) + struct.pack(order + count, len(entries))
    for tag, kind, value in entries:
        packed = struct.pack(order + {3: "H", 4: "I", 16: "Q"}[kind], value)
        out += struct.pack(order + entry, tag, kind, 1) + packed.ljust(8 if big else 4, b"\0")
    return out + bytes(8 if big else 4) + tail


def tiled(side):
    """A TIFF of 16 x 16 pixels in one packed tile of another size."""
    tile = zlib.compress(bytes(side * side))
    sizes = [(256, 3, 16), (257, 3, 16), (258, 3, 8), (259, 3, 8), (262, 3, 1), (277, 3, 1)]
    tags = [*sizes, (322, 4, side), (323, 4, side), (324, 4, 0), (325, 4, len(tile))]
    start = len(tiff(tags))
    return tiff([(tag, kind, start if tag == 324 else value) for tag, kind, value in tags], tail=tile)


def test_a_tile_that_is_far_larger_than_its_image_is_refused():
    assert prepare(tiled(64), 64 * 64).shape == (1, 4, 4)
    refused(413, "80 x 80", prepare, tiled(80), 64 * 64)


def test_the_tile_size_is_found_in_every_kind_of_tiff():
    for order in "<>":
        for big in (False, True):
            for kind in (3, 4):
                content = tiff([(256, 3, 7), (322, kind, 300), (323, kind, 200)], order, big)
                assert tile_size(content) == (300, 200), (order, big, kind)
    for first, last in ((16, 9000), (9000, 16)):  # of two sizes the larger one counts
        assert tile_size(tiff([(322, 4, first), (322, 4, last), (323, 4, 9000)])) == (9000, 9000)
    assert tile_size(tiff([(322, 16, 5), (323, 3, 1)], big=True)) == (2**32, 1)  # of an odd type: endless


def test_features_are_little_endian_rows_of_finite_numbers():
    values = [[1.5, -2.0, 3e-9], [0.0, 1e30, 7.0]]
    body = b"".join(struct.pack("<3f", *row) for row in values)
    assert torch.equal(decode_features(body, 3, 2), torch.tensor(values))
    refused(422, "25 bytes", decode_features, bytes(25), 3, 9)
    refused(413, "2 rows", decode_features, bytes(36), 3, 2)
    for wrong in (np.nan, np.inf, -np.inf):
        refused(400, "row 1", decode_features, np.array([[1, 2, 3], [4, wrong, 6]], "<f4").tobytes(), 3, 9)
