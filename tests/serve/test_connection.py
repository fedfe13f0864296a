"""`serve.connection`: what clients do that are broken, slow or evil, byte by byte."""

import http.client
import socket
import time
from contextlib import suppress

import pytest

from flatfold.serve import connection
from tests.serve.small_service import encoded, pixels

GOOD = encoded(pixels(1)[0][0])
HEAD = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


def talk(service, *parts, pause=0.0, finish=False):
    """Send bytes, and return all that comes back until the other side closes."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as link:
        for part in parts:
            link.sendall(part)
            time.sleep(pause)
        if finish:
            link.shutdown(socket.SHUT_WR)
        got = b""
        while part := link.recv(65536):
            got += part
        return got


def status(answer):
    return int(answer.split(b" ", 2)[1])


def closing(head):
    return head + b"Connection: close\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        b"\r\n\r\n\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: " + b"9" * 50 + b"\r\n\r\n",
        HEAD + b"Content-Length: 5, 7\r\n\r\nhello",
        HEAD + b"Content-Length: 0x5\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nhello",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA\x00: b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",  # TLS
    ],
)
def test_what_is_no_http_gets_a_sentence_and_the_headers_too(shared, request_):
    answer = talk(shared, request_)
    assert status(answer) == 400
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"default-src 'none'" in head
    assert b"uvicorn" not in answer.lower()
    assert body.startswith(b'{"error":"')


def test_what_breaks_after_its_answer_or_in_the_middle_ends_the_connection_alone(shared):
    chunked = b"HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert status(talk(shared, b"POST /nothing " + chunked, b"ZZ\r\n", pause=0.2)) == 404
    assert status(talk(shared, b"POST /score " + chunked, b"ZZ\r\n")) in (400, 415)
    image = b"POST /score " + chunked[:-2] + b"Content-Type: image/png\r\n\r\n"
    assert status(talk(shared, image, b"5\r\nhello\r\n", b"ZZ\r\n", pause=0.1)) == 400
    assert shared.score(GOOD).status == 200


def test_a_length_that_is_said_twice_in_the_same_way_is_one(shared):
    length = f"Content-Length: {len(GOOD)}\r\n".encode()
    assert status(talk(shared, closing(HEAD) + length * 2 + b"\r\n" + GOOD)) == 200


def test_who_waits_for_a_hundred_gets_it_or_the_refusal_at_once(shared):
    expects = closing(HEAD) + b"Expect: 100-continue\r\n"
    answer = talk(shared, expects + f"Content-Length: {len(GOOD)}\r\n\r\n".encode(), GOOD, pause=0.1)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    answer = talk(shared, expects + b"Content-Length: 999999999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_come_in_time_is_refused(start, guard):
    service = start(guard, timeout=0.5)
    began = time.monotonic()
    answer = talk(service, HEAD + b"Content-Length: 100\r\n\r\n", b"only this")
    assert status(answer) == 408
    assert b"must arrive within 0.5 seconds, but this one did not. Send less at once" in answer
    assert 0.4 < time.monotonic() - began < 10
    drip = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    assert status(talk(service, drip, *[b"1\r\nx\r\n"] * 8, pause=0.05)) == 408
    assert service.score(GOOD).status == 200


def test_a_head_that_does_not_come_in_time_ends_the_connection(start, guard):
    service = start(guard, timeout=0.5)
    began = time.monotonic()
    assert talk(service, b"GET / HTTP/1.1\r\nHost: lo") == b""
    assert talk(service) == b""
    assert time.monotonic() - began < 10


def test_the_rest_of_a_refused_body_does_not_hold_a_connection_for_ever(start, guard):
    service = start(guard, timeout=0.5)
    refused = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    assert status(talk(service, refused, b"some")) == 404


def test_a_slow_request_is_not_cut_off_by_the_wait_for_its_head(start, guard):
    service = start(guard, timeout=1.0)
    half = len(GOOD) // 2
    head = closing(HEAD) + f"Content-Length: {len(GOOD)}\r\n\r\n".encode()
    assert status(talk(service, head[:20], head[20:] + GOOD[:half], GOOD[half:], pause=0.4)) == 200


def test_the_wait_begins_anew_after_every_answer(start, guard):
    service = start(guard, timeout=1.0)
    link = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    link.connect()
    first = link.sock
    for _ in range(4):
        link.request("GET", "/healthz")
        assert link.getresponse().read() == b'{"status":"ok"}'
        time.sleep(0.5)
    assert link.sock is first  # it was not opened again
    link.close()


def test_clients_that_leave_in_the_middle_leave_nothing_behind(start, guard):
    service = start(guard)
    for part in (
        b"",
        b"POST",
        HEAD,
        HEAD + b"Content-Length: 100\r\n\r\nabc",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    ):
        with socket.create_connection(("127.0.0.1", service.port)) as link:
            link.sendall(part)
    time.sleep(0.2)
    assert service.score(GOOD).status == 200
    assert service.service.budget.used == 0


def test_several_requests_may_share_a_connection(shared):
    one = HEAD + f"Content-Length: {len(GOOD)}\r\n\r\n".encode() + GOOD
    bad = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000)
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = talk(shared, one + bad + one + last)
    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200, 404, 200, 200]


def test_an_upgrade_is_not_understood_and_does_no_harm(shared):
    upgrade = (
        b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n"
    )
    assert status(talk(shared, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n", finish=True)) == 404


def test_old_http_is_answered_if_it_names_the_host(shared):
    assert status(talk(shared, b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")) == 200
    assert status(talk(shared, b"GET /healthz HTTP/1.0\r\n\r\n")) == 421


@pytest.mark.parametrize(
    "request_",
    [
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n186a0\r\n" + bytes(100_000) + b"\r\n0\r\n\r\n",
        HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_a_body_of_two_lengths_is_refused_and_what_follows_it_is_no_request(shared, request_):
    answer = talk(shared, request_ + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.count(b"content-length: ") == 1
    assert status(answer) == 400
    assert b"must say the length of its body in one way" in answer


def answered(link):
    """Return the body of the next answer."""
    answer = http.client.HTTPResponse(link)
    answer.begin()
    return answer.read()


def asks_and_never_reads(service, times=100_000):
    """Return a connection whose answers fill all that lies between."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.connect(("127.0.0.1", service.port))
    link.settimeout(0.5)
    with suppress(TimeoutError):
        link.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * times)
    return link


