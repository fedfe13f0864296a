"""Deadlines and a bound on connections that uvicorn has no settings for.

uvicorn waits without limit for the head of a request, for the rest of a refused body, and for a client that does not
read its answer. Clients that open connections and stay silent would use up all of them.
"""

from __future__ import annotations

import asyncio
from typing import cast

import h11
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from .app import SECURITY_HEADERS
from .settings import error_response, unavailable

MAX_CONNECTIONS = 512  # that are served; each is an open file
IDLE_SECONDS = 1.0  # without a request, after which a connection is closed when others need its place
LINGER_SECONDS = 2.0  # for a client to read its last answer


class DeadlineProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with deadlines."""

    seconds = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request."""
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._set_deadline(self.seconds)
        if len(self.connections) > MAX_CONNECTIONS:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start the deadline of the next request."""
        self._set_deadline(self.seconds)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the deadline of a client that does not read."""
        self._set_deadline(self.seconds)
        super().pause_writing()

    def data_received(self, data: bytes) -> None:
        """Ignore what comes after invalid HTTP."""
        if self.conn.their_state is not h11.ERROR:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP, and close later: closed with unread data, the connection would discard the answer."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # the answer was sent already
            return
        answer = _last_answer(HTTPException(400, "invalid HTTP/1.1 request."))
        head = h11.Response(status_code=400, headers=answer.raw_headers, reason=STATUS_PHRASES[400])
        for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.write_eof()
        if self.cycle is not None:
            self.cycle.disconnected = True  # its application must not answer too
        self._set_deadline(LINGER_SECONDS)

    def _set_deadline(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._waiting_since = self.loop.time()
        self._timer = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self.transport.is_closing() or self.flow.write_paused:
            self.transport.abort()
        elif not self._is_busy():
            self.transport.close()
            self._set_deadline(LINGER_SECONDS)

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.disconnected

    def _make_room(self) -> None:
        """Close the connection that is idle for longest; without an idle one, answer this one with 503."""
        latest = self.loop.time() - IDLE_SECONDS
        others = cast("set[DeadlineProtocol]", self.connections)
        idle = [other for other in others if not other._is_busy() and not other.transport.is_closing()]
        oldest = min(idle, key=lambda other: other._waiting_since)  # this one is idle too
        if oldest._waiting_since < latest:
            oldest.transport.abort()
        elif len(self.connections) > 2 * MAX_CONNECTIONS:
            self.transport.abort()  # even an answer takes an open file
        else:
            self.app = _last_answer(unavailable("too many connections"))
            self._set_deadline(LINGER_SECONDS)


def _last_answer(error: HTTPException) -> JSONResponse:
    """Return an answer that does not pass the middleware, and closes its connection."""
    response = error_response(error)
    response.raw_headers += [*SECURITY_HEADERS, (b"connection", b"close")]
    return response
