"""Connections that do not stay open for nothing, and say what is wrong in sentences."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .middleware import fixed_headers
from .settings import AGAIN, Refusal

MOST = 512

"""Connections that are answered at once; each is an open file."""

IDLE = 1.0  # seconds without a request after which one must leave when others need its place

LINGER = 2.0  # seconds for what is still under way to one that has got its last answer


class Connection(H11Protocol):
    """A connection with a limit on the time that a request's head may take, the rest of a refused body, and an answer.

    uvicorn itself waits without end for all three: somebody who opens connections and says nothing, or asks and never
    reads, would use all of them up.
    """

    seconds = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._limit: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._ended = False
        self._wait()
        if len(self.connections) > MOST:
            self._make_room()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        for timer in (self._limit, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for somebody who does not read the answers."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with one who has read."""
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

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

    def _make_room(self) -> None:
        """Take the place of the one that has been idle for longest; where none is, this one is told so."""
        others = cast("set[Connection]", self.connections)
        longest = min((each for each in others if each._idle() > IDLE), key=lambda each: each._since, default=None)
        if longest is not None:
            longest.transport.abort()
        elif len(self.connections) > 2 * MOST:
            self.transport.abort()  # even to say no takes an open file
        else:
            self.app = too_many
            self._wait(LINGER)

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _idle(self) -> float:
        """Return for how many seconds there has been no request; 0 for those that are about to leave anyway."""
        return 0.0 if self._busy() or self.transport.is_closing() else self.loop.time() - self._since

    def _wait(self, seconds: float | None = None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._since = self.loop.time()
        self._limit = self.loop.call_later(self.seconds if seconds is None else seconds, self._end_unless_busy)

    def _end_unless_busy(self) -> None:
        if self.transport.is_closing():
            self.transport.abort()  # it waits for somebody to read the last answer, who does not
        elif self._ended or not self._busy():
            self.transport.close()
            self._wait(LINGER)


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
