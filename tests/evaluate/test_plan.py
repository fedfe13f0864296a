"""Estimates of memory, disk space and time before a benchmark, and what a benchmark does with them."""

import shutil
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

import flatfold as ff
from flatfold.data.feature_files import FeatureRows
from flatfold.detectors import get_method
from flatfold.errors import InsufficientResourcesError
from flatfold.evaluate import methods as evaluate_methods
from flatfold.evaluate import plan as plans
from flatfold.evaluate.methods import Spec
from flatfold.evaluate.plan import make_plan
from flatfold.evaluate.runner import run, run_and_save
from flatfold.evaluate.suites.suite import OodSet, Suite

WIDTH, CLASSES, TRAIN = 16, 4, 2000
TRAINED = [name for name in ff.methods() if get_method(name).fits_on == "train" and get_method(name).sees == "features"]


def save(path, rows, seed, labels=True):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (rows,), generator=g)
    h = (4 * torch.eye(CLASSES, WIDTH)[y] + torch.randn(rows, WIDTH, generator=g)).relu_()
    ff.save_bank(ff.FeatureBank(h, y if labels else None), path)
    return FeatureRows(path, 64, labels=labels)


@pytest.fixture
def suite(tmp_path):
    model = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        model.weight.copy_(torch.eye(CLASSES, WIDTH))
    known = [save(tmp_path / name, n, n) for name, n in (("train", TRAIN), ("val", 300), ("test", 301))]
    ood = OodSet("noise", "far", save(tmp_path / "noise", 100, 4, labels=False), "")
    return Suite("features", "", model.eval(), *known, (ood,), seed=0)


def plan_of(suite, folder, *methods):
    return make_plan(suite.sources, suite.model, [Spec(*method) for method in methods], folder)


def test_stored_features_are_read_where_they_are(suite, tmp_path):
    plan = plan_of(suite, tmp_path / "banks", ("msp",))
    assert (plan.inputs, plan.disk) == (0, 0)
    results = run(suite, ["msp", "mds"], tmp_path)
    assert not (tmp_path / "banks").exists()
    few = Suite("few", "", suite.model, suite.train.subset(np.arange(500)), *[suite.val, suite.test], suite.ood, seed=0)
    some = run(few, ["msp", "mds"], tmp_path / "few")
    assert (results.suite["n_train"], some.suite["n_train"]) == (TRAIN, 500)
    assert results.cells["msp", "noise"].auroc == some.cells["msp", "noise"].auroc
    assert len(list((tmp_path / "few" / "banks").iterdir())) == 1, "of a subset, features are copied"


def test_disk_space_is_that_of_the_features_that_are_missing(suite, tmp_path, monkeypatch):
    network = nn.Sequential(suite.model)
    folder = tmp_path / "banks"
    whole = make_plan(suite.sources, network, [Spec("msp")], folder)
    assert whole.inputs == sum(source.rows for source in suite.sources.values())
    assert whole.disk == 4 * WIDTH * whole.inputs + 8 * (TRAIN + 300 + 301)
    monkeypatch.setattr(plans, "BYTES_JOINED", 4 * WIDTH * 1000)  # the parts of train are joined on disk
    assert make_plan(suite.sources, network, [Spec("msp")], folder).disk == whole.disk + TRAIN * (4 * WIDTH + 8)
    monkeypatch.undo()
    run(Suite("x", "", network, *[suite.train, suite.val, suite.test], suite.ood, seed=0), ["msp"], tmp_path)
    again = make_plan(suite.sources, network, [Spec("msp")], folder)
    assert (again.inputs, again.disk, again.extraction) == (0, 0, 0)


