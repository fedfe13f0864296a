"""The routes of a service, over HTTP: what they answer, and what they refuse in which words."""

import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from flatfold.serve.page import page
from tests.serve.small_service import TRANSFORM, WIDTH, encoded, form, make_guard, pixels

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}


def one(guard, array):
    verdict = guard(TRANSFORM(array)[None])
    return {"predicted": int(verdict.logits.argmax()), "score": float(verdict.score), "is_ood": bool(verdict.is_ood)}


def agrees(row, wanted):
    assert row["score"] == pytest.approx(wanted["score"], rel=1e-5)
    assert (row["predicted"], row["is_ood"]) == (wanted["predicted"], wanted["is_ood"])


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_image_gets_one_row_with_the_words_of_the_contract(shared, guard):
    array = pixels(1, seed=4)[0][0]
    answer = shared.score(encoded(array))
    assert answer.status == 200
    assert list(answer.json) == ["rows"]
    (row,) = answer.json["rows"]
    assert list(row) == ["predicted", "class", "score", "p_value", "is_ood"]
    agrees(row, one(guard, array))
    assert row["class"] == ("ant", "bee", "cat")[row["predicted"]]
    assert row["p_value"] == pytest.approx(float(guard(TRANSFORM(array)[None]).p_value))


def test_an_explanation_comes_when_it_is_asked_for(shared, guard):
    array = pixels(1, seed=4)[0][0]
    (row,) = shared.score(encoded(array), query="?explain=true").json["rows"]
    assert row["explanation"] == str(guard.explain(TRANSFORM(array)[None], ("ant", "bee", "cat"))[0])
    assert "explanation" not in shared.score(encoded(array), query="?explain=false").json["rows"][0]
    wrong = shared.score(encoded(array), query="?explain=perhaps")
    assert (wrong.status, wrong.error[:24]) == (422, "behind ? stands explain=")


def test_a_form_is_answered_in_its_order_with_the_names_that_were_sent(shared, guard):
    arrays = pixels(9, seed=6)[0]
    kinds = ("PNG", "BMP", "GIF")
    files = [(f"dir/{i}.x", encoded(array, kinds[i % 3])) for i, array in enumerate(arrays)]
    rows = shared.score(*form(files)).json["rows"]
    assert [row["name"] for row in rows] == [f"{i}.x" for i in range(9)]
    for row, array in zip(rows, arrays, strict=True):
        agrees(row, one(guard, array))


def test_features_are_judged_row_by_row(shared, guard):
    x = torch.rand(100, WIDTH, generator=torch.Generator().manual_seed(2))
    rows = shared.features(x.numpy()).json["rows"]
    score, p_value, is_ood = guard.judge(x)
    assert [row["score"] for row in rows] == pytest.approx(score.tolist(), rel=1e-5)
    assert [row["p_value"] for row in rows] == pytest.approx(p_value.tolist())
    assert [row["is_ood"] for row in rows] == is_ood.tolist()


def test_every_answer_belongs_to_its_own_request(start):
    guard = make_guard()
    service = start(guard)
    arrays = pixels(120, seed=8)[0]
    wanted = [one(guard, array) for array in arrays]
    guard.model.sizes.clear()

    def ask(i):
        if i % 4 == 0:  # some bring company, some bring features
            x = np.full((3, WIDTH), i / 100, np.float32)
            return service.features(x).json["rows"], guard.judge(torch.from_numpy(x))[0].tolist()
        if i % 4 == 1:
            rows = service.score(*form([("a", encoded(arrays[i])), ("b", encoded(arrays[i - 1]))])).json["rows"]
            return rows, [wanted[i]["score"], wanted[i - 1]["score"]]
        return service.score(encoded(arrays[i])).json["rows"], [wanted[i]["score"]]

    with ThreadPoolExecutor(24) as pool:
        for rows, scores in pool.map(ask, range(120)):
            assert [row["score"] for row in rows] == pytest.approx(scores, rel=1e-5)
    assert service.get("/stream").json["seen"] == 30 * 3 + 30 * 2 + 60


def test_requests_that_come_meanwhile_go_through_the_model_together(start):
    guard = make_guard()
    service = start(guard, max_batch=8)
    arrays = pixels(20, seed=8)[0]
    guard.model.sizes.clear()
    guard.model.calls = 0
    with guard.model.held, ThreadPoolExecutor(21) as pool:
        first = pool.submit(service.score, encoded(arrays[0]))
        until(lambda: guard.model.calls == 1)
        others = [pool.submit(service.score, encoded(array)) for array in arrays]
        until(lambda: service.service.batcher.waiting == 20)
        guard.model.held.release()
        try:
            answers = [other.result() for other in (first, *others)]
        finally:
            guard.model.held.acquire()
    assert guard.model.sizes == [1, 8, 8, 4]
    for answer, array in zip(answers, [arrays[0], *arrays], strict=True):
        agrees(answer.json["rows"][0], one(guard, array))


