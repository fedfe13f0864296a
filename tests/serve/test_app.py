"""The routes of a service over HTTP: what they answer, what they refuse, and the settings that they obey."""

import base64
import hashlib
import http.client
import re

import numpy as np
import pytest
import torch

from flatfold.serve import api
from flatfold.serve.settings import Settings
from tests.serve.small_service import TRANSFORM, WIDTH, encoded, form, pixels

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}
NAMES = ("ant", "bee", "cat")
GOOD = encoded(pixels(1)[0][0])
OCTETS = "application/octet-stream"
UNSTATED = ("", "application/x-www-form-urlencoded")


def agrees(row, guard, array):
    verdict = guard(TRANSFORM(array)[None])
    assert row["score"] == pytest.approx(float(verdict.score), rel=1e-5)
    assert row["p_value"] == pytest.approx(float(verdict.p_value))
    assert (row["predicted"], row["is_ood"]) == (int(verdict.logits.argmax()), bool(verdict.is_ood))


def test_an_image_gets_one_row_with_the_verdict_of_the_guard(shared, guard):
    array = pixels(1, seed=4)[0][0]
    answer = shared.score(encoded(array))
    assert answer.status == 200
    assert list(answer.json) == ["rows"]
    (row,) = answer.json["rows"]
    assert list(row) == ["predicted", "class", "score", "p_value", "is_ood"]
    agrees(row, guard, array)
    assert row["class"] == NAMES[row["predicted"]]


def test_an_explanation_comes_only_when_it_is_asked_for(shared, guard):
    array = pixels(1, seed=4)[0][0]
    (row,) = shared.score(encoded(array), query="?explain=true").json["rows"]
    assert row["explanation"] == str(guard.explain(TRANSFORM(array)[None], NAMES)[0])
    assert "explanation" not in shared.score(encoded(array), query="?explain=false").json["rows"][0]
    wrong = shared.score(encoded(array), query="?explain=perhaps")
    assert (wrong.status, "explain" in wrong.error) == (422, True)


def test_a_form_is_answered_in_its_order_with_the_names_that_were_sent(shared, guard):
    arrays, kinds = pixels(9, seed=6)[0], ("PNG", "BMP", "GIF")
    files = [(f"dir/{i}.x", encoded(array, kinds[i % 3])) for i, array in enumerate(arrays)]
    rows = shared.score(*form(files)).json["rows"]
    assert [row["name"] for row in rows] == [f"{i}.x" for i in range(9)]
    for row, array in zip(rows, arrays, strict=True):
        agrees(row, guard, array)


def test_without_a_model_only_features_are_served(start, guard):
    service = start(guard.calibrated)
    assert service.features([[1.0] * WIDTH]).status == 200
    for body, kind in ((GOOD, "image/png"), form([("a", GOOD)])):
        answer = service.score(body, kind)
        assert (answer.status, "octet-stream" in answer.error) == (415, True), kind


def test_the_stream_counts_verdicts_and_explains_the_guard(start, guard):
    service = start(guard, names=NAMES)
    before = service.get("/stream").json
    assert (before["seen"], before["alarm_rate"], before["drift"]) == (0, None, None)
    x = torch.rand(50, WIDTH, generator=torch.Generator().manual_seed(2))
    service.features(x.numpy())
    after = service.get("/stream").json
    assert after["seen"] == sum(after["live"]) == 50
    assert after["alarms"] == int(guard.calibrated(x)[2].sum())
    assert after["alarm_rate"] == after["alarms"] / 50
    assert len(after["edges"]) == len(after["live"]) + 1 == len(after["calibration"]) + 1
    assert (after["names"], after["method"], after["fpr"]) == ([*NAMES], "fold", 0.1)
    assert (after["guard"], after["model"]) == (None, "Net")
    named = start(guard, guard="mine.safetensors", model="nets:mine").get("/stream").json
    assert (named["guard"], named["model"], named["calibrated"]) == (
        "mine.safetensors",
        "nets:mine",
        before["calibrated"],
    )
    assert start(guard.calibrated).get("/stream").json["model"] is None


def metrics(service):
    text = service.get("/metrics").body.decode()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_metrics_count_by_route_and_status_and_unknown_paths_share_one(start, guard):
    service = start(guard)
    before = metrics(service)
    assert before["flatfold_alarm_rate"] == before["flatfold_drift"] == "NaN"
    for i in range(5):
        service.get(f"/unknown/{i}")
    service.score(GOOD)
    service.score(b"x")
    found = metrics(service)
    wanted = {
        'flatfold_requests_total{route="other",status="404"}': 5,
        'flatfold_requests_total{route="/score",status="200"}': 1,
        'flatfold_requests_total{route="/score",status="400"}': 1,
        'flatfold_request_seconds_count{route="/score"}': 2,
        "flatfold_refused_total": 6,
        "flatfold_inputs_total": 1,
        "flatfold_batch_size_count": 1,
        "flatfold_batch_size_sum": 1,
        "flatfold_waiting": 0,
        "flatfold_allowed_alarm_rate": 0.1,
    }
    assert {name: float(found[name]) for name in wanted} == wanted
    assert found["flatfold_alarms_total"] == found["flatfold_alarm_rate"]
    assert 0 < float(found["flatfold_drift"]) <= 1
    assert any(name.startswith("flatfold_build_info{") and 'method="fold"' in name for name in found)
    assert not any("unknown/" in name for name in found)
    service.service.closing = True
    assert service.get("/healthz").status == 503


