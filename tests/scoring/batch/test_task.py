"""`Task` and its scorer: what a guard says about images, and which of them have no say."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import flatfold as ff
from flatfold.core.errors import UnreadableImage
from flatfold.models.images import FolderImages
from flatfold.models.stream import attempts
from flatfold.scoring.batch.task import NO_SCORE, NOT_FINITE
from tests.scoring.batch.small_run import SIDE, TRANSFORM, broken, make_network, make_task, write_guard, write_images


def record_of(task, rows=None):
    source = task.source
    return task.scorer()(attempts(source, source.touched([range(source.rows) if rows is None else rows])))


def guard_of(task):
    return ff.Guard.load(task.guard, task.model())


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("detector", ["fold", "msp", "knn"])
def test_a_table_holds_what_the_guard_says_about_each_batch_bit_for_bit(tmp_path, detector, per_class):
    write_guard(tmp_path / "guard.safetensors", detector=detector, per_class=per_class)
    task = make_task(tmp_path, images=23, batch_size=5)
    columns = record_of(task).columns
    verdicts = [guard_of(task)(x) for x in task.source]
    assert list(columns) == ["path", "predicted", "score", "p_value", "is_ood"]
    assert columns["path"].tolist() == [str(tmp_path / "images" / f"{row:04d}.png") for row in range(23)]
    for name in ("score", "p_value", "is_ood"):
        expected = torch.cat([getattr(verdict, name) for verdict in verdicts]).numpy()
        assert columns[name].dtype == expected.dtype
        assert np.array_equal(columns[name], expected)
    predicted = torch.cat([verdict.logits.argmax(1) for verdict in verdicts])
    assert np.array_equal(columns["predicted"], predicted.numpy())
    assert 0 < columns["is_ood"].sum() < 23


def test_each_image_scores_alone_as_it_does_in_its_batch(tmp_path):
    task = make_task(tmp_path, images=23, batch_size=8)
    columns, guard = record_of(task).columns, guard_of(task)
    alone = [guard(task.source.read(range(row, row + 1))).score.item() for row in range(23)]
    np.testing.assert_allclose(columns["score"], alone, rtol=1e-5)


def test_another_rate_changes_decisions_and_nothing_else(tmp_path):
    task = make_task(tmp_path)
    usual, strict = record_of(task).columns, record_of(replace(task, fpr=0.02)).columns
    assert np.array_equal(usual["score"], strict["score"])
    assert np.array_equal(strict["is_ood"], usual["p_value"] <= 0.02)
    assert not np.array_equal(strict["is_ood"], usual["is_ood"])
    assert (task.judge().calibration.fpr, replace(task, fpr=0.02).judge().calibration.fpr) == (0.2, 0.02)


def test_the_model_may_be_sent_to_a_device(tmp_path):
    task = replace(make_task(tmp_path), device="cpu")
    assert next(task.scorer().guard.model.parameters()).device.type == "cpu"
    with pytest.raises(ValueError, match="device 'nowhere' cannot be used here"):
        replace(task, device="nowhere").scorer()


def test_a_guard_of_another_model_is_refused(tmp_path):
    task = replace(make_task(tmp_path), model=lambda: make_network(seed=9))
    with pytest.raises(ValueError, match="weights"):
        task.scorer()


def test_a_task_can_be_sent_to_another_process(tmp_path):
    task = make_task(tmp_path)
    there = pickle.loads(pickle.dumps(task))  # noqa: S301
    assert record_of(there).to_json() == record_of(task).to_json()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [[0], [4, 5, 6, 7], [1, 9], range(12)])
def test_broken_images_are_named_and_the_others_are_scored(tmp_path, bad, dtype):
    class Cast(nn.Sequential):
        def forward(self, x):
            return super().forward(x.to(dtype))

    def model():
        return Cast(*make_network(dtype=dtype))

    task = make_task(tmp_path, images=12, model=model)
    whole = record_of(task).columns
    for row in bad:
        broken("cut off", tmp_path / "images" / f"{row:04d}.png")
    record = record_of(task)
    good = [row for row in range(12) if row not in bad]
    assert record.columns["path"].tolist() == whole["path"][good].tolist()
    np.testing.assert_allclose(record.columns["score"], whole["score"][good], rtol=1e-5)
    assert {name: values.dtype.kind for name, values in record.columns.items()} == {
        name: values.dtype.kind for name, values in whole.items()
    }
    assert record.columns["score"].dtype == whole["score"].dtype
    assert record.unreadable["path"].tolist() == whole["path"][list(bad)].tolist()
    assert all("could not be read as an image" in reason for reason in record.unreadable["reason"])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nothing", "could not be read as an image"),
        ("text", "it has the form of no known kind of image"),
        ("16 bit", "0006.png: images must have 8 bits per channel"),
        ("too small", f"0006.png: a crop of {SIDE} needs an image at least that large, got 2 x 2"),
    ],
)
def test_what_cannot_be_prepared_counts_as_what_cannot_be_read(tmp_path, kind, reason):
    task = make_task(tmp_path, images=12, transform=replace(TRANSFORM, crop=SIDE))
    broken(kind, tmp_path / "images" / "0006.png")
    record = record_of(task)
    assert record.unreadable["path"].tolist() == [task.source.name(6)]
    assert reason in record.unreadable["reason"][0]
    assert len(record.columns["path"]) == 11
    with pytest.raises(UnreadableImage, match=reason):
        ff.extract(make_network(), task.source)
    assert len(ff.extract(make_network(), task.source, unreadable=0.1)[0]) == 11


@pytest.mark.parametrize(("odd", "named"), [([5], [5]), ([4, 5, 6], [7]), ([4, 5], [6, 7]), ([0, 1, 2, 3], [])])
def test_images_of_another_size_than_most_of_their_batch_are_named(tmp_path, odd, named):
    task = make_task(tmp_path, images=12)
    for row in odd:
        broken("another size", tmp_path / "images" / f"{row:04d}.png")
    record = record_of(task)
    assert record.unreadable["path"].tolist() == [task.source.name(row) for row in named]
    assert len(record.columns["path"]) == 12 - len(named)
    for row, reason in zip(named, record.unreadable["reason"], strict=True):
        assert "the images of a batch must have one size, got (h, w) = " in reason
        assert f"for {task.source.name(row)}. Give the transform a resize and a crop." in reason


def test_a_batch_that_the_network_cannot_take_is_named(tmp_path):
    grey = replace(TRANSFORM, mode="L", mean=None, std=None)
    task = make_task(tmp_path, images=6, transform=grey)
    message = r"^.*images/0004\.png to .*images/0005\.png: the network cannot take inputs of shape \(1, 6, 6\): "
    with pytest.raises(ValueError, match=message):
        record_of(task, range(4, 6))


def test_reasons_stand_in_the_order_of_the_rows(tmp_path):
    task = make_task(tmp_path, images=12, batch_size=12)
    for row, kind in {4: "another size", 5: "text", 6: "16 bit", 9: "nothing"}.items():
        broken(kind, tmp_path / "images" / f"{row:04d}.png")
    assert record_of(task).unreadable["path"].tolist() == [task.source.name(row) for row in (4, 5, 6, 9)]


class Touchy(nn.Module):
    """A network that gives a black image features of one value."""

    def __init__(self, value):
        super().__init__()
        *body, self.head = make_network()
        self.body, self.value = nn.Sequential(*body), value

    def forward(self, x):
        black = (x == -2).flatten(1).all(dim=1)
        return self.head(torch.where(black[:, None], torch.tensor(self.value), self.body(x)))


@pytest.mark.parametrize(
    ("value", "reason"),
    [(float("nan"), NOT_FINITE), (float("inf"), NOT_FINITE), (3e38, NO_SCORE)],
    ids=["nan", "inf", "enormous"],
)
@pytest.mark.parametrize("rows", [[5], [0, 3, 11], range(12)])
def test_images_without_a_finite_answer_are_named(tmp_path, value, reason, rows):
    def model():
        return Touchy(value)

    write_guard(tmp_path / "guard.safetensors", model(), detector="gradnorm")
    task = make_task(tmp_path, images=12, model=model)
    whole = record_of(task).columns
    for row in rows:
        Image.new("RGB", (SIDE, SIDE)).save(task.source.name(row))
    record = record_of(task)
    good = [row for row in range(12) if row not in rows]
    assert record.unreadable["path"].tolist() == whole["path"][list(rows)].tolist()
    assert set(record.unreadable["reason"]) == {reason}
    assert record.columns["path"].tolist() == whole["path"][good].tolist()
    np.testing.assert_allclose(record.columns["score"], whole["score"][good], rtol=1e-5)


def test_names_that_are_no_text_become_escapes_in_tables_and_reasons(tmp_path):
    root = write_images(tmp_path / "images", 3)
    (root / "0001.png").rename(root / "a\udcffb.png")
    (root / "0002.png").rename(root / "c\udcfe.png")
    (root / "c\udcfe.png").write_bytes(b"")
    record = record_of(make_task(tmp_path))
    assert record.columns["path"].tolist() == [f"{root}/0000.png", f"{root}/a\\udcffb.png"]
    assert record.unreadable["path"].tolist() == [f"{root}/c\\udcfe.png"]
    assert f"{root}/c\\udcfe.png could not be read" in record.unreadable["reason"][0]


def test_labels_of_a_source_are_not_looked_at(tmp_path):
    for label in "ab":
        write_images(tmp_path / "images" / label, 5, seed=ord(label))
    task = make_task(tmp_path)
    labelled = replace(task, source=FolderImages(tmp_path / "images", TRANSFORM, 4))
    assert labelled.source.labels is not None
    assert record_of(labelled).to_json() == record_of(task).to_json()
