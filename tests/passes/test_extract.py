"""`extract`: the features of a forward pass by hand, images that cannot be read, and refusals."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from flatfold import FolderImages, Loading, Transform, UnreadableImageError, extract, load_bank
from flatfold.data.banks import read_shards, shard_name
from flatfold.data.feature_files import open_features
from flatfold.passes import local, passes
from flatfold.passes.extract import extract_features
from flatfold.passes.inputs import labelled_batches, read_first_batch, score_inputs
from tests.refusals import refused

PLAIN = Transform()


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 3))


def make_data(n=10):
    g = torch.Generator().manual_seed(3)
    return torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)


def by_hand(model, x):
    return (x @ model[0].weight.T + model[0].bias).clamp(min=0).detach()


def test_features_labels_and_head_agree_with_a_pass_by_hand():
    model, (x, y), rows = make_model(), make_data(), []
    model.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    bank, head = extract(model, DataLoader(TensorDataset(x, y), batch_size=4))
    assert rows == [4, 4, 2]  # no batch runs twice
    assert_close(bank.features, by_hand(model, x))
    assert torch.equal(bank.labels, y)
    assert torch.equal(head.weight, model[3].weight)
    assert_close(head(bank.features), model.eval()(x))
    assert not bank.features.requires_grad


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any), labelled=st.booleans())
def test_every_row_comes_once_and_in_order_from_a_one_shot_generator(sizes, labelled):
    model, (x, y) = make_model(), make_data(sum(sizes))
    drawn = zip(x.split(sizes), y.split(sizes), strict=True) if labelled else iter(x.split(sizes))
    bank, _ = extract(model, drawn)
    assert_close(bank.features, by_hand(model, x))
    assert torch.equal(bank.labels, y) if labelled else bank.labels is None


def test_features_are_float32_unless_the_model_is_float64():
    for dtype, stored in [(torch.float64,) * 2, (torch.float32,) * 2, (torch.bfloat16, torch.float32)]:
        bank, head = extract(make_model().to(dtype), [make_data()[0].to(dtype)])
        assert bank.features.dtype == head.weight.dtype == stored, dtype
        assert bank.features.device.type == "cpu"


def test_models_and_loaders_of_another_kind_are_refused():
    x, y = make_data()
    bad = x.clone()
    bad[5, 0] = torch.nan
    for loader, error, keyword in [
        (3, TypeError, "int"), ([None], TypeError, "NoneType"), ([x, None], TypeError, "NoneType"),
        ([], ValueError, "no input"), (iter([]), ValueError, "no input"), ([torch.zeros(0, 6)], ValueError, "no input"),
        ([(x[:4], y[:4]), x[4:]], ValueError, "has labels .* row 4 has none"),
        ([x[:4], (x[4:], y[4:])], ValueError, "has none .* row 4 has labels"),
        (bad.split(4), ValueError, "finite, but row 5"),
    ]:  # fmt: skip
        with refused(loader, keyword, error):
            extract(make_model(), loader)
    with pytest.raises(TypeError, match="Module"):
        extract(by_hand, [x])
    for workers in (-1, 1.5, True, 2):  # 2 are for sources only
        with refused(workers, "workers"):
            extract(make_model(), [x], loading=Loading(workers=workers))


class Net(nn.Sequential):
    """A small network that counts the images it sees."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
        self.seen = 0
        self.register_forward_pre_hook(lambda module, args: setattr(self, "seen", self.seen + len(args[0])))


