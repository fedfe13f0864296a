"""Requests that nobody should send: each is refused with a reason, and the service stays as it was."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.serve.small_service import WIDTH, encoded, form, pixels, png, running

MOST_BODY, MOST_PIXELS = 200_000, 100_000
OCTETS = "application/octet-stream"
GOOD = {kind: encoded(pixels(1)[0][0], kind) for kind in ("PNG", "BMP", "GIF", "TIFF", "PPM", "WEBP", "JPEG")}


@pytest.fixture(scope="module")
def limited(guard):
    with running(guard, max_body=MOST_BODY, max_pixels=MOST_PIXELS, max_images=8) as service:
        yield service


def packed(side):
    """A small file whose pixels would fill the memory."""
    return png(side, side, bytes(side * (side + 1)))


def declared(kind, side):
    """An image of a kind, with another size in its head."""
    content = bytearray(GOOD[kind])
    if kind == "GIF":
        content[6:10] = struct.pack("<HH", min(side, 65535), min(side, 65535))
        at = content.index(b",", 13)
        content[at + 5 : at + 9] = content[6:10]
    elif kind == "BMP":
        content[18:26] = struct.pack("<ii", side, side)
    elif kind == "PNG":
        return png(side, side)
    elif kind == "PPM":
        content[:] = content.replace(b"4 4", f"{side} {side}".encode(), 1)
    elif kind == "TIFF":
        for tag in (256, 257):  # the entries of width and height: tag, type, count, value
            entries = [struct.pack("<HHI", tag, kind, 1) for kind in (3, 4)]
            start = next(i for i in range(len(content) - 12) if content[i : i + 8] in entries)
            content[start + 2 : start + 12] = struct.pack("<HII", 4, 1, side)
    elif kind == "WEBP":
        vp8x = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (min(side, 2**14) - 1).to_bytes(3, "little") * 2
        content[12:12] = vp8x
        content[4:8] = struct.pack("<I", len(content) - 8)
    return bytes(content)


def truncated(rng):
    kind = rng.choice(sorted(GOOD))
    return 400, GOOD[kind][: rng.randrange(1, max(2, len(GOOD[kind]) // 2))], "image/x"


def flipped(rng):
    content = bytearray(GOOD[rng.choice(sorted(GOOD))])
    for _ in range(rng.randrange(1, 4)):
        content[rng.randrange(min(60, len(content)))] ^= 1 << rng.randrange(8)
    return None, bytes(content), "image/x"


def oversized(rng):
    content = GOOD["PNG"] + bytes(MOST_BODY)
    return 413, (iter([content[:50], content[50:]]) if rng.random() < 0.5 else content), "image/png"


def wrong_type(rng):
    kinds = ["text/html", "application/json", "imagepng", "multipart/mixed; boundary=x", "image", "/"]
    return 415, GOOD["PNG"], rng.choice([*kinds, "\xff/\xfe"])


def no_numbers(rng):
    values = np.ones((rng.randrange(1, 5), WIDTH), "<f4")
    values.flat[rng.randrange(values.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return 400, values.tobytes(), OCTETS


def wrong_width(rng):
    length = rng.randrange(1, 2000)
    return 422, bytes(length + (length % (4 * WIDTH) == 0)), OCTETS


def huge(rng):
    kind = rng.choice(["PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
    return 413, declared(kind, rng.choice([5_000, 16_000, 60_000])), "image/x"


def bomb(rng):
    return 413, packed(rng.choice([400, 2_000, 4_000])), "image/png"


def many_parts(rng):
    count = rng.choice([9, 100, 1_500])
    return 413, *form([("a", b"x" * rng.randrange(3))] * count)


def nested(rng):
    body, kind = GOOD["PNG"], ""
    for level in range(rng.randrange(2, 40)):
        body, kind = form([(f"{level}", body)], f"limit{level}")
    return 400, body, kind


def broken_form(rng):
    body, kind = form([("a.png", GOOD["PNG"]), ("b.png", GOOD["BMP"])])
    cut = body[: rng.randrange(1, len(body) - 4)]
    junk = [(cut, kind), (body, kind + "x"), (body, "multipart/form-data"), (rng.randbytes(300), kind)]
    return 400, *rng.choice([*junk, form([(None, b"no file")]), (b"--limit--\r\n", kind), form([("e", b"")])])


def noise(rng):
    return 400, rng.randbytes(rng.randrange(1, 3_000)), "image/png"


KINDS = [truncated, flipped, oversized, wrong_type, no_numbers, wrong_width, huge, bomb, many_parts, nested]
KINDS += [broken_form, noise]


def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see the memory")
@pytest.mark.parametrize("count", [240, pytest.param(1000, marks=pytest.mark.slow)])
def test_malformed_requests_are_refused_and_change_nothing(limited, count):
    rng = random.Random(7)
    wanted = limited.score(GOOD["PNG"]).body
    before = None
    for i in range(count):
        make = KINDS[i % len(KINDS)]
        status, body, kind = make(rng)
        answer = limited.score(body, kind)
        if status is None:  # a flip may leave a valid image
            assert answer.status in (200, 400, 413, 422), (i, make.__name__, answer)
        else:
            assert answer.status == status, (i, make.__name__, answer)
        if answer.status != 200:
            assert answer.body.startswith(b'{"error":"'), (i, make.__name__, answer)
            internal = (b"Error", b"Traceback", b"0x7", b".py", b"/home", b"/tmp")
            assert not any(word in answer.body for word in internal), (i, make.__name__, answer)
        if i % 100 == 99:
            assert limited.score(GOOD["PNG"]).body == wanted
            before = megabytes() if before is None else before  # after the first hundred all is loaded
    assert megabytes() - before < 100
    assert limited.service.memory.used == 0
    assert limited.service.batcher.waiting == 0
