"""What `fit` takes a guard takes too, prepared in the same way; the rest is refused in one sentence."""

import json
import pickle
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Subset, TensorDataset

import flatfold as ff
from flatfold.data.texts import CallOptions, Tokeniser, TokeniserSpec
from tests.architectures import Net
from tests.data.columns import make_columns
from tests.data.tokenisers import Letters, Reader, make_texts
from tests.four_classes import known, make_model
from tests.refusals import refused

HALF = ff.Transform(resize=8, crop=8, mean=(0.5, 0.5, 0.5))
PICTURES = [Image.fromarray(pixels) for pixels in np.random.default_rng(0).integers(0, 256, (60, 12, 10, 3), np.uint8)]
CROPPED = torch.stack([HALF(picture) for picture in PICTURES])
TEXTS, CLASSES = make_texts()


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3)
    return nn.Sequential(*layers).eval()


@pytest.fixture(scope="module")
def guard():
    """A guard of images, in batches of 16 that two threads read."""
    loading = ff.Loading(transform=HALF, batch_size=16, workers=2)
    return ff.Guard.fit(network(), PICTURES, method="ebo", fpr=0.1, loading=loading)


@pytest.fixture(scope="module")
def tabular():
    """A guard of rows of numbers, fitted on numpy's default type."""
    x, y = known(200)
    return ff.Guard.fit(make_model(), (x.double().numpy(), y.numpy()), method="mds", fpr=0.1)


@pytest.fixture(scope="module")
def reader():
    """A guard of texts."""
    return ff.Guard.fit(Reader(), (TEXTS, CLASSES), fpr=0.1, loading=ff.Loading(collate=Letters("owner/letters")))


def check_same(verdict, expected):
    for got, wanted in zip(verdict, expected, strict=True):
        assert_close(got, wanted[: len(got)])