def make_folder(root, n=20, broken=()):
    """Write one image per row in two class folders; those in ``broken`` are cut short."""
    rng = np.random.default_rng(0)
    for row in range(n):
        path = root / ("a" if row < n // 2 else "b") / f"{row:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (2, 2, 3), dtype=np.uint8)).save(path)
        if row in broken:
            path.write_bytes(path.read_bytes()[:40])
    return root


def features(root, model=None, workers=None, max_unreadable=0.0, **settings):
    loading = Loading(workers=workers, max_unreadable=max_unreadable)
    return extract(model or Net(), FolderImages(root, PLAIN, batch_size=4), loading=loading, **settings)[0]


def assert_left_out(tmp_path, broken, **settings):
    """Rows that could be read keep their features and labels, in memory and on disk; the manifest names the others."""
    whole = features(make_folder(tmp_path / "whole"))
    root = make_folder(tmp_path / f"images{broken}", broken=broken)
    kept = [row for row in range(20) if row not in broken]
    for out in (None, tmp_path / f"bank{broken}"):
        bank = features(root, max_unreadable=0.25, shard_rows=6, out=out, **settings)
        assert_close(bank.features, whole.features[kept])
        assert bank.labels.tolist() == whole.labels[kept].tolist()
    assert torch.equal(load_bank(out).features, bank.features)
    assert torch.equal(open_features(out).bank().features, bank.features)
    assert open_features(out).rows == len(kept)
    reasons = {row: reason for shard in read_shards(out, verify=True) for row, reason in shard[2].items()}
    assert list(reasons) == list(broken)
    assert all(f"{row:03d}.png could not be read" in reason for row, reason in reasons.items())
    model = Net()
    assert torch.equal(features(root, model, max_unreadable=0.25, shard_rows=6, out=out).features, bank.features)
    assert model.seen <= 2  # to find the head


@pytest.mark.parametrize("broken", [(3,), (0, 1, 2, 3), (4, 5, 6, 7, 9), (19,), (0, 10)])
def test_what_cannot_be_read_has_no_row_and_the_others_keep_their_features_and_labels(tmp_path, broken):
    assert_left_out(tmp_path, broken)


def test_reading_threads_give_the_same_rows_and_gaps(tmp_path):
    assert_left_out(tmp_path, (4, 5, 6, 7, 9), workers=2)


def test_errors_in_reading_threads_are_those_of_this_thread(tmp_path):
    root = make_folder(tmp_path, broken=(7,))
    with pytest.raises(UnreadableImageError, match=r"007\.png"):
        features(root, workers=2)
    source = FolderImages(root, Transform(crop=50), batch_size=4)
    with pytest.raises(ValueError, match=r"^[^\n]*000\.png: a crop of 50[^\n]*$"):
        extract(Net(), source, loading=Loading(workers=2, max_unreadable=0.5))


def test_more_unreadable_images_than_the_share_end_the_pass(tmp_path, caplog):
    root = make_folder(tmp_path / "images", broken=(1, 7, 8))
    with caplog.at_level(logging.WARNING):
        assert len(features(root, max_unreadable=0.15, out=tmp_path / "bank")) == 17  # exactly the share is allowed
    assert "3 of 20" in caplog.text
    with pytest.raises(UnreadableImageError, match=r"001\.png"):
        features(root)
    for out in (None, tmp_path / "bank"):  # also a bank that was made with a larger share
        with refused(out, r"3 of 20 .*001\.png .*007\.png", UnreadableImageError):
            features(root, max_unreadable=0.14, out=out)
    with pytest.raises(UnreadableImageError, match=r"not a single .*000\.png"):
        features(make_folder(tmp_path / "none", n=4, broken=range(4)), max_unreadable=1.0)
    source = FolderImages(root, Transform(crop=50), batch_size=4)
    with pytest.raises(ValueError, match=r"000\.png: a crop of 50"):  # an error that all images would meet
        extract(Net(), source, loading=Loading(max_unreadable=0.5))


def test_scores_and_methods_that_learn_from_images_leave_the_same_ones_out(tmp_path):
    broken = (0, 1, 2, 3, 9)
    source = FolderImages(make_folder(tmp_path / "images", broken=broken), PLAIN, batch_size=4)
    scores = score_inputs(lambda x: x.sum((1, 2, 3)), Net(), source, tmp_path / "scores", {})
    whole = FolderImages(make_folder(tmp_path / "whole"), PLAIN)
    sums = whole.read(range(20))[0].sum((1, 2, 3))
    assert_close(scores, sums[[row for row in range(20) if row not in broken]])
    with refused("other images", "another data"):
        score_inputs(lambda x: x.sum((1, 2, 3)), Net(), whole, tmp_path / "scores", {})
    batches = list(labelled_batches(source, "cpu", "fitting"))
    assert torch.cat([y for _, y in batches]).tolist() == [0] * 5 + [1] * 10
    assert len(read_first_batch(source)) == 4


@pytest.mark.parametrize("out", [None, "bank"])
def test_parts_may_be_finished_in_any_order(tmp_path, monkeypatch, out):
    source = FolderImages(make_folder(tmp_path / "images", broken=(3,)), PLAIN, batch_size=4)
    out = out and tmp_path / out
    loading = Loading(max_unreadable=0.1)
    model = Net()
    expected, head = extract(model, source, loading=loading)
    model[3].bias.data -= head(expected.features).median(dim=0).values  # so that it predicts both classes
    in_order = local.run_local

    def reversed_parts(*arguments):
        yield from reversed(list(in_order(*arguments)))

    monkeypatch.setattr(passes, "PART_ROWS", 4)
    monkeypatch.setattr(local, "run_local", reversed_parts)
    result = extract_features(model, source, loading, out=out, shard_rows=8)
    assert torch.equal(result.bank.features, expected.features)
    assert torch.equal(result.bank.labels, expected.labels)
    if out is None:
        assert torch.equal(result.predicted, result.network.found.head(expected.features).argmax(dim=-1))
        assert len(result.predicted.unique()) == 2


def test_rows_between_missing_shards_do_not_run_again(tmp_path, monkeypatch):
    source, out, model = FolderImages(make_folder(tmp_path / "images"), PLAIN, batch_size=2), tmp_path / "bank", Net()
    expected, _ = extract(Net(), source, out=out, shard_rows=6)
    for row in (0, 12):
        (out / f"{shard_name(row // 6)}.safetensors").unlink()
    monkeypatch.setattr(passes, "PART_ROWS", 4)
    assert torch.equal(extract(model, source, out=out)[0].features, expected.features)
    assert model.seen == 6 + 6 + 2 * 2, "two shards, and two inputs to find the head and to compare"
