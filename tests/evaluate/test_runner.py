"""The runner on a toy suite: one pass over each data set, every method, results that do not depend on the road."""

import csv
import mmap
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import flatfold as ff
from flatfold.core.errors import UnreadableImage
from flatfold.detectors import METHODS
from flatfold.evaluate.banks import accuracy, accuracy_fits, extract_all
from flatfold.evaluate.memory import RESET, peak_memory
from flatfold.evaluate.results import ID
from flatfold.evaluate.rows import METRICS
from flatfold.evaluate.runner import forget, run
from flatfold.evaluate.settings import Settings
from flatfold.evaluate.suites.suite import OodSet, Suite
from flatfold.models.identity import weights_hash
from flatfold.models.images import ArrayImages, FolderImages

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
    assert suite.model.seen == everything + 5 * 2  # two of each data set find the head
    run(suite, ["ebo"], tmp_path)  # the features are there
    assert suite.model.seen == everything + 5 * 4


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
    # Two batches of the known images were there already; two images see that the network is the same: once for a set
    # that was begun, and later for all three, which were finished.
    assert in_all - timing == 80 + 30 + 20 - 2 * 16 + 2 - 3 * 2


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


def test_a_method_that_refuses_the_data_is_left_out_with_its_reason(suite, tmp_path):
    results = run(suite, ["knn:k=121", "msp"], tmp_path)
    assert {row.method for row in results.rows} == {"msp"}
    assert results.refused == {
        "knn:k=121": "k must be a whole number from 1 to 120, the number of samples in the bank, got 121."
    }
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


# Certainty, memory, worst images, gaps, provenance


def test_every_figure_has_an_interval_around_it(suite, tmp_path):
    results = run(suite, ["msp", "fold", "knn"], tmp_path)
    for cell in [*results.rows, *results.averages]:
        for metric in METRICS:
            low, high = cell.certainty.intervals[metric]
            assert 0 <= low <= getattr(cell, metric) <= high <= 1
    for column in results.columns:
        assert any(results.cells[run.method, column].certainty.best for run in results.methods)


def test_averages_say_who_averages_so(suite, tmp_path):
    means = run(suite, ["msp"], tmp_path).averages
    assert {mean.over: mean.as_in for mean in means} == {"near": "OpenOOD", "far": "OpenOOD", "all": "FOLD paper"}


def test_without_a_bootstrap_only_the_auroc_has_an_interval(suite, tmp_path):
    (row, _) = run(suite, ["msp"], tmp_path, Settings(replicates=0)).rows
    assert list(row.certainty.intervals) == ["auroc"]


def test_two_runs_write_the_same_table_except_for_what_they_cost(suite, tmp_path):
    costs = {"fit_seconds", "microseconds_per_sample", "peak_megabytes"}
    tables = []
    for name in ("a", "b"):
        run(suite, ["msp", "autofold", "odin", "knn@ood"], tmp_path / name).save(tmp_path / name)
        with (tmp_path / name / "results.csv").open() as file:
            tables.append([{k: v for k, v in line.items() if k not in costs} for line in csv.DictReader(file)])
    assert tables[0] == tables[1]
    assert (tmp_path / "a" / "averages.csv").read_bytes() == (tmp_path / "b" / "averages.csv").read_bytes()
    scores = [(tmp_path / name / "scores.safetensors").read_bytes() for name in "ab"]
    assert scores[0] == scores[1]


def test_the_worst_images_are_those_with_the_most_misleading_scores(suite, tmp_path):
    results = run(suite, ["msp"], tmp_path)
    for dataset, source, sign in (("id", suite.test, -1), ("noise", suite.ood[0].images, 1)):
        scores = results.scores[f"msp/{dataset}"]
        mine = [wrong for wrong in results.wrong if wrong.dataset == dataset]
        assert [wrong.row for wrong in mine] == np.argsort(sign * scores, kind="stable")[:8].tolist()
        worst = mine[0]
        assert worst.score == scores[worst.row]
        assert worst.share == (results.scores["msp/id"] < worst.score).mean()
        assert np.array_equal(results.thumbnails[f"{dataset}/{worst.row}"][..., 1], source.x[worst.row])
        x = torch.from_numpy(source.x[worst.row]).float()[None, None] / 255
        assert worst.predicted == suite.model(x).argmax().item()
    assert results.wrong[0].label == suite.test.labels[results.wrong[0].row]
    assert results.wrong[-1].label is None


def test_norms_are_those_of_the_features(suite, tmp_path):
    results = run(suite, ["msp"], tmp_path)
    banks = extract_all(suite, tmp_path / "banks")
    for name, bank in banks.judged.items():
        np.testing.assert_allclose(results.norms[name], bank.features.norm(dim=1), rtol=1e-6)


