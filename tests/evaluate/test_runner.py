"""The runner on a toy suite: one pass over each data set, every method, the same results after an interruption."""

import logging
import mmap
import re
import warnings
from dataclasses import replace
from time import perf_counter, sleep

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import flatfold as ff
from flatfold import Loading
from flatfold.data.images import ArrayImages
from flatfold.detectors import METHODS
from flatfold.evaluate import runner
from flatfold.evaluate.banks import Settings, accuracy, accuracy_fits, extract_all
from flatfold.evaluate.methods import RESET, peak_memory
from flatfold.evaluate.results import ID, METRICS
from flatfold.evaluate.runner import forget, run, tabulate
from flatfold.evaluate.suites.suite import OodSet, Suite
from flatfold.network.fingerprint import weights_hash

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

    def images(x, labels=None):
        return ArrayImages(x, labels, ff.Transform(mode="L"), batch_size=16)

    pixels = rng.integers(0, 256, (30, 8, 8), dtype=np.uint8)
    pixels[:10] = quarter(rng, np.arange(10) % 4)  # some look like known ones, so that no method is perfect
    dark = images(rng.integers(0, 9, (20, 8, 8), dtype=np.uint8))
    ood = (OodSet("noise", "far", images(pixels), "Noise."), OodSet("dark", "near", dark, "Darkness."))
    grey = images(rng.integers(90, 130, (30, 8, 8), dtype=np.uint8))
    known = [images(quarter(rng, labels), labels) for labels in (np.arange(n) % 4 for n in (120, 60, 80))]
    return Suite("bars", "Bars.", Bars().eval(), *known, ood, seed=3, ood_val=grey)


FEW = ["msp", "fold", "knn", "react", "autofold", "vim", "gen", "odin"]


@pytest.mark.parametrize("names", [FEW, pytest.param(ff.methods(), marks=pytest.mark.slow)], ids=["few", "all"])
def test_every_method_gets_a_row_per_data_set_with_intervals(names, suite, tmp_path):
    results = run(suite, [*names, names[0]], tmp_path, Settings(command="flatfold bench bars"))  # one is named twice
    assert [(row.method, row.dataset) for row in results.rows] == [(n, d) for n in names for d in ("noise", "dark")]
    assert {row.n_id for row in results.rows} == {80}
    assert 0.9 < results.suite["accuracy"] < 1
    assert [ood["n"] for ood in results.suite["ood"]] == [30, 20]
    for cell in [*results.rows, *results.averages]:
        for metric in METRICS:
            low, high = cell.certainty.intervals[metric]
            assert 0 <= low <= getattr(cell, metric) <= high <= 1, (cell, metric)
    for column in results.columns:
        assert any(results.cells[run.method, column].certainty.best for run in results.methods)
    as_in = {"near": "OpenOOD", "far": "OpenOOD", "all": "FOLD paper"}
    assert {mean.over: mean.as_in for mean in results.averages} == as_in
    assert (results.provenance["seed"], results.provenance["command"]) == (3, "flatfold bench bars")
    assert results.provenance["weights, sha256"] == weights_hash(suite.model)
    assert results.suite["fingerprints"] == {name: source.fingerprint for name, source in suite.sources.items()}
    assert set(results.suite["fingerprints"]) == {"train", "val", "test", "ood_val", "noise", "dark"}


def test_each_image_goes_through_the_network_once_and_its_weights_are_hashed_once(suite, tmp_path, monkeypatch):
    hashed = []
    monkeypatch.setattr(
        "flatfold.network.fingerprint._sha256", lambda tensors: hashed.append(tensors) or f"{len(hashed):064}"
    )
    everything = 120 + 60 + 80 + 30 + 20  # and none of the 30 that only @ood would need
    first = run(suite, ["msp", "mls", "autofold", "react"], tmp_path)
    assert len(hashed) == 1
    # Two of each data set find the head, four check the layout in two ways, 2 + 16 are timed to estimate costs.
    assert suite.model.seen == everything + 5 * 2 + 8 + 18
    run(suite, ["ebo"], tmp_path)  # the features are there
    assert suite.model.seen == everything + 5 * 4 + 8 + 18 + 2
    with torch.no_grad():
        suite.model.head.weight *= 2  # another network gets features of its own
    assert np.allclose(run(suite, ["mls"], tmp_path).scores["mls/noise"], 2 * first.scores["mls/noise"])


def test_the_seconds_of_a_run_are_those_of_all_its_steps(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "tabulate", lambda *given: sleep(0.5) or tabulate(*given))
    start = perf_counter()
    results = run(suite, ["msp"], tmp_path, Settings(replicates=0))
    assert results.provenance["seconds"] == pytest.approx(perf_counter() - start, abs=0.3)


