"""The runner on a toy suite: one pass over each data set, every method, results that do not depend on the road."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import flatfold as ff
from flatfold.detectors import METHODS
from flatfold.evaluate.banks import accuracy, extract_all
from flatfold.evaluate.results import ID
from flatfold.evaluate.runner import run
from flatfold.evaluate.suite import OodSet, Suite
from flatfold.models.images import ArrayImages

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")


class Bars(nn.Module):
    """Tells which quarter of an 8x8 image is bright, and counts the images it has seen."""

    def __init__(self):
        super().__init__()
        self.blur, self.same = (nn.Conv2d(1, 1, 1, bias=False).requires_grad_(False) for _ in range(2))
        nn.init.ones_(self.blur.weight)
        nn.init.ones_(self.same.weight)
        self.head = nn.Linear(16, 4, bias=False)
        self.seen = 0
        quarters = torch.eye(4).reshape(4, 1, 2, 2).repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        self.head.weight = nn.Parameter(quarters.flatten(1))

    def forward(self, x):
        self.seen += len(x)
        x = self.same(self.blur(x).relu())
        return self.head(3 * nn.functional.adaptive_avg_pool2d(x, 4).flatten(1))


def quarter(rng, labels):
    x = rng.integers(0, 60, (len(labels), 8, 8))
    for image, label in zip(x, labels, strict=True):
        top, left = divmod(int(label), 2)
        image[4 * top : 4 * top + 4, 4 * left : 4 * left + 4] += rng.integers(5, 190)
    return x.astype(np.uint8)


@pytest.fixture
def suite():
    rng = np.random.default_rng(0)
    transform = ff.Transform(mode="L")

    def known(n):
        labels = np.arange(n) % 4
        return ArrayImages(quarter(rng, labels), labels, transform, batch_size=16)

    pixels = rng.integers(0, 256, (30, 8, 8), dtype=np.uint8)
    pixels[:10] = quarter(rng, np.arange(10) % 4)  # some look like known ones, so that no method is perfect
    noise = ArrayImages(pixels, None, transform, batch_size=16)
    dark = ArrayImages(rng.integers(0, 9, (20, 8, 8), dtype=np.uint8), None, transform, batch_size=16)
    ood = (OodSet("noise", "far", noise, "Noise."), OodSet("dark", "near", dark, "Darkness."))
    grey = ArrayImages(rng.integers(90, 130, (30, 8, 8), dtype=np.uint8), None, transform, batch_size=16)
    return Suite("bars", "Bars.", Bars().eval(), known(120), known(60), known(80), ood, seed=3, ood_val=grey)


def test_every_method_gets_a_row_per_data_set(suite, tmp_path):
    names = ff.methods()
    results = run(suite, names, tmp_path)
    assert [(row.method, row.dataset) for row in results.rows] == [(n, d) for n in names for d in ("noise", "dark")]
    assert {row.n_id for row in results.rows} == {80}
    assert 0.9 < results.suite["accuracy"] < 1
    assert [ood["n"] for ood in results.suite["ood"]] == [30, 20]
    assert results.provenance["seed"] == 3


def test_each_image_goes_through_the_network_once(suite, tmp_path):
    everything = 120 + 60 + 80 + 30 + 20  # and none of the 30 that only @ood would need
    run(suite, ["msp", "fold", "autofold", "react"], tmp_path)
    assert suite.model.seen == everything
    run(suite, ["ebo"], tmp_path)  # the features are there: one batch of each data set finds the head
    assert suite.model.seen == everything + 5 * 16


def test_another_network_or_other_images_get_features_of_their_own(suite, tmp_path):
    before = run(suite, ["mls"], tmp_path)
    with torch.no_grad():
        suite.model.head.weight *= 2
    after = run(suite, ["mls"], tmp_path)
    assert np.allclose(after.scores["mls/noise"], 2 * before.scores["mls/noise"])


def test_rows_are_those_of_the_public_functions(suite, tmp_path):
    results = run(suite, ["fold"], tmp_path)
    banks = extract_all(suite, tmp_path / "elsewhere")
    fold = ff.Fold().fit(banks.val, banks.head)
    known, noise = fold(banks.test.features), fold(banks.ood["noise"].features)
    row = results.rows[0]
    assert row.auroc == ff.auroc(known, noise)
    assert row.fpr95_id_positive == ff.fpr_at_tpr(known, noise, positive="id")
    assert row.aupr_in == ff.aupr(known, noise, positive="id")
    assert np.array_equal(results.scores[f"fold/{ID}"], known.numpy())


def test_autofolds_curve_stands_beside_the_truth(suite, tmp_path):
    results = run(suite, ["autofold", "autofold-r:percentile=90", "autofold-r", "msp"], tmp_path)
    assert [curve.method for curve in results.alpha_curves] == ["autofold", "autofold-r:percentile=90", "autofold-r"]
    curve = results.alpha_curves[0]
    banks = extract_all(suite, tmp_path / "banks")
    at = curve.grid.index(0.3)
    fold = ff.Fold(0.3).fit(banks.val, banks.head)
    truth = ff.auroc(fold(banks.test.features), fold(banks.ood["dark"].features))
    assert curve.auroc["dark"][at] == pytest.approx(truth)
    assert curve.auroc["all"][at] == pytest.approx((truth + curve.auroc["noise"][at]) / 2)
    assert curve.auroc["all"] == pytest.approx(np.mean([curve.auroc["noise"], curve.auroc["dark"]], axis=0))
    assert np.ptp([curve.auroc["noise"], curve.auroc["dark"]], axis=0).max() > 0.01  # or any average would do
    assert results.methods[0].learnt["alpha_"] == curve.chosen
    assert 0 < max(curve.stderr) < 0.2
    fold_r = ff.create("fold-r", alpha=0.3).fit(banks.val, banks.head)
    truth = ff.auroc(fold_r(banks.test.features), fold_r(banks.ood["dark"].features))
    assert results.alpha_curves[1].auroc["dark"][at] == pytest.approx(truth)
    assert results.alpha_curves[2].chosen == results.methods[2].learnt["alpha_"]
    assert results.methods[2].learnt["percentile_"] in (85, 90, 95, 99)


def test_what_a_method_learnt_and_was_tuned_on_is_told(suite, tmp_path):
    runs = {run.method: run for run in run(suite, ["autofold", "react", "msp"], tmp_path).methods}
    assert (runs["autofold"].tuned_on, runs["react"].tuned_on, runs["msp"].tuned_on) == ("id", "nothing", "nothing")
    assert (runs["autofold"].fits_on, runs["react"].fits_on, runs["msp"].fits_on) == ("val", "val", "nothing")
    banks = extract_all(suite, tmp_path / "banks")
    assert runs["react"].learnt == {
        "threshold_": pytest.approx(np.percentile(banks.val.features.numpy(), 90), abs=1e-5)
    }
    assert runs["react"].hyper == {"percentile": 90, "temperature": 1.0}


@pytest.fixture
def _counts_rows(monkeypatch):
    """A method of the user's own."""
    monkeypatch.setattr("flatfold.detectors.registry.METHODS", METHODS.copy())

    @ff.register("counts-rows", fits_on="train")
    class CountsRows(ff.Detector):
        """Scores by the size of the bank."""

        def learn(self, bank, head):
            self.register_head(head)
            self.register_buffer("rows_", torch.tensor(float(len(bank))))
            warnings.warn(f"only {len(bank)} rows", stacklevel=1)

        def score(self, h):
            return h.sum(-1)