def test_one_bad_image_hits_only_its_own_request(start):
    guard = make_guard()
    service = start(guard)
    arrays = pixels(10, seed=8)[0].copy()
    arrays[4, 0, 0] = 255
    guard.model.calls = 0
    with guard.model.held, ThreadPoolExecutor(10) as pool:
        forms = [form([(f"{i}.png", encoded(array))]) for i, array in enumerate(arrays)]
        answers = [pool.submit(service.score, *forms[0])]
        until(lambda: guard.model.calls == 1)
        answers += [pool.submit(service.score, *each) for each in forms[1:]]
        until(lambda: service.service.batcher.waiting == 9)
        guard.model.held.release()
        try:
            answers = [answer.result() for answer in answers]
        finally:
            guard.model.held.acquire()
    assert [answer.status for answer in answers] == [200] * 4 + [422] + [200] * 5
    assert answers[4].error.startswith("the image '4.png' cannot be judged: the model does not take it, 1 x 4 x 4 once")
    for i in (0, 3, 5, 9):
        agrees(answers[i].json["rows"][0], one(guard, arrays[i]))


def test_without_a_model_features_alone_are_served(start, guard):
    service = start(guard.judge)
    assert service.features([[1.0] * WIDTH]).status == 200
    for body, kind in ((b"x", "image/png"), form([("a", b"x")])):
        answer = service.score(body, kind)
        assert answer.status == 415
        assert "runs without a model, so it takes no images. Send features as application/octet-stream" in answer.error


def test_the_stream_counts_what_was_said(start, guard):
    service = start(guard)
    before = service.get("/stream").json
    assert (before["seen"], before["alarm_rate"], before["drift"], before["names"]) == (0, None, None, None)
    x = torch.rand(50, WIDTH, generator=torch.Generator().manual_seed(2))
    service.features(x.numpy())
    after = service.get("/stream").json
    assert after["seen"] == sum(after["live"]) == 50
    assert after["alarms"] == int(guard.judge(x)[2].sum())
    assert len(after["edges"]) == len(after["live"]) + 1 == len(after["calibration"]) + 1