def test_rows_norms_and_accuracy_are_those_of_the_public_functions(suite, tmp_path):
    suite.test.labels[:20] = 3
    results = run(suite, ["fold"], tmp_path, Settings(replicates=0))
    banks = extract_all(suite, tmp_path / "elsewhere")
    fold = ff.Fold().fit(banks.val, banks.head)
    known, noise = fold(banks.test.features), fold(banks.ood["noise"].features)
    row = results.rows[0]
    assert row.auroc == ff.auroc(known, noise)
    assert row.fpr95_id_positive == ff.fpr_at_tpr(known, noise, positive="id")
    assert row.aupr_in == ff.aupr(known, noise, positive="id")
    assert list(row.certainty.intervals) == ["auroc"]  # without a bootstrap
    assert np.array_equal(results.scores[f"fold/{ID}"], known.numpy())
    for name, bank in banks.test_sets.items():
        np.testing.assert_allclose(results.norms[name], bank.features.norm(dim=1), rtol=1e-6)
    right = banks.head(banks.test.features).argmax(-1) == suite.test.labels
    assert results.suite["accuracy"] == float(right.double().mean()) < 0.9
    with pytest.raises(ValueError, match="labels"):
        accuracy(ff.FeatureBank(torch.eye(4)), banks.head)
    for expected, deviations in ((100 * results.suite["accuracy"], 0), (99.0, 1)):
        again = run(replace(suite, accuracy=expected), ["msp"], tmp_path, Settings(replicates=0))
        assert len(again.suite["deviations"]) == deviations
    for found, n, fits in ((0.95, 9000, True), (0.93, 9000, False), (0.93, 100, True)):
        assert accuracy_fits(found, 95.06, n) is fits, (found, n)


def test_the_curve_of_autofold_stands_beside_the_true_auroc(suite, tmp_path):
    results = run(suite, ["autofold", "autofold-r:percentile=90", "autofold-r", "msp"], tmp_path)
    assert [curve.method for curve in results.alpha_curves] == ["autofold", "autofold-r:percentile=90", "autofold-r"]
    curve = results.alpha_curves[0]
    banks = extract_all(suite, tmp_path / "banks")
    at = curve.grid.index(0.3)
    for detector, shown in ((ff.Fold(0.3), curve), (ff.create("fold-r", alpha=0.3), results.alpha_curves[1])):
        fold = detector.fit(banks.val, banks.head)
        truth = ff.auroc(fold(banks.test.features), fold(banks.ood["dark"].features))
        assert shown.auroc["dark"][at] == pytest.approx(truth)
    assert curve.auroc["all"] == pytest.approx(np.mean([curve.auroc["noise"], curve.auroc["dark"]], axis=0))
    assert np.ptp([curve.auroc["noise"], curve.auroc["dark"]], axis=0).max() > 0.01  # or any average would do
    assert results.methods[0].learnt["alpha_"] == curve.chosen
    assert 0 < max(curve.stderr) < 0.2
    assert results.alpha_curves[2].chosen == results.methods[2].learnt["alpha_"]
    assert results.methods[2].learnt["percentile_"] in (85, 90, 95, 99)
    fitted = [(method.fits_on, method.tuned_on) for method in results.methods]
    assert fitted == [("val", "id")] * 3 + [("nothing", "nothing")]