def test_every_answer_has_the_security_headers_and_every_error_is_json(shared):
    asked = {
        200: [
            "GET /",
            "GET /v1/stream",
            "GET /stream",
            "GET /healthz",
            "GET /metrics",
            "GET /docs",
            "GET /openapi.json",
        ],
        404: ["GET /nothing", "GET /v1", "GET /v2/score", "GET /docs/", "GET /score/", "GET /%2e%2e/%00/etc/passwd"],
        405: ["GET /score", "GET /v1/score", "POST /", "OPTIONS /score", "DELETE /stream", "BREW /"],
        400: ["POST /score"],
    }
    for status, (method, path) in [(status, each.split()) for status, all_ in asked.items() for each in all_]:
        answer = shared.ask(method, path)
        assert answer.status == status, (method, path)
        assert HEADERS.items() <= answer.headers.items(), (method, path)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; "), (method, path)
        assert not {"server", "access-control-allow-origin", "x-powered-by"} & set(answer.headers), (method, path)
        if status >= 400:
            assert answer.error, (method, path)
            assert answer.headers["content-type"] == "application/json"
        assert status != 405 or answer.headers["allow"], (method, path)
        if method == "GET" and status in (200, 404):
            head = shared.ask("HEAD", path)
            assert (head.status, head.body) == (status, b""), path
            assert head.headers["content-type"] == answer.headers["content-type"], path


def test_the_page_is_complete_and_its_policy_allows_exactly_its_own_script_and_style(shared):
    answer = shared.get("/")
    text = answer.body.decode()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"\{\{\w+\}\}", text)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:|//)""", text)
    hashes = {}
    for tag in ("script", "style"):
        (inside,) = re.findall(f"<{tag}[^>]*>(.*?)</{tag}>", text, re.DOTALL)
        assert inside.strip()
        hashes[tag] = f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
    assert dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")) == {
        "default-src": "'none'",
        "script-src": hashes["script"],
        "style-src": hashes["style"],
        "img-src": "data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def as_described(kind, answer):
    """Return whether an answer has all fields of a description, with their types, and no others."""
    return kind.model_validate(answer).model_dump(by_alias=True, exclude_unset=True) == answer


def test_the_interface_is_described_as_it_is(shared, start, guard):
    """Answers have the fields of the OpenAPI document, aliases answer the same, and the page shows all of it."""
    document = shared.get("/openapi.json").json
    assert set(document["paths"]) == {"/v1/score", "/v1/stream", "/metrics", "/healthz"}
    content = document["paths"]["/v1/score"]["post"]["requestBody"]["content"]
    assert set(content) == {"image/*", "multipart/form-data", OCTETS}
    for sent in [(GOOD,), (GOOD, "image/png", "?explain=true"), form([("a", GOOD)]), (bytes(8 * WIDTH), OCTETS)]:
        assert as_described(api.Scores, shared.score(*sent).json)
    assert as_described(api.Stream, shared.get("/v1/stream").json)
    assert shared.ask("POST", "/v1/score", GOOD, Content_Type="image/png").json == shared.score(GOOD).json
    assert shared.get("/v1/stream").json == shared.get("/stream").json
    page = shared.get("/docs").body.decode()
    names = {name for schema in document["components"]["schemas"].values() for name in schema["properties"]}
    missing = [name for name in {*document["paths"], *content, *names} if f"<code>{name}</code>" not in page]
    assert not missing
    assert "<script" not in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:|//)""", page)
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in shared.get("/docs").headers["content-security-policy"]
    features = start(guard.calibrated, token=TOKEN)
    document = features.get("/openapi.json", Authorization=f"Bearer {TOKEN}").json
    assert list(document["paths"]["/v1/score"]["post"]["requestBody"]["content"]) == [OCTETS]
    assert (document["security"], document["paths"]["/healthz"]["get"]["security"]) == ([{"token": []}], [])
    hidden = start(guard, docs=False)
    assert [hidden.get(path).status for path in ("/docs", "/openapi.json", "/")] == [404, 404, 200]
    assert ("/docs" in shared.get("/nothing").error, "/docs" in hidden.get("/docs").error) == (True, False)
    linked = [b'href="docs"' in service.get("/").body for service in (shared, features, hidden)]
    assert linked == [True, False, False], "a browser cannot send a token when it follows a link"


