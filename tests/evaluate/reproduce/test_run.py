"""A whole reproduction of small networks: its files, what a second run computes, and what it forgets."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flatfold.evaluate.paper_tables.benchmarks import TUNED
from flatfold.evaluate.reproduce import run as module
from flatfold.evaluate.reproduce.files import load_ablations
from flatfold.evaluate.reproduce.normalisation import METHODS
from flatfold.evaluate.reproduce.plan import Plan, paper_methods
from flatfold.evaluate.reproduce.run import forget_reproduction, place_of, reproduce
from flatfold.evaluate.reproduce.separation import Separated
from flatfold.evaluate.reproduce.verdict import load_material
from flatfold.evaluate.results import load_results
from flatfold.evaluate.settings import Settings
from tests.evaluate.reproduce.toys import make_suite

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat", "ignore:k = ")
QUICK = Settings(replicates=0, command="flatfold reproduce toy")
FEW = ("msp", "ebo", "react@ood", "ash@ood", "fold@ood", "autofold", "odin:temperature=10")
SMALL = Plan(samples=6, batch_size=10, rounds=2, methods=FEW)
QUICKER = Plan(samples=6, methods=("msp", "react:percentile=80"), alpha=0.3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Everything of one network, only to be looked at."""
    folder = tmp_path_factory.mktemp("whole")
    reproduce([make_suite()], folder, QUICK, SMALL)
    return load_material(folder, ""), folder


class Stages:
    """Counts what is computed, in place of computing it."""

    def __init__(self, patch):
        self.calls = []
        patch.setattr(module, "run_study", self.study)
        patch.setattr(module, "effects", self.effects)
        patch.setattr(module, "sensitivities", lambda *asked: ([], {}))
        patch.setattr(module, "separations", lambda *asked: Separated([], {"none/id": np.zeros(1, np.float32)}, {}))
        patch.setattr(module, "costs", self.costs)

    def study(self, suite, place, settings, samples, alpha, seed):
        self.calls.append(("study", samples, alpha, seed))
        return SimpleNamespace(alphas={"none": 0.0, "partial": alpha, "full": 1.0}, save=lambda folder: None)

    def effects(self, banks, alphas, hyper):
        self.calls.append(("effects", alphas, hyper))
        return [], {"ash": "negative"}

    def costs(self, *asked):
        self.calls.append(("ablations",))
        return [], {"knn": "no training data"}

    @property
    def ablations(self):
        return self.calls.count(("ablations",))


@pytest.fixture
def stages(monkeypatch):
    return Stages(monkeypatch)


def test_the_benchmark_has_the_papers_methods_unless_others_are_asked_for(stages, monkeypatch, tmp_path):
    asked = []
    real = module.run
    monkeypatch.setattr(module, "run", lambda suite, specs, *rest: asked.append(specs) or real(suite, ["msp"], *rest))
    reproduce([make_suite()], tmp_path, QUICK, replace(QUICKER, methods=None))
    reproduce([make_suite(ood_val=False)], tmp_path, QUICK, replace(QUICKER, methods=None))
    reproduce([make_suite()], tmp_path, QUICK, QUICKER)
    assert [[spec.name for spec in specs] for specs in asked[:2]] == [paper_methods()] * 2
    assert {spec.name for spec in asked[0] if spec.tune == "ood"} == TUNED - {"vim", "knn"}  # 8 features, 45 images
    assert {spec.tune for spec in asked[1]} == {None}
    assert [spec.label for spec in asked[2]] == ["msp", "react:percentile=80"]


def test_the_study_has_as_many_images_as_were_asked_for(whole):
    study = whole[0].study
    assert study.provenance["samples"] == 6
    assert {len(values) for values in study.traces.values()} == {6}


def test_the_ablations_rest_on_the_exponents_of_the_study(whole):
    _, results, study, ablations = whole[0]
    assert ablations.alphas == study.alphas
    assert {effect.alpha for effect in ablations.effects if effect.normalisation == "partial"} == {
        study.alphas["partial"]
    }
    (autofold,) = [run for run in results.methods if run.method == "autofold"]
    assert study.alphas["partial"] == autofold.learnt["alpha_"] == ablations.sensitivities[0].chosen
    assert [each.method for each in ablations.sensitivities] == ["fold", "fold-r", "fold-a"]
    assert {each.method for each in ablations.effects} == set(METHODS)


def test_the_row_without_normalisation_is_the_benchmarks_own(whole):
    _, results, _, ablations = whole[0]
    for method in ("msp", "ebo", "react@ood", "ash@ood"):
        effect = ablations.effect(method.partition("@")[0], "none")
        assert effect.auroc == pytest.approx(results.cells[method, "all"].auroc)
        assert effect.fpr95 == pytest.approx(results.cells[method, "all"].fpr95_ood_positive)