def test_images_paths_and_folders_are_judged_as_they_were_fitted(guard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for row, picture in enumerate(PICTURES):
        Path("photos", "ab"[row % 2]).mkdir(parents=True, exist_ok=True)
        picture.save(f"photos/{'ab'[row % 2]}/{row:02}.png")
    paths = [f"photos/{'ab'[row % 2]}/{row:02}.png" for row in range(60)]
    Path("list.txt").write_text("\n".join(paths))
    everything = guard(CROPPED)
    for data in (
        PICTURES[0], [PICTURES[0], PICTURES[1]], PICTURES, paths[0], Path(paths[0]), paths, "list.txt",
        [*map(np.asarray, PICTURES)], np.stack(list(map(np.asarray, PICTURES))),
        make_columns({"img": PICTURES, "label": [0] * 60}), ff.data.ListImages("list.txt", None, HALF, labels=False),
        DataLoader(TensorDataset(CROPPED, torch.zeros(60)), 7),
        CROPPED.split(7), (batch for batch in CROPPED.split(7)), TensorDataset(CROPPED),
    ):  # fmt: skip
        check_same(guard(data), everything)
    order = [*range(0, 60, 2), *range(1, 60, 2)]
    folder = guard("photos")
    check_same(folder, [column[order] for column in everything])
    assert folder.names == tuple(str(Path(paths[row])) for row in order)
    assert (guard(paths[:2]).names, guard(PICTURES[0]).names) == (tuple(paths[:2]), ("image 0",))
    assert (everything.names, guard(CROPPED.split(7)).names) == (None, None)
    names = list("xyz")
    told = guard.explain("photos", names)
    assert [str(line) for line in told] == [str(line) for line in guard.explain(CROPPED[order], names)]
    monitor = guard.monitor("photos")
    assert (monitor.seen, monitor.alarms) == (60, int(everything.is_ood.sum()))
    assert guard.monitor().seen == 0
    other = guard.at(0.2)
    assert torch.equal(other(paths).is_ood, other(CROPPED).is_ood)


def test_inputs_stream_in_batches(guard):
    sizes = []
    watch = guard.model[0].register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
    guard(PICTURES)
    watch.remove()
    assert sizes == [16, 16, 16, 12]


def test_a_named_verdict_is_a_verdict(guard):
    verdict = guard(PICTURES[:3])
    assert isinstance(verdict, ff.Verdict)
    logits, *_ = verdict
    assert torch.equal(verdict.predicted, logits.argmax(1))
    again = pickle.loads(pickle.dumps(verdict))  # noqa: S301
    assert isinstance(again, ff.Verdict)
    assert again.names == verdict.names
    monitor = guard.monitor()
    monitor.add(verdict)
    assert monitor.seen == 3


def test_unreadable_images_are_left_out_up_to_a_share(tmp_path, caplog):
    for row, picture in enumerate(PICTURES[:4]):
        picture.save(tmp_path / f"{row}.png")
    (tmp_path / "2.png").write_bytes(b"no image")
    loading = ff.Loading(transform=HALF, batch_size=2, max_unreadable=0.3)
    guard = ff.Guard.fit(network(), PICTURES, method="ebo", fpr=0.1, loading=loading)
    verdict = guard(tmp_path)
    assert [Path(name).name for name in verdict.names] == ["0.png", "1.png", "3.png"]
    check_same(verdict, guard(CROPPED[[0, 1, 3]]))
    assert "1 of 4 images could not be read" in caplog.text
    guard.loading = ff.Loading(transform=HALF)
    with refused(tmp_path, r"2\.png", ff.UnreadableImageError):
        guard(tmp_path)
    for share in (0, 1):
        guard.loading = ff.Loading(transform=HALF, max_unreadable=share)
        with refused(share, r"2\.png", ff.UnreadableImageError):
            guard(tmp_path / "2.png")


def test_arrays_and_data_frames_are_cast_to_the_type_of_the_weights(tabular):
    x, y = known(100, seed=3)
    expected = tabular(x)
    names = [f"column {number}" for number in range(8)]
    frame = pd.DataFrame(x.double().numpy(), columns=names)
    for data in (x.numpy(), x.double().numpy(), x.numpy().astype(">f8"), frame, (x.numpy(), y.numpy()), (frame, y)):
        check_same(tabular(data), expected)
    check_same(tabular(pd.DataFrame(np.ones((2, 8), int))), tabular(torch.ones(2, 8)))
    model = make_model()
    fitted = [(frame, pd.Series(y)), (frame, pd.DataFrame({"y": y})), (x.double().numpy(), np.eye(4)[y]), (x, y)]
    guards = [ff.Guard.fit(model, data, method="mds", fpr=0.1) for data in fitted]
    for other in guards:
        assert other.fit_result.accuracy == guards[0].fit_result.accuracy
        check_same(other(x), guards[-1](x))
    features, _ = ff.extract(model, x.double().numpy())
    assert torch.equal(features.features, ff.extract(model, x)[0].features)
    with refused("a tensor of another type", "torch.float64"):
        tabular(x.double())
    half = make_model().bfloat16()
    assert ff.Guard.fit(half, x.numpy(), method="ebo", fpr=0.1)(x.numpy()).logits.dtype == torch.bfloat16


def test_transformed_images_have_the_type_of_the_weights():
    pairs = [*zip(PICTURES, [0, 1, 2] * 20, strict=True)]
    for dtype in (torch.float64, torch.bfloat16):
        for data in (PICTURES, Subset(pairs, range(60))):
            loading = ff.Loading(transform=HALF)
            guard = ff.Guard.fit(network().to(dtype), data, method="ebo", fpr=0.1, loading=loading)
            verdict = guard(PICTURES[:2])
            assert verdict.logits.dtype == dtype
            check_same(verdict, guard(CROPPED.to(dtype)))


def test_texts_are_tokenised_and_judged(reader, tmp_path, monkeypatch):
    tokens = Letters()(TEXTS, padding=True, truncation=True, return_tensors="pt")
    expected = reader(tokens)
    assert reader.fit_result.accuracy == 1
    rows = make_columns({"text": TEXTS, "label": CLASSES})
    for data in (TEXTS[0], TEXTS[:2], TEXTS, rows, (TEXTS, CLASSES), np.array(TEXTS), pd.Series(TEXTS), rows[0]):
        check_same(reader(data), expected)
    assert "direction" in str(reader.explain(TEXTS[0])[0])
    assert reader.monitor(TEXTS).seen == 160
    reader.save(tmp_path / "guard")
    monkeypatch.setitem(sys.modules, "transformers", None)  # cannot be imported
    loaded = ff.Guard.load(tmp_path / "guard", reader.model)
    check_same(loaded(tokens), expected)
    with pytest.raises(ModuleNotFoundError, match="flatfold\\[hf\\]"):
        loaded("a text")
    calls = []

    def from_pretrained(name, **options):
        calls.append((name, options))
        return Letters(name, shift=len(calls) == 2)

    library = ModuleType("transformers")
    library.AutoTokenizer = type("AutoTokenizer", (), {"from_pretrained": staticmethod(from_pretrained)})
    monkeypatch.setitem(sys.modules, "transformers", library)
    check_same(loaded(TEXTS), expected)
    check_same(loaded(TEXTS), expected)
    offline = {"local_files_only": True, "trust_remote_code": False}
    assert calls == [
        ("owner/letters", offline | {"pad_token": "_", "padding_side": "right", "truncation_side": "right"})
    ]
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "guard").read_bytes()
    with refused("another tokeniser of this name", r"gives other tokens.*loading=Loading\(collate=tokenizer\)"):
        ff.Guard.load(tmp_path / "guard", reader.model)("a text")
    monkeypatch.setattr(library.AutoTokenizer, "from_pretrained", lambda *_, **__: open("/nonexistent"))  # noqa: SIM115
    with refused("a tokeniser that is not here", "owner/letters.*Download it"):
        ff.Guard.load(tmp_path / "guard", reader.model)("a text")


