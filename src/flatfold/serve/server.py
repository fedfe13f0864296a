"""Start and stop a service: bind its address, and run it with deadlines until a signal arrives."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from copy import deepcopy
from ipaddress import ip_address
from math import ceil
from types import FrameType
from typing import cast

import h11
import uvicorn
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from .app import PUBLIC_PATH, SECURITY_HEADERS
from .service import Metrics, Service
from .settings import error_response, unavailable

BACKLOG = 2048  # connections that the system accepts before the service does; Linux: at most net.core.somaxconn
MAX_CONNECTIONS = 512  # connections served, each an open file; as many more are answered with 503
MAX_PER_CLIENT = 128  # connections of one address
IDLE_SECONDS = 1.0  # idle time after which a connection may be closed to make room for others
LINGER_SECONDS = 2.0  # time for a client to read its last response
KEEP_ALIVE_SECONDS = 5
SHUTDOWN_SECONDS = 2.0  # time limit for threads that still run after all requests have ended


def is_loopback(host: str) -> bool:
    """Return whether a host is reachable only from this machine.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
        (True, False)
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to any address


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 means any free port."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise OSError(
            f"cannot listen on {host} port {port}: {error.strerror}. "
            "Try another port (0 means any free port) or another host."
        ) from error


def address_of(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def run(app: FastAPI, bound: socket.socket, access_log: bool = False) -> bool:
    """Serve requests until SIGTERM or SIGINT, finish running ones, and return whether all threads have ended.

    The model or a decoder may hang, and Python would wait for its thread at exit.
    """
    with bound:
        make_server(app, access_log).run([bound])
    try:
        return _service(app).ends_within(SHUTDOWN_SECONDS)
    except KeyboardInterrupt:
        return False


def make_server(app: FastAPI, access_log: bool = False) -> uvicorn.Server:
    """Return a uvicorn server for an application of :func:`~flatfold.serve.app.create_app`."""
    service = _service(app)
    timeout = service.settings.timeout
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns about every malformed form
    log_config = deepcopy(uvicorn.config.LOGGING_CONFIG)
    log_config["loggers"]["uvicorn.error"]["level"] = "ERROR"  # an access log has only requests and errors
    config = uvicorn.Config(
        app,
        http=type("DeadlineProtocol", (_DeadlineProtocol,), {"seconds": timeout, "metrics": service.metrics}),
        ws="none",
        loop="asyncio",
        lifespan="on",
        backlog=BACKLOG,
        log_config=log_config if access_log else None,
        log_level=None if access_log else "error",
        access_log=access_log,
        server_header=False,
        proxy_headers=False,  # no proxy is trusted
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=ceil(timeout),
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """A server that exits without an error after a signal; uvicorn would raise the signal again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        _service(self.config.app).closing = True
        self.force_exit = self.should_exit  # on the second signal
        self.should_exit = True


def _service(app: object) -> Service:
    service: Service = app.state.service  # type: ignore[attr-defined]
    return service


class _DeadlineProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with deadlines and limits on connections, for which it has no settings.

    uvicorn waits without limit for the head of a request, for the rest of a rejected body, and for a client that does
    not read its response. Clients that open connections and send nothing, or send bodies slowly, would exhaust them.
    So the connections of one address are limited, and connections beyond either limit are answered only for
    ``/healthz``: a busy service must not appear to be down. For the same reason the new connection stays when there are
    twice as many, and the one that has waited longest is aborted.
    """

    seconds = 30.0
    metrics: Metrics
    refused = False  # whether it is answered only for /healthz

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._set_deadline(self.seconds)
        everyone = self._all()
        crowd = [other for other in everyone if other._address == self._address]
        if len(crowd) > MAX_PER_CLIENT:
            self._refuse("too many connections from this address", crowd, 2 * MAX_PER_CLIENT)
        elif len(everyone) > MAX_CONNECTIONS:
            self._make_room(everyone)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._set_deadline(self.seconds)
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._set_deadline(self.seconds)  # for a client that does not read
        super().pause_writing()

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is not h11.ERROR:  # ignore data after invalid HTTP
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP, and close later: closing with unread data would discard the response."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # the response was already sent
            return
        self.metrics.count_answer("", 400, 0.0)
        answer = _last_answer(HTTPException(400, "invalid HTTP/1.1 request."))
        head = h11.Response(status_code=400, headers=answer.raw_headers, reason=STATUS_PHRASES[400])
        for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.write_eof()
        if self.cycle is not None:
            self.cycle.disconnected = True  # the application must not respond too
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

    def _make_room(self, everyone: Sequence[_DeadlineProtocol]) -> None:
        """Close the connection that has been idle longest; without an idle one, answer this one with 503."""
        latest = self.loop.time() - IDLE_SECONDS
        idle = [other for other in everyone if not other._is_busy() and not other.transport.is_closing()]
        oldest = min(idle, key=lambda other: other._waiting_since)  # this one is idle too
        if oldest._waiting_since < latest:
            oldest.transport.abort()
        else:
            self._refuse("too many connections", everyone, 2 * MAX_CONNECTIONS)

    def _refuse(self, problem: str, crowd: Sequence[_DeadlineProtocol], most: int) -> None:
        """Answer 503 to all requests except for ``/healthz``, and abort another connection if the crowd is larger.

        Even a response needs an open file. A request may be under way on the new connection, one to ``/healthz`` for
        all that is known, so those that were refused before and sent no request are aborted first.
        """
        if len(crowd) > most:
            idle = [other for other in crowd if not other._is_busy() and not other.transport.is_closing()]
            victim = min(idle, key=lambda other: (not other.refused, other._waiting_since))  # this one is idle too
            self.metrics.aborted.inc()
            victim.transport.abort()
            if victim is self:
                return
        self.refused = True
        app, refusal = self.app, _last_answer(unavailable(problem))

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == PUBLIC_PATH:
                await app(scope, receive, send)
                return
            self.metrics.count_answer(scope["path"], refusal.status_code, 0.0)
            await refusal(scope, receive, send)

        self.app = answer
        self._set_deadline(LINGER_SECONDS)

    def _all(self) -> list[_DeadlineProtocol]:
        """Return all connections but those that close as soon as the event loop goes on: they have nothing to send."""
        return [
            other
            for other in cast("set[_DeadlineProtocol]", self.connections)
            if not other.transport.is_closing() or other.transport.get_write_buffer_size()
        ]

    @property
    def _address(self) -> str | None:
        return None if self.client is None else self.client[0]


def _last_answer(error: HTTPException) -> JSONResponse:
    """Return a response that bypasses the middleware and closes its connection."""
    response = error_response(error)
    response.raw_headers += [*SECURITY_HEADERS, (b"connection", b"close")]
    return response