def test_the_page_and_its_headers(shared):
    answer = shared.get("/")
    assert (answer.status, answer.body) == (200, page())
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'sha256-" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/stream", 200),
        ("GET", "/healthz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/nothing", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/score", 405),
        ("POST", "/", 405),
        ("OPTIONS", "/score", 405),
        ("DELETE", "/stream", 405),
        ("BREW", "/", 405),
        ("POST", "/score", 415),
        ("GET", "/score/", 404),
        ("GET", "/%2e%2e/%00/etc/passwd", 404),
    ],
)
def test_every_answer_has_the_headers_and_every_error_is_a_sentence(shared, method, path, status):
    answer = shared.ask(method, path)
    assert answer.status == status
    assert HEADERS.items() <= answer.headers.items()
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert not {"server", "access-control-allow-origin", "x-powered-by"} & set(answer.headers)
    if status >= 400:
        assert answer.error.endswith(".")
        assert answer.headers["content-type"] == "application/json"
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize("path", ["/", "/stream", "/healthz", "/metrics", "/nothing"])
def test_head_is_get_without_a_body(shared, path):
    got, head = shared.get(path), shared.ask("HEAD", path)
    assert (head.status, head.body) == (got.status, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


def test_health_says_ok_until_the_end_begins(start, guard):
    service = start(guard)
    assert service.get("/healthz").json == {"status": "ok"}
    service.service.closing = True
    answer = service.get("/healthz")
    assert (answer.status, answer.error) == (503, "the service is about to end.")


@pytest.mark.parametrize(
    ("kind", "body", "status", "sentence"),
    [
        ("image/png", b"", 400, "this body is empty"),
        ("image/png", b"\x89PNG\r\n\x1a\n", 400, "the image could not be read as an image"),
        ("image/svg+xml", b"<svg/>", 400, "the form of no known kind"),
        ("text/plain", b"hello", 415, "none that is understood. Send an image"),
        ("application/json", b"{}", 415, "none that is understood"),
        ("", b"x", 415, "none that is understood"),
        ("multipart/form-data", b"x", 400, "what its boundary is"),
        ("multipart/form-data; boundary=limit", b"--limit--\r\n", 400, "no file in it"),
        ("application/octet-stream", bytes(4 * WIDTH + 4), 422, "rows of 8 little-endian float32 numbers, 32 bytes"),
        ("application/octet-stream", b"\xff" * 4 * WIDTH, 400, "row 0 has a NaN"),
        ("application/octet-stream", bytes(4 * WIDTH * 1025), 413, "may have 1024 rows of features, but this one has"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(shared, kind, body, status, sentence):
    answer = shared.score(body, kind)
    assert answer.status == status
    assert sentence in answer.error


def test_types_are_understood_whatever_their_case_and_parameters(shared):
    content = encoded(pixels(1)[0][0])
    assert shared.score(content, "IMAGE/PNG; charset=binary").status == 200
    body, kind = form([("a", content)])
    assert shared.score(body, kind.replace("multipart/form-data", "Multipart/Form-Data")).status == 200


def test_packed_bodies_are_refused(shared):
    answer = shared.score(b"x", Content_Encoding="gzip")
    assert (answer.status, "Send it unpacked" in answer.error) == (415, True)
    assert shared.score(encoded(pixels(1)[0][0]), Content_Encoding="Identity").status == 200


def test_a_broken_image_among_others_is_called_by_its_name(shared):
    good = encoded(pixels(1)[0][0])
    answer = shared.score(*form([("good.png", good), ("a/bad.png", good[:60])]))
    assert answer.status == 400
    assert answer.error.startswith("the image 'bad.png' could not be read as an image")
    assert shared.score(*form([("", good), ("", b"x")])).error.startswith("image 1 could not be read")


def test_limits_of_size_number_and_pixels(start, guard):
    service = start(guard, max_body=20_000, max_images=3, max_pixels=400)
    good = encoded(pixels(1)[0][0])
    assert service.score(*form([("a", good)] * 3)).status == 200
    answer = service.score(*form([("a", good)] * 4))
    assert (answer.status, answer.error[:32]) == (413, "a request may have 3 images, but")
    answer = service.score(encoded(np.zeros((20, 21), np.uint8)))
    assert answer.status == 413
    assert service.score(encoded(np.zeros((20, 20), np.uint8))).status == 200
    assert service.score(good + bytes(20_000 - len(good))).status == 200
    answer = service.score(good + bytes(20_001 - len(good)))
    assert (answer.status, answer.error) == (
        413,
        "a request may have 0.02 MB, but this one has more. Send fewer inputs at once, or a smaller image.",
    )
    for close in ({}, {"Connection": "close"}):
        chunks = (bytes(9_000) for _ in range(300))
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        connection.request("POST", "/score", chunks, {"Content-Type": "image/png", **close}, encode_chunked=False)
        assert connection.getresponse().status == 413
        connection.close()
    assert service.score(bytes(5_000_000), Connection="close").status == 413


def test_a_chunked_body_within_the_limit_is_taken(shared):
    content = encoded(pixels(1)[0][0])
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=30)
    connection.request("POST", "/score", iter([content[:30], content[30:]]), {"Content-Type": "image/png"})
    got = connection.getresponse()
    assert (got.status, got.read()) == (200, shared.score(content).body)
    connection.close()


def test_too_many_waiting_inputs_and_too_long_a_wait_are_refused_for_now(start):
    guard = make_guard()
    service = start(guard, max_waiting=2, timeout=2)
    good = encoded(pixels(1)[0][0])
    guard.model.calls = 0
    with guard.model.held, ThreadPoolExecutor(4) as pool:
        first = pool.submit(service.score, good)
        until(lambda: guard.model.calls == 1)
        line = pool.submit(service.score, *form([("a", good)] * 2))
        until(lambda: service.service.batcher.waiting == 2)
        refused = service.score(good)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "2 inputs may wait for the model" in refused.error
        for late in (first.result(), line.result()):
            assert (late.status, late.headers["retry-after"]) == (503, "1")
            assert "answered within 2 seconds, but this one was not" in late.error
    assert service.score(good).status == 200
    answer = service.score(*form([("a", good)] * 3))
    assert (answer.status, "may have 2 images" in answer.error) == (413, True)


def test_a_client_that_leaves_costs_nothing(start):
    guard = make_guard()
    service = start(guard)
    good = encoded(pixels(1)[0][0])
    guard.model.sizes.clear()
    guard.model.calls = 0
    with guard.model.held:
        first = threading.Thread(target=service.score, args=(good,))
        first.start()
        until(lambda: guard.model.calls == 1)
        connections = [http.client.HTTPConnection("127.0.0.1", service.port) for _ in range(5)]
        for connection in connections:
            connection.request("POST", "/score", good, {"Content-Type": "image/png"})
        until(lambda: service.service.batcher.waiting == 5)
        for connection in connections:
            connection.close()
        until(lambda: service.service.budget.used <= len(good) + 64)
    first.join()
    assert service.score(good).status == 200
    assert guard.model.sizes == [1, 1]
    until(lambda: service.service.budget.used == 0)
    until(lambda: b'status="499"} 5.0' in service.get("/metrics").body)


def test_an_error_of_the_service_says_nothing_of_it(start, guard, monkeypatch, caplog):
    service = start(guard)

    def fail(*arguments):
        raise MemoryError("/secret/place")

    monkeypatch.setattr("flatfold.scoring.guard.run", fail)
    answer = service.score(encoded(pixels(1)[0][0]))
    assert answer.status == 500
    assert answer.error == "the service failed at this request, which is no fault of yours. Its log says more."
    assert HEADERS.items() <= answer.headers.items()
    assert "/secret/place" in caplog.text
