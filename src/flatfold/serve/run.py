"""A service at work: bound to an address, until it is told to stop."""

from __future__ import annotations

import logging
import socket
from copy import deepcopy
from ipaddress import ip_address
from math import ceil
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from .deadline import connection_class
from .service import Service

KEEP_ALIVE = 5  # seconds

PATIENCE = 2.0  # seconds for what is in a thread when all requests were answered or given up


def is_loopback(host: str) -> bool:
    """Tell whether a host can only be reached from this machine.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
        (True, False)
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False  # a name may lead anywhere


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that who connects from now on is answered.

    Args:
        host: Name or address.
        port: 0 for any that is free.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise OSError(f"a service needs an address of this machine, got {host!r}: {error.strerror}.") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise OSError(
            f"{host} has no port {port} for a service: {error.strerror}. "
            "Try another --port (0 takes any that is free), or another --host."
        ) from error
    return bound


def address_of(bound: socket.socket) -> str:
    """Return where a socket is found, for a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def run(app: FastAPI, bound: socket.socket, access_log: bool = False) -> bool:
    """Answer requests until SIGTERM or SIGINT comes; then finish those that are running, and return.

    Args:
        app: What :func:`~flatfold.serve.app.create_app` returned.
        bound: What :func:`bind` returned; it is closed at the end.
        access_log: Write a line for each request to the standard output.

    Returns:
        Whether all threads have ended. The model or a decoder may hang, and Python would wait for it at the exit.
    """
    with bound:
        server_of(app, access_log).run([bound])
    service: Service = app.state.service
    try:
        return service.ends_within(PATIENCE)
    except KeyboardInterrupt:  # who asks again does not want to wait
        return False


def server_of(app: FastAPI, access_log: bool = False) -> uvicorn.Server:
    """Return a server for a service, ready to run."""
    service: Service = app.state.service
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a broken form is no matter for the log
    config = uvicorn.Config(
        app,
        http=connection_class(service.settings.timeout),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=_log_of_requests() if access_log else None,
        log_level=None if access_log else "error",
        access_log=access_log,
        server_header=False,
        proxy_headers=False,  # who may say where a request comes from is not known here
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=ceil(service.settings.timeout),
    )
    return _Server(config, service)


def _log_of_requests() -> dict[str, Any]:
    """Return how uvicorn logs requests, and of all else only errors."""
    config = deepcopy(uvicorn.config.LOGGING_CONFIG)
    config["loggers"]["uvicorn.error"]["level"] = "ERROR"
    return config


class _Server(uvicorn.Server):
    """A server that ends without an error when it is told to: uvicorn would raise the signal again."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.closing = True
        self.force_exit = self.should_exit  # who asks twice does not want to wait
        self.should_exit = True
