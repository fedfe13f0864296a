"""A whole curvature study of a small network against dense Hessians in float64, and how it resumes."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.func import functional_call, hessian, vmap

import flatfold as ff
from flatfold import Loading
from flatfold.data.feature_files import FeatureRows
from flatfold.data.images import ArrayImages, FolderImages
from flatfold.evaluate import study as parameters
from flatfold.evaluate.banks import Settings, extract_all
from flatfold.evaluate.study import DataSet, Plan, detections, forget_study, run_study, studied_suite
from flatfold.evaluate.study_results import STORED, load_study
from flatfold.evaluate.suites.suite import OodSet, Suite
from tests.toy_study import refusal

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
SMALL = {"samples": 20, "probes": 2, "steps": 3}
COUNTED = ("param_lambda_max", "param_trace", "param_spectrum")


def network(activation=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), activation(), nn.Linear(5, 3)).eval()


def images(n, labelled=False, seed=0, batch_size=64):
    x = np.random.default_rng([seed, n]).integers(0, 256, (n, 4, 4), dtype=np.uint8)
    return ArrayImages(x, np.arange(n) % 3 if labelled else None, ff.Transform(mode="L"), batch_size=batch_size)


def make_suite(batch_size=64):
    sizes = ((60, True, 1), (33, True, 2), (25, False, 4), (12, False, 5), (9, False, 6))
    val, test, noise, dark, snow = (images(*size, batch_size) for size in sizes)
    ood = OodSet("noise", "far", noise, ""), OodSet("dark", "near", dark, ""), OodSet("snow", "far", snow, "")
    return Suite("toy", "Toys.", network(), None, val, test, ood, seed=7)


@pytest.fixture
def suite():
    return make_suite()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study of all images in several batches, and the features it was made of; read-only."""
    folder, suite = tmp_path_factory.mktemp("whole"), make_suite(batch_size=8)
    return run_study(suite, folder, alpha=0.3, samples=50), extract_all(suite, folder / "banks")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small study and the folder it is saved in; read-only."""
    folder = tmp_path_factory.mktemp("small")
    study = run_study(make_suite(), folder, **SMALL)
    study.save(folder)
    return study, folder


@pytest.fixture
def finished(small, tmp_path):
    """A folder with all files of the small study."""
    study, folder = small
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return study


class Counted(list):
    """The names of the functions over parameters in the order of their calls; ``fails_at`` interrupts one call."""

    fails_at = None

    def call(self, name, function, *args, **kwargs):
        self.append(name)
        if len(self) == self.fails_at:
            raise KeyboardInterrupt
        return function(*args, **kwargs)


@pytest.fixture
def counted(monkeypatch):
    calls = Counted()
    for name in COUNTED:
        monkeypatch.setattr(parameters, name, partial(calls.call, name, getattr(parameters, name)))
    return calls


def inputs(source):
    return torch.cat([batch if isinstance(batch, torch.Tensor) else batch[0] for batch in source]).double()


def dense_hessians(model, x, loss="energy"):
    """Slow and obvious: the (P, P) Hessian of the loss at every input."""
    model = network(type(model[2])).double().requires_grad_(False)
    names, sizes = zip(*((name, value.shape) for name, value in model.named_parameters()), strict=True)
    flat = torch.cat([value.flatten() for value in model.parameters()])

    def one(vector, image):
        parts = [part.view(size) for part, size in zip(vector.split([s.numel() for s in sizes]), sizes, strict=True)]
        z = functional_call(model, dict(zip(names, parts, strict=True)), image[None])[0]
        return torch.logsumexp(z, 0) - (z.max() if loss == "ce_pred" else 0)

    return vmap(hessian(one), in_dims=(None, 0))(flat, x)


def feature_hessians(bank, head, alpha):
    """Slow and obvious: the (d, d) Hessian of the energy at every row of partially normalised features."""
    h = bank.features.double()
    h = h / h.norm(dim=1, keepdim=True) ** alpha
    weight, bias = head.weight.double(), head.bias.double()
    return vmap(hessian(lambda y: torch.logsumexp(weight @ y + bias, 0)))(h)


def test_parameter_statistics_are_those_of_the_dense_hessian(suite, whole):
    study, _ = whole
    for name, source in {"id": suite.test, **{ood.name: ood.images for ood in suite.ood}}.items():
        dense = dense_hessians(suite.model, inputs(source))
        traces = dense.diagonal(dim1=1, dim2=2).sum(-1).numpy()
        np.testing.assert_allclose(study.traces[f"parameter/{name}"], traces, rtol=1e-4)
        trace, largest = (study.cells[name, "parameter", which] for which in ("trace", "lambda_max"))
        assert (trace.value, trace.stderr) == (pytest.approx(traces.mean(), rel=1e-5), None)
        assert largest.value == pytest.approx(float(torch.linalg.eigvalsh(dense.mean(0))[-1]), rel=1e-4)
        assert (trace.n, trace.matrix, trace.loss) == (source.rows, "hessian", "energy")
        assert study.weights[f"parameter/{name}"].sum(-1) == pytest.approx(1)
        assert study.nodes[f"parameter/{name}"].shape == (4, 16)
    assert study.sizes["parameter"] == study.suite["n_parameters"] == dense.shape[-1] == 103
    assert not study.trace_stderr


def test_the_loss_and_the_matrix_reach_the_parameters(suite, tmp_path):
    suite = replace(suite, ood=suite.ood[2:])
    x = inputs(suite.ood[0].images)
    study = run_study(suite, tmp_path, loss="ce_pred", **SMALL)
    expected = float(torch.linalg.eigvalsh(dense_hessians(suite.model, x, "ce_pred").mean(0))[-1])
    found = study.cells["snow", "parameter", "lambda_max"]
    assert (found.value, found.loss) == (pytest.approx(expected, rel=1e-4), "ce_pred")
    ggn = run_study(suite, tmp_path, matrix="ggn", **SMALL).cells["snow", "parameter", "lambda_max"]
    assert ggn.matrix == "ggn"
    assert ggn.value != pytest.approx(expected, rel=1e-3)


def test_feature_statistics_are_those_of_the_dense_hessian(whole):
    study, banks = whole
    for name, bank in banks.test_sets.items():
        dense = feature_hessians(bank, banks.head, 0)
        traces = dense.diagonal(dim1=1, dim2=2).sum(-1).numpy()
        np.testing.assert_allclose(study.traces[f"feature/{name}"], traces, rtol=1e-6)
        assert study.cells[name, "feature", "trace"].value == pytest.approx(traces.mean(), rel=1e-9)
        spectrum = torch.linalg.eigvalsh(dense.mean(0))
        assert study.cells[name, "feature", "lambda_max"].value == pytest.approx(float(spectrum[-1]), rel=1e-9)
        assert study.nodes[f"feature/{name}"].max() == pytest.approx(float(spectrum[-1]), rel=1e-9)
        for which, alpha in {"none": 0, "partial": 0.3, "full": 1}.items():
            top = torch.linalg.eigvalsh(feature_hessians(bank, banks.head, alpha)).flip(-1)[:, :3].numpy()
            np.testing.assert_allclose(study.eigenvalues[f"{which}/{name}"], top, rtol=1e-6, atol=1e-12)
    assert study.alphas == {"none": 0, "partial": 0.3, "full": 1}
    assert study.sizes["feature"] == 5


def test_logit_statistics_are_those_of_the_probabilities(whole):
    study, banks = whole
    p = banks.head(banks.ood["dark"].features).double().softmax(-1)
    assert study.traces["logit/dark"] == pytest.approx((1 - p.square().sum(-1)).numpy(), rel=1e-5)
    mean = torch.diag(p.mean(0)) - p.T @ p / len(p)
    largest = float(torch.linalg.eigvalsh(mean)[-1])
    assert study.cells["dark", "logit", "lambda_max"].value == pytest.approx(largest, rel=1e-5)


def test_detections_are_the_aurocs_of_the_traces(whole):
    study, banks = whole
    found = {(each.space, each.alpha, each.dataset): each.auroc for each in study.detections}
    assert set(found) == {
        (space, alpha, dataset)
        for space, alphas in {"parameter": (0,), "feature": (0, 0.3), "logit": (0, 0.3)}.items()
        for alpha in alphas
        for dataset in ("noise", "dark", "snow", "near", "far", "all")
    }
    for space in ("parameter", "feature", "logit"):
        assert found[space, 0, "noise"] == ff.auroc(study.traces[f"{space}/id"], study.traces[f"{space}/noise"])
    fold = ff.Fold(0.3).fit(banks.val, banks.head)
    id_scores, ood_scores = fold(banks.test.features), fold(banks.ood["noise"].features)
    assert found["feature", 0.3, "noise"] == pytest.approx(ff.auroc(id_scores, ood_scores), abs=2 / (33 * 25))


def test_detections_have_intervals_and_unweighted_means_over_groups():
    rng = np.random.default_rng(0)
    shifts = {"id": (0, 40), "pens": (0.5, 40), "noise": (1, 9), "photos": (2, 40)}
    traces = {name: rng.normal(shift, 1, n) for name, (shift, n) in shifts.items()}
    ood = {"pens": "near", "noise": "far", "photos": "far"}
    by_space = {f"feature/{name}": values for name, values in traces.items()}
    found = {each.dataset: each for each in detections("feature", 0.38, by_space, ood)}
    assert list(found) == ["pens", "noise", "photos", "near", "far", "all"]
    for name in ("pens", "noise", "photos"):
        assert found[name].auroc == ff.auroc(traces["id"], traces[name])
        assert (found[name].low, found[name].high) == ff.auroc_interval(traces["id"], traces[name])
    assert found["far"].auroc == pytest.approx((found["noise"].auroc + found["photos"].auroc) / 2)
    assert found["all"].auroc == pytest.approx(np.mean([found[name].auroc for name in ("pens", "noise", "photos")]))
    assert all(each.low < each.auroc < each.high for each in found.values())


def test_autofold_chooses_the_exponent_on_all_validation_data_or_it_must_be_given(
    suite, small, whole, tmp_path, caplog
):
    study, banks = small[0], whole[1]
    assert study.alphas["partial"] == pytest.approx(float(ff.AutoFold().fit(banks.val, banks.head).alpha_))
    assert len(banks.val) == 60
    unlabelled = replace(suite, val=images(60, seed=1), ood=suite.ood[2:])
    with pytest.raises(ValueError, match="alpha="):
        run_study(unlabelled, tmp_path, **SMALL)
    assert run_study(unlabelled, tmp_path, alpha=0.4, **SMALL).alphas["partial"] == 0.4
    with torch.no_grad():
        suite.model[3].weight *= 1e-4
    run_study(replace(suite, ood=suite.ood[2:]), tmp_path, **SMALL)
    assert "flat" in caplog.text


def test_a_smooth_network_keeps_its_error_bars(suite, tmp_path):
    smooth = replace(suite, model=network(nn.Tanh), ood=suite.ood[2:])
    study = run_study(smooth, tmp_path, samples=50)
    traces = dense_hessians(smooth.model, inputs(suite.test)).diagonal(dim1=1, dim2=2).sum(-1).numpy()
    error = study.trace_stderr["parameter/id"]
    assert error.shape == (33,)
    assert np.mean(np.abs(study.traces["parameter/id"] - traces) < 4 * error + 1e-4) > 0.9
    whole = study.cells["id", "parameter", "trace"]
    assert abs(whole.value - traces.mean()) < 5 * whole.stderr + 1e-4
    assert "feature/id" not in study.trace_stderr


def test_impossible_plans_are_refused():
    # OOD images have no label for the cross-entropy
    for name, values in {"alpha": (2,), "matrix": ("fisher",), "loss": ("mse", "ce")}.items():
        for value in values:
            assert name in refusal(Plan, **{name: value}), (name, value)
    assert Plan(samples=2, matrix="ggn", loss="ce_pred", probes=1, steps=1, alpha=0.0, seed=0).alpha == 0.0


def test_judged_sets_are_limited_evenly_over_the_classes_and_validation_images_are_not(suite, tmp_path):
    suite = replace(suite, train=images(60, True), ood_val=images(20), deviations=("made up",))
    some = studied_suite(suite, 12)
    assert [some.test.rows, *(ood.images.rows for ood in some.ood)] == [12, 12, 12, 9]
    assert torch.bincount(some.test.labels).tolist() == [4, 4, 4]
    assert (some.val, some.train, some.ood_val) == (suite.val, None, None)
    assert len(some.deviations) == 2
    assert some.test.fingerprint == studied_suite(suite, 12).test.fingerprint != suite.test.fingerprint
    assert (studied_suite(suite, 50).test, studied_suite(suite, 50).deviations) == (suite.test, ("made up",))
    ff.save_bank(ff.FeatureBank(torch.rand(9, 4)), tmp_path)
    features = (OodSet("noise", "far", FeatureRows(tmp_path, labels=False), ""),)
    assert "last layer" in studied_suite(replace(suite, ood=features), 50).deviations[-1]


def without_time(folder):
    content = json.loads((folder / "curvature.json").read_text())
    for name in ("finished", "seconds"):
        del content["provenance"][name]
    return content, [(folder / name).read_bytes() for name in ("curvature.csv", "curvature.safetensors")]


@pytest.mark.parametrize("fails_at", [1, 5, 12])
def test_an_interrupted_study_resumes_and_ends_the_same(fails_at, suite, small, tmp_path, counted):
    counted.fails_at = fails_at
    with pytest.raises(KeyboardInterrupt):
        run_study(suite, tmp_path / "cut", **SMALL)
    assert len(counted) == fails_at
    counted.clear()
    counted.fails_at = None
    run_study(suite, tmp_path / "cut", **SMALL).save(tmp_path / "cut")
    assert len(counted) == 12 - (fails_at - 1)  # 4 * 3: the trace of a data set is the mean over its inputs
    assert without_time(tmp_path / "cut") == without_time(small[1])


def test_a_finished_study_computes_nothing_again_and_says_what_was_measured(suite, finished, tmp_path, counted):
    again, saved = run_study(suite, tmp_path, Settings(command="a command"), **SMALL), load_study(tmp_path)
    assert counted == []
    for name in STORED:
        mine, its = getattr(again, name), getattr(saved, name)
        assert mine.keys() == its.keys()
        assert all(np.array_equal(mine[key], its[key]) for key in mine), name
    assert again.statistics == saved.statistics
    assert "24 of 24 parts" in again.provenance["seconds"]
    settings = {"loss": "energy", "matrix": "hessian", "seed of the probes": 0, "seed": 7, "command": "a command"}
    assert {**settings, **SMALL}.items() <= again.provenance.items()
    assert [(ood["name"], ood["n"]) for ood in again.suite["ood"]] == [("noise", 20), ("dark", 12), ("snow", 9)]


def test_what_changes_is_computed_again_and_nothing_else(suite, finished, tmp_path, counted):
    def calls(suite=suite, **changed):
        counted.clear()
        run_study(suite, tmp_path, **{**SMALL, **changed})
        return sorted(counted)

    every = sorted(4 * list(COUNTED))
    assert calls(alpha=0.9) == []
    assert calls(steps=4) == calls(probes=3) == 4 * ["param_spectrum"]
    assert calls(matrix="ggn") == calls(loss="ce_pred") == calls(seed=1) == every
    assert calls(samples=19) == sorted(2 * list(COUNTED))  # the other two have fewer images anyway
    with torch.no_grad():
        suite.model[1].weight *= 2
    assert calls() == every
    assert calls(replace(suite, ood=suite.ood[:1])) == []


def test_a_restart_forgets_parts_and_own_features_and_nothing_else(suite, finished, tmp_path, counted):
    extract_all(replace(suite, test=images(10, True, 9)), tmp_path / "banks")  # of another benchmark
    ff.save_bank(ff.FeatureBank(torch.ones(2, 2)), tmp_path / "banks" / "mine")
    forget_study(suite, tmp_path, 20)
    left = sorted(path.name.partition("-")[0] for path in (tmp_path / "banks").iterdir())
    assert left == ["mine", "noise", "test"]  # of noise, all 25
    assert not (tmp_path / "curvature").exists()
    run_study(suite, tmp_path, **SMALL)
    assert len(counted) == 12


def test_the_model_is_measured_in_eval_mode_and_stays_as_it_was(suite, tmp_path):
    normalised = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
    suite = replace(suite, model=normalised, ood=suite.ood[2:])
    resting = run_study(suite, tmp_path / "resting", **SMALL)
    normalised.train()
    normalised[1].weight.requires_grad_(False)
    study = run_study(suite, tmp_path / "busy", **SMALL)
    assert study.statistics == resting.statistics
    assert study.sizes["parameter"] == 16 * 5 + 5 + 2 * 5 + 5 * 3 + 3  # frozen parameters count too
    assert normalised.training
    assert not normalised[1].weight.requires_grad
    assert all(parameter.grad is None for parameter in normalised.parameters())


@pytest.fixture
def broken(suite, tmp_path):
    """The suite with a folder of six images of which one is broken."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for row, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (6, 4, 4), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{row}.png")
    (folder / "2.png").write_bytes(b"no image")
    photos = FolderImages(folder, ff.Transform(mode="L"), batch_size=4, labels=False)
    return replace(suite, ood=(OodSet("photos", "far", photos, ""),)), folder