def is_cut_off(link, seconds=10):
    """Tell whether the other side gives a connection up; what it has sent stays unread."""
    deadline = time.monotonic() + seconds
    link.settimeout(0.1)
    while time.monotonic() < deadline:
        try:
            link.send(b"\r\n")
        except TimeoutError:
            continue
        except ConnectionError:
            return True
        time.sleep(0.05)
    return False


def test_who_asks_and_never_reads_is_cut_off(start, guard):
    service = start(guard, timeout=1.0)
    with asks_and_never_reads(service) as link:
        assert is_cut_off(link)
    assert service.score(GOOD).status == 200


def test_who_reads_late_but_in_time_gets_every_answer_and_stays(start, guard):
    service = start(guard, timeout=1.0)
    ask = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    one = len(talk(service, ask + b"Connection: close\r\n\r\n")) - len(b"connection: close\r\n")
    with asks_and_never_reads(service, 120) as link:
        time.sleep(0.5)
        link.settimeout(30)
        got = 0
        while got < 120 * one:
            part = link.recv(2**20)
            assert part
            got += len(part)
        for _ in range(4):
            time.sleep(0.4)
            link.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answered(link) == b'{"status":"ok"}'


def test_those_that_say_nothing_make_room_for_those_that_ask(start, guard, monkeypatch):
    monkeypatch.setattr(connection, "MOST", 3)
    monkeypatch.setattr(connection, "IDLE", 0.2)
    service = start(guard)
    links = [socket.create_connection(("127.0.0.1", service.port), timeout=0.3) for _ in range(3)]
    time.sleep(0.5)
    assert service.get("/healthz").status == 200
    assert links[0].recv(1) == b""  # the one that was idle for longest
    for link in links[1:]:
        with pytest.raises(TimeoutError):
            link.recv(1)
    for link in links:
        link.close()


def test_twice_too_many_connections_are_not_even_told_so(start, guard, monkeypatch):
    monkeypatch.setattr(connection, "MOST", 3)
    service = start(guard)
    links = [socket.create_connection(("127.0.0.1", service.port), timeout=1.0) for _ in range(7)]
    assert links[6].recv(1) == b""
    with pytest.raises(TimeoutError):
        links[5].recv(1)
    for link in links:
        link.close()


def test_too_many_connections_are_told_so(start, guard, monkeypatch):
    monkeypatch.setattr(connection, "MOST", 3)
    monkeypatch.setattr(connection, "IDLE", 0.05)
    service = start(guard)
    links = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(3)]
    for link in links:
        link.sendall(HEAD + b"Content-Length: 100\r\n\r\n")
    time.sleep(0.2)
    answer = service.get("/healthz")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "there are too many connections" in answer.error
    assert "default-src" in answer.headers["content-security-policy"]
    for link in links:
        link.close()
    time.sleep(0.1)
    assert service.get("/healthz").status == 200
