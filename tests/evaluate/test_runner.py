"""The runner on a toy suite: one pass over each data set, every method, results that do not depend on the road."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import flatfold as ff
from flatfold.detectors import METHODS
from flatfold.evaluate.results import ID
from flatfold.evaluate.runner import accuracy, extract_all, run
from flatfold.evaluate.suite import OodSet, Suite
from flatfold.models.images import ArrayImages

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")


class Bars(nn.Module):
    """Tells which quarter of an 8x8 image is bright, and counts the images it has seen."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 4, bias=False)
        self.seen = 0
        quarters = torch.eye(4).reshape(4, 1, 2, 2).repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        self.head.weight = nn.Parameter(quarters.flatten(1))

    def forward(self, x):
        self.seen += len(x)
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
    return Suite("bars", "Bars.", Bars(), known(40), known(60), known(80), ood, seed=3)


def test_every_method_gets_a_row_per_data_set(suite, tmp_path):
    names = ff.methods()
    results = run(suite, names, tmp_path)
    assert [(row.method, row.dataset) for row in results.rows] == [(n, d) for n in names for d in ("noise", "dark")]
    assert {row.n_id for row in results.rows} == {80}
    assert 0.9 < results.suite["accuracy"] < 1
    assert [ood["n"] for ood in results.suite["ood"]] == [30, 20]
    assert results.provenance["seed"] == 3


def test_each_image_goes_through_the_network_once(suite, tmp_path):
    everything = 40 + 60 + 80 + 30 + 20
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
    results = run(suite, ["autofold", "autofold-r", "msp"], tmp_path)
    assert [curve.method for curve in results.alpha_curves] == ["autofold", "autofold-r"]
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
    assert told.warnings == ["only 40 rows"]
    assert "counts-rows: only 40 rows" in caplog.text


@pytest.mark.usefixtures("_counts_rows")
def test_a_method_that_fits_on_training_data_gets_it(suite, tmp_path):
    (told,) = run(suite, ["counts-rows"], tmp_path).methods
    assert told.fits_on == "train"
    assert told.learnt == {"rows_": 40.0}


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
