"""What a study measures: sentences for what cannot be, and which images are taken."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flatfold import FeatureBank
from flatfold.evaluate.study.plan import Plan, studied
from flatfold.evaluate.suites.suite import OodSet, Suite
from flatfold.models.features import FeatureRows
from flatfold.models.images import ArrayImages, Transform
from flatfold.models.store import save_bank


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 1}, "samples must be a whole number of at least 2, got 1"),
        ({"samples": 2.5}, "samples must be a whole number"),
        ({"probes": 0}, "probes must be a whole number of at least 1, got 0"),
        ({"steps": True}, "steps must be a whole number of at least 1, got True"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"matrix": "fisher"}, "matrix must be one of hessian, ggn, got 'fisher'"),
        ({"loss": "mse"}, "loss must be energy or ce_pred, got 'mse'"),
        ({"loss": "ce"}, r"unknown images have none. Use energy, .* or ce_pred"),
        ({"alpha": 2}, "alpha must be a number between 0"),
    ],
)
def test_a_plan_that_cannot_be_gets_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        Plan(**arguments)


def test_plans_that_can_be_are_accepted():
    plan = Plan(samples=2, matrix="ggn", loss="ce_pred", probes=1, steps=1, alpha=0.0, seed=0)
    assert (plan.samples, plan.matrix, plan.loss, plan.alpha) == (2, "ggn", "ce_pred", 0.0)


def images(n, labelled):
    x = np.zeros((n, 2, 2), np.uint8)
    x[:, 0, 0] = np.arange(n)
    return ArrayImages(x, np.arange(n) % 3 if labelled else None, Transform(mode="L"), batch_size=8)


@pytest.fixture
def suite():
    ood = (OodSet("noise", "far", images(50, False), ""), OodSet("few", "near", images(7, False), ""))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    sets = {"train": images(60, True), "val": images(40, True), "test": images(30, True), "ood_val": images(20, False)}
    return Suite("toy", "", model, ood=ood, seed=0, deviations=("made up",), **sets)


def test_judged_sets_are_limited_and_validation_images_are_all_there(suite):
    some = studied(suite, 12)
    assert some.test.rows == 12
    assert [ood.images.rows for ood in some.ood] == [12, 7]
    assert some.val is suite.val
    assert some.ood[1].images is suite.ood[1].images
    assert some.train is None
    assert some.ood_val is None
    assert some.deviations == ("made up", "at most 12 images of each data set were taken")


def test_known_images_are_taken_evenly_of_all_classes(suite):
    assert torch.bincount(studied(suite, 12).test.labels).tolist() == [4, 4, 4]


def test_the_same_images_are_taken_every_time(suite):
    assert studied(suite, 12).test.fingerprint == studied(suite, 12).test.fingerprint != suite.test.fingerprint


def test_nothing_is_said_where_nothing_is_left_out(suite):
    assert studied(suite, 50).deviations == ("made up",)
    assert studied(suite, 50).test is suite.test


def test_features_in_the_place_of_images_are_said(suite, tmp_path):
    save_bank(FeatureBank(torch.rand(9, 4)), tmp_path)
    ood = (OodSet("noise", "far", FeatureRows(tmp_path, labels=False), ""),)
    (_, sentence) = studied(replace(suite, ood=ood), 50).deviations
    assert sentence == "the suite holds features only, so the parameters are those of the last layer alone"
