"""Traces as detectors against the public AUROC and its interval."""

import numpy as np
import pytest

from flatfold import auroc, auroc_interval
from flatfold.evaluate.study.detection import detections
from flatfold.evaluate.suites.suite import OodSet


@pytest.fixture
def traces():
    rng = np.random.default_rng(0)
    return {name: rng.normal(gap, 1, 40) for name, gap in {"id": 0, "pens": 0.5, "noise": 1, "photos": 2}.items()}


OOD = tuple(OodSet(name, group, None, "") for name, group in {"pens": "near", "noise": "far", "photos": "far"}.items())


def test_every_data_set_gets_its_auroc_and_interval(traces):
    found = {each.dataset: each for each in detections("feature", 0.38, traces, OOD)}
    for name in ("pens", "noise", "photos"):
        assert found[name].auroc == auroc(traces["id"], traces[name])
        assert (found[name].low, found[name].high) == auroc_interval(traces["id"], traces[name])
        assert (found[name].space, found[name].alpha) == ("feature", 0.38)


def test_means_are_unweighted_and_their_intervals_hold_them(traces):
    traces["noise"] = traces["noise"][:9]
    found = {each.dataset: each for each in detections("parameter", 0.0, traces, OOD)}
    assert list(found) == ["pens", "noise", "photos", "near", "far", "all"]
    assert found["far"].auroc == pytest.approx((found["noise"].auroc + found["photos"].auroc) / 2)
    assert found["all"].auroc == pytest.approx(np.mean([found[name].auroc for name in ("pens", "noise", "photos")]))
    assert found["near"] == type(found["near"])(**{**vars(found["pens"]), "dataset": "near"})
    assert all(each.low < each.auroc < each.high for each in found.values())


def test_a_group_without_data_sets_has_no_mean(traces):
    assert [each.dataset for each in detections("logit", 0.0, traces, OOD[1:])] == ["noise", "photos", "far", "all"]