@pytest.mark.usefixtures("_counts_rows")
def test_a_warning_of_a_method_is_kept_with_its_results(suite, tmp_path, caplog):
    (told,) = run(suite, ["counts-rows"], tmp_path).methods
    assert told.warnings == ["only 120 rows"]
    assert "counts-rows: only 120 rows" in caplog.text


@pytest.mark.usefixtures("_counts_rows")
def test_a_method_that_fits_on_training_data_gets_it(suite, tmp_path):
    (told,) = run(suite, ["counts-rows"], tmp_path).methods
    assert told.fits_on == "train"
    assert told.learnt == {"rows_": 120.0}


def test_a_misspelt_method_is_refused_before_the_network_runs(suite, tmp_path):
    with pytest.raises(ValueError, match="Did you mean autofold"):
        run(suite, ["autofoold"], tmp_path)
    assert suite.model.seen == 0


def test_the_accuracy_is_that_on_test_data(suite, tmp_path):
    suite.test.labels[:] = 3
    banks = extract_all(suite, tmp_path / "elsewhere")
    told = run(suite, ["msp"], tmp_path).suite["accuracy"]
    assert told == float((banks.head(banks.test.features).argmax(-1) == 3).double().mean()) < 0.5


def test_a_method_named_twice_is_run_once_and_none_is_refused(suite, tmp_path):
    assert len(run(suite, ["msp", "msp"], tmp_path).rows) == 2
    with pytest.raises(ValueError, match="at least one method, got none"):
        run(suite, [], tmp_path)


