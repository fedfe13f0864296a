"""`serve.door`: host, origin and token, for every route and method."""

import http.client
import json

import pytest

from flatfold.serve.page import page
from tests.serve.small_service import encoded, pixels, running

TOKEN = "correct-horse-battery"
ASK = f"Bearer {TOKEN}"


@pytest.fixture(scope="module")
def locked(guard):
    with running(guard, token=TOKEN, origins=frozenset({"https://example.org"})) as service:
        yield service


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize(
    "path", ["/", "/score", "/stream", "/metrics", "/nothing", "/healthz/", "//healthz", "/HEALTHZ"]
)
def test_without_the_token_nothing_is_answered(locked, method, path):
    answer = locked.ask(method, path)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    if method == "HEAD":
        assert answer.body == b""
    elif (method, path) == ("GET", "/"):
        assert answer.body == page()
    else:
        assert "with its token, and this one has none, or another. Send the header" in answer.error
    assert TOKEN not in str(answer)


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN}, {TOKEN}",
        f"Bearer x {TOKEN}",
        "Bearer \xfc\xff",
        "Bearer " + "x" * 10_000,
    ],
)
def test_another_token_is_none(locked, sent):
    assert locked.get("/stream", Authorization=sent).status == 401


def test_two_tokens_are_none(locked):
    connection = http.client.HTTPConnection("127.0.0.1", locked.port, timeout=30)
    connection.putrequest("GET", "/stream")
    for sent in (ASK, "Bearer another-one"):
        connection.putheader("Authorization", sent)
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.parametrize("sent", [ASK, f"bearer {TOKEN}", f"BEARER   {TOKEN} "])
def test_the_token_opens_every_route(locked, sent):
    for path in ("/", "/stream", "/metrics", "/healthz"):
        assert locked.get(path, Authorization=sent).status == 200
    assert locked.score(encoded(pixels(1)[0][0]), Authorization=sent).status == 200
    assert locked.get("/nothing", Authorization=sent).status == 404


def test_health_needs_no_token_and_says_nothing_else(locked):
    assert locked.get("/healthz").json == {"status": "ok"}
    assert locked.ask("POST", "/healthz").status == 405


def test_a_token_in_the_address_is_none(locked):
    assert locked.get(f"/stream?token={TOKEN}&access_token={TOKEN}").status == 401


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9999", "[::1]:80", "[::1]", "localhost:"])
def test_names_of_this_machine_are_answered_with_any_port(shared, host):
    assert shared.get("/healthz", Host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "::1", "127.0.0.1@evil", "[::1", "a:b:c"]
)
@pytest.mark.parametrize("path", ["/", "/healthz", "/score", "/nothing"])
def test_other_names_are_not_answered(shared, host, path):
    answer = shared.get(path, Host=host)
    assert answer.status == 421
    assert "does not go by the name in the Host header" in answer.error


def test_names_can_be_added_or_all_allowed(start, guard):
    assert start(guard, hosts=frozenset({"guard.lan"})).get("/healthz", Host="Guard.LAN:99").status == 200
    assert start(guard, hosts=None).get("/healthz", Host="whatever").status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "", "file://", "127.0.0.1"])
def test_requests_from_other_pages_are_refused(shared, origin):
    for method, path in (("POST", "/score"), ("GET", "/stream"), ("OPTIONS", "/score"), ("GET", "/")):
        answer = shared.ask(method, path, Origin=origin)
        assert (answer.status, "web page of somebody else" in answer.error) == (403, True)
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("scheme", ["http", "https", "HTTP"])
def test_the_own_page_may_ask_whatever_stands_in_front_of_it(shared, scheme):
    assert shared.get("/stream", Origin=f"{scheme}://127.0.0.1:{shared.port}").status == 200
    assert shared.get("/stream", Origin=f"{scheme}://localhost", Host="localhost").status == 200


def test_an_allowed_page_may_ask_and_read_the_answer(locked):
    origin = "https://example.org"
    answer = locked.get("/stream", Origin=origin, Authorization=ASK)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["vary"] == "Origin"
    answer = locked.get("/stream", Origin=origin)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (401, origin)


def test_a_browser_may_ask_before_it_asks(locked):
    ask = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
    answer = locked.ask("OPTIONS", "/score", Origin="https://example.org", **ask)
    assert (answer.status, answer.body) == (204, b"")
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    assert locked.ask("OPTIONS", "/score", Origin="https://evil.example", **ask).status == 403
    assert locked.ask("OPTIONS", "/score", **ask).status == 401


def test_counts_are_kept_by_route_and_status_and_unknown_paths_share_one(start, guard):
    service = start(guard)
    for i in range(5):
        service.get(f"/unknown/{i}")
    service.score(encoded(pixels(1)[0][0]))
    service.score(b"x")
    text = service.get("/metrics").body.decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['flatfold_requests_total{route="other",status="404"}'] == "5.0"
    assert lines['flatfold_requests_total{route="/score",status="200"}'] == "1.0"
    assert lines['flatfold_requests_total{route="/score",status="400"}'] == "1.0"
    assert lines['flatfold_request_seconds_count{route="/score"}'] == "2.0"
    assert lines["flatfold_refused_total"] == "6.0"
    assert lines["flatfold_inputs_total"] == "1.0"
    assert lines["flatfold_alarms_total"] == lines["flatfold_alarm_rate"]
    assert lines["flatfold_batch_size_count"] == lines["flatfold_batch_size_sum"] == "1.0"
    assert lines["flatfold_waiting"] == "0.0"
    assert 0 < float(lines["flatfold_drift"]) <= 1
    assert any(line.startswith("flatfold_build_info{") and 'method="fold"' in line for line in lines)
    assert "unknown/" not in text


def test_before_the_first_input_rates_are_no_numbers(start, guard):
    text = start(guard).get("/metrics").body.decode()
    assert "flatfold_alarm_rate NaN" in text
    assert "flatfold_drift NaN" in text
    assert json.dumps(start(guard).get("/stream").json)  # a second one in the same process counts for itself
