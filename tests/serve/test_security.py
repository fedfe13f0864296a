"""Who is answered, and what happens to clients that are broken, slow or evil."""

import http.client
import socket
import time
from contextlib import ExitStack, suppress

import pytest

from flatfold.serve import server as connection
from tests.serve.small_service import encoded, pixels, running, until

GOOD = encoded(pixels(1)[0][0])
TOKEN = "correct-horse-battery"
BEARER = f"Bearer {TOKEN}"
FRIEND = "https://example.org"
HEAD = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
LENGTH = f"Content-Length: {len(GOOD)}\r\n".encode()
CLOSE = b"Connection: close\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.fixture(scope="module")
def locked(guard):
    with running(guard, token=TOKEN, origins=frozenset({FRIEND})) as service:
        yield service


def test_without_the_token_no_route_and_no_method_is_answered(locked):
    page = locked.get("/", Authorization=BEARER).body
    paths = ("/", "/v1/score", "/score", "/stream", "/metrics", "/docs", "/openapi.json", "/nothing")
    for path in (*paths, "/healthz/", "//healthz", "/HEALTHZ"):
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
            answer = locked.ask(method, path)
            assert answer.status == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer", (method, path)
            if (method, path) == ("GET", "/"):
                assert answer.body == page  # which asks for the token
            else:
                assert method == "HEAD" or "token" in answer.error, (method, path)
            assert TOKEN not in str(answer)
    assert locked.get("/healthz").json == {"status": "ok"}
    assert locked.ask("POST", "/healthz").status == 405


def test_another_token_is_none(locked):
    near = [f"{BEARER}x", BEARER[:-1], BEARER.upper(), f"{BEARER}, {TOKEN}", f"Bearer x {TOKEN}", f"Basic {TOKEN}"]
    for sent in (*near, "", "Bearer", "Bearer ", TOKEN, "Bearer \xfc\xff", "Bearer " + "x" * 10_000):
        assert locked.get("/stream", Authorization=sent).status == 401, sent
    assert locked.get(f"/stream?token={TOKEN}&access_token={TOKEN}").status == 401
    link = http.client.HTTPConnection("127.0.0.1", locked.port, timeout=60)
    link.putrequest("GET", "/stream")
    for sent in (BEARER, "Bearer another-one"):
        link.putheader("Authorization", sent)
    link.endheaders()
    assert link.getresponse().status == 401
    link.close()


def test_the_token_opens_every_route(locked):
    for sent in (BEARER, f"bearer {TOKEN}", f"BEARER   {TOKEN} "):
        for path in ("/", "/stream", "/metrics", "/healthz"):
            assert locked.get(path, Authorization=sent).status == 200, (sent, path)
    assert locked.score(GOOD, Authorization=BEARER).status == 200
    assert locked.get("/nothing", Authorization=BEARER).status == 404


def test_only_names_of_this_machine_are_answered(shared):
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:9999", "[::1]:80", "[::1]", "localhost:"):
        assert shared.get("/healthz", Host=host).status == 200, host
    evil = ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "::1", "127.0.0.1@evil", "[::1", "a:b:c"]
    for host in evil:
        for path in ("/", "/healthz", "/score", "/nothing"):
            answer = shared.get(path, Host=host)
            assert (answer.status, "Host" in answer.error) == (421, True), (host, path)


def test_requests_from_other_web_pages_are_refused_and_those_of_the_own_page_answered(shared):
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "", "file://", "127.0.0.1"):
        for method, path in (("POST", "/score"), ("GET", "/stream"), ("OPTIONS", "/score"), ("GET", "/")):
            answer = shared.ask(method, path, Origin=origin)
            assert (answer.status, "page" in answer.error) == (403, True), (origin, method, path)
            assert "access-control-allow-origin" not in answer.headers
    for scheme in ("http", "https", "HTTP"):
        assert shared.get("/stream", Origin=f"{scheme}://127.0.0.1:{shared.port}").status == 200, scheme
        assert shared.get("/stream", Origin=f"{scheme}://localhost", Host="localhost").status == 200, scheme


def test_an_allowed_web_page_may_ask_and_read_the_answer(locked):
    for headers, status in (({"Authorization": BEARER}, 200), ({}, 401)):
        answer = locked.get("/stream", Origin=FRIEND, **headers)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, FRIEND)
        assert answer.headers["vary"] == "Origin"
    ask = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
    answer = locked.ask("OPTIONS", "/score", Origin=FRIEND, **ask)
    assert answer.status in (200, 204)
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert {"authorization", "content-type"} <= set(answer.headers["access-control-allow-headers"].lower().split(", "))
    assert locked.ask("OPTIONS", "/score", Origin="https://evil.example", **ask).status == 403
    assert locked.ask("OPTIONS", "/score", **ask).status == 401


def connect(service):
    return socket.create_connection(("127.0.0.1", service.port), timeout=60)


def rest(link):
    """Return all that comes until the other side closes."""
    got = b""
    while part := link.recv(65536):
        got += part
    return got


