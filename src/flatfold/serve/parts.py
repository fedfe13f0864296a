"""Files in the body of a form."""

from __future__ import annotations

from typing import NamedTuple

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from .refusal import Refusal

LONGEST = 200  # characters of a name that are kept


class Part(NamedTuple):
    """A file of a form."""

    name: str
    """As it was sent, without folders."""
    content: bytes


def files_of(body: bytes, content_type: str, most: int) -> list[Part]:
    """Return the files of a multipart/form-data body in their order.

    Args:
        body: All of it.
        content_type: The header that says what stands between two parts.
        most: Files that may be in it.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise Refusal(400, "a form says in its Content-Type what its boundary is, but this one does not. Add it.")
    reader = _Reader(most)
    try:
        MultipartParser(boundary, reader.callbacks()).write(body)  # type: ignore[arg-type]
    except FormParserError:
        raise _broken() from None
    if not reader.complete:
        raise _broken()
    if not reader.files:
        raise Refusal(400, "a form needs an image, but this one has no file in it. Add one to it.")
    return reader.files


class _Reader:
    """What the parser calls while it goes through a body."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.files: list[Part] = []
        self.complete = False
        self._field, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._content = bytearray()

    def callbacks(self) -> dict[str, object]:
        names = ("part_begin", "part_data", "part_end", "header_field", "header_value", "header_end", "end")
        return {f"on_{name}": getattr(self, f"_{name}") for name in names}

    def _part_begin(self) -> None:
        if len(self.files) == self.most:
            raise Refusal(413, f"a request may have {self.most} images, but this one has more. Send several requests.")
        self._headers, self._content = {}, bytearray()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[bytes(self._field).lower()] = bytes(self._value)
        self._field, self._value = bytearray(), bytearray()

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]

    def _part_end(self) -> None:
        options = parse_options_header(self._headers.get(b"content-disposition"))[1]
        if b"filename" not in options:
            raise Refusal(
                400, "every part of a form must be an image file, but one has no file name. Leave other fields out."
            )
        self.files.append(Part(plain_name(options[b"filename"]), bytes(self._content)))

    def _end(self) -> None:
        self.complete = True


def plain_name(name: bytes) -> str:
    r"""Return the last part of a path as text that can be printed, at most 200 characters of it.

    Example:
        >>> plain_name(b"..\\photos/a\ncat.png")
        'a?cat.png'
    """
    text = name.decode(errors="replace").replace("\\", "/").rpartition("/")[2]
    return "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST])


def _broken() -> Refusal:
    return Refusal(
        400, "a form must be complete and have its boundary around every part, but this one has not. Send it again."
    )