def test_options_of_a_tokeniser_travel_with_the_file(tmp_path, monkeypatch):
    library = ModuleType("transformers")
    library.AutoTokenizer = type(
        "AutoTokenizer", (), {"from_pretrained": staticmethod(lambda name, **_: Letters(name))}
    )
    monkeypatch.setitem(sys.modules, "transformers", library)
    short = partial(Letters("letters"), max_length=2)
    guard = ff.Guard.fit(Reader(), (TEXTS, CLASSES), fpr=0.1, loading=ff.Loading(collate=short, labels="topic"))
    assert torch.equal(guard("abcd").score, guard("ab").score)
    guard.save(tmp_path / "guard")
    loaded = ff.Guard.load(tmp_path / "guard", guard.model)
    assert torch.equal(loaded("abcd").score, guard("ab").score)
    assert loaded.loading.labels == "topic"
    with safe_open(tmp_path / "guard", "pt") as file:
        (text,) = file.metadata().values()
    assert json.loads(text)["tokeniser"]["options"] == {"max_length": 2}


def join(items):
    return Letters()([text for text, _ in items], padding=True, truncation=True, return_tensors="pt")


@pytest.mark.parametrize(
    "collate",
    [join, Letters(), Letters("../elsewhere"), Letters("//server/share"), partial(Letters("a"), is_split_into_words=1)],
)
def test_without_a_stored_tokeniser_an_error_says_what_to_pass(collate, tmp_path):
    pairs = [*zip(TEXTS, CLASSES, strict=True)]
    guard = ff.Guard.fit(Reader(), pairs, method="ebo", fpr=0.1, loading=ff.Loading(collate=join))
    guard.loading = ff.Loading(collate=collate)
    guard.save(tmp_path / "guard")
    loaded = ff.Guard.load(tmp_path / "guard", guard.model)
    name = "join" if collate is join else "partial" if isinstance(collate, partial) else "Letters"
    for data in ("a text", ["a", "b"], make_columns({"text": TEXTS})):
        with refused(
            data,
            rf"^the guard was fitted with collate={name}.*Guard\.load\(.*, loading=Loading\(collate=tokenizer\)\)",
        ):
            loaded(data)
    tokens = Letters()(TEXTS, padding=True, truncation=True, return_tensors="pt")
    check_same(loaded(tokens), guard(tokens))
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "guard").read_bytes()
    given = ff.Guard.load(tmp_path / "guard", guard.model, loading=ff.Loading(collate=Letters(), batch_size=7))
    assert given.loading.batch_size == 7
    check_same(given(TEXTS), guard(tokens))


def test_a_tokeniser_of_an_untrusted_file_is_not_looked_for_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    spec = TokeniserSpec("a/b", "0" * 64)
    shared = f"/{tmp_path}"  # a path with two slashes is on another machine, in Windows and Samba
    for name in ("../x", "/none", shared, r"\\server\share", "https://host/x", "a/b/c", "-x", "a b", "~/x"):
        with refused(name, "no folder on this machine"):
            Tokeniser.stored(msgspec.structs.replace(spec, name=name))(["a"])
    with pytest.raises(ModuleNotFoundError):  # a folder is opened
        Tokeniser.stored(msgspec.structs.replace(spec, name=str(tmp_path)))(["a"])
    text = msgspec.json.encode(spec).decode()
    assert msgspec.json.decode(text, type=TokeniserSpec) == spec
    for change in (
        {"name": ""}, {"name": "a" * 1001}, {"sha256": "x"}, {"trust_remote_code": True}, {"padding_side": "top"},
        {"options": {"max_length": 10**9}}, {"options": {"tokenize": "rm"}}, {"model_max_length": 0},
    ):  # fmt: skip
        with refused(change, "", msgspec.ValidationError):
            msgspec.json.decode(json.dumps(json.loads(text) | change), type=TokeniserSpec)
    assert msgspec.to_builtins(CallOptions()) == {}