def talk(service, *parts, pause=0.0):
    """Send bytes, and return all that comes back until the other side closes."""
    with connect(service) as link:
        for part in parts:
            link.sendall(part)
            time.sleep(pause)
        return rest(link)


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer else 0


def test_what_is_no_http_gets_an_answer_with_the_headers_too(shared):
    get = b"GET / HTTP/1.1\r\n"
    for sent in [
        b"\r\n\r\n\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        get + b"\r\n",  # no host
        get + b"Host: a\r\nHost: b\r\n\r\n",
        get + b"Host: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: " + b"9" * 50 + b"\r\n\r\n",
        HEAD + b"Content-Length: 5, 7\r\n\r\nhello",
        HEAD + b"Content-Length: 0x5\r\n\r\nhello",
        HEAD + CHUNKED + b"\r\nZZ\r\nhello",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        get + b"Host: localhost\r\nA\x00: b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",  # TLS
    ]:
        answer = talk(shared, sent)
        assert status(answer) == 400, sent[:80]
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"default-src 'none'" in head, sent[:80]
        assert b"uvicorn" not in answer.lower(), sent[:80]
        assert body.startswith(b'{"error":"'), sent[:80]


def test_a_body_with_two_lengths_is_refused_and_what_follows_it_is_no_request(shared):
    many = b"186a0\r\n" + bytes(100_000) + b"\r\n0\r\n\r\n"
    for sent in [
        HEAD + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
        HEAD + CHUNKED + b"Content-Length: 0\r\n\r\n" + many,
        HEAD.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n0\r\n\r\n",
    ]:
        answer = talk(shared, sent + HEALTH)
        assert status(answer) == 400, sent[:120]
        assert answer.count(b"content-length: ") == 1, sent[:120]
    assert status(talk(shared, HEAD + CLOSE + LENGTH * 2 + b"\r\n" + GOOD)) == 200  # twice the same is one


def test_a_body_that_breaks_ends_its_connection_alone(shared):
    with connect(shared) as link:
        link.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\n" + CHUNKED + b"\r\n")
        assert status(link.recv(65536)) == 404
        link.sendall(b"ZZ\r\n")  # after its answer
        rest(link)
    assert status(talk(shared, HEAD + CHUNKED + b"\r\n5\r\nhello\r\n", b"ZZ\r\n")) == 400
    assert shared.score(GOOD).status == 200


def test_who_waits_for_100_continue_gets_it_or_the_refusal_at_once(shared):
    expects = HEAD + CLOSE + b"Expect: 100-continue\r\n"
    with connect(shared) as link:
        link.sendall(expects + LENGTH + b"\r\n")
        assert link.recv(len(b"HTTP/1.1 100 Continue\r\n\r\n"), socket.MSG_WAITALL).startswith(b"HTTP/1.1 100 ")
        link.sendall(GOOD)
        assert status(rest(link)) == 200
    assert status(talk(shared, expects + b"Content-Length: 999999999\r\n\r\n")) == 413


def test_several_requests_may_share_a_connection(shared):
    one = HEAD + LENGTH + b"\r\n" + GOOD
    bad = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000)
    last = HEALTH.replace(b"\r\n\r\n", b"\r\n" + CLOSE + b"\r\n")
    answer = talk(shared, one + bad + one + last)
    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200, 404, 200, 200]


def test_clients_that_leave_in_the_middle_leave_nothing_behind(start, guard):
    service = start(guard)
    half = HEAD + b"Content-Length: 100\r\n\r\nabc"
    for sent in (b"", b"POST", HEAD, half, HEAD + CHUNKED + b"\r\n5\r\nab"):
        with connect(service) as link:
            link.sendall(sent)
            if sent == half:
                until(lambda: service.service.memory.used == 3)  # counted as it arrives
    assert service.score(GOOD).status == 200
    until(lambda: service.service.memory.used == 0)


def test_clients_that_send_too_slowly_are_refused(start, guard, caplog):
    service = start(guard, timeout=0.4)
    with connect(service) as link:
        link.sendall(HEAD + CHUNKED + b"\r\n5\r\nhello\r\nZZ\r\n")
        assert status(rest(link)) == 400
        time.sleep(0.8)  # in which a second answer would be due
    answer = talk(service, HEAD + b"Content-Length: 100\r\n\r\n", b"only this")
    assert (status(answer), b"0.4 seconds" in answer) == (408, True)
    assert status(talk(service, HEAD + CHUNKED + b"\r\n", *[b"1\r\nx\r\n"] * 6, pause=0.05)) == 408
    for head in (b"GET / HTTP/1.1\r\nHost: lo", b""):  # never complete
        assert talk(service, head) == b""
    refused = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    assert status(talk(service, refused, b"some")) == 404  # and the connection ends without the rest of the body
    assert service.get("/healthz").status == 200
    assert caplog.text == ""  # the broken body was not answered a second time


def with_some_limit(check, start, guard):
    """Pass if a check holds for one of several time limits: on a slow machine only the long ones can be kept."""
    for limit in (0.6, 3.0):
        with suppress(AssertionError, OSError, http.client.HTTPException):
            return check(start(guard, timeout=limit), limit)
    return check(start(guard, timeout=12.0), 12.0)


