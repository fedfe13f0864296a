"""A whole reproduction of small networks: what it runs, its files, what a second run computes and what it forgets."""

import shutil
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from flatfold import Execution
from flatfold.evaluate.banks import Settings
from flatfold.evaluate.methods import Spec, parse_spec
from flatfold.evaluate.results import load_results
from flatfold.paper import run as module
from flatfold.paper.ablations import NORMALISED_METHODS as METHODS
from flatfold.paper.ablations import load_ablations
from flatfold.paper.run import Plan, conclude, load_network_run, paper_methods, reproduce
from flatfold.paper.tables import TUNED
from flatfold.paper.verdicts import compute_verdicts
from tests.paper.toys import make_suite
from tests.toy_ablations import make_ablations, make_network_run, make_results, save
from tests.toy_study import refusal

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat", "ignore:k = ")
QUICK = Settings(replicates=0, command="flatfold reproduce toy")
NAMES = ("msp", "ebo", "react@ood", "ash@ood", "fold@ood", "autofold", "odin:temperature=10")
FEW = [parse_spec(name) for name in NAMES]
SMALL = Plan(samples=6, batch_size=10, rounds=2, methods=FEW)
QUICKER = Plan(samples=6, methods=[Spec("msp"), Spec("react", {"percentile": 80})], alpha=0.3)


