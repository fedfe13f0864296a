"""Everything that `as_batches` takes gives the same inputs and labels; the rest is refused with the reason."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import flatfold as ff
from flatfold.data.batch import split_batch
from flatfold.data.inputs import as_batches
from flatfold.data.sources import ImageSource, Source, take_subset
from tests.data.columns import Columns, Splits, Stream, make_columns
from tests.data.tokenisers import Letters
from tests.refusals import refused

N = 10
X, Y = torch.randn(N, 6, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 3
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 8, 8, 3), np.uint8)
PICTURES = [Image.fromarray(pixels) for pixels in PIXELS]
HALF = ff.Transform(crop=4, mean=(0.5, 0.5, 0.5))
CROPPED = torch.stack([HALF(picture) for picture in PICTURES])


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Column(Sequence):
    """A column of a data set, read row by row."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, row):
        return self.values[row]


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y.tolist(), strict=True))


def joined(batches):
    """Return all inputs and labels, as a model would get them."""
    parts = [split_batch(batch) for batch in batches]
    labels = None if parts[0].labels is None else torch.cat([part.labels for part in parts])
    names = parts[0].kwargs
    inputs = {name: torch.cat([part.kwargs[name] for part in parts]) for name in names}
    return inputs or torch.cat([part.args[0] for part in parts]), labels


def stack(items):
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