def test_a_method_of_the_user_gets_training_data_and_its_warnings_are_kept(suite, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("flatfold.detectors.registry.METHODS", METHODS.copy())

    @ff.register("counts-rows", fits_on="train")
    class CountsRows(ff.Detector):
        def learn(self, bank, head):
            self.register_buffer("rows_", torch.tensor(float(len(bank))))
            warnings.warn(f"only {len(bank)} rows", stacklevel=1)

        def score(self, h):
            return h.sum(-1)

    (method,) = run(suite, ["counts-rows"], tmp_path).methods
    assert (method.fits_on, method.learnt, method.warnings) == ("train", {"rows_": 120.0}, ["only 120 rows"])
    assert "counts-rows: only 120 rows" in caplog.text


def test_methods_that_see_images_are_judged_beside_the_others(suite, tmp_path):
    results = run(suite, ["odin", "mdsens", "odin:temperature=1"], tmp_path)
    assert results.methods[0].hyper == {"temperature": 1000, "epsilon": 0.0014, "std": 1.0}  # nothing was normalised
    odin = ff.detectors.Odin(std=1.0).fit(ff.logits_function(suite.model))
    assert np.allclose(results.scores["odin/dark"], odin(torch.cat(list(suite.ood[1].images))), rtol=1e-5)
    stem = ff.layers_of(suite.model, suite.train.read(range(2)), "stem")
    mdsens = ff.detectors.MdsEns().fit(stem, list(suite.train))
    assert np.allclose(results.scores["mdsens/noise"], mdsens(torch.cat(list(suite.ood[0].images))), rtol=1e-3)
    assert all(run.microseconds_per_sample > 0 for run in results.methods)
    # scores are kept, but not taken for other settings, other training images or another network
    again = run(suite, ["odin"], tmp_path)
    assert np.array_equal(results.scores["odin/dark"], again.scores["odin/dark"])
    assert not np.array_equal(results.scores["odin/dark"], results.scores["odin:temperature=1/dark"])
    other = run(replace(suite, train=suite.val, val=suite.train), ["mdsens"], tmp_path)
    assert not np.allclose(results.scores["mdsens/dark"], other.scores["mdsens/dark"])
    with torch.no_grad():
        suite.model.head.weight *= 2
    assert not np.allclose(results.scores["odin/dark"], run(suite, ["odin"], tmp_path).scores["odin/dark"])


def test_methods_that_need_features_and_gradients_learn_from_their_split(suite, tmp_path):
    names = ["adascale-a", "adascale-l", "nac", "nac:layers=['blur']", "nac:layers=['none']"]
    unlabelled = [(x, None) for x in suite.ood_val]
    results = run(replace(suite, val=suite.ood_val), names, tmp_path)
    assert list(results.refused) == names[-1:]
    x = torch.cat(list(suite.ood[0].images))
    for name in names[:-1]:
        detector = ff.create(name)
        network = ff.layers_and_head(suite.model, suite.train.read(range(2)), detector.layers)
        detector.fit(network, unlabelled if name.startswith("adascale") else suite.train)
        assert np.allclose(results.scores[f"{name}/noise"], detector(x), rtol=1e-4), name
    other = run(suite, ["adascale-a"], tmp_path)  # kept scores are not taken for other images
    assert not np.allclose(results.scores[f"adascale-a/{ID}"], other.scores[f"adascale-a/{ID}"])


def test_scores_of_images_are_kept_and_an_interrupted_run_goes_on(suite, tmp_path, monkeypatch):
    monkeypatch.setattr("flatfold.passes.inputs.SHARD_ROWS", 16)
    whole = run(suite, ["odin"], tmp_path / "whole")
    original, calls = ff.detectors.Odin.score, []

    def dies_in_the_third_batch(self, x):
        calls.append(len(x))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, x)

    monkeypatch.setattr(ff.detectors.Odin, "score", dies_in_the_third_batch)
    with pytest.raises(KeyboardInterrupt):
        run(suite, ["odin"], tmp_path / "cut")
    calls[:] = [0, 0, 0]
    resumed = run(suite, ["odin"], tmp_path / "cut")
    assert all(np.array_equal(resumed.scores[key], whole.scores[key]) for key in whole.scores)
    in_all = sum(calls)
    calls[:] = [0, 0, 0]
    run(suite, ["odin"], tmp_path / "cut")
    timing = sum(calls)  # of one batch, again and again
    # Two batches of the ID images were there already; two images see that the network is the same: once for a set
    # that was begun, and later for all three, which were finished.
    assert in_all - timing == 80 + 30 + 20 - 2 * 16 + 2 - 3 * 2


def test_a_tuned_method_says_in_every_row_what_it_was_tuned_on(suite, tmp_path):
    results = run(suite, ["knn@ood", "knn@id", "odin:epsilon=0.0014@ood", "knn"], tmp_path, Settings(replicates=0))
    tuned_on = {"knn@ood": "ood", "knn@id": "id", "odin:epsilon=0.0014@ood": "ood", "knn": "nothing"}
    for rows in (results.rows, results.averages, results.methods):
        assert {row.method: row.tuned_on for row in rows} == tuned_on
    on_ood, on_id = results.methods[:2]
    assert on_ood.hyper["k"] in (50, 100)
    assert [trial["hyper"]["k"] for trial in on_ood.trials if trial["value"] is not None] == [50, 100]
    assert "120" in on_ood.trials[2]["refused"]
    for method, without in ((on_ood, True), (on_id, False)):  # on ID data OOD images are never looked at
        assert all((trial["stderr"] is None) == without for trial in method.trials if trial["value"] is not None)
    results.save(tmp_path)  # trials and all


