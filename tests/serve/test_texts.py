"""A service for a guard with a tokeniser: verdicts on texts, limits, errors that quote nothing, and its page."""

import json
import logging

import pytest
import torch

import flatfold as ff
from flatfold.serve.app import create_app, page_of
from flatfold.serve.settings import Settings
from tests.data.tokenisers import Letters, Reader, make_texts
from tests.serve.small_service import make_guard, running

SECRET = "mysecretword"
JSON = "application/json"


def make_text_guard():
    return ff.Guard.fit(Reader().eval(), make_texts(), method="fold", fpr=0.1, loading=ff.Loading(collate=Letters()))


@pytest.fixture(scope="module")
def text_guard():
    return make_text_guard()


@pytest.fixture(scope="module")
def service(text_guard):
    with running(text_guard, names=("a", "b", "c"), max_texts=4, max_characters=50, max_body=2000) as service:
        yield service


def ask(service, texts, query=""):
    return service.score(json.dumps({"texts": texts}), JSON, query)


def test_texts_get_the_verdicts_of_the_guard_in_their_order(service, text_guard):
    texts = ["abcdefg", "hhh", "abcdefg", "é\tx\n" + "b" * 12]
    answer = ask(service, texts, "?explain=true")
    assert answer.status == 200
    for text, row in zip(texts, answer.json["rows"], strict=True):
        verdict = text_guard(text)
        assert row["score"] == pytest.approx(float(verdict.score), rel=1e-5)
        assert (row["predicted"], row["is_ood"]) == (int(verdict.predicted), bool(verdict.is_ood))
        assert row["class"] == "abc"[row["predicted"]]
        assert "p = " in row["explanation"]
        assert row["truncated"] is False
    alone = ask(service, texts[:1]).json["rows"][0]
    assert alone["score"] == answer.json["rows"][0]["score"], "it depends on no other text"
    assert "explanation" not in alone


def test_wrong_requests_are_refused_clearly_and_nothing_of_them_is_quoted_or_logged(service, caplog):
    texts = lambda *values: json.dumps({"texts": values}).encode()  # noqa: E731
    cases = [
        (b"", 400, "empty"),
        (b'{"texts": ["' + SECRET.encode(), 400, "JSON"),
        (b'{"texts": ["' + SECRET.encode() + b'\xff"]}', 400, "UTF-8"),
        (b'{"texts": ["' + SECRET.encode() + b'\\ud800"]}', 400, "JSON"),
        (b"[" * 1900, 422, "texts"),
        (b'{"texts": ' + b"[" * 900 + b"]" * 900 + b"}", 422, "texts"),
        (b'{"texts": [{"text": "mysecretword"}]}', 422, "texts"),
        (b'{"texts": "mysecretword"}', 422, "texts"),
        (b'{"texts": [null, "mysecretword"]}', 422, "texts"),
        (b'{"texts": ["a"], "mysecretword": 1}', 422, "texts"),
        (b'["mysecretword"]', 422, "texts"),
        (b"{}", 422, "texts"),
        (texts(), 422, "at least one"),
        (texts("a", "  "), 422, "text 1 is empty"),
        (texts(SECRET + "\0"), 422, "control"),
        (texts(SECRET + "\x1b[31m"), 422, "control"),
        (texts(*[SECRET] * 5), 413, "4 texts"),
        (texts(SECRET * 5), 413, "50 characters"),
        (texts(*["a" * 49] * 400), 413, "body"),
    ]
    before = service.service.scorer.facts()["seen"]
    with caplog.at_level(logging.DEBUG):
        for body, status, word in cases:
            answer = service.score(body, JSON)
            assert (answer.status, word in answer.error) == (status, True), (body[:60], answer)
            assert SECRET not in answer.error
    assert SECRET not in caplog.text
    assert service.service.scorer.facts()["seen"] == before
    assert ask(service, ["abc"]).status == 200


