"""The body of a request, as far as it may be long and slow."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from .budget import Share
from .refusal import Refusal
from .settings import Settings


async def read_body(request: Request, settings: Settings, share: Share) -> bytes:
    """Return the body of a request.

    Args:
        request: Nothing of its body was read before.
        settings: How long it may be, in bytes and in seconds.
        share: Of the memory, from which its length is taken.

    Raises:
        Refusal: It is too long, too slow, empty or packed.
        ClientDisconnect: It will never be complete.
    """
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing != "identity":
        raise Refusal(415, "bodies are read as they are, but this one has a Content-Encoding. Send it unpacked.")
    if int(request.headers.get("content-length", "0")) > settings.max_body:  # its server has checked that it is one
        raise _too_large(settings.max_body)
    try:
        async with asyncio.timeout(settings.timeout):
            body = await _received(request, settings.max_body, share)
    except TimeoutError:
        raise Refusal(
            408,
            f"a request must arrive within {settings.timeout:g} seconds, but this one did not. Send less at once.",
            {"Connection": "close"},
        ) from None
    if not body:
        raise Refusal(400, "a request needs an image or features as its body, but this body is empty. Send some.")
    return bytes(body)


async def _received(request: Request, most: int, share: Share) -> bytearray:
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        part = message.get("body", b"")
        if len(body) + len(part) > most:
            raise _too_large(most)
        share.take(len(part))
        body += part
        if not message.get("more_body", False):
            return body


def _too_large(most: int) -> Refusal:
    return Refusal(
        413,
        f"a request may have {most / 1e6:g} MB, but this one has more. Send fewer inputs at once, or a smaller image.",
    )
