"""A service under hostile clients: tokens, malformed HTTP, fuzzed JSON, many connections, and names that are HTML."""

import hmac
import http.client
import json
import re
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import flatfold as ff
from flatfold.serve.app import create_app
from flatfold.serve.settings import Settings
from tests.browser import browser, expect, needs_browser, visit  # noqa: F401 - fixtures
from tests.data.tokenisers import Letters, Reader, make_texts
from tests.serve.small_service import CLASSES, encoded, form, make_guard, pixels, running, until
from tests.serve.test_malformed import megabytes
from tests.serve.test_security import HEALTH, rest, status, talk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GOOD = encoded(pixels(1)[0][0])
TOKEN = "correct-horse-battery"
POST = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
IMAGE = POST + b"Content-Type: image/png\r\n"
LENGTH = f"Content-Length: {len(GOOD)}\r\n".encode()
CHUNKED = b"Transfer-Encoding: chunked\r\n"
GET = b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


@pytest.fixture(scope="module")
def guard():
    return make_guard()


@pytest.fixture(scope="module")
def service(guard):
    """A service that every trial must leave as it was."""
    with running(guard, timeout=2.0) as service:
        before = service.score(GOOD).body
        yield service
        assert service.score(GOOD).body == before
        until(lambda: service.service.memory.used == 0)
        assert service.service.batcher.waiting == 0


# Tokens

SENT = {
    "none": [], "empty": [""], "a scheme": ["Bearer"], "no scheme": [TOKEN], "another scheme": [f"Basic {TOKEN}"],
    "a tab": [f"Bearer\t{TOKEN}"], "no space": [f"Bearer{TOKEN}"], "two tokens": [f"Bearer {TOKEN} {TOKEN}"],
    "twice": [f"Bearer {TOKEN}"] * 2, "first a wrong one": ["Bearer x", f"Bearer {TOKEN}"],
    "then a wrong one": [f"Bearer {TOKEN}", "Bearer x"], "a beginning": [f"Bearer {TOKEN[:-1]}"],
    "more": [f"Bearer {TOKEN}x"], "long": ["Bearer " + "x" * 50_000], "long after": [f"Bearer {TOKEN}{'x' * 50_000}"],
    "Latin 1": [b"Bearer \xe9\xff"], "UTF-8": [b"Bearer " + "ｃorrect-horse-battery".encode()],
    "no-break space": [b"Bearer \xa0" + TOKEN.encode() + b"x"], "quoted": [f'Bearer "{TOKEN}"'],
    "capitals": [f"Bearer {TOKEN.upper()}"], "a list": [f"Bearer x, Bearer {TOKEN}"], "percent": ["Bearer %63orrect"],
}  # fmt: skip