def test_a_guard_without_preparation_says_what_texts_and_images_need():
    tokens = Letters()(TEXTS, padding=True, truncation=True, return_tensors="pt")
    guard = ff.Guard.fit(Reader(), tokens, method="ebo", fpr=0.1)
    for data in ("a text", ["a", "b"]):
        with refused(
            data, r'neither a file.*collate=.*tokenizer\(texts, padding=True, return_tensors="pt"\).*transform='
        ):
            guard(data)
    for data in (str(Path(__file__).parent), Path(__file__).parent, [__file__]):
        with refused(data, r"^the images at .*loading=Loading\(transform="):
            guard(data)
    plain = ff.Guard.fit(network(), CROPPED, method="ebo", fpr=0.1)
    with refused("an image", "transform="):
        plain(PICTURES[0])
    plain.transform = HALF
    check_same(plain(PICTURES), plain(CROPPED))


def test_a_transform_of_the_file_is_not_replaced(guard, tmp_path):
    guard.save(tmp_path / "guard")
    for loading in (None, ff.Loading(), ff.Loading(transform=HALF, workers=0)):
        check_same(ff.Guard.load(tmp_path / "guard", guard.model, loading=loading)(PICTURES), guard(CROPPED))
    with refused("another transform", "stores the transform"):
        ff.Guard.load(tmp_path / "guard", guard.model, loading=ff.Loading(transform=ff.Transform(crop=8)))


def test_one_input_needs_a_batch_axis(guard, tabular, reader):
    for judge, x in (
        (guard, CROPPED[0]),
        (tabular, known(1)[0][0]),
        (tabular, np.ones(8)),
        (guard, CROPPED[0].numpy()),
    ):
        with refused(x, r"\((3, 8, 8|8,)\) without a batch axis: use x\[None\]"):
            judge(x)
    with refused("tokens", r"without a batch axis: use x\[None\]"):
        reader({"input_ids": torch.tensor([97, 98])})
    with refused("an image", r"\(12, 10, 3\) without a batch axis: use x\[None\]"):
        guard(np.asarray(PICTURES[0]))
    tabular(torch.empty(0, 8))


def test_other_arguments_of_fit_have_names():
    model, (x, y) = make_model(), known(100)
    for third in (y, y.numpy(), y.tolist(), pd.Series(y), None):
        with refused(third, r"labels as a pair: Guard\.fit\(model, \(X, y\)\)", TypeError):
            ff.Guard.fit(model, x, third)
    for third in ("knn", ff.Fold(), ff.Fold, 0.05):
        with refused(third, r"by name: Guard\.fit\(model, data, method=\.\.\.\)", TypeError):
            ff.Guard.fit(model, x, third, 0.1)


