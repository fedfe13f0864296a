"""`serve.run`: addresses, and how a service ends."""

import asyncio
import http.client
import signal
import socket
import threading
import time

import pytest

from flatfold.serve.app import create_app
from flatfold.serve.run import address_of, bind, is_loopback, server_of
from flatfold.serve.settings import Settings
from tests.serve.small_service import encoded, make_guard, pixels


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.7", "example.org", "")),
    ],
)
def test_what_can_only_be_reached_from_here(host, own):
    assert is_loopback(host) is own


def test_port_0_is_any_free_one_and_the_address_says_which():
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address_of(bound) == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port)):
            pass  # it listens already


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_an_address_of_the_new_kind_stands_in_brackets():
    try:
        bound = bind("::1", 0)
    except OSError:
        pytest.skip("this machine has no address ::1")
    with bound:
        assert address_of(bound) == f"http://[::1]:{bound.getsockname()[1]}"


def test_a_port_that_is_taken_and_a_host_that_is_elsewhere_are_said():
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(
            OSError, match=rf"127.0.0.1 has no port {port} for a service: .* Try another --port \(0 takes"
        ):
            bind("127.0.0.1", port)
    with pytest.raises(OSError, match=r"a service needs an address of this machine, got 'no.such.host.invalid'"):
        bind("no.such.host.invalid", 0)
    with pytest.raises(OSError, match=r"192.0.2.1 has no port 0 for a service"):
        bind("192.0.2.1", 0)


@pytest.fixture
def ending():
    """A service whose model is held, with a request under way; and how to end it."""
    guard = make_guard()
    bound = bind("127.0.0.1", 0)
    app = create_app(guard, Settings(timeout=1.5))
    server = server_of(app)
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    guard.model.calls = 0
    guard.model.held.acquire()
    link = http.client.HTTPConnection("127.0.0.1", bound.getsockname()[1], timeout=30)
    link.request("POST", "/score", encoded(pixels(1)[0][0]), {"Content-Type": "image/png"})
    while not guard.model.calls:
        time.sleep(0.01)
    yield guard, app, server, thread, link
    if guard.model.held.locked():
        guard.model.held.release()
    server.should_exit = True
    link.close()
    thread.join(20)
    bound.close()


def test_a_running_request_is_answered_before_the_end(ending):
    guard, app, server, thread, link = ending
    server.handle_exit(signal.SIGTERM, None)
    assert app.state.service.closing
    time.sleep(0.4)
    assert thread.is_alive()
    with pytest.raises(ConnectionRefusedError):  # nobody else comes in
        socket.create_connection(("127.0.0.1", link.port), timeout=5)
    guard.model.held.release()
    assert link.getresponse().status == 200
    thread.join(10)
    assert not thread.is_alive()
    assert not server.force_exit


def test_who_asks_twice_does_not_wait(ending):
    _, _, server, thread, _ = ending
    server.handle_exit(signal.SIGINT, None)
    time.sleep(0.3)
    server.handle_exit(signal.SIGINT, None)
    assert server.force_exit
    thread.join(1.0)
    assert not thread.is_alive()


def test_a_request_that_is_cut_off_at_the_end_is_told_so(guard):
    """As uvicorn does it when the time for the end is over: the task is cancelled."""
    app = create_app(guard)
    sent = []

    async def silence():
        await asyncio.sleep(60)

    async def keep(message):
        sent.append(message)

    async def main():
        headers = [(b"host", b"localhost"), (b"content-type", b"image/png"), (b"content-length", b"9")]
        scope = {"type": "http", "method": "POST", "path": "/score", "headers": headers, "query_string": b""}
        task = asyncio.create_task(app(scope, silence, keep))
        await asyncio.sleep(0.1)
        task.cancel()
        await task

    asyncio.run(main())
    assert sent[0]["status"] == 503
    assert b"about to end. Send the request again later" in sent[1]["body"]