def test_the_time_limits_of_head_and_body_follow_each_other(start, guard):
    def check(service, limit):
        head = HEAD + CLOSE + LENGTH + b"\r\n"
        parts = head[:20], head[20:] + GOOD[:30], GOOD[30:]
        with connect(service) as link:
            link.sendall(parts[0])
            for part in parts[1:]:
                time.sleep(0.6 * limit)
                link.sendall(part)
            assert status(rest(link)) == 200

    with_some_limit(check, start, guard)


def test_the_time_limit_begins_anew_after_every_answer(start, guard):
    def check(service, limit):
        link = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
        link.connect()
        first = link.sock
        for _ in range(4):
            link.request("GET", "/healthz")
            assert link.getresponse().read() == b'{"status":"ok"}'
            time.sleep(min(0.4 * limit, 4))
        assert link.sock is first  # it was not opened again
        link.close()

    with_some_limit(check, start, guard)


def ask_without_reading(service, times):
    """Return a connection whose answers fill all buffers on the way."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.connect(("127.0.0.1", service.port))
    link.settimeout(0.3)
    with suppress(TimeoutError):
        link.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * times)
    return link


def is_cut_off(link):
    """Tell whether the other side ends a connection; what it has sent stays unread."""
    try:
        link.send(b"\r\n")
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return False


def test_who_asks_and_never_reads_is_cut_off(start, guard):
    service = start(guard, timeout=0.5)
    with ask_without_reading(service, 100_000) as link:
        link.settimeout(0.1)
        until(lambda: is_cut_off(link))
    assert service.get("/healthz").status == 200


@pytest.fixture
def crowd(start, guard, monkeypatch):
    """Return a function that starts a service for 3 connections and opens some; no time limit matters unless given."""
    with ExitStack() as ends:

        def opened(count, idle=60):
            for name, value in (("MAX_CONNECTIONS", 3), ("IDLE_SECONDS", idle), ("LINGER_SECONDS", 60)):
                monkeypatch.setattr(connection, name, value)
            service = start(guard)
            return service, [ends.enter_context(connect(service)) for _ in range(count)]

        yield opened


def metric(service, name):
    """Return the value of a metric, 0 if it has none yet, without asking for it over a connection."""
    lines = service.service.metrics.text().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " ")), 0.0)


def is_open(link):
    link.settimeout(0.3)
    try:
        return link.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_the_connection_that_is_idle_for_longest_makes_room(crowd):
    service, links = crowd(3, idle=0.2)
    until(lambda: service.get("/stream").status == 200)
    assert [is_open(link) for link in links] == [False, True, True]


REFUSED = 'flatfold_requests_total{route="/stream",status="503"}'


@pytest.mark.parametrize("limit", ["MAX_CONNECTIONS", "MAX_PER_CLIENT"])
def test_slow_bodies_take_the_place_of_others_but_not_of_the_health_check(crowd, monkeypatch, limit):
    service, links = crowd(3)
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 99)
    monkeypatch.setattr(connection, limit, 3)
    for link in links:
        link.sendall(HEAD + b"Content-Length: 100\r\n\r\n")
    until(lambda: service.get("/stream").status == 503)
    assert service.get("/healthz").status == 200
    before, answer = metric(service, REFUSED), service.get("/stream")
    assert answer.headers["retry-after"] == "1"
    assert "default-src" in answer.headers["content-security-policy"]
    assert metric(service, REFUSED) == before + 1
    for link in links:
        link.close()
    until(lambda: service.get("/stream").status == 200)


def test_twice_as_many_connections_are_cut_off_and_counted(crowd):
    service, links = crowd(7)
    assert links[3].recv(1) == b"", "the first of those that were refused"
    assert all(is_open(link) for link in (*links[:3], *links[4:]))
    assert metric(service, "flatfold_aborted_connections_total") == 1


@pytest.mark.parametrize("limit", ["MAX_CONNECTIONS", "MAX_PER_CLIENT"])
def test_the_health_check_is_answered_in_any_crowd(crowd, monkeypatch, limit):
    """It was reset when its own address had twice as many connections as are served."""
    monkeypatch.setattr(connection, "MAX_PER_CLIENT", 99)
    service, _ = crowd(0)
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 99)
    monkeypatch.setattr(connection, limit, 5)
    with ExitStack() as ends:
        for _ in range(5):
            for _ in range(20):
                ends.enter_context(connect(service))
            assert service.get("/healthz").status == 200
        until(lambda: metric(service, "flatfold_aborted_connections_total") >= 90)


def test_another_version_of_http_is_refused_and_leaves_no_trace_in_the_log(start, guard, caplog):
    service = start(guard, hosts=None)
    for sent in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/3.0\r\nHost: a\r\n\r\n"):
        assert status(talk(service, sent)) == 505
    assert status(talk(service, b"GET\r\n\r\n")) == 400
    assert metric(service, 'flatfold_requests_total{route="other",status="400"}') == 1
    assert caplog.records == []