class Counting(nn.Module):
    """A classifier whose features grow with every call."""

    def __init__(self):
        super().__init__()
        self.head, self.calls = nn.Linear(8, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.head(x * (1 + 0.01 * self.calls))


def test_models_that_change_are_warned_of_with_the_size_of_the_change(caplog):
    x, _ = known(400)
    torch.manual_seed(0)
    noisy = Net(lambda m, x: m.head(x + 0.1 * torch.randn_like(x)), head=nn.Linear(8, 4))
    for model in (noisy, Counting()):
        caplog.clear()
        ff.Guard.fit(model, (x, torch.zeros(400, dtype=torch.int64)), method="knn", fpr=0.1)
        (warning,) = [record for record in caplog.records if "no false-alarm rate can hold" in record.message]
        assert warning.levelname == "WARNING"
        percent = float(warning.message.partition("differ by ")[2].partition(" %")[0])
        assert 1 < percent < 60
    caplog.clear()
    picky = Net(lambda m, x: m.head({len(x): x}[400]), head=nn.Linear(8, 4))  # made for batches of 400
    for model in (make_model(), picky):
        ff.Guard.fit(model, [x], method="ebo", fpr=0.1)
    assert "no false-alarm rate" not in caplog.text


def test_labels_are_checked_before_they_are_counted():
    model, (x, y) = make_model(), known(100)
    for labels, keyword in [
        (y + 10**12, "up to 1000000000003 .*4 classes"), (np.eye(5)[y], "4 classes, but one-hot rows of 5 columns"),
        (y > 1, "4 classes, but .*booleans"), (y - 1, "-1"),
    ]:  # fmt: skip
        for data in ((x, labels), [(x, labels)], TensorDataset(x, torch.as_tensor(labels))):
            with refused(keyword, keyword):
                ff.Guard.fit(model, data, fpr=0.1)
    with refused("names", r"'cat'.*names\.index", TypeError):
        ff.Guard.fit(model, (x, ["cat", "dog"] * 50))
    torch.manual_seed(0)
    two = nn.Linear(8, 2)
    for labels in (y > 1, np.eye(2)[(y > 1).long()], (y > 1).long()[:, None]):
        assert ff.Guard.fit(two, (x, labels), fpr=0.1).fit_result.accuracy is not None


def test_what_has_no_values_is_refused_in_one_sentence(tabular):
    model, (x, y) = make_model(), known(100)
    with torch.device("meta"):
        empty = make_model()
    masked, missing = np.ma.masked_array(x.numpy(), x.numpy() > 2.4), x.clone()
    missing[70, 3] = torch.nan
    for data, error, keyword in [
        (None, TypeError, "not NoneType"), ((masked, y), ValueError, "masked values"),
        ((x.to_sparse(), y), ValueError, "to_dense"), ((x.to("meta"), y), ValueError, "'meta'"),
        ((missing, y), ValueError, "row 70"), ((missing.numpy(), y), ValueError, "row 70"),
        ([], ValueError, "no input"),
    ]:  # fmt: skip
        with refused(data, keyword, error):
            ff.Guard.fit(model, data)
        if data is not None and data != []:
            row = "row 70" if keyword == "row 70" else keyword
            for inputs in (data, data[0]) if keyword != "to_dense" else ():
                with refused(inputs, row, error):
                    tabular(inputs)
    assert torch.equal(tabular(x.to_sparse()).predicted, tabular(x).predicted)  # a linear layer takes it
    for use in (ff.Guard.fit, ff.extract):
        with refused(use, "on the device 'meta'"):
            use(empty, (x, y))
    with refused("half of the rows", "row 70"):
        tabular(missing.split(32))
    with refused("an empty loader", "no input"):
        tabular(DataLoader(TensorDataset(x[:0])))


def test_a_pipeline_is_refused_with_its_parts():
    class Pipeline:
        def __init__(self, **parts):
            self.model = make_model()
            vars(self).update(parts)

    for pipe, keyword in [
        (Pipeline(tokenizer=Letters()), r"pipe\.model, with loading=Loading\(collate=pipe\.tokenizer\)"),
        (Pipeline(tokenizer=None, image_processor=1), r"pipe\.model, with loading=Loading\(transform=pipe\.image_pro"),
        (Pipeline(), r"pipe\.model"),
    ]:
        with refused(keyword, keyword, TypeError):
            ff.Guard.fit(pipe, known(100))


def test_explanations_name_the_words_without_which_the_score_is_lowest(reader):
    texts = ["abc deh XYZ", "abcab" * 60 + " zz", "abc"]
    told = reader.explain(texts, tokens=True)
    words = ["abc ", "deh ", "XYZ"]  # of the first text; Letters has no token of its own for a word
    without = ["".join(words[:k] + words[k + 1 :]) for k in range(3)]
    scores = reader(without).score.tolist()
    own = float(reader(texts[0]).score)
    expected = sorted((score, word.strip()) for score, word in zip(scores, words, strict=True) if score < own)
    assert expected, "no word raises this score"
    assert [token.text for token in told[0].tokens] == [word for _, word in expected]
    for token, (score, word) in zip(told[0].tokens, expected, strict=True):
        alone = reader("".join(each for each in words if each.strip() != word))
        assert_close(torch.tensor([token.score, token.p_value]), torch.cat([alone.score, alone.p_value]))
        assert f"{score:.4g} without {word!r}" in str(told[0])
    assert 0 < len(told[1].tokens) <= 3, "a text without spaces is taken apart, and a long one in few parts"
    assert told[2].tokens == (), "nothing is left of a text of one word"
    plain = reader.explain(texts)
    assert [(text.score, text.tokens) for text in plain] == [(text.score, ()) for text in told]
    tokens = Letters()(texts, padding=True, truncation=True, return_tensors="pt")
    assert [text.tokens for text in reader.explain(tokens, tokens=True)] == [text.tokens for text in told]
    with refused("a guard of images", "no tokeniser"):
        ff.Guard.fit(network(), PICTURES, method="ebo", fpr=0.1, loading=ff.Loading(transform=HALF)).explain(
            CROPPED, tokens=True
        )
