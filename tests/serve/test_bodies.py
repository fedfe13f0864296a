"""`serve.parts`, `serve.images` and `serve.features`: from bytes to tensors, or to a sentence."""

import io
import struct

import numpy as np
import pytest
import torch
from PIL import Image

import flatfold as ff
from flatfold.serve.features import rows_of
from flatfold.serve.images import prepared
from flatfold.serve.parts import files_of, plain_name
from flatfold.serve.refusal import Refusal
from flatfold.serve.sizes import webp_size
from tests.serve.small_service import encoded, form, pixels


def refused(status, sentence, function, *arguments):
    with pytest.raises(Refusal, match=sentence) as caught:
        function(*arguments)
    assert caught.value.status == status
    return caught.value.sentence


def test_files_come_in_their_order_with_all_their_bytes():
    contents = [bytes([i]) * i + b"\r\n--limi\r\n" for i in range(5)]
    body, kind = form([(f"{i}.png", content) for i, content in enumerate(contents)])
    files = files_of(body, kind, 5)
    assert [file.name for file in files] == [f"{i}.png" for i in range(5)]
    assert [file.content for file in files] == contents


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\photos\\a.png", "a.png"),
        ('say "hi".png', 'say "hi".png'),
        ("größe.png", "größe.png"),
        ("", ""),
        ("x" * 1000, "x" * 200),
        ("a\u202e\x07b", "a??b"),
    ],
)
def test_of_a_name_the_last_part_is_kept_if_it_can_be_printed(sent, kept):
    assert plain_name(sent.encode()) == kept
    assert files_of(*form([(sent.replace("\x07", ""), b"x")]), 1)[0].name == kept.replace("??", "?")


def test_forms_that_are_none_are_refused():
    body, kind = form([("a", b"x")])
    refused(400, "what its boundary is, but this one does not. Add it", files_of, body, "multipart/form-data", 1)
    refused(400, "must be complete and have its boundary", files_of, body[:-6], kind, 1)
    refused(400, "must be complete and have its boundary", files_of, b"nothing of the kind", kind, 1)
    refused(
        400, "must be complete and have its boundary", files_of, body, "multipart/form-data; boundary=" + "x" * 999, 1
    )
    refused(400, "no file in it. Add one", files_of, b"--limit--\r\n", kind, 1)
    refused(400, "one has no file name. Leave other fields out", files_of, *form([("a", b"x"), (None, b"y")]), 9)
    refused(413, "may have 2 images, but this one has more", files_of, *form([("a", b"x")] * 3), 2)
    assert len(files_of(*form([("a", b"x")] * 2), 2)) == 2


TRANSFORM = ff.Transform(mode="L", resize=4, crop=4)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "TIFF", "PPM", "WEBP", "JPEG"])
def test_images_are_prepared_as_the_transform_does_it(kind):
    content = encoded(pixels(1)[0][0], kind)
    assert torch.equal(prepared(content, "it", TRANSFORM, 99), TRANSFORM(Image.open(io.BytesIO(content))))


def png(width, height, kind=b"\x08\x00"):
    """A PNG of a declared size, and nothing else in it."""
    import zlib

    head = b"IHDR" + struct.pack(">II", width, height) + kind + b"\0\0\0"
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + head + struct.pack(">I", zlib.crc32(head)) + b"\0\0\0\0IDAT" + bytes(20)


