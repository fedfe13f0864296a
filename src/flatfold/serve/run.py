"""Start and stop a service: bind its address, and run it until a signal comes."""

from __future__ import annotations

import logging
import socket
from copy import deepcopy
from ipaddress import ip_address
from math import ceil
from types import FrameType

import uvicorn
from fastapi import FastAPI

from .deadline import DeadlineProtocol
from .service import Service

KEEP_ALIVE_SECONDS = 5
SHUTDOWN_SECONDS = 2.0  # for threads that still run after all requests have ended


def is_loopback(host: str) -> bool:
    """Return whether a host can only be reached from this machine.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
        (True, False)
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to any address


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that already listens; port 0 takes any free port."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as error:
        raise OSError(
            f"cannot listen on {host} port {port}: {error.strerror}. "
            "Try another --port (0 takes any free one) or another --host."
        ) from error


def address_of(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def run(app: FastAPI, bound: socket.socket, access_log: bool = False) -> bool:
    """Answer requests until SIGTERM or SIGINT, finish the running ones, and return whether all threads have ended.

    The model or a decoder may hang, and Python would wait for it at its exit.
    """
    with bound:
        make_server(app, access_log).run([bound])
    try:
        return _service(app).ends_within(SHUTDOWN_SECONDS)
    except KeyboardInterrupt:
        return False


def make_server(app: FastAPI, access_log: bool = False) -> uvicorn.Server:
    """Return a uvicorn server for an application of :func:`~flatfold.serve.app.create_app`."""
    timeout = _service(app).settings.timeout
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns about every broken form
    log_config = deepcopy(uvicorn.config.LOGGING_CONFIG)
    log_config["loggers"]["uvicorn.error"]["level"] = "ERROR"  # with an access log: requests, and else only errors
    config = uvicorn.Config(
        app,
        http=type("DeadlineProtocol", (DeadlineProtocol,), {"seconds": timeout}),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=log_config if access_log else None,
        log_level=None if access_log else "error",
        access_log=access_log,
        server_header=False,
        proxy_headers=False,  # no proxy is known whose headers could be trusted
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=ceil(timeout),
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """A server that ends without an error after a signal: uvicorn would raise the signal again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        _service(self.config.app).closing = True
        self.force_exit = self.should_exit  # on the second signal
        self.should_exit = True


def _service(app: object) -> Service:
    service: Service = app.state.service  # type: ignore[attr-defined]
    return service
