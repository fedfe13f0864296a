"""Sizes that stand in the head of an image file, where its decoder takes memory for them without a look at a limit."""

from __future__ import annotations

import struct

_TILE_WIDTH, _TILE_HEIGHT = 322, 323  # tags of TIFF
_NUMBERS = {3: "H", 4: "I"}  # its types for them
_ENDLESS = 2**32


def webp_size(content: bytes) -> tuple[int, int]:
    """Return the width and height of a WEBP file, (0, 0) for all others: it takes memory when it is only opened."""
    kind, head = content[12:16], content[20:30]
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or len(head) < 10:
        return 0, 0
    if kind == b"VP8X":
        return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    bits = int.from_bytes(head[1:5] if kind == b"VP8L" else head[6:10], "little")
    if kind == b"VP8L":
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return bits & 0x3FFF, bits >> 16 & 0x3FFF


def tile_size(content: bytes) -> tuple[int, int]:
    """Return the width and height of the tiles of a TIFF file, (0, 0) for all others.

    A tile is decoded as a whole, and may be far larger than the image. Where a file says a size twice, one reader
    believes the first and another the last, so that the larger one counts here.
    """
    order = {b"II": "<", b"MM": ">"}.get(content[:2])
    if order is None or len(content) < 16:
        return 0, 0
    big = struct.unpack_from(order + "H", content, 2)[0] == 43  # BigTIFF: longer counts and places
    start, count, entry = ("Q", "Q", "HHQ8s") if big else ("I", "H", "HHI4s")
    found = {_TILE_WIDTH: 0, _TILE_HEIGHT: 0}
    try:
        at = struct.unpack_from(order + start, content, 8 if big else 4)[0]
        entries = struct.unpack_from(order + count, content, at)[0]
        for i in range(min(entries, 2**16)):
            place = at + struct.calcsize(order + count) + i * struct.calcsize(order + entry)
            tag, kind, _, value = struct.unpack_from(order + entry, content, place)
            if tag in found:
                size = struct.unpack_from(order + _NUMBERS[kind], value)[0] if kind in _NUMBERS else _ENDLESS
                found[tag] = max(found[tag], size)
    except (struct.error, OverflowError):
        pass  # it ends before, and so says no more
    return found[_TILE_WIDTH], found[_TILE_HEIGHT]
