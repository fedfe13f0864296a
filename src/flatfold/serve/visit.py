"""One request and its answer, as they pass the door."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from .page import fixed_headers

LATE = 5.0  # seconds and ...
LEFT = 2**26  # ... bytes for the rest of a body that nobody wants
TOO_SLOW = 408


class Visit:
    """Puts the headers of every answer on this one, and remembers how it went.

    Args:
        scope: Of the request.
        receive: Gives its body.
        send: Takes the answer.
        extra: More headers for the answer.

    Attributes:
        status: Of the answer, once there is one.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, extra: list[tuple[bytes, bytes]]) -> None:
        headers = Headers(scope=scope)
        self.status: int | None = None
        self._receive, self._send, self._extra = receive, send, extra
        self._unread = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        self._waits = "expect" in headers
        self._closes = "close" in headers.get("connection", "").lower() or scope.get("http_version") == "1.0"

    async def receive(self) -> Message:
        """Return the next part of the body."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            closes = self._closes or (b"connection", b"close") in headers
            if self._unread and closes and not self._waits and self.status != TOO_SLOW:
                await self._read_on()
            message = {**message, "headers": [*headers, *fixed_headers(), *self._extra]}
        await self._send(message)

    async def _read_on(self) -> None:
        """Read the rest of a body: a connection that is closed before it came would take the answer with it."""
        left = LEFT
        with suppress(TimeoutError):
            async with asyncio.timeout(LATE):
                while self._unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))