def test_the_papers_methods_are_tuned_where_the_data_allow_it(banks):
    baselines = ["ash", "ebo", "knn", "mds", "mdsens", "mls", "msp"]
    baselines += ["odin", "openmax", "react", "rmds", "she", "tempscale", "vim"]
    assert sorted(paper_methods()[:14]) == baselines
    assert paper_methods()[14:] == ["fold", "fold-r", "fold-a", "autofold", "autofold-r", "autofold-a"]
    specs = Plan().specs(banks)
    assert [spec.name for spec in specs] == paper_methods()
    assert {spec.name for spec in specs if spec.tune == "ood"} == TUNED - {"vim"}  # which needs more dimensions
    assert Plan().specs(replace(banks, ood_val=None)) == [Spec(name) for name in paper_methods()]
    assert Spec("knn", tune="ood") in Plan().specs(replace(banks, train=None))  # the benchmark says why it refuses
    assert Plan(methods=FEW).specs(banks) == FEW


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Everything of one network; read-only."""
    folder = tmp_path_factory.mktemp("whole")
    run = reproduce(make_suite(), folder, QUICK, SMALL)
    assert compute_verdicts([load_network_run(folder, "")]) == compute_verdicts([run])
    return run, folder


def test_benchmark_study_and_ablations_belong_together(whole):
    _, results, study, ablations = whole[0]
    assert {len(values) for values in study.traces.values()} == {6}
    assert ablations.alphas == study.alphas
    (autofold,) = [run for run in results.methods if run.method == "autofold"]
    partial = [effect.alpha for effect in ablations.effects if effect.normalisation == "partial"]
    chosen = ablations.sensitivities[0].chosen
    assert {study.alphas["partial"], autofold.learnt["alpha_"], chosen} == set(partial) == {chosen}
    assert [each.method for each in ablations.sensitivities] == ["fold", "fold-r", "fold-a"]
    assert {each.method for each in ablations.effects} == set(METHODS)
    for method in ("msp", "ebo", "react@ood", "ash@ood"):
        effect, cell = ablations.effect(method.partition("@")[0], "none"), results.cells[method, "all"]
        assert (effect.auroc, effect.fpr95) == pytest.approx((cell.auroc, cell.fpr95_ood_positive))
    assert [cost.method for cost in ablations.costs] == ["forward", *(run.method for run in results.methods)]
    np.testing.assert_equal(ablations.norms, results.norms)
    assert {"samples": 6, "batch_size": 10, "rounds": 2, "alpha": None}.items() <= ablations.provenance.items()
    assert ablations.provenance["weights, sha256"] == results.provenance["weights, sha256"]


def test_a_restart_forgets_what_was_kept_and_nothing_else(whole, tmp_path):
    shutil.copytree(whole[1], tmp_path, dirs_exist_ok=True)
    (tmp_path / "mine.txt").write_text("mine")
    patterns = ("banks/*", "scores/*", "curvature/*.safetensors", "ablations.*")
    assert all(list(tmp_path.glob(pattern)) for pattern in patterns)
    module.forget_reproduction(make_suite(), tmp_path, SMALL)
    module.forget_reproduction(make_suite(), tmp_path, SMALL)  # nothing is left, which is no mistake
    assert not any(list(tmp_path.glob(pattern)) for pattern in patterns)
    assert (tmp_path / "mine.txt").exists()


class Stages(list):
    """What is computed after the benchmark is counted instead."""

    def __init__(self, patch):
        super().__init__()
        empty = ([], {"none/id": np.zeros(1, np.float32)}, {})
        patch.setattr(module, "run_study", self.study)
        patch.setattr(
            module, "measure_effects", lambda banks, *asked: self.append(("effects", *asked)) or ([], {"ash": "no"})
        )
        patch.setattr(module, "measure_sensitivities", lambda *asked: ([], {}))
        patch.setattr(module, "measure_separations", lambda *asked: empty)
        patch.setattr(module, "measure_costs", lambda *asked: ([], {"knn": "no data"}))

    def study(self, suite, place, settings, samples, alpha, seed):
        self.append(("study", samples, alpha, seed))
        return SimpleNamespace(alphas={"none": 0.0, "partial": alpha, "full": 1.0}, save=lambda folder: None)


def test_settings_reach_every_stage_of_several_networks(monkeypatch, tmp_path):
    stages = Stages(monkeypatch)
    pair = [replace(make_suite(name, ("a", "b")), seed=4) for name in "ab"]
    assert [reproduce(suite, tmp_path / suite.network, QUICK, QUICKER).network for suite in pair] == ["a", "b"]
    for name in "ab":
        ablations, results = load_ablations(tmp_path / name), load_results(tmp_path / name)
        assert results.suite["network"] == name
        assert [run.method for run in results.methods] == ["msp", "react:percentile=80"]
        assert ablations.alphas["partial"] == 0.3
        assert ablations.refused == {"ash": "no", "knn": "no data"}
    assert stages[0] == ("study", 6, 0.3, 4)
    _, alphas, hyper = stages[1]
    assert alphas == {"none": 0.0, "partial": 0.3, "full": 1.0}
    assert hyper["react"]["percentile"] == 80


def test_ablations_are_measured_again_only_when_something_changed(monkeypatch, tmp_path):
    stages = Stages(monkeypatch)
    suite, text, arrays = make_suite(), tmp_path / "ablations.json", tmp_path / "ablations.safetensors"

    def measured(suite=suite, settings=QUICK, **changed):
        stages.clear()
        reproduce(suite, tmp_path, settings, replace(QUICKER, **changed))
        load_ablations(tmp_path)
        return len(stages) - 1  # without the study

    assert [measured(), measured()] == [1, 0]
    for changed in ({"rounds": 1}, {"alpha": 0.4}, {"methods": [Spec("msp"), Spec("react", {"percentile": 70})]}):
        assert measured(**changed) == 1, changed
    assert measured(settings=replace(QUICK, execution=Execution(device="cpu:0"))) == 1
    assert measured(replace(suite, test=suite.train, train=suite.test)) == 1
    other = make_suite()
    with torch.no_grad():
        other.model.head.bias += 1
    assert [measured(other), measured()] == [1, 1]
    text.write_text(text.read_text()[:500])
    assert measured() == 1
    arrays.unlink()
    assert [measured(), measured()] == [1, 0]


def test_an_interrupted_run_has_kept_what_was_done(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "run_study", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        reproduce(make_suite(), tmp_path, QUICK, QUICKER)
    assert load_results(tmp_path).methods
    assert not (tmp_path / "curvature.json").exists()


def test_networks_of_earlier_runs_count_if_they_are_whole_and_saw_as_many_images(tmp_path):
    for name, unknown in (("one", 80), ("two", 80), ("fewer", 70)):
        results = make_results(network=name, unknown=unknown)
        save(make_network_run(name, results=results, ablations=make_ablations(unknown=unknown)), tmp_path / name)

    assert "toy" in refusal(module.check_suite, tmp_path, ["one"], "mine")  # whose results would be lost
    module.check_suite(tmp_path, ["one", "nowhere"], "toy")

    def found(*networks, now):
        reproduction = conclude(tmp_path, networks, [make_network_run(name) for name in now])
        return [run.network for run in reproduction.runs], list(reproduction.left_out)

    assert found("two", "one", "three", now=["one"]) == (["two", "one"], [])
    assert found("one", "fewer", now=["one"]) == (["one"], ["fewer"])
    assert found("one", "fewer", now=["one", "fewer"]) == (["one", "fewer"], [])
    path = tmp_path / "two" / "ablations.json"
    path.write_text(path.read_text()[:200])
    assert found("one", "two", now=["one"]) == (["one"], ["two"])
    (tmp_path / "two" / "curvature.json").unlink()
    assert found("one", "two", now=["one"]) == (["one"], [])