def test_images_that_cannot_be_read_are_left_out_of_everything(broken, tmp_path):
    suite, folder = broken
    study = run_study(suite, tmp_path, Settings(Loading(max_unreadable=0.5)), **SMALL)
    kept = [row for row in range(6) if row != 2]
    x = torch.stack([torch.from_numpy(np.array(Image.open(folder / f"{row}.png"))) for row in kept])[:, None] / 255
    expected = dense_hessians(suite.model, x.double()).diagonal(dim1=1, dim2=2).sum(-1).numpy()
    np.testing.assert_allclose(study.traces["parameter/photos"], expected, rtol=1e-4)
    assert len(study.traces["feature/photos"]) == len(study.eigenvalues["none/photos"]) == 5
    assert {study.cells["photos", space, "trace"].n for space in ("parameter", "feature", "logit")} == {5}
    assert any("photos" in sentence for sentence in study.suite["deviations"])


def test_images_that_can_no_longer_be_read_need_a_restart(broken):
    suite, _ = broken
    data = DataSet("photos", "far", suite.ood[0].images, left_out={})  # but one cannot be read
    assert "again" in refusal(parameters.readable_inputs, data)
    assert data.key != replace(data, left_out={2: "broken"}).key != replace(data, source=suite.test).key
    assert [len(batch) for batch in parameters.readable_inputs(replace(data, left_out={2: "broken"}))] == [3, 2]
