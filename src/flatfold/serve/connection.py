"""Connections that do not stay open for nothing, and say what is wrong in sentences."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .page import fixed_headers
from .refusal import AGAIN, Refusal

MOST = 512
"""Connections that are answered at once; each is an open file."""
LINGER = 2.0  # seconds for what is still under way to one that has got its last answer


class Connection(H11Protocol):
    """A connection with a limit on the time that a request's head may take, and on what is left of a refused body.

    uvicorn itself waits without end for both: somebody who opens connections and says nothing would use all of them up.
    """

    seconds = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._limit: asyncio.TimerHandle | None = None
        self._ended = False
        self._wait()
        if len(self.connections) > MOST:
            self.app = too_many

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what comes, unless it is too late."""
        if not self._ended:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and read on for a while: closed at once, the answer might never arrive."""
        self._ended = True
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # there was an answer already
            return
        answer = Refusal(400, "a request must be HTTP/1.1, with one length, but this one is not. Look at its head.")
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in _events(answer.response())))
        self.transport.write_eof()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._wait(LINGER)

    def _wait(self, seconds: float | None = None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self.loop.call_later(self.seconds if seconds is None else seconds, self._end_unless_busy)

    def _end_unless_busy(self) -> None:
        if self._ended or self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def connection_class(seconds: float) -> type[Connection]:
    """Return connections that wait that long for a request."""
    return type("TimedConnection", (Connection,), {"seconds": seconds})


async def too_many(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request for which there is no connection left."""
    refusal = Refusal(503, "there are too many connections. Close those that are not needed, or wait.", AGAIN)
    await _complete(refusal.response())(scope, receive, send)


def _complete(response: JSONResponse) -> ASGIApp:
    """Add the headers of every answer to one that does not pass the door, and the end of its connection."""
    response.raw_headers += [*fixed_headers(), (b"connection", b"close")]
    return response


def _events(response: JSONResponse) -> list[Any]:
    _complete(response)
    head = h11.Response(status_code=response.status_code, headers=response.raw_headers, reason=b"Bad Request")
    return [head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()]
