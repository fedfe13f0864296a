"""`evaluate.reproduce.costs`: the same batch for all, what is timed and what is not, and who is left out."""

from dataclasses import replace

import pytest
import torch

from flatfold.detectors import get_method, hyperparameters
from flatfold.evaluate.banks import extract_all
from flatfold.evaluate.reproduce import costs as module
from flatfold.evaluate.reproduce.costs import SETUPS, costs
from flatfold.evaluate.reproduce.plan import Plan
from flatfold.evaluate.rows import MethodRun
from flatfold.models.at_rest import as_it_was

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")


def run_of(name, label=None, **hyper):
    method = get_method(name)
    return MethodRun(label or name, name, hyperparameters(name, **hyper), method.fits_on, "nothing", 0.0, 0.0)


@pytest.fixture
def world(suite, tmp_path):
    return suite, extract_all(suite, tmp_path, tuning=True)


def test_every_method_has_a_row_behind_that_of_the_network(world):
    runs = [run_of("msp"), run_of("knn", "knn@ood", k=7), run_of("odin"), run_of("mdsens"), run_of("autofold")]
    found, refused = costs(*world, runs, plan=Plan(batch_size=10, rounds=3))
    assert refused == {}
    assert [cost.method for cost in found] == ["forward", "msp", "knn@ood", "odin", "mdsens", "autofold"]
    assert [cost.sees for cost in found] == ["images", "features", "features", "images", "images", "features"]
    assert {(cost.batch_size, cost.rounds) for cost in found} == {(10, 3)}
    assert found[0].setup_ms == 0
    assert all(cost.setup_ms > 0 for cost in found[1:])
    assert all(0 < cost.inference_low <= cost.inference_ms <= cost.inference_high for cost in found)


def test_median_and_quartiles_are_in_milliseconds(world, monkeypatch):
    monkeypatch.setattr(module, "in_turn", lambda actions, n: [[0.001 * k for k in range(1, n + 1)]] * len(actions))
    found, _ = costs(*world, [run_of("msp")], plan=Plan(rounds=9))
    (msp,) = found[1:]
    assert (msp.inference_low, msp.inference_ms, msp.inference_high) == pytest.approx((3, 5, 7))
    assert msp.setup_ms == pytest.approx(1e3 * 0.001 * (1 + SETUPS) / 2)


def test_the_batch_is_the_first_test_inputs_and_no_more_than_there_are(world):
    suite, banks = world
    measure = module._Measure(suite, banks, module.Settings(), Plan(batch_size=10))
    assert torch.equal(measure.features, banks.test.features[:10])
    with as_it_was(suite.model):
        assert torch.allclose(suite.model.body(measure.images), measure.features, atol=1e-6)
    found, _ = costs(suite, banks, [run_of("odin")], plan=Plan(batch_size=1000, rounds=1))
    assert {cost.batch_size for cost in found} == {24}
    assert len(module._first(suite, 24, "cpu")) == 24


def test_hyper_parameters_are_those_of_the_benchmark(world, monkeypatch):
    made = []
    monkeypatch.setattr(module, "create", lambda name, **hyper: made.append(hyper) or real(name, **hyper))
    real = __import__("flatfold").create
    costs(*world, [run_of("knn", "knn@ood", k=7)], plan=Plan(rounds=1))
    assert {hyper["k"] for hyper in made} == {7}


def test_each_method_is_scored_on_its_batch_as_often_as_was_asked(world, monkeypatch):
    suite, banks = world
    seen = []
    monkeypatch.setattr(type(suite.model), "forward", watched(type(suite.model).forward, seen))
    costs(suite, banks, [], plan=Plan(batch_size=10, rounds=4))
    assert seen == [10] * (1 + 1 + 4)  # for the memory, to warm up, and the rounds


def watched(forward, seen):
    def wrapper(model, x):
        seen.append(len(x))
        return forward(model, x)

    return wrapper


def test_a_method_that_cannot_be_measured_is_left_out_with_its_reason(world):
    suite, banks = world
    runs = [run_of("knn"), run_of("msp"), run_of("vim", dim=500)]
    found, refused = costs(suite, replace(banks, train=None), runs, plan=Plan(rounds=1))
    assert [cost.method for cost in found] == ["forward", "msp"]
    assert refused["knn"].startswith("ValueError: it learns from training data, and this suite has none.")
    assert "vim" in costs(suite, banks, runs, plan=Plan(rounds=1))[1]


def test_the_network_is_left_as_it_was(world):
    suite, banks = world
    suite.model.train()
    costs(suite, banks, [run_of("odin"), run_of("mdsens")], plan=Plan(rounds=1))
    assert suite.model.training
    assert all(parameter.requires_grad for parameter in suite.model.parameters())