def test_broken_images_are_refused_by_the_name_they_are_called():
    content = encoded(pixels(1)[0][0])
    assert "'a.png'" in refused(400, "could not be read", prepared, content[:50], "the image 'a.png'", TRANSFORM, 99)
    said = refused(400, "the form of no known kind of image", prepared, b"nothing", "the image", TRANSFORM, 99)
    assert "BytesIO" not in said
    refused(400, "known kind", prepared, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it", TRANSFORM, 99)


def test_a_decoder_without_words_does_not_give_its_name_away(monkeypatch):
    class WeirdError(Exception):
        pass

    def fail(*arguments, **options):
        raise WeirdError

    monkeypatch.setattr(Image, "open", fail)
    said = refused(400, "its bytes are broken. Open it in a viewer", prepared, b"x", "the image", TRANSFORM, 99)
    assert "Weird" not in said


def test_a_declared_size_is_looked_at_before_anything_is_decoded(monkeypatch):
    def fail(self):
        raise AssertionError("decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", fail)
    refused(413, "the image", prepared, png(100, 101), "the image", TRANSFORM, 10_000)
    refused(413, "the image", prepared, png(60_000, 60_000), "the image", TRANSFORM, 10_000)
    with pytest.raises(Refusal, match="decoded"):
        prepared(png(100, 100), "the image", TRANSFORM, 10_000)


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 50}, {"exif": b"Exif\0\0MM"}], ids=str)
def test_the_size_of_a_webp_is_known_before_it_is_opened(options, monkeypatch):
    file = io.BytesIO()
    Image.new("RGB", (333, 7)).save(file, "WEBP", **options)
    assert webp_size(file.getvalue()) == (333, 7)
    assert prepared(file.getvalue(), "it", TRANSFORM, 2331).shape == (1, 4, 4)
    monkeypatch.setattr(Image, "open", None)
    refused(
        413,
        "it is 333 x 7, and up to 2,330 pixels are read",
        prepared,
        file.getvalue(),
        "it",
        TRANSFORM,
        2330,
    )


def test_what_is_no_webp_has_no_such_size():
    for content in (b"", b"RIFF", encoded(pixels(1)[0][0]), b"RIFF\0\0\0\0WEBPVP8X"):
        assert webp_size(content) == (0, 0)


def test_an_image_that_a_resize_would_make_enormous_is_refused():
    narrow = encoded(np.zeros((1, 2000), np.uint8))
    wide = ff.Transform(mode="L", resize=50, crop=50)
    said = "2000 x 1, and resized to a shorter side of 50 .* more than 1,000,000 pixels. Cut it"
    refused(413, said, prepared, narrow, "it", wide, 10**6)
    assert prepared(narrow, "it", wide, 5 * 10**6).shape == (1, 50, 50)
    assert prepared(narrow, "it", ff.Transform(mode="L"), 2000).shape == (1, 1, 2000)


def test_what_the_transform_cannot_take_is_said():
    deep = io.BytesIO()
    Image.new("I;16", (4, 4)).save(deep, "PNG")
    refused(422, "it cannot be prepared for the model: .* 8 bits", prepared, deep.getvalue(), "it", TRANSFORM, 99)
    small = ff.Transform(mode="L", crop=9)
    refused(422, "a crop of 9 needs an image", prepared, encoded(pixels(1)[0][0]), "it", small, 99)


def test_no_memory_is_no_fault_of_the_image(monkeypatch):
    def fail(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(Image, "open", fail)
    refused(503, "no memory for it at the moment. Send it again", prepared, b"x", "it", TRANSFORM, 99)


def test_features_are_little_endian_rows():
    values = [[1.5, -2.0, 3e-9], [0.0, 1e30, 7.0]]
    body = b"".join(struct.pack("<3f", *row) for row in values)
    assert torch.equal(rows_of(body, 3, 2), torch.tensor(values))


def test_features_of_another_width_or_without_a_value_are_refused():
    refused(422, "rows of 3 .* 12 bytes each, but 25 bytes are no whole number", rows_of, bytes(25), 3, 9)
    refused(413, "may have 2 rows of features, but this one has 3. Send them in parts", rows_of, bytes(36), 3, 2)
    for wrong in (np.nan, np.inf, -np.inf):
        body = np.array([[1, 2, 3], [4, wrong, 6]], "<f4").tobytes()
        refused(400, "must be finite, but row 1 has a NaN or infinite entry", rows_of, body, 3, 9)