def test_accuracy_needs_labels():
    head = ff.Head(torch.eye(2))
    assert accuracy(ff.FeatureBank(torch.eye(2), torch.tensor([0, 0])), head) == 0.5
    with pytest.raises(ValueError, match="accuracy needs labels"):
        accuracy(ff.FeatureBank(torch.eye(2)), head)


@pytest.mark.parametrize("name", ["val", "id", "all", "noise", "../evil", "", ".hidden", "a/b"])
def test_a_data_set_whose_name_would_get_in_the_way_is_refused(name, suite):
    other = OodSet(name, "far", suite.ood[0].images, "Another.")
    with pytest.raises(ValueError, match="an unknown data set cannot be called"):
        replace(suite, ood=(*suite.ood, other))


def test_methods_that_see_images_are_judged_beside_the_others(suite, tmp_path):
    results = run(suite, ["odin", "mdsens", "msp"], tmp_path)
    assert {run.method: run.tuned_on for run in results.methods} == dict.fromkeys(("odin", "mdsens", "msp"), "nothing")
    assert results.methods[0].hyper == {"temperature": 1000, "epsilon": 0.0014, "std": 1.0}  # nothing was normalised
    odin = ff.Odin(std=1.0).fit(ff.logits_function(suite.model))
    assert np.allclose(results.scores["odin/dark"], odin(torch.cat(list(suite.ood[1].images))), rtol=1e-5)
    stem = ff.layers_of(suite.model, suite.train.read(range(2)), "stem")
    mdsens = ff.MdsEns().fit(stem, list(suite.train))
    assert np.allclose(results.scores["mdsens/noise"], mdsens(torch.cat(list(suite.ood[0].images))), rtol=1e-3)
    assert all(run.microseconds_per_sample > 0 for run in results.methods)


def test_the_step_of_odin_knows_how_the_images_were_normalised(suite, tmp_path):
    normalised = ArrayImages(suite.val.x, suite.val.labels.numpy(), ff.Transform(mode="L", mean=(0.5,), std=(0.25,)))
    (told,) = run(replace(suite, val=normalised), ["odin"], tmp_path).methods
    assert told.hyper["std"] == (0.25,)
    (told,) = run(suite, ["odin:std=0.5"], tmp_path).methods
    assert told.hyper["std"] == 0.5


def test_scores_of_images_are_kept_and_an_interrupted_run_goes_on(suite, tmp_path, monkeypatch):
    monkeypatch.setattr("flatfold.models.rows.SHARD_ROWS", 16)
    whole = run(suite, ["odin"], tmp_path / "whole")
    original, calls = ff.Odin.score, []

    def dies_in_the_third_batch(self, x):
        calls.append(len(x))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, x)

    monkeypatch.setattr(ff.Odin, "score", dies_in_the_third_batch)
    with pytest.raises(KeyboardInterrupt):
        run(suite, ["odin"], tmp_path / "cut")
    calls[:] = [0, 0, 0]
    resumed = run(suite, ["odin"], tmp_path / "cut")
    assert all(np.array_equal(resumed.scores[key], whole.scores[key]) for key in whole.scores)
    in_all = sum(calls)
    calls[:] = [0, 0, 0]
    run(suite, ["odin"], tmp_path / "cut")
    timing = sum(calls)  # of one batch, again and again
    assert in_all - timing == 80 + 30 + 20 - 2 * 16  # two batches of the known images were there already


def test_other_settings_get_scores_of_their_own(suite, tmp_path):
    first = run(suite, ["odin", "odin:temperature=1"], tmp_path)
    assert not np.array_equal(first.scores["odin/dark"], first.scores["odin:temperature=1/dark"])
    again = run(suite, ["odin"], tmp_path)
    assert np.array_equal(first.scores["odin/dark"], again.scores["odin/dark"])