def test_every_method_of_the_benchmark_has_a_cost(whole):
    _, results, _, ablations = whole[0]
    assert [cost.method for cost in ablations.costs] == ["forward", *(run.method for run in results.methods)]
    assert results.refused.items() <= ablations.refused.items()


def test_scores_and_norms_are_those_of_the_benchmarks_features(whole):
    _, results, _, ablations = whole[0]
    assert {name: values.tolist() for name, values in ablations.norms.items()} == {
        name: values.tolist() for name, values in results.norms.items()
    }
    assert ablations.separations[-1].dataset == "all"


def test_it_says_where_the_numbers_come_from(whole):
    _, results, _, ablations = whole[0]
    told = {"samples": 6, "batch_size": 10, "rounds": 2, "alpha": None, "command": "flatfold reproduce toy"}
    assert told.items() <= ablations.provenance.items()
    assert ablations.provenance["weights, sha256"] == results.provenance["weights, sha256"]


def test_several_networks_get_folders_and_a_single_one_does_not(stages, tmp_path):
    assert place_of(make_suite(), tmp_path) == tmp_path
    assert place_of(make_suite("a", ("a",)), tmp_path) == tmp_path
    pair = [make_suite(name, ("a", "b")) for name in "ab"]
    assert [place_of(suite, tmp_path) for suite in pair] == [tmp_path / "a", tmp_path / "b"]
    reproduce(pair, tmp_path, QUICK, QUICKER)
    for name in "ab":
        assert load_ablations(tmp_path / name).alphas["partial"] == 0.3
        assert load_results(tmp_path / name).suite["network"] == name
    assert not (tmp_path / "results.json").exists()


def test_what_was_asked_for_reaches_the_study_with_the_seed_of_the_suite(stages, tmp_path):
    reproduce([replace(make_suite(), seed=4)], tmp_path, QUICK, QUICKER)
    assert stages.calls[0] == ("study", 6, 0.3, 4)


def test_normalisation_is_measured_with_the_exponents_of_the_study_and_the_settings_of_the_benchmark(stages, tmp_path):
    reproduce([make_suite()], tmp_path, QUICK, QUICKER)
    (told,) = [call for call in stages.calls if call[0] == "effects"]
    assert told[1] == {"none": 0.0, "partial": 0.3, "full": 1.0}
    assert told[2]["react"]["percentile"] == 80


def test_what_could_not_be_measured_is_told_with_its_reason(stages, tmp_path):
    reproduce([make_suite()], tmp_path, QUICK, QUICKER)
    assert load_ablations(tmp_path).refused == {"ash": "negative", "knn": "no training data"}


def test_a_second_run_measures_no_ablation_again(stages, tmp_path):
    for _ in range(2):
        reproduce([make_suite()], tmp_path, QUICK, QUICKER)
    assert stages.ablations == 1


@pytest.mark.parametrize("change", ["rounds", "alpha", "hyper", "device", "network", "data", "damage", "missing"])
def test_ablations_are_measured_again_when_something_changed(change, stages, tmp_path):
    reproduce([make_suite()], tmp_path, QUICK, QUICKER)
    suite, plan, settings = make_suite(), QUICKER, QUICK
    if change in ("rounds", "alpha"):
        plan = replace(QUICKER, **{"rounds": {"rounds": 1}, "alpha": {"alpha": 0.4}}[change])
    elif change == "hyper":
        plan = replace(QUICKER, methods=("msp", "react:percentile=70"))
    elif change == "device":
        settings = replace(QUICK, device="cpu:0")
    elif change == "network":
        with torch.no_grad():
            suite.model.head.bias += 1
    elif change == "data":
        suite = replace(suite, test=suite.train, train=suite.test)
    elif change == "damage":
        text = (tmp_path / "ablations.json").read_text()
        (tmp_path / "ablations.json").write_text(text[: len(text) // 2])
    else:
        (tmp_path / "ablations.safetensors").unlink()
    reproduce([suite], tmp_path, settings, plan)
    assert stages.ablations == 2
    load_ablations(tmp_path)


def test_an_interrupted_run_has_kept_what_was_done(tmp_path, monkeypatch):
    def stop(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_study", stop)
    with pytest.raises(KeyboardInterrupt):
        reproduce([make_suite()], tmp_path, QUICK, QUICKER)
    assert load_results(tmp_path).methods
    assert not (tmp_path / "curvature.json").exists()


def test_what_was_kept_is_forgotten_when_that_is_asked_for(whole, tmp_path):
    shutil.copytree(whole[1], tmp_path, dirs_exist_ok=True)
    (tmp_path / "mine.txt").write_text("mine")
    assert list(tmp_path.glob("curvature/*.safetensors"))
    for _ in range(2):  # the second time nothing is left, which is no mistake
        forget_reproduction(make_suite(), tmp_path, SMALL)
    for pattern in ("banks/*", "scores/*", "curvature/*.safetensors", "ablations.*"):
        assert not list(tmp_path.glob(pattern))
    assert (tmp_path / "mine.txt").exists()