def test_odin_knows_how_images_were_normalised_and_is_tuned_on_validation_images(suite, tmp_path):
    normalised = ArrayImages(suite.val.x, suite.val.labels.numpy(), ff.Transform(mode="L", mean=(0.5,), std=(0.25,)))
    for images, name, std in ((normalised, "odin", (0.25,)), (suite.val, "odin:std=0.5", 0.5)):
        assert run(replace(suite, val=images), [name], tmp_path, Settings(replicates=0)).methods[0].hyper["std"] == std
    (method,) = run(suite, ["odin:temperature=1@ood"], tmp_path).methods
    odin = ff.detectors.Odin(1, 0.0014, 1.0).fit(ff.logits_function(suite.model))
    known, unknown = (
        odin(torch.cat([b[0] if isinstance(b, tuple) else b for b in s])) for s in (suite.val, suite.ood_val)
    )
    assert method.trials[0]["value"] == pytest.approx(ff.auroc(known, unknown))
    best = max(method.trials, key=lambda trial: trial["value"])
    assert {key: method.hyper[key] for key in best["hyper"]} == best["hyper"]


def test_methods_that_cannot_be_run_are_refused_before_the_network_runs(suite, tmp_path):
    for names, keyword in ((["autofoold"], "autofold"), ([], "none"), (["knn@ood"], "@id")):
        with pytest.raises(ValueError, match=keyword):
            pytest.fail(f"{names}: {run(replace(suite, ood_val=None), names, tmp_path)}")
    assert suite.model.seen == 0
    assert run(replace(suite, ood_val=None), ["fold@id"], tmp_path).methods[0].tuned_on == "id"


def test_a_method_that_refuses_or_fails_costs_that_method_only_and_a_failure_is_visible(
    suite, tmp_path, monkeypatch, caplog
):
    scores = ff.detectors.Ebo.forward
    monkeypatch.setattr(ff.detectors.Mls, "score", lambda self, h: h[:, 99])
    monkeypatch.setattr(ff.detectors.Gen, "score", lambda self, h: self.logits(h))
    monkeypatch.setattr(
        ff.detectors.Ebo, "forward", lambda self, h: scores(self, h) * (float("nan") if len(h) == 20 else 1)
    )
    results = run(suite, ["knn:k=121", "mls", "ebo", "gen", "msp"], tmp_path)
    assert {row.method for row in results.rows} == {run.method for run in results.methods} == {"msp"}
    assert results.refused.keys() == {"knn:k=121"}
    assert "120" in results.refused["knn:k=121"]
    assert {name: words.partition(":")[0] for name, words in results.failed.items()} == {
        "mls": "IndexError", "ebo": "ValueError", "gen": "ValueError",
    }  # fmt: skip
    for failure in (results.failed["mls"], results.failed["gen"]):  # the line of the user's code
        assert re.search(r"test_runner\.py, line \d+", failure)
    assert "h[:, 99]" in results.failed["mls"]
    assert "gen" in results.failed["gen"]
    assert "(80, 4)" in results.failed["gen"]
    assert "dark" in results.failed["ebo"]
    ((kind, _, trace),) = (record.exc_info for record in caplog.records if "mls failed" in record.message)
    assert (kind, trace.tb_frame.f_code.co_filename) == (IndexError, __file__)  # from the user's code on
    assert "knn:k=121" not in caplog.text
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "flatfold"):
        run(suite, ["mls", "msp"], tmp_path, Settings(replicates=0))
    ((_, _, trace),) = (record.exc_info for record in caplog.records if "mls failed" in record.message)
    assert trace.tb_frame.f_code.co_filename.endswith("runner.py")  # the whole stack
    for name in ("knn:k=121", "mls"):
        with pytest.raises(ValueError, match=name):
            run(suite, [name], tmp_path)
    results = run(replace(suite, train=None), ["msp", "knn", "mdsens", "odin"], tmp_path, Settings(replicates=0))
    assert [run.method for run in results.methods] == ["msp", "odin"]  # the others need training data
    assert (results.refused.keys(), results.suite["n_train"]) == ({"knn", "mdsens"}, 0)


