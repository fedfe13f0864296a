"""What people have in their hands with datasets, transformers and torchvision, given to a guard as it is."""

import socket
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.data.texts import Tokeniser, TokeniserSpec
from tests.refusals import refused

pytestmark = pytest.mark.ecosystem
datasets = pytest.importorskip("datasets", reason="datasets is not installed: make test-ecosystem")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-ecosystem")

PICTURES = [Image.fromarray(pixels) for pixels in np.random.default_rng(0).integers(0, 256, (80, 40, 50, 3), np.uint8)]
LETTERS = "abcdefgh"
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(list(LETTERS), RNG.integers(2, 9))) for _ in range(160)]


def check_same(verdict, expected):
    for got, wanted in zip(verdict, expected, strict=True):
        assert_close(got, wanted[: len(got)], rtol=1e-3, atol=1e-3)


def test_a_guard_judges_images_in_every_form_that_a_data_set_gives(tmp_path):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3)
    model, processor = nn.Sequential(*layers), transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    kinds = {"photo": datasets.Image(), "kind": datasets.ClassLabel(names=list("abc"))}
    columns = {"photo": PICTURES, "kind": [row % 3 for row in range(80)]}
    data = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    ff.Guard.fit(model, data, method="ebo", fpr=0.1, loading=ff.Loading(transform=processor)).save(tmp_path / "guard")
    guard = ff.Guard.load(tmp_path / "guard", model)
    expected = guard(torch.stack([guard.transform(picture) for picture in PICTURES]))
    for judged in (
        data, data[0], [data[0], data[1]], data[:5], data.select(range(5)), data["photo"], data["photo"][:4],
        data.remove_columns("kind"), data.to_iterable_dataset(), PICTURES[0], PICTURES, np.stack(PICTURES),
        data.cast_column("photo", datasets.Image(decode=False)),
    ):  # fmt: skip
        check_same(guard(judged), expected)
    with refused("two splits", r"data\['test'\]", TypeError):
        guard(datasets.DatasetDict(test=data))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokeniser of letters, loaded from a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *LETTERS])}
    by_word = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    by_word.pre_tokenizer = pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=by_word, pad_token="[PAD]", unk_token="[UNK]")
    folder = tmp_path_factory.mktemp("tokeniser")
    made.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(str(folder))


@pytest.fixture(scope="module")
def bert(tokenizer):
    """A model of the tokens, and the classes that it gives the texts."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=32, num_labels=3, initializer_range=0.3)
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        return model, model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.argmax(1).tolist()


def test_a_guard_judges_texts_in_every_form_that_a_data_set_gives(bert, tokenizer, tmp_path, caplog):
    model, classes = bert
    kinds = datasets.Features({"text": datasets.Value("string"), "intent": datasets.ClassLabel(names=list("abc"))})
    data = datasets.Dataset.from_dict({"text": TEXTS, "intent": classes}, features=kinds)
    loading = ff.Loading(collate=tokenizer)
    guard = ff.Guard.fit(model, data, fpr=0.1, loading=loading)
    expected = guard(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    tokenised = data.map(lambda rows: tokenizer(rows["text"]), batched=True)
    guard.save(tmp_path / "guard")
    loaded = ff.Guard.load(tmp_path / "guard", model)
    for judge in (guard, loaded):
        for judged in (
            data, data[0], data[:4], data["text"], data["text"][:4], data.to_iterable_dataset(), TEXTS[0], TEXTS,
            np.array(TEXTS), tokenised, tokenised[0], tokenised[:3], tokenised.with_format("torch"),
        ):  # fmt: skip
            check_same(judge(judged), expected)
    for fitted in (data, tokenised, data.to_iterable_dataset(), data[:], (TEXTS, classes)):
        # A slice is a dict of lists, without the types of its columns.
        named = ff.Loading(collate=tokenizer, labels="intent") if isinstance(fitted, dict) else loading
        assert ff.Guard.fit(model, fitted, fpr=0.1, loading=named).fit_result.accuracy == 1
    plain = datasets.Dataset.from_dict({"text": TEXTS, "intent": classes})
    named = ff.Guard.fit(model, plain, fpr=0.1, loading=ff.Loading(collate=tokenizer, labels="intent"))
    assert named.fit_result.accuracy == 1
    assert "no labels" not in caplog.text
    unlabelled = ff.Guard.fit(model, plain, method="ebo", fpr=0.1, loading=loading)
    assert unlabelled.fit_result.accuracy is None
    assert "columns 'text', 'intent'" in caplog.text


def test_a_pipeline_is_refused_with_the_parts_to_pass(bert, tokenizer):
    pipe = transformers.pipeline("text-classification", model=bert[0], tokenizer=tokenizer)
    with refused("a pipeline", r"pipe\.model, with loading=Loading\(collate=pipe\.tokenizer\)", TypeError):
        ff.Guard.fit(pipe, [*zip(TEXTS, bert[1], strict=True)])


def test_the_tokeniser_of_a_file_is_never_asked_from_a_network(bert, tokenizer, tmp_path, monkeypatch):
    model, classes = bert

    def refuse(*_, **__):
        raise AssertionError("a network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for collate in (tokenizer, partial(tokenizer, max_length=3)):
        guard = ff.Guard.fit(model, (TEXTS, classes), method="ebo", fpr=0.1, loading=ff.Loading(collate=collate))
        guard.save(tmp_path / "guard")
        loaded = ff.Guard.load(tmp_path / "guard", model)
        check_same(loaded(TEXTS), guard(TEXTS))
    assert torch.equal(loaded("a b c d e").score, loaded("a b c").score)
    absent = TokeniserSpec("owner/absent", "0" * 64)
    with refused("a tokeniser that was never downloaded", "owner/absent.*Download it first"):
        Tokeniser.stored(absent)(["a"])