def test_the_words_behind_a_score_are_named_on_request(service, text_guard):
    texts = ["abc deh XYZ", "abcd xx ef", "abc"]
    answer = ask(service, texts, "?tokens=true")
    expected = text_guard.explain(texts, tokens=True)
    assert any(each.tokens for each in expected)
    for row, each in zip(answer.json["rows"], expected, strict=True):
        assert [token["text"] for token in row["tokens"]] == [token.text for token in each.tokens]
        assert [token["score"] for token in row["tokens"]] == pytest.approx([t.score for t in each.tokens], rel=1e-4)
        assert ("without" in row["explanation"]) == bool(each.tokens)
    assert "tokens" not in ask(service, texts[:1], "?explain=true").json["rows"][0]
    for query, body, kind, status, word in (
        ("?tokens=maybe", b"{}", JSON, 422, "'tokens'"),
        ("?tokens=true", b"1234", "application/octet-stream", 422, "tokens=true"),
    ):
        answer = service.score(body, kind, query)
        assert (answer.status, word in answer.error) == (status, True)


def test_few_texts_at_once_have_their_words_named(text_guard):
    with running(text_guard, max_texts=100) as service:
        assert ask(service, ["abc"] * 8, "?tokens=true").status == 200
        assert (ask(service, ["abc"] * 9, "?tokens=true").status, ask(service, ["abc"] * 9).status) == (413, 200)


def test_hundred_thousand_texts_and_ten_megabytes_are_refused_before_they_are_tokenised(text_guard, monkeypatch):
    calls = []
    monkeypatch.setattr(Letters, "__call__", lambda *args, **options: calls.append(args))
    with running(text_guard) as service:
        many = ask(service, ["ab"] * 100_000)
        long = ask(service, ["a" * 10_000_000])
        huge = ask(service, ["a" * 17_000_000])
    assert [answer.status for answer in (many, long, huge)] == [413] * 3
    assert ["100000 texts" in many.error, "10,000,000 characters" in long.error, "16 MB" in huge.error] == [True] * 3
    assert not calls


def test_kinds_that_a_guard_does_not_know_are_refused(service, shared):
    assert (service.score(b"x", "image/png").status, service.score(b"x", "text/plain").status) == (415, 415)
    assert JSON in service.score(b"x", "image/png").error
    refused = ask(shared, ["a text"])  # a guard of images
    assert (refused.status, "image" in refused.error) == (415, True)


def test_a_text_that_the_tokeniser_or_the_model_cannot_take_is_an_error_without_its_words(monkeypatch, caplog):
    guard = make_text_guard()
    with running(guard) as service, caplog.at_level(logging.DEBUG):
        monkeypatch.setattr(Letters, "pad", lambda *args: (_ for _ in ()).throw(ValueError(SECRET)))
        answer = ask(service, [SECRET])
        assert (answer.status, "tokenised" in answer.error) == (422, True)
        monkeypatch.undo()
        monkeypatch.setattr(guard.network, "runtime", lambda batch: (_ for _ in ()).throw(ValueError("broken")))
        answer = ask(service, [SECRET])
        assert (answer.status, "tokens" in answer.error) == (422, True)
    assert SECRET not in caplog.text


def test_truncated_texts_are_marked():
    from functools import partial

    loading = ff.Loading(collate=partial(Letters(), max_length=5))
    guard = ff.Guard.fit(Reader().eval(), make_texts(), method="fold", fpr=0.1, loading=loading)
    with running(guard) as service:
        rows = ask(service, ["abcde", "abcdef"]).json["rows"]
    assert [row["truncated"] for row in rows] == [False, True]
    assert rows[0]["score"] == rows[1]["score"]


def test_the_page_has_a_text_box_only_for_texts_and_the_documentation_names_them(service, shared):
    page, docs = service.get("/").body.decode(), service.get("/openapi.json").json
    assert "<textarea" in page
    assert "Is this text out-of-distribution?" in page
    assert 'type="file"' not in page
    assert JSON in docs["paths"]["/v1/score"]["post"]["requestBody"]["content"]
    page = shared.get("/").body.decode()
    assert "<textarea" not in page
    assert 'type="file"' in page
    assert page == page_of(shared.service.settings).decode()


def test_a_guard_that_can_prepare_nothing_is_refused():
    model, batch = Reader().eval(), {"input_ids": torch.randint(1, 128, (60, 5))}
    guard = ff.Guard.fit(model, [batch], method="fold", fpr=0.1)
    with pytest.raises(ValueError, match="tokeniser"):
        create_app(guard, Settings())
    both = make_guard()
    both.loading = ff.Loading(transform=both.transform, collate=Letters())
    assert create_app(both).state.service.scorer.tokeniser is not None