def test_the_warm_up_hides_no_error(suite, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(ff.Fold, "score", lambda self, h: h[:, 99])
    results = run(suite, ["msp"], tmp_path, Settings(replicates=0))
    assert (results.failed, [run.method for run in results.methods]) == ({}, ["msp"])
    assert [record.exc_info[0] for record in caplog.records if "fold failed" in record.message] == [IndexError]


def test_names_images_and_labels_that_would_spoil_the_results_are_refused(suite, tmp_path):
    for name in ("val", "id", "all", "noise", "../evil", "", ".hidden", "a/b", "a" * 65, 7):
        with pytest.raises(ValueError, match="cannot be called"):
            pytest.fail(str(replace(suite, ood=(*suite.ood, OodSet(name, "far", suite.ood[0].images, "Another.")))))
    for key, images in (("ood_val", suite.ood[0].images), ("test", suite.val), ("test", suite.train)):
        labels = None if images.labels is None else images.labels.numpy()
        with pytest.raises(ValueError, match="same images"):
            pytest.fail(str(replace(suite, **{key: ArrayImages(images.x, labels, images.transform)})))
    for split in ("val", "test", "train"):
        source = getattr(suite, split)
        shifted = ArrayImages(source.x, source.labels.numpy() + 2, source.transform, batch_size=16)
        with pytest.raises(ValueError, match=f"^{split}: .*5"):
            run(replace(suite, **{split: shifted}), ["msp"], tmp_path)


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


def test_images_that_cannot_be_read_are_counted_named_and_logged_and_the_rest_is_judged(suite, tmp_path, caplog):
    folder = tmp_path / "images"
    folder.mkdir()
    for row, pixels in enumerate(suite.ood[0].images.x):
        Image.fromarray(pixels).save(folder / f"{row:02d}.png")
    for name in ("04.png", "07.png"):
        (folder / name).write_bytes((folder / name).read_bytes()[:50])
    images = ff.FolderImages(folder, suite.test.transform, batch_size=16)
    broken = replace(suite, ood=(replace(suite.ood[0], images=images), suite.ood[1]))
    results = run(
        broken, ["msp", "odin"], tmp_path / "out", Settings(Loading(workers=2, max_unreadable=0.1), replicates=0)
    )
    whole = run(suite, ["msp", "odin"], tmp_path / "whole", Settings(replicates=0))
    for method in ("msp", "odin"):
        expected = np.delete(whole.scores[f"{method}/noise"], [4, 7])
        np.testing.assert_allclose(results.scores[f"{method}/noise"], expected, rtol=1e-6)  # of other batches
    assert {name: list(rows) for name, rows in results.unreadable.items()} == {"noise": ["4", "7"]}
    assert "04.png" in results.unreadable["noise"]["4"]
    assert results.rows[0].n_ood == 28
    assert any("2 images of noise" in sentence for sentence in results.suite["deviations"])
    shown = [wrong for wrong in results.wrong if wrong.dataset == "noise"]
    of_whole = [whole.scores[f"{wrong.method}/noise"][wrong.row] for wrong in shown]
    assert [wrong.score for wrong in shown] == pytest.approx(of_whole, rel=1e-6)
    assert all(wrong.row not in (4, 7) and wrong.name.endswith(f"{wrong.row:02d}.png") for wrong in shown)
    assert [message for message in caplog.messages if "noise: 2 of 30" in message and "04.png" in message]
    with pytest.raises(ff.UnreadableImageError, match=r"^noise: .*04\.png"):
        run(broken, ["msp"], tmp_path / "strict", Settings(Loading()))


def test_memory_is_measured_where_the_system_tells(monkeypatch, tmp_path):
    for path, measured in ((RESET, RESET.exists()), (tmp_path / "no such" / "file", False)):
        monkeypatch.setattr("flatfold.evaluate.methods.RESET", path)
        with peak_memory() as peak, mmap.mmap(-1, 50_000_000) as block:  # fresh; numpy may get what was freed before
            block.write(b"x" * len(block))
        assert 45 < peak.megabytes < 200 if measured else peak.megabytes is None


@pytest.mark.skipif(not RESET.exists(), reason="the system does not report peak memory")
def test_pages_of_mapped_files_do_not_count_as_memory(tmp_path):
    (tmp_path / "file").write_bytes(bytes(50_000_000))
    with peak_memory() as peak, (tmp_path / "file").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert not any(mapped[::4096])
    mapped.close()
    assert peak.megabytes < 20


def test_forgetting_removes_features_and_scores_only(suite, tmp_path):
    run(suite, ["msp", "odin"], tmp_path).save(tmp_path)
    own = tmp_path / "banks" / "own"
    ff.save_bank(ff.FeatureBank(torch.eye(3)), own)  # somebody else's, in the same folder
    (tmp_path / "scores" / "notes.txt").write_text("mine")
    for _ in range(2):
        forget(tmp_path)
        assert [path.name for path in (tmp_path / "banks").iterdir()] == ["own"]
        assert [path.name for path in (tmp_path / "scores").iterdir()] == ["notes.txt"]
    assert (tmp_path / "results.json").exists()
    assert len(ff.load_bank(own)) == 3
