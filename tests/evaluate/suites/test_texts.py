"""The built-in suite texts: passages of installed packages, seeded and kept, and a network trained on them."""

import json
from collections import Counter

import pytest
import torch

import flatfold as ff
from flatfold.evaluate.suites import texts as texts_suite
from flatfold.evaluate.suites.library import load_suites
from flatfold.evaluate.suites.texts import WordTokeniser

PER_CLASS = {"train": 300, "val": 100, "test": 100}
OOD = ("matrices", "tables", "licences", "code", "shuffled", "words")


def test_words_are_tokenised_as_by_transformers_and_named():
    own = WordTokeniser(Counter({"rain": 3, "sun": 2, "0": 1}))
    batch = own(["Rain, 12 sun", "rain"], padding=True, truncation=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == [[2, 1, 4, 3], [2, 0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]
    assert own(["rain " * 99])["input_ids"].shape == (1, 64)
    assert own.decode([2, 1]) == "rain [UNK]"
    words = ff.data.texts.Tokeniser.of(own).words([2, 1, 3, 0])
    assert [(word.text, word.places) for word in words] == [("rain", (0,)), ("[UNK]", (1,)), ("sun", (2,))]


def test_what_the_installed_packages_do_not_hold_is_an_error_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(texts_suite, "SUBJECTS", {"nothing": ("no_such_package",)})
    with pytest.raises(ModuleNotFoundError, match=r"no_such_package.*demo"):
        load_suites("texts", tmp_path)
    monkeypatch.setattr(texts_suite, "SUBJECTS", {"few": ("jinja2",)})
    with pytest.raises(ValueError, match=r"500 texts about few"):
        load_suites("texts", tmp_path)
    for asked in ({"data": tmp_path}, {"any_counts": True}, {"names": ["cnn"]}):
        with pytest.raises(ValueError, match="texts makes its own"):
            load_suites("texts", tmp_path, **asked)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_suite_is_balanced_shares_no_passage_is_kept_and_its_network_is_accurate(tmp_path):
    (suite,) = load_suites("texts", tmp_path, [3])
    rows = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in tmp_path.rglob("*.jsonl")
    }
    for name, size in PER_CLASS.items():
        assert set(Counter(row["label"] for row in rows[name]).values()) == {size}
    passages = [row["text"] for name in (*PER_CLASS, "matrices", "tables") for row in rows[name]]
    assert len(set(passages)) == len(passages)
    assert tuple(ood.name for ood in suite.ood) == OOD
    assert all(100 <= ood.images.rows <= 300 for ood in suite.ood)
    batch = next(iter(suite.test))
    with torch.no_grad():
        logits = torch.cat([suite.model(*batch.args, **batch.kwargs) for batch in suite.test])
    assert (
        logits.argmax(dim=1) == suite.test.labels
    ).double().mean() > 0.6  # chance is 0.17; a paragraph may say little of its subject
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    (again,) = load_suites("texts", tmp_path, [3])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == before
    with torch.no_grad():
        assert torch.equal(again.model(*batch.args, **batch.kwargs), suite.model(*batch.args, **batch.kwargs))