def test_an_image_that_cannot_be_read_is_counted_and_named_and_the_rest_is_judged(suite, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for row, pixels in enumerate(suite.ood[0].images.x):
        Image.fromarray(pixels).save(folder / f"{row:02d}.png")
    broken = folder / "04.png"
    broken.write_bytes(broken.read_bytes()[:50])
    images = FolderImages(folder, suite.test.transform, batch_size=16)
    gappy = replace(suite, ood=(replace(suite.ood[0], images=images), suite.ood[1]))
    results = run(gappy, ["msp", "odin"], tmp_path / "out", Settings(unreadable=0.1, workers=2))
    whole = run(suite, ["msp", "odin"], tmp_path / "whole")
    for method in ("msp", "odin"):
        np.testing.assert_array_equal(results.scores[f"{method}/noise"], np.delete(whole.scores[f"{method}/noise"], 4))
    assert list(results.unreadable) == ["noise"]
    assert "04.png could not be read" in results.unreadable["noise"]["4"]
    assert results.rows[0].n_ood == 29
    assert "1 images of noise could not be read" in results.suite["deviations"]
    assert 4 not in {wrong.row for wrong in results.wrong if wrong.dataset == "noise"}
    for wrong in results.wrong:
        if wrong.dataset == "noise":
            assert wrong.name.endswith(f"{wrong.row:02d}.png")
    with pytest.raises(UnreadableImage, match=r"^noise: .*04\.png could not be read"):
        run(gappy, ["msp"], tmp_path / "strict", Settings(unreadable=0))


def test_without_training_data_the_methods_that_need_it_are_left_out(suite, tmp_path):
    results = run(replace(suite, train=None), ["msp", "knn", "mdsens", "odin"], tmp_path)
    assert [run.method for run in results.methods] == ["msp", "odin"]
    assert results.refused.keys() == {"knn", "mdsens"}
    assert "learns from training data, and this suite has none" in results.refused["knn"]
    assert results.suite["n_train"] == 0


def test_where_the_numbers_come_from_is_told(suite, tmp_path):
    told = run(suite, ["msp"], tmp_path, Settings(command="flatfold bench bars"))
    assert told.provenance["command"] == "flatfold bench bars"
    assert told.provenance["weights, sha256"] == weights_hash(suite.model)
    assert told.suite["fingerprints"] == {name: source.fingerprint for name, source in suite.sources.items()}
    assert set(told.suite["fingerprints"]) == {"train", "val", "test", "ood_val", "noise", "dark"}


@pytest.mark.parametrize(("expected", "fits"), [(97.0, True), (60.0, False), (None, True)])
def test_a_network_that_is_not_as_good_as_it_should_be_is_told(expected, fits, suite, tmp_path):
    results = run(replace(suite, accuracy=expected), ["msp"], tmp_path)
    told = [sentence for sentence in results.suite["deviations"] if "were expected" in sentence]
    assert bool(told) != fits


@pytest.mark.parametrize(("found", "n", "fits"), [(0.95, 9000, True), (0.93, 9000, False), (0.93, 100, True)])
def test_an_accuracy_may_vary_with_the_number_of_images(found, n, fits):
    assert accuracy_fits(found, 95.06, n) is fits


def test_memory_is_measured_where_the_system_tells():
    if not RESET.exists():
        pytest.skip("this system does not tell the peak of a process")
    with peak_memory() as peak, mmap.mmap(-1, 50_000_000) as block:  # fresh; numpy may get what was freed before
        block.write(b"x" * len(block))
    assert 45 < peak.megabytes < 200


def test_where_the_system_does_not_tell_there_is_no_figure(monkeypatch, tmp_path):
    monkeypatch.setattr("flatfold.evaluate.memory.RESET", tmp_path / "no such" / "file")
    with peak_memory() as peak:
        pass
    assert peak.megabytes is None


def test_forgetting_removes_features_and_scores_only(suite, tmp_path):
    run(suite, ["msp", "odin"], tmp_path).save(tmp_path)
    own = tmp_path / "banks" / "own"
    ff.save_bank(ff.FeatureBank(torch.eye(3)), own)  # somebody else's, in the same folder
    (tmp_path / "scores" / "notes.txt").write_text("mine")
    forget(tmp_path)
    assert [path.name for path in (tmp_path / "banks").iterdir()] == ["own"]
    assert [path.name for path in (tmp_path / "scores").iterdir()] == ["notes.txt"]
    assert (tmp_path / "results.json").exists()
    forget(tmp_path)
    assert len(ff.load_bank(own)) == 3


def test_a_score_that_is_no_number_costs_one_method_and_is_told_with_its_data_set(suite, tmp_path, monkeypatch):
    scores = ff.Ebo.forward
    monkeypatch.setattr(ff.Ebo, "forward", lambda self, h: scores(self, h) * (float("nan") if len(h) == 20 else 1))
    results = run(suite, ["msp", "ebo"], tmp_path)
    assert [run.method for run in results.methods] == ["msp"]
    assert results.refused["ebo"].startswith("scores of dark must be finite, but row 0 has a NaN")


@pytest.mark.parametrize("split", ["val", "test", "train"])
def test_labels_beyond_the_classes_of_the_network_are_told_with_their_data_set(split, suite, tmp_path):
    source = getattr(suite, split)
    shifted = ArrayImages(source.x, source.labels.numpy() + 2, source.transform, batch_size=16)
    with pytest.raises(ValueError, match=rf"^{split}: labels go up to 5 but the head has 4 classes"):
        run(replace(suite, **{split: shifted}), ["msp"], tmp_path)


def test_images_that_are_left_out_are_logged_with_their_data_set(suite, tmp_path, caplog):
    folder = tmp_path / "images"
    folder.mkdir()
    for row, pixels in enumerate(suite.ood[0].images.x):
        Image.fromarray(pixels).save(folder / f"{row:02d}.png")
    for name in ("04.png", "07.png"):
        (folder / name).write_bytes(b"no image")
    images = FolderImages(folder, suite.test.transform, batch_size=16)
    gappy = replace(suite, ood=(replace(suite.ood[0], images=images), suite.ood[1]))
    run(gappy, ["msp"], tmp_path / "out", Settings(unreadable=0.1))
    (line,) = [message for message in caplog.messages if message.startswith("noise: 2 of 30 images cannot be read")]
    assert "04.png" in line
    assert "07.png" in line