def test_a_method_tuned_on_unknown_images_says_so_in_every_row(suite, tmp_path):
    results = run(suite, ["knn@ood", "knn@id", "odin@ood", "knn"], tmp_path)
    tuned_on = {"knn@ood": "ood", "knn@id": "id", "odin@ood": "ood", "knn": "nothing"}
    assert {row.method: row.tuned_on for row in results.rows} == tuned_on
    assert {mean.method: mean.tuned_on for mean in results.averages} == tuned_on
    assert {run.method: run.tuned_on for run in results.methods} == tuned_on
    knn = results.methods[0]
    assert knn.hyper["k"] in (50, 100)
    assert [trial["hyper"]["k"] for trial in knn.trials if trial["value"] is not None] == [50, 100]
    assert "k must be a whole number from 1 to 120" in knn.trials[2]["refused"]
    odin = results.methods[2]
    assert [trial["hyper"] for trial in odin.trials][:2] == [
        {"temperature": 1, "epsilon": 0.0014},
        {"temperature": 10, "epsilon": 0.0014},
    ]
    best = max(odin.trials, key=lambda trial: trial["value"])
    assert {key: odin.hyper[key] for key in best["hyper"]} == best["hyper"]
    results.save(tmp_path)  # trials and all


def test_tuning_on_unknown_images_needs_some(suite, tmp_path):
    without = replace(suite, ood_val=None)
    with pytest.raises(ValueError, match=r"knn@ood is to be tuned on unknown images, but the suite bars has none.*@id"):
        run(without, ["knn@ood"], tmp_path)
    assert suite.model.seen == 0
    assert run(without, ["fold@id"], tmp_path).methods[0].tuned_on == "id"


def test_a_method_that_refuses_the_data_is_left_out_with_its_reason(suite, tmp_path, caplog):
    results = run(suite, ["knn:k=121", "msp"], tmp_path)
    assert {row.method for row in results.rows} == {"msp"}
    assert results.refused == {
        "knn:k=121": "k must be a whole number from 1 to 120, the number of samples in the bank, got 121."
    }
    assert "knn:k=121 is left out: k must be" in caplog.text
    with pytest.raises(ValueError, match="knn:k=121: k must be a whole number"):
        run(suite, ["knn:k=121"], tmp_path)


def test_tuning_on_known_data_never_looks_at_unknown_images(suite, tmp_path):
    results = run(suite, ["knn@ood", "knn@id"], tmp_path)
    on_ood, on_id = ([t for t in method.trials if t["value"] is not None] for method in results.methods)
    assert all(trial["stderr"] is None for trial in on_ood)
    assert all(trial["stderr"] is not None for trial in on_id)


def test_odin_is_tuned_on_validation_images(suite, tmp_path):
    (told,) = run(suite, ["odin:temperature=1@ood"], tmp_path).methods
    odin = ff.Odin(1, 0.0014, 1.0).fit(ff.logits_function(suite.model))
    known, unknown = (
        odin(torch.cat([b[0] if isinstance(b, tuple) else b for b in s])) for s in (suite.val, suite.ood_val)
    )
    assert told.trials[0]["value"] == pytest.approx(ff.auroc(known, unknown))


def test_scores_of_another_network_or_of_other_training_images_are_not_taken(suite, tmp_path):
    first = run(suite, ["odin", "mdsens"], tmp_path)
    other = replace(suite, train=suite.val, val=suite.train)
    second = run(other, ["mdsens"], tmp_path)
    assert not np.allclose(first.scores["mdsens/dark"], second.scores["mdsens/dark"])
    with torch.no_grad():
        suite.model.head.weight *= 2
    third = run(suite, ["odin"], tmp_path)
    assert not np.allclose(first.scores["odin/dark"], third.scores["odin/dark"])


@pytest.mark.parametrize("change", [{"ood_val": "noise"}, {"test": "val"}, {"test": "train"}])
def test_a_suite_that_judges_on_what_it_teaches_is_refused(change, suite):
    images = {"noise": suite.ood[0].images, "val": suite.val, "train": suite.train}
    copies = {
        key: ArrayImages(
            images[name].x, None if images[name].labels is None else images[name].labels.numpy(), images[name].transform
        )
        for key, name in change.items()
    }
    with pytest.raises(ValueError, match="hold the same images: methods would be judged on what they learn from"):
        replace(suite, **copies)


def test_an_error_that_nobody_foresaw_costs_one_method_only(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(ff.Mls, "score", lambda self, h: h[:, 99])
    results = run(suite, ["mls", "msp"], tmp_path)
    assert list(results.refused) == ["mls"]
    assert results.refused["mls"].startswith("IndexError: ")
    assert [method.method for method in results.methods] == ["msp"]