def test_a_run_that_cannot_fit_is_refused_with_the_number(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "free_memory", lambda: 10**9)
    monkeypatch.setattr(plans, "BASE_MEMORY", 10**9)
    with pytest.raises(InsufficientResourcesError, match=r"relation would need up to 1\.0 GB of memory, but 1\.0 GB"):
        run(suite, ["relation"], tmp_path / "out")
    monkeypatch.undo()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 5))
    network = Suite("x", "", nn.Sequential(suite.model), suite.train, suite.val, suite.test, suite.ood, seed=0)
    with pytest.raises(InsufficientResourcesError, match="disk"):
        run(network, ["msp"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    run(suite, ["msp"], tmp_path / "out")  # needs no space for features


def test_long_methods_are_named_with_a_cheaper_choice(suite, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(plans, "_speed", lambda _: 1e4)
    monkeypatch.setattr(plans, "QUICK", 0)
    plan = plan_of(suite, tmp_path, ("msp",), ("knn",), ("knn", {"share": 0.1}))
    assert plan.seconds["knn"] == pytest.approx(10 * plan.seconds["knn:share=0.1"], rel=0.05)
    assert "knn takes 22 min (a tenth of that with knn:share=0.1" in str(plan)
    assert "msp takes" not in str(plan)
    run(suite, ["knn"], tmp_path)
    assert [record.levelname for record in caplog.records if "knn takes" in record.message] == ["WARNING"]


@pytest.mark.parametrize("method", [*TRAINED, "knn:share=0.5", "knn:storage=float16"])
def test_costs_cover_what_a_method_stores_of_the_bank(method):
    g = torch.Generator().manual_seed(0)
    head = ff.Head(torch.randn(CLASSES, WIDTH, generator=g))
    stored, estimated = [], []
    for rows in (1000, 3000):
        features, labels = torch.rand(rows, WIDTH, generator=g), torch.arange(rows) % CLASSES
        detector = ff.create(method).fit(ff.FeatureBank(features, labels), head)
        own = (buffer for buffer in detector.buffers() if buffer.data_ptr() != features.data_ptr())
        stored.append(sum(buffer.nbytes for buffer in own))
        estimated.append(detector.costs(rows, WIDTH, CLASSES).memory)
    assert stored[1] - stored[0] <= 1.01 * (estimated[1] - estimated[0]) + 200 * WIDTH * 4  # nnguide: whole batches


def test_costs_of_a_shaped_method_include_its_copy_of_the_bank():
    shaped, plain = (ff.create("knn", **hyper).costs(1000, WIDTH, CLASSES).memory for hyper in ({"alpha": 0.5}, {}))
    assert shaped == plain + 4 * 1000 * WIDTH
    assert ff.create("mds", alpha=1).costs(9, WIDTH, CLASSES) == ff.create("mds").costs(9, WIDTH, CLASSES)


def test_a_run_that_was_stopped_does_not_repeat_slow_methods(suite, tmp_path, monkeypatch):
    whole = run_and_save(suite, ["mds", "autofold", "vim"], tmp_path / "whole")
    assert not list((tmp_path / "whole").glob("scores/*"))
    monkeypatch.setattr(evaluate_methods, "WORTH_STORING", 0.0)
    evaluate, asked = evaluate_methods.evaluate_method, []

    def stop_at_vim(spec, *arguments):
        asked.append(spec.name)
        if asked.count("vim") == 1 and spec.name == "vim":
            raise KeyboardInterrupt
        return evaluate(spec, *arguments)

    monkeypatch.setattr("flatfold.evaluate.runner.evaluate_method", stop_at_vim)
    with pytest.raises(KeyboardInterrupt):
        run_and_save(suite, ["mds", "autofold", "vim"], tmp_path / "stopped")
    results = run_and_save(suite, ["mds", "autofold", "vim"], tmp_path / "stopped")
    assert asked == ["fold", "mds", "autofold", "vim", "fold", "vim"]  # fold is the warm-up
    assert results.alpha_curves == whole.alpha_curves
    for name, scores in whole.scores.items():
        np.testing.assert_array_equal(results.scores[name], scores)
    assert not list((tmp_path / "stopped").glob("scores/*")), "once results are saved, everything is computed again"


def test_a_stopped_run_forgets_methods_of_the_user_and_of_other_data(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate_methods, "WORTH_STORING", 0.0)
    monkeypatch.setattr(evaluate_methods, "PACKAGE", "another")  # as if knn were the user's
    run(suite, ["knn"], tmp_path)
    monkeypatch.setattr(evaluate_methods, "PACKAGE", "flatfold")
    run(suite, ["mds"], tmp_path)
    calls = []
    evaluate = evaluate_methods.evaluate_method
    monkeypatch.setattr(
        "flatfold.evaluate.runner.evaluate_method", lambda spec, *rest: calls.append(spec.name) or evaluate(spec, *rest)
    )
    run(suite, ["knn", "mds"], tmp_path)
    assert calls == ["fold", "knn"]
    other = Suite("other", "", suite.model, suite.train, suite.test, suite.val, suite.ood, seed=0)
    run(other, ["mds"], tmp_path)
    assert calls == ["fold", "knn", "fold", "mds"]