def test_what_is_wrong_with_a_body_is_said(shared):
    for kind, body, status, keyword in [
        ("image/png", b"", 400, "empty"),
        ("image/png", b"\x89PNG\r\n\x1a\n", 400, "the body could not be read as an image"),
        ("image/svg+xml", b"<svg/>", 400, "format"),
        ("text/plain", b"hello", 415, "Content-Type"),
        ("application/json", b"{}", 415, "Content-Type"),
        *((kind, b"x", 415, "Content-Type") for kind in UNSTATED),
        *((kind, b"", 400, "empty") for kind in UNSTATED),
        *((kind, b"\x89PNG\r\n\x1a\nbroken", 400, "image") for kind in UNSTATED),
        ("multipart/form-data", b"x", 400, "boundary"),
        ("multipart/form-data; boundary=limit", b"--limit--\r\n", 400, "no file"),
        (OCTETS, bytes(4 * WIDTH + 4), 422, f"{4 * WIDTH} bytes"),
        (OCTETS, bytes(4 * WIDTH * 1025), 413, "1024"),
    ]:
        answer = shared.score(body, kind)
        assert (answer.status, keyword in answer.error) == (status, True), (kind, answer)
    packed = shared.score(b"x", Content_Encoding="gzip")
    assert (packed.status, "Content-Encoding" in packed.error) == (415, True)
    assert shared.score(GOOD, Content_Encoding="Identity").status == 200


def test_an_image_without_a_content_type_is_recognised(shared, start, guard):
    """As by curl --data-binary, which sends the type of a web form by itself."""
    rgb = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    for name in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        body = encoded(rgb, name)
        stated = shared.score(body, f"image/{name}".lower())
        for kind in UNSTATED:
            assert shared.score(body, kind).json == stated.json, (name, kind)
    answer = start(guard.calibrated).score(GOOD, UNSTATED[1])
    assert (answer.status, "no model" in answer.error) == (415, True)
    assert shared.score(np.ones(WIDTH, "<f4").tobytes(), UNSTATED[1]).status == 415, "features are not guessed"


def test_limits_of_size_number_and_pixels(start, guard):
    service = start(guard, max_body=20_000, max_images=3, max_pixels=400)
    grey = {pixels: encoded(np.zeros((20, pixels // 20), np.uint8)) for pixels in (400, 420)}
    for name, status, sent in [
        ("3 images", 200, form([("a", GOOD)] * 3)),
        ("4 images", 413, form([("a", GOOD)] * 4)),
        ("400 pixels", 200, (grey[400],)),
        ("420 pixels", 413, (grey[420],)),
        ("20,000 bytes", 200, (GOOD + bytes(20_000 - len(GOOD)),)),
        ("20,001 bytes", 413, (GOOD + bytes(20_001 - len(GOOD)),)),
    ]:
        assert service.score(*sent).status == status, name
    assert service.score(bytes(5_000_000), Connection="close").status == 413


def chunked(service, chunks, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    connection.request("POST", "/score", chunks, {"Content-Type": "image/png", **headers})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_a_chunked_body_is_taken_up_to_the_limit(start, guard):
    service = start(guard, max_body=20_000)
    assert chunked(service, iter([GOOD[:30], GOOD[30:]])) == (200, service.score(GOOD).body)
    for close in ({}, {"Connection": "close"}):
        assert chunked(service, (bytes(9_000) for _ in range(300)), **close)[0] == 413
    assert service.service.memory.used == 0


def test_an_internal_error_reveals_nothing_but_is_logged(start, guard, monkeypatch, caplog):
    service = start(guard)

    def fail(*arguments):
        raise MemoryError("/secret/place")

    monkeypatch.setattr(guard.network, "run", fail)
    answer = service.score(GOOD)
    assert (answer.status, "secret" in answer.error) == (500, False)
    assert HEADERS.items() <= answer.headers.items()
    assert "/secret/place" in caplog.text


TOKEN = "s3cret-" * 4


@pytest.mark.parametrize(
    ("name", "values", "keyword"),
    [
        ("timeout", [0, -1, float("nan"), float("inf")], "timeout"),
        ("token", ["", "short", "x" * 15, "a space in the middle", "line\nbreak-in-a-token", "ümlaut" * 4], "token"),
        ("hosts", [{host} for host in ("http://a", "a:80", "A.org", "", "a b", "::1")], "host"),
        (
            "origins",
            [{each} for each in ("a.org", "https://a.org/", "*", "null", "ftp://a.org", "https://A.org", "https://")],
            "origin",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(name, values, keyword):
    for value in values:
        with pytest.raises(ValueError, match=keyword) as refused:
            Settings(**{name: frozenset(value) if isinstance(value, set) else value})
        assert name != "token" or not value or value not in str(refused.value)


def test_good_settings_are_taken_and_the_token_is_not_shown():
    Settings(hosts=frozenset({"guard.example.org", "10.0.0.7", "[fd00::7]"}), origins=frozenset({"http://[::1]:80"}))
    Settings(hosts=None, origins=frozenset({"https://example.org", "http://localhost:3000"}))
    assert Settings(token=TOKEN).token == TOKEN
    assert TOKEN not in repr(Settings(token=TOKEN))