@pytest.mark.parametrize("name", SENT)
def test_another_token_is_refused_in_the_time_of_any_other(guard, name):
    """Digests of one length are compared for every request, whatever it sends, by a function of constant time."""
    app = create_app(guard, Settings(token=TOKEN, hosts=None))
    headers = [("Authorization", value) for value in SENT[name]]
    with TestClient(app) as client, patch.object(hmac, "compare_digest", wraps=hmac.compare_digest) as compare:
        for path in ("/v1/stream", "/metrics", "/", "/nothing"):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 401, answer.text
            assert TOKEN not in answer.text
        assert [len(text) for call in compare.call_args_list for text in call.args] == [32] * 8
        assert client.get("/healthz", headers=headers).status_code == 200
        assert client.get("/v1/stream", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


# HTTP that is malformed, ambiguous or unusual; 0 means that the connection ends without an answer

REQUESTS = {
    "a length with a sign": (400, IMAGE + b"Content-Length: +5\r\n\r\nhello"),
    "a length with an underscore": (400, IMAGE + b"Content-Length: 1_0\r\n\r\nhellohello"),
    "no length": (400, IMAGE + b"Content-Length: \r\n\r\nhello"),
    "a length in other digits": (400, IMAGE + "Content-Length: ٥\r\n\r\nhello".encode()),
    "a length beyond 64 bits": (413, IMAGE + b"Content-Length: 99999999999999999999\r\n\r\n" + b"x" * 2**26),
    "a longer body": (200, IMAGE + LENGTH + b"\r\n" + GOOD + b"GET / HTTP/1.1\r\n"),
    "a shorter body": (408, IMAGE + b"Content-Length: 999\r\n\r\n" + GOOD),
    "a chunk longer than its data": (408, IMAGE + CHUNKED + b"\r\nffff\r\n" + GOOD),
    "a chunk beyond 64 bits": (408, IMAGE + CHUNKED + b"\r\n" + b"f" * 20 + b"\r\n" + GOOD),
    "a chunk of many digits": (400, IMAGE + CHUNKED + b"\r\n" + b"0" * 30 + b"5\r\nhello\r\n0\r\n\r\n"),
    "a chunk of fewer bytes": (400, IMAGE + CHUNKED + b"\r\n5\r\nhello!\r\n0\r\n\r\n"),
    "a chunk below 0": (400, IMAGE + CHUNKED + b"\r\n-5\r\nhello\r\n0\r\n\r\n"),
    "tiny chunks": (400, IMAGE + CHUNKED + b"\r\n" + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"),
    "trailers": (200, IMAGE + CHUNKED + b"\r\n%x;a=b\r\n" % len(GOOD) + GOOD + b"\r\n0\r\nHost: evil\r\n\r\n"),
    "two codings": (400, IMAGE + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "chunked twice": (400, IMAGE + CHUNKED * 2 + b"\r\n0\r\n\r\n"),
    "compressed": (415, IMAGE + LENGTH + b"Content-Encoding: gzip\r\n\r\n" + GOOD),
    "compressed in secret": (
        400,
        IMAGE + LENGTH + b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n\r\n" + GOOD,
    ),
    "two types": (400, IMAGE + LENGTH + b"Content-Type: application/octet-stream\r\n\r\n" + GOOD),
    "a type that is no text": (415, POST + LENGTH + b"Content-Type: \xff\xfe/\x80\r\n\r\n" + GOOD),
    "a long type": (415, POST + LENGTH + b"Content-Type: " + b"a" * 50_000 + b"\r\n\r\n" + GOOD),
    "a form without an end": (400, POST + LENGTH + b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" + GOOD),
    "a form of a strange boundary": (
        400,
        POST + LENGTH + b"Content-Type: multipart/form-data; boundary=\xff\x00\r\n\r\n" + GOOD,
    ),
    "a space before the colon": (400, IMAGE + b"Content-Length : 5\r\n\r\nhello"),
    "a carriage return in a header": (400, GET + b"X: a\rGET / HTTP/1.1\r\n\r\n"),
    "a zero in a header": (400, GET + b"X: a\0b\r\n\r\n"),
    "a header of 1 MB": (400, GET + b"X: " + b"y" * 1_000_000 + b"\r\n\r\n"),
    "5,000 headers": (200, GET + b"".join(b"a%d: b\r\n" % i for i in range(5000)) + b"\r\n"),
    "100,000 headers": (400, GET + b"".join(b"a%d: b\r\n" % i for i in range(100_000)) + b"\r\n"),
    "another host in the path": (404, GET.replace(b"/v1", b"http://evil.example/v1") + b"\r\n"),
    "a tunnel": (404, b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    "the whole server": (404, b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    "HTTP/2 at once": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/2 later": (200, GET + b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"),
    "a web socket": (200, GET + b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YQ==\r\n\r\n"),
    "HTTP/1.9": (505, GET.replace(b"1.1", b"1.9") + b"\r\n"),
    "HTTP/0.9": (400, b"GET /\r\n\r\n"),
    "a method in small letters": (405, GET.replace(b"GET", b"get") + b"\r\n"),
    "a path of 60 kB": (404, GET.replace(b"/v1", b"/" + b"a" * 60_000) + b"\r\n"),
    "a path that is no text": (404, GET.replace(b"/v1", b"/%ff%fe%00") + b"\r\n"),
    "a path upwards": (404, GET.replace(b"/v1", b"/../../etc") + b"\r\n"),
    "a query of 60 kB": (422, IMAGE.replace(b"score", b"score?explain=" + b"a" * 60_000) + LENGTH + b"\r\n" + GOOD),
    "line breaks in the query": (422, IMAGE.replace(b"score", b"score?explain=%0d%0aX:%00") + LENGTH + b"\r\n" + GOOD),
    "half a line": (0, b"GET /v1/str"),
    "half a header": (0, GET + b"X-"),
    "no byte": (0, b""),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_answered_or_refused_and_its_connection_ends(service, name):
    wanted, sent = REQUESTS[name]
    answer = talk(service, sent)
    assert status(answer) == wanted, answer[-300:]
    assert len(re.findall(rb"^HTTP/1.1 \d", answer, re.MULTILINE)) == (wanted > 0), answer
    assert not any(word in answer for word in (b"Traceback", b"Error:", b".py", b"uvicorn", b"h11")), answer
    assert wanted < 400 or b'\r\n\r\n{"error":"' in answer, answer


@pytest.mark.parametrize("pause", [0.0, 0.02], ids=["at once", "byte by byte"])
def test_answers_are_read_slowly_closed_midway_and_asked_for_in_parts(service, pause):
    """The stream of counts is one JSON document: whoever leaves in the middle costs nobody else anything."""
    whole = len(talk(service, GET + b"\r\n"))
    for cut in range(0, whole, max(1, whole // 12)):
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # ends in a reset
            for part in [GET + b"\r\n"] if not pause else [GET[:7], GET[7:], b"\r\n"]:
                link.sendall(part)
                time.sleep(pause)
            if cut:
                link.recv(cut)
    assert status(talk(service, GET + b"\r\n")) == 200


# JSON


def make_text_service():
    guard = ff.Guard.fit(Reader().eval(), make_texts(), method="fold", fpr=0.1, loading=ff.Loading(collate=Letters()))
    return create_app(guard, Settings(hosts=None, max_texts=8, max_characters=200, max_body=20_000))


@pytest.fixture(scope="module")
def texts():
    with TestClient(make_text_service(), raise_server_exceptions=True) as client:
        yield client


ODD = st.sampled_from(["\0", "\x1b[2J", "\ud800", "\udfff", "\ufeff", "\u202e", "\U0010ffff", "a" * 300, "", " ", "é"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=20) | ODD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | ODD, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.one_of(
    VALUES.map(json.dumps),
    st.fixed_dictionaries({"texts": VALUES}).map(json.dumps),
    st.fixed_dictionaries({"texts": st.lists(st.text(max_size=30) | ODD, max_size=10)}).map(json.dumps),
    st.lists(VALUES, max_size=3).map(lambda all_: "{" + ",".join(f'"texts":{json.dumps(each)}' for each in all_) + "}"),
    st.integers(1, 9000).map(lambda n: '{"texts":' + "[" * n + "]" * n + "}"),
    st.sampled_from(["NaN", "1e999", "-0", "0x1", "01", "[1,]", "{'texts': ['a']}", '{"texts":["a"]}x', "\ufeff{}"]),
)


@settings(max_examples=150)
@given(body=st.one_of(BODIES.map(lambda text: text.encode("utf8", "surrogatepass")), st.binary(max_size=300)))
def test_any_json_is_scored_or_refused_in_json(texts, body):
    answer = texts.post("/v1/score", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 413, 422), (body, answer.text)
    content = answer.json()
    if answer.status_code == 200:
        sent = json.loads(body.decode())["texts"]
        assert len(content["rows"]) == len(sent) > 0
        assert all(type(text) is str for text in sent)
    else:
        assert list(content) == ["error"], body
        assert "Traceback" not in content["error"]


# Many clients


def test_five_thousand_requests_over_two_hundred_connections_all_get_their_own_answer(guard):
    """From two addresses, since one may have 128 connections. Every connection is kept; the memory stays flat."""
    images, per_connection = pixels(40, seed=3)[0], 25
    bodies = [encoded(image) for image in images]
    with running(guard, max_waiting=4096) as service:
        wanted = [service.score(body).json["rows"][0] for body in bodies]

        def ask(number):
            link = http.client.HTTPConnection(
                "127.0.0.1", service.port, timeout=60, source_address=(f"127.0.0.{1 + number % 2}", 0)
            )
            link.connect()
            first, right = link.sock, 0
            for turn in range(per_connection):
                i = (7 * number + turn) % len(bodies)
                link.request("POST", "/v1/score", bodies[i], {"Content-Type": "image/png"})
                answer = link.getresponse()
                row = json.loads(answer.read())["rows"][0]
                right += answer.status == 200 and row["predicted"] == wanted[i]["predicted"]
                assert row["score"] == pytest.approx(wanted[i]["score"], rel=1e-5)
            assert link.sock is first
            link.close()
            return right

        with ThreadPoolExecutor(200) as pool:
            right = sum(pool.map(ask, range(40)))  # all is loaded
            before = megabytes()
            right += sum(pool.map(ask, range(40, 200)))
        assert right == 5000
        assert megabytes() - before < 60
        assert service.get("/v1/stream").json["seen"] == 5000 + len(bodies)
        assert service.service.memory.used == 0


@pytest.mark.parametrize("addresses", [1, 6])
def test_the_health_check_is_never_reset_under_600_connections(guard, addresses):
    """With the limits of the real service: 128 connections of one address, 512 of all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    answered = 0
    with running(guard) as service, ExitStack() as links:
        for number in range(600):
            source = (f"127.0.0.{2 + number % addresses}", 0)
            links.enter_context(socket.create_connection(("127.0.0.1", service.port), 60, source))
            if number % 10 == 9:
                for address in ("127.0.0.1", "127.0.0.2"):  # one that is known and one of the crowd
                    link = socket.create_connection(("127.0.0.1", service.port), 60, (address, 0))
                    with link:
                        link.sendall(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                        answered += status(rest(link)) == 200
    assert answered == 120


# Names

SCRIPT = "<script>alert(1)</script>"
EVIL = [
    SCRIPT, "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "'-alert(1)-'", "javascript:alert(1)",
    "</style><script>alert(1)</script>", "{{alert(1)}}", "${alert(1)}", "&lt;script&gt;", "<iframe srcdoc='<script>'>",
    "\u202egnp.exe", "`${alert(1)}`",
]  # fmt: skip


@pytest.mark.parametrize("first", [pytest.param(i, marks=needs_browser) for i in range(0, len(EVIL), CLASSES)])
def test_no_name_of_a_class_a_file_a_guard_or_a_model_is_executed(visit, first):  # noqa: F811 - fixture
    """Neither as HTML nor as a script, on the page and in the description of the interface."""
    names = tuple(EVIL[first : first + CLASSES])
    guard, images = make_guard("fourfold"), pixels(6, seed=4)[0]
    files = [(f"{name.replace('/', '')}.png", encoded(image)) for name, image in zip(names * 2, images, strict=True)]
    page_file = {"name": f"{files[0][0]}.html", "mimeType": "text/html", "buffer": SCRIPT.encode()}
    with running(guard, names=names, guard=f"{names[0]}.safetensors", model=names[1]) as service:
        page = visit(f"http://127.0.0.1:{service.port}/")
        given = [{"name": name, "mimeType": "image/png", "buffer": content} for name, content in files]
        page.set_input_files("#files", [*given, page_file])
        expect(page.locator("#cards .card:not(.waiting)")).to_have_count(7)
        assert page.locator("script").count() == 1
        assert page.locator("iframe, [onerror], [onload], [src=x]").count() == 0
        shown = page.locator("#cards .card:not(.failed) .class").all_text_contents()
        assert len(shown) == 6
        assert all(any(name in text for name in names) for text in shown), shown
        page.goto(f"http://127.0.0.1:{service.port}/docs")
        assert page.locator("script").count() == 0
        assert {row["class"] for row in service.score(*form(files)).json["rows"]} <= set(names)


def test_features_of_any_bytes_are_scored_or_refused(service):
    rng = np.random.default_rng(0)
    for _ in range(60):
        body = rng.bytes(int(rng.integers(1, 300)))
        answer = service.score(body, "application/octet-stream")
        assert answer.status in (200, 400, 422), body
        rows = answer.json.get("rows", [])
        assert all(row["score"] is None or np.isfinite(row["score"]) for row in rows)
