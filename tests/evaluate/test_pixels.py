"""Benchmarks over pixels: exact metrics as oracle, what counts, interrupted runs, files and the page."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flatfold.core.metrics import aupr, auroc, fpr_at_tpr
from flatfold.data.images import FolderImages
from flatfold.data.masks import MaskedImages
from flatfold.data.sources import ImageSource
from flatfold.detectors import create
from flatfold.evaluate import pixels
from flatfold.evaluate.banks import Settings
from flatfold.evaluate.compare import compare_methods
from flatfold.evaluate.results import load_results
from flatfold.evaluate.runner import run, run_and_save
from flatfold.evaluate.suites.suite import OodSet, Suite
from flatfold.network.heads import DensePass
from flatfold.report.page import write_report
from tests.small_scenes import network, write_scenes

EXACT = {"auroc": auroc, "fpr95_ood_positive": fpr_at_tpr, "aupr_out": aupr}
METHODS = ["msp", "fold", "mds"]


class Marked(MaskedImages):
    """Scenes with an object; its pixels are OOD (7), one row of the image is ignored, all others are ID."""

    def mask(self, row, picture):
        mask = np.zeros((12, 16), np.int32)
        if row % 4:  # every fourth image has no OOD pixel
            mask[4:9, 4:11] = 7
        mask[0] = 255
        return mask


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    sources = {}
    for number, (name, count) in enumerate({"train": 16, "val": 9, "test": 11, "objects": 14, "others": 9}.items(), 1):
        unusual = range(count) if name in ("objects", "others") else ()
        transform = write_scenes(folder / name, count, seed=number, unusual=unusual)
        kind = Marked if unusual else MaskedImages
        sources[name] = kind(
            FolderImages(folder / name / "images", transform, 4, labels=False), folder / name / "masks"
        )
    ood = (
        OodSet("objects", "near", sources.pop("objects"), "Scenes with an object.", anomalies=(7,)),
        OodSet("others", "far", sources.pop("others"), "Others.", anomalies=(7,)),
    )
    return Suite("streets", "Scenes.", network(), ood=ood, seed=0, **sources)


@pytest.fixture(scope="module")
def finished(suite, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run_and_save(suite, METHODS, folder, Settings(replicates=60))


def exact_metrics(suite, name):
    """Score every pixel of a data set with a method that needs no fit, without histograms."""
    model, images = suite.model, suite.ood[0].images
    detector = create(name).fit(pixels.draw_positions(suite, Settings()).banks.fitted_on("nothing"), head_of(suite))
    known, unknown, single = [], [], []
    for x, masks in images:
        with torch.no_grad():
            h = torch.relu(model.body(x))
            grid = detector(h.movedim(1, -1).flatten(0, 2)).reshape(len(x), 1, *h.shape[2:])
            maps = torch.nn.functional.interpolate(grid, x.shape[2:], mode="bilinear")[:, 0]
        for scores, mask in zip(maps.numpy(), masks.numpy(), strict=True):
            known.append(scores[(mask != 255) & (mask != 7)])
            unknown.append(scores[mask == 7])
            if len(unknown[-1]):
                single.append([metric(known[-1], unknown[-1]) for metric in EXACT.values()])
    pooled = np.concatenate(known), np.concatenate(unknown)
    sizes = tuple(map(len, pooled))
    return {name: metric(*pooled) for name, metric in EXACT.items()}, np.mean(single, axis=0), sizes


def head_of(suite):
    return pixels.draw_positions(suite, Settings()).banks.head


@pytest.mark.parametrize("name", ["msp", "fold"])
def test_pixels_have_the_metrics_of_all_their_scores_and_ignored_ones_never_count(name, suite, finished):
    pooled, single, sizes = exact_metrics(suite, name)
    row = finished[1].cells[name, "objects"]
    for metric, value in pooled.items():
        assert getattr(row, metric) == pytest.approx(value, abs=2e-3 if metric != "auroc" else 1e-4), metric
    assert (row.n_id, row.n_ood) == sizes == (14 * 11 * 16 - 10 * 35, 10 * 35)
    assert list(row.over_images.values()) == pytest.approx(single, abs=5e-3)
    for metric in EXACT:
        low, high = row.certainty.intervals[metric]
        assert low <= getattr(row, metric) <= high
        assert 0 < high - low < 1


def test_results_survive_a_round_trip_with_the_best_and_the_worst_images_and_refuse_comparisons(finished):
    folder, results = finished
    again = load_results(folder)
    assert again.rows == results.rows
    assert [run.method for run in again.ranked] == [run.method for run in results.ranked]
    assert len(again.overlays) == 3 * 2 * 4
    for overlay in again.overlays:
        same = [it for it in again.overlays if (it.method, it.dataset) == (overlay.method, overlay.dataset)]
        assert overlay.best == (overlay.auroc >= sorted(it.auroc for it in same)[2])
        assert overlay.row % 4  # the others have no OOD pixel
    with pytest.raises(ValueError, match="pixels"):
        compare_methods(again, "msp", "fold")
    again.pixels["msp/others"][1, 0] += 1
    with pytest.raises(ValueError, match="number of pixels"):
        again.check()


@pytest.mark.slow  # figures
def test_the_page_shows_every_image_with_its_scores(finished):
    folder, results = finished
    text = write_report(folder).read_text()
    assert text.count("<figure><div><img") == len(results.overlays)
    assert results.rows[0].method in text


def test_an_interrupted_run_resumes_and_gives_the_same_results(suite, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, "PART", 4)
    passes, limit = [], 5
    original = pixels.score_maps

    def counted(detector, result, size):
        passes.append(size)
        if len(passes) > limit:
            raise KeyboardInterrupt
        return original(detector, result, size)

    monkeypatch.setattr(pixels, "score_maps", counted)
    with pytest.raises(KeyboardInterrupt):
        run(suite, METHODS, tmp_path, Settings(replicates=60))
    stored, limit = 3, 10**6  # the first part for three methods; the second one was not finished
    passes.clear()
    resumed = run(suite, METHODS, tmp_path, Settings(replicates=60))
    batches, overlays = 3 + 4 + 3, 2 * 3 * 4
    assert resumed.rows == finished[1].rows
    assert len(passes) == 3 * batches - stored + overlays


def test_a_method_that_fails_or_runs_the_network_is_left_out_with_its_reason(suite, tmp_path, monkeypatch):
    original = pixels.score_maps

    def broken(detector, result, size):
        if detector.made_by[0] == "fold":
            raise RuntimeError("no score today")
        return original(detector, result, size)

    monkeypatch.setattr(pixels, "score_maps", broken)
    results = run(suite, ["msp", "fold", "odin"], tmp_path, Settings(replicates=0))
    assert [run.method for run in results.methods] == ["msp"]
    assert "no score today" in results.failed["fold"]
    assert "pixel" in results.refused["odin"]


def test_suites_with_masks_in_part_or_without_an_ood_pixel_are_refused(suite, tmp_path):
    plain = suite.test.source
    assert isinstance(plain, ImageSource)
    with pytest.raises(ValueError, match="masks"):
        replace(suite, test=plain)
    nothing = tuple(replace(ood, anomalies=(3,)) for ood in suite.ood)
    with pytest.raises(ValueError, match="anomalies"):
        run(replace(suite, ood=nothing), ["msp"], tmp_path, Settings(replicates=0))
    pooled = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 12 * 16, 4))
    with pytest.raises(ValueError, match="segmentation"):
        run(replace(suite, model=pooled.eval()), ["msp"], tmp_path / "b", Settings(replicates=0))


def test_more_images_than_groups_give_the_same_metrics_with_intervals_from_groups(
    suite, finished, tmp_path, monkeypatch
):
    monkeypatch.setattr(pixels, "CLUSTERS", 5)
    results = run(suite, METHODS, tmp_path, Settings(replicates=60))
    for row, whole in zip(results.rows, finished[1].rows, strict=True):
        assert row.auroc == whole.auroc
        widths = [high - low for low, high in (it.certainty.intervals["auroc"] for it in (row, whole))]
        assert 0.3 < widths[0] / widths[1] < 4


def test_the_map_of_an_image_does_not_depend_on_the_other_images_of_its_batch():
    class Given(torch.nn.Module):
        def forward(self, h):
            return h[:, 0]

    h = torch.rand(2, 6, 8, 3)
    result = DensePass(h.flatten(0, -2), torch.zeros(96, 2))
    result.grid = (2, 6, 8)
    alone = pixels.score_maps(Given(), result, (12, 16))[1]
    result.features[5, 0] = torch.inf  # of the first image
    assert np.array_equal(pixels.score_maps(Given(), result, (12, 16))[1], alone)