ROWS = list(zip(X, Y.tolist(), strict=True))
LABELLED = {
    "loader": DataLoader(TensorDataset(X, Y), 4), "generator": lambda: zip(X.split(4), Y.split(4), strict=True),
    "batches": [(X[:4], Y[:4]), (X[4:], Y[4:])], "data set": TensorDataset(X, Y), "arrays": (X.numpy(), Y.numpy()),
    "tensors": (X, Y), "pair in a list": [X, Y], "int32": (X, Y.int()), "list of targets": (X, Y.tolist()),
    "read-only": (np.broadcast_to(X.numpy(), X.shape), Y), "dict": {"x": X, "labels": Y}, "items": ROWS,
    "dict items": Items([{"x": x, "label": y} for x, y in ROWS]),
    "columns": make_columns({"x": X.tolist(), "y": Y.tolist()}),
    "classes": make_columns({"input": X.tolist(), "name": ["a"] * N, "kind": Y.tolist()}, ["kind"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", LABELLED)
def test_every_kind_of_data_gives_the_same_batches(kind):
    data = LABELLED[kind]
    data = data() if callable(data) else data
    inputs, labels = joined(as_batches(data, 4))
    assert_close(inputs, X)
    assert torch.equal(labels, Y)


def test_data_without_labels_and_single_arrays():
    for data in (X, X.numpy(), [X[:4], X[4:]], (X[:5], X[5:]), TensorDataset(X), {"x": X}, iter(X.split(3))):
        inputs, labels = joined(as_batches(data, 4))
        assert_close(inputs, X)
        assert labels is None
    tokens = torch.arange(12).reshape(6, 2)
    assert len(list(as_batches((tokens[:3], tokens[3:])))) == 2  # two batches, not tokens and labels
    assert joined(as_batches((tokens, torch.arange(6))))[1].tolist() == list(range(6))


@pytest.mark.parametrize("kind", LABELLED)
def test_labels_can_be_left_out_whatever_they_are(kind):
    data = LABELLED[kind]
    inputs, labels = joined(as_batches(data() if callable(data) else data, 4, labels=False))
    assert_close(inputs, X)
    assert labels is None


def test_negative_labels_do_no_harm_when_they_are_left_out(tmp_path):
    batches = as_batches(DataLoader(TensorDataset(X, -Y - 1), 4), labels=False)
    assert len(batches) == 3
    assert_close(joined(batches)[0], X)
    for label in "ab":
        (tmp_path / label).mkdir()
        PICTURES[0].save(tmp_path / label / "1.png")
    source = as_batches(as_batches(tmp_path, transform=HALF), labels=False)
    assert (source.labels, split_batch(source.read(range(2))).labels) == (None, None)


def test_arrays_are_a_source_with_subsets_and_a_fingerprint():
    source = as_batches((X, Y), 4)
    assert isinstance(source, Source)
    inputs, labels = joined(take_subset(source, 5))
    assert_close(inputs, X[::2])
    assert torch.equal(labels, Y[::2])
    assert source.fingerprint == as_batches((X.clone(), Y), 3).fingerprint
    others = [(X + 1, Y), (X, 2 - Y), X, (X.double(), Y), {"a": X, "y": Y}, {"b": X, "y": Y}]
    assert len({as_batches(other).fingerprint for other in others} | {source.fingerprint}) == 7


IMAGES = {
    "data set": Items([(picture, 1) for picture in PICTURES]), "pixels": Items([(pixels, 1) for pixels in PIXELS]),
    "array": (PIXELS, np.ones(N, int)), "column": Columns({"img": PICTURES, "label": [1] * N, "text": ["a"] * N}),
    "stream": Stream([{"img": picture, "text": "a", "label": 1} for picture in PICTURES]),
}  # fmt: skip


@pytest.mark.parametrize("kind", IMAGES)
def test_images_are_prepared_by_the_transform(kind):
    batches = as_batches(IMAGES[kind], 4, transform=HALF)
    inputs, labels = joined(batches)
    assert_close(inputs, CROPPED)
    assert labels.tolist() == [1] * N
    if kind in ("array", "column"):
        assert isinstance(batches, ImageSource)
        assert batches.fingerprint != as_batches(IMAGES[kind], 4, transform=ff.Transform(crop=4)).fingerprint


def test_a_column_of_encoded_images_is_read_and_broken_ones_are_left_out(tmp_path):
    PICTURES[0].save(tmp_path / "a.png")
    encoded = [
        {"bytes": (tmp_path / "a.png").read_bytes(), "path": None},
        {"bytes": None, "path": str(tmp_path / "a.png")},
    ]
    source = as_batches(Columns({"image": [*encoded, {"bytes": b"GIF", "path": None}, None]}), transform=HALF)
    batch, unreadable = source.attempt(range(4))
    assert_close(batch, CROPPED[:1].expand(2, -1, -1, -1))
    assert sorted(unreadable) == [2, 3]


def test_a_collate_function_or_a_tokeniser_makes_the_batches():
    for data in (Items(ROWS), ROWS, Streamed()):
        assert_close(joined(as_batches(data, 4, collate=stack))[0], X)

    texts, tokens = ["a", "bc"], [[97], [98, 99]]
    for data in (
        Columns({"text": texts, "label": [1, 0]}), Columns({"note": texts, "input_ids": tokens, "label": [1, 0]}),
        list(zip(texts, [1, 0], strict=True)),
    ):  # fmt: skip
        inputs, labels = joined(as_batches(data, collate=Letters()))
        assert inputs["input_ids"].tolist() == [[97, 0], [98, 99]]
        assert labels.tolist() == [1, 0]
    with refused("two texts", "one text"):
        list(as_batches(Columns({"a": texts, "b": texts}), collate=Letters()))


def test_images_and_paths_need_no_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for row, picture in enumerate(PICTURES):
        picture.save(f"{row}.png")
    paths = [f"{row}.png" for row in range(N)]
    opened = [Image.open(path) for path in paths]
    frames = [[*map(np.asarray, PICTURES)], PIXELS]
    for data in (PICTURES, tuple(PICTURES), paths, [*map(Path, paths)], opened, *frames, Column(PICTURES), tmp_path):
        source = as_batches(data, 4, transform=HALF)
        assert isinstance(source, ImageSource)
        assert_close(joined(source)[0], CROPPED)
        assert len({source.fingerprint, as_batches(data, 3, transform=HALF).fingerprint}) == 1
    names = [as_batches(data, transform=HALF).name(1) for data in (paths, opened, PICTURES)]
    assert names == ["1.png", str(Path("1.png")), "image 1"]
    for data in (PICTURES[0], "0.png", Path("0.png"), [PICTURES[0]]):
        assert_close(joined(as_batches(data, transform=HALF))[0], CROPPED[:1])
    labels = Y.tolist()
    for data in (
        (PICTURES, labels),
        (paths, Y),
        [*zip(paths, labels, strict=True)],
        [*zip(PICTURES, Y.numpy(), strict=True)],
    ):
        x, y = joined(as_batches(data, 4, transform=HALF))
        assert_close(x, CROPPED)
        assert torch.equal(y, Y)
        assert as_batches(data, transform=HALF, labels=False).labels is None
    assert as_batches((PICTURES, np.eye(3)[Y]), transform=HALF).label_classes == 3
    Path("1.png").write_bytes(Path("1.png").read_bytes()[:90])
    with Image.open("1.png") as cut:
        for broken in ("1.png", ["0.png", "1.png"], [opened[0], cut]):
            with refused(broken, r"1\.png", ff.UnreadableImageError):
                list(as_batches(broken, transform=HALF))


def test_rows_of_a_data_set_are_data():
    rows = [{"img": picture, "kind": y} for picture, y in zip(PICTURES, Y.tolist(), strict=True)]
    columns = {"img": PICTURES, "kind": Y.tolist()}
    for data in (rows, columns):
        assert_close(joined(as_batches(data, 4, transform=HALF, labels=False))[0], CROPPED)
        x, y = joined(as_batches(data, 4, transform=HALF, labels="kind"))
        assert_close(x, CROPPED)
        assert torch.equal(y, Y)
    assert_close(joined(as_batches(rows[0], transform=HALF, labels=False))[0], CROPPED[:1])
    batches = [{"x": X[:4], "mode": "fast"}, {"x": X[4:], "mode": "fast"}]
    assert as_batches(batches) is batches  # batches with an argument, not rows with a text


def test_texts_need_no_data_set():
    texts, y = ["a", "bc", "d"], [1, 0, 2]
    tokens = [[97, 0], [98, 99], [100, 0]]
    rows = [{"text": text, "label": label} for text, label in zip(texts, y, strict=True)]
    for data in (texts, tuple(texts), np.array(texts), np.array(texts, object), pd.Series(texts), Column(texts)):
        inputs, labels = joined(as_batches(data, collate=Letters()))
        assert (inputs["input_ids"].tolist(), labels) == (tokens, None), data
    pairs = [
        (texts, y),
        (pd.Series(texts), pd.Series(y)),
        (np.array(texts), torch.tensor(y)),
        [*zip(texts, y, strict=True)],
    ]
    for data in (*pairs, rows, {"text": texts, "label": y}):
        inputs, labels = joined(as_batches(data, collate=Letters()))
        assert (inputs["input_ids"].tolist(), labels.tolist()) == (tokens, y), data
        inputs, labels = joined(as_batches(data, collate=Letters(), labels=False))
        assert (inputs["input_ids"].tolist(), labels) == (tokens, None), data
    for data in ("bc", ["bc"], rows[1], {"input_ids": [98, 99], "label": 1}):
        assert joined(as_batches(data, collate=Letters()))[0]["input_ids"].tolist() == [[98, 99]]
    short = partial(Letters(), max_length=1)
    assert joined(as_batches("bc", collate=short))[0]["input_ids"].tolist() == [[98]]
    both = as_batches("bc", collate=Letters(), transform=HALF)  # with a tokeniser, a string is a text
    assert joined(both)[0]["input_ids"].tolist() == [[98, 99]]


def test_a_function_that_joins_pairs_gets_pairs_where_labels_are_dropped():
    def join(items):
        return torch.tensor([[float(len(text))] for text, _ in items]), torch.tensor([label for _, label in items])

    inputs, labels = joined(as_batches([("a", 1), ("bc", 0)], collate=join, labels=False))
    assert (inputs.tolist(), labels) == ([[1.0], [2.0]], None)
    with refused("without labels", "as in fit"):
        list(as_batches(["a", "bc"], collate=join))


def test_labels_are_found_by_type_or_by_name_whatever_joins_the_rows(caplog):
    texts, y = ["a", "bc", "d"], [1, 0, 2]
    typed, plain = make_columns({"text": texts, "intent": y}, ["intent"]), make_columns({"text": texts, "intent": y})

    def join(rows):
        batch = Letters()([row["text"] for row in rows], True, True, "pt")
        return {**batch, "intent": [row["intent"] for row in rows]}

    for collate in (Letters(), join):
        for data, labels in ((typed, True), (typed, "intent"), (plain, "intent")):
            assert joined(as_batches(data, collate=collate, labels=labels))[1].tolist() == y
        if collate is not join:
            assert joined(as_batches(plain, collate=collate))[1] is None
            assert joined(as_batches(plain, collate=collate, labels=False))[1] is None
    assert caplog.text.count("no labels were found") == 1
    assert "'text', 'intent'" in caplog.text
    assert "labels='intent'" in caplog.text
    tokenised = make_columns({"input_ids": [[1, 2]] * 3, "intent": y}, ["intent"])
    assert joined(as_batches(tokenised))[1].tolist() == y
    coarse = make_columns({"text": texts, "fine": y, "coarse": [0, 0, 1]}, ["fine", "coarse"])
    with refused("two columns of classes", "Loading\\(labels='fine'"):
        as_batches(coarse, collate=Letters())
    loading = ff.Loading(collate=Letters(), labels="coarse")
    assert joined(loading.batches(coarse))[1].tolist() == [0, 0, 1]
    assert joined(loading.batches(make_columns({"text": texts}), labels=False))[1] is None  # new data has no classes
    names = make_columns({"text": texts, "label": ["x", "y", "x"]})
    for collate in (Letters(), None):
        data = names if collate else make_columns({"x": [1, 2, 3], "label": ["x", "y", "x"]})
        with refused("names of classes", r"'x'.*names\.index", TypeError):
            joined(as_batches(data, collate=collate))


def test_all_else_is_refused_with_the_reason():
    columns = {"image": PICTURES, "label": [0] * N}
    for data, options, error, keyword in [
        (3, {}, TypeError, "DataLoader"), ({"x": 3}, {}, TypeError, "dict"), (None, {}, TypeError, "NoneType"),
        ("photos/", {}, ValueError, "transform="), ("photos/", {"transform": HALF}, FileNotFoundError, "photos"),
        ((X, Y[:4]), {}, ValueError, r"\(4,\)"), ((X, Y.float()), {}, TypeError, "float32"),
        (np.array([["a"]]), {}, TypeError, "numbers"), (torch.zeros(0, 3), {}, ValueError, "at least one input"),
        (Items(PICTURES), {}, ValueError, "PIL images"), (X, {"batch_size": 0}, ValueError, "batch_size"),
        (Items([torch.zeros(2), torch.zeros(3)]), {}, ValueError, "joined"),
        (Items([X]), {"collate": 3}, TypeError, "collate"),
        (Items(ROWS), {"collate": len}, TypeError, "int"),
        (Items(ROWS), {"collate": sum}, ValueError, "collate= failed"),
        (Columns(columns), {}, ValueError, "column 'image'"), (Columns({"text": ["a"]}), {}, ValueError, "tokeniser"),
        (Columns({"a": PICTURES, "b": PICTURES}), {"transform": HALF}, ValueError, "several columns of images"),
        (make_columns({"x": [0, 1], "a": [0, 1], "b": [1, 0]}, ["a", "b"]), {}, ValueError, "'a', 'b'"),
        (Columns({"input_ids": [[1], [2, 3]]}), {}, ValueError, "DataCollatorWithPadding"),
        (Columns({"x": []}), {}, ValueError, "at least one row"),
        (Columns({"x": [1]}), {"labels": "kind"}, ValueError, "'kind'"),
        (Splits(train=1, test=2), {}, TypeError, "'train', 'test'"),
        (X, {"transform": "resize"}, TypeError, "Transform"),
        ("a text", {}, ValueError, r'tokenizer\(texts, padding=True, return_tensors="pt"\)'),
        (["a", "b"], {}, ValueError, r'tokenizer\(texts, padding=True, return_tensors="pt"\)'),
        (PICTURES, {}, ValueError, "PIL images .*transform="),
        (Path("photos"), {}, ValueError, "images at photos .*transform="),
        ([PICTURES[0], "a.png"], {"transform": HALF}, TypeError, "either images or paths"),
        ((["a", "b"], [0]), {"collate": Letters()}, ValueError, "2 inputs and 1 labels"),
        (PIXELS[0], {"transform": HALF}, ValueError, r"\(8, 8, 3\).*x\[None\]"),
        (PIXELS[0, 0], {"transform": HALF}, ValueError, r"x\[None\]"),
        ("a" * 9999, {"transform": HALF}, FileNotFoundError, "no images at aaa"),
    ]:  # fmt: skip
        with refused(data, keyword, error):
            for batch in as_batches(data, **options):
                split_batch(batch)


def test_guards_and_features_come_from_any_of_them():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(80, 6)
    y = model(x).argmax(1)
    before = torch.get_rng_state()
    banks = [ff.extract(model, data)[0] for data in ((x, y), TensorDataset(x, y), [(x, y)])]
    assert torch.equal(torch.get_rng_state(), before)
    loader = DataLoader(TensorDataset(x, y), 9)
    guards = [ff.Guard.fit(model, data, method="knn:k=3") for data in ((x, y), TensorDataset(x, y), loader)]
    for bank in banks[1:]:
        assert_close(bank.features, banks[0].features)
        assert torch.equal(bank.labels, y)
    for guard in guards[1:]:
        assert_close(guard(x).score, guards[0](x).score)
    with pytest.raises(ValueError, match="takes 99"):  # before the model runs
        ff.Guard.fit(model, (x, y), method="knn:k=3", fpr=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_rows_of_texts_guard_a_bert_through_a_file_and_onnx(tmp_path):
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *"abcdefgh"])}
    by_word = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    by_word.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=by_word, pad_token="[PAD]", unk_token="[UNK]")
    torch.manual_seed(0)
    sizes = {"vocab_size": len(words), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=32, num_labels=3, initializer_range=0.3)
    model = transformers.BertForSequenceClassification(config).eval()
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefgh"), rng.integers(2, 9))) for _ in range(120)]
    encoded = tokenizer(texts, padding="max_length", max_length=10, return_tensors="pt")
    with torch.no_grad():
        labels = model(**encoded).logits.argmax(-1)
    columns = {name: encoded[name].tolist() for name in ("input_ids", "attention_mask")}
    data = make_columns({"id": texts, "label": labels.tolist(), **columns})
    guard = ff.Guard.fit(
        model, make_columns({"text": texts, "label": labels.tolist()}), loading=ff.Loading(collate=tokenizer)
    )
    assert guard.fit_result.accuracy == 1
    same = ff.Guard.fit(model, data)  # tokenised before, and padded to another length
    assert_close(same(encoded).score, guard(encoded).score, rtol=1e-3, atol=1e-3)
    guard.save(tmp_path / "guard")
    loaded = ff.Guard.load(tmp_path / "guard", model)
    assert torch.equal(loaded(encoded).score, guard(encoded).score)
    assert "direction" in str(loaded.explain(encoded)[0])
    assert loaded.export(tmp_path / "guard.onnx", encoded).inputs == 120
