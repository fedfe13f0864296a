"""One number per input of a data set, kept on disk."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.models.images import ArrayImages
from flatfold.models.rows import labelled_batches, score_rows


def source(seed=0, labels=None, n=40):
    x = np.random.default_rng(seed).integers(0, 256, (n, 4, 4), dtype=np.uint8)
    return ArrayImages(x, labels, ff.Transform(mode="L"), batch_size=16)


MODEL = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 2))


def sums(x):
    return x.sum((1, 2, 3))


def test_gives_a_score_for_every_image_in_order(tmp_path):
    images = source()
    assert_close(score_rows(sums, MODEL, images, tmp_path / "s", {}), torch.cat([sums(x) for x in images]))


def test_other_images_are_not_taken_for_these(tmp_path):
    score_rows(sums, MODEL, source(0), tmp_path / "s", {"method": "sums"})
    with pytest.raises(ValueError, match=r"of something else|other"):
        score_rows(sums, MODEL, source(1), tmp_path / "s", {"method": "sums"})


def test_the_model_is_in_evaluation_mode_meanwhile_and_as_it_was_afterwards(tmp_path):
    MODEL.train()
    modes = []
    score_rows(lambda x: modes.append(MODEL.training) or sums(x), MODEL, source(), tmp_path / "s", {})
    assert modes == [False, False, False]
    assert MODEL.training


def test_a_score_that_is_no_number_is_told_with_its_row(tmp_path):
    images = source()
    bad = images.read(range(20, 21))[0]
    with pytest.raises(ValueError, match="scores must be finite, but row 20"):
        score_rows(lambda x: sums(x) / (x != bad).any((1, 2, 3)), MODEL, images, tmp_path / "s", {})


def test_batches_come_with_labels_or_not_at_all():
    labels = np.arange(40) % 2
    batches = list(labelled_batches(source(labels=labels), "cpu", "fitting"))
    assert torch.equal(torch.cat([y for _, y in batches]), torch.from_numpy(labels))
    with pytest.raises(ValueError, match="labels are needed to fit this method"):
        list(labelled_batches(source(), "cpu", "fitting"))
