"""`serve.server`: addresses, and how a service ends."""

import http.client
import signal
import socket

import pytest

from flatfold.serve.server import address_of, bind, is_loopback
from tests.serve.small_service import encoded, make_guard, pixels, until


def test_loopback_addresses_are_recognised():
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert is_loopback(host), host
    for host in ("0.0.0.0", "::", "10.0.0.7", "example.org", ""):
        assert not is_loopback(host), host


def test_port_0_is_any_free_one_and_the_address_says_which():
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address_of(bound) == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port)):
            pass  # it listens already
        with pytest.raises(OSError, match=f"port {port}"):
            bind("127.0.0.1", port)
    try:
        bound = bind("::1", 0)
    except OSError:
        return  # this machine has no IPv6
    with bound:
        assert address_of(bound) == f"http://[::1]:{bound.getsockname()[1]}"


@pytest.fixture
def ending(start):
    """A service whose model is held, with a request under way."""
    guard = make_guard()
    service = start(guard, timeout=60)
    guard.model.calls = 0
    guard.model.held.acquire()
    link = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    link.request("POST", "/score", encoded(pixels(1)[0][0]), {"Content-Type": "image/png"})
    until(lambda: guard.model.calls)
    yield guard, service.app, service.server, service.thread, link
    if guard.model.held.locked():
        guard.model.held.release()
    link.close()


def refuses_connections(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_running_request_is_answered_before_the_end(ending):
    guard, app, server, thread, link = ending
    server.handle_exit(signal.SIGTERM, None)
    assert app.state.service.closing
    until(lambda: refuses_connections(link.port))
    assert thread.is_alive()
    guard.model.held.release()
    assert link.getresponse().status == 200
    thread.join(60)
    assert not thread.is_alive()
    assert not server.force_exit


def test_a_second_signal_ends_the_service_at_once(ending):
    _, _, server, thread, link = ending
    server.handle_exit(signal.SIGINT, None)
    until(lambda: refuses_connections(link.port))
    server.handle_exit(signal.SIGINT, None)
    assert server.force_exit
    thread.join(30)  # the request would last for 60 seconds
    assert not thread.is_alive()
