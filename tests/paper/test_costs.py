"""What methods cost (Figure 3): the same batch for all, what is timed and what is not, and who is left out."""

from dataclasses import replace
from functools import partial

import pytest
import torch

import flatfold as ff
from flatfold.detectors import get_method, hyperparameters
from flatfold.evaluate.banks import Settings, extract_all
from flatfold.evaluate.results import MethodRun
from flatfold.paper import ablations as module
from flatfold.paper.ablations import SETUPS, time_in_turn
from tests.paper.toys import make_suite

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")


def test_actions_take_turns_after_a_round_to_warm_up_and_slow_ones_are_timed_once(monkeypatch):
    now, order, steps = [0.0], [], {"a": [0.9, 0.1, 0.2], "slow": [1.5], "b": [0.5, 0.3, 0.4]}

    def act(name):
        now[0] += steps[name][order.count(name)]
        order.append(name)

    monkeypatch.setattr("flatfold.io.clock.perf_counter", lambda: now[0])
    found = time_in_turn([partial(act, name) for name in steps], 2, "cpu")
    assert found == [pytest.approx([0.1, 0.2]), pytest.approx([1.5]), pytest.approx([0.3, 0.4])]
    assert order == ["a", "slow", "b", "a", "b", "a", "b"]


def test_a_gpu_is_waited_for(monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", done.append)
    time_in_turn([lambda: done.append("scored")], 1, "cuda:1")
    assert done == ["scored", "cuda:1"] * 2


def run_of(name, label=None, **hyper):
    method = get_method(name)
    return MethodRun(label or name, name, hyperparameters(name, **hyper), method.fits_on, "nothing", 0.0, 0.0)


def measure_costs(suite, banks, runs, **options):
    return module.measure_costs(suite, banks, runs, Settings(), **options)


@pytest.fixture
def world(tmp_path):
    return (suite := make_suite()), extract_all(suite, tmp_path, tuning=True)


def test_every_method_has_a_row_and_the_network_is_left_as_it_was(world):
    suite, banks = world
    suite.model.train()
    runs = [run_of("msp"), run_of("knn", "knn@ood", k=7), run_of("odin"), run_of("mdsens"), run_of("autofold")]
    found, refused = measure_costs(suite, banks, runs, batch_size=10, rounds=3)
    assert refused == {}
    assert [cost.method for cost in found] == ["forward", "msp", "knn@ood", "odin", "mdsens", "autofold"]
    assert [cost.sees for cost in found] == ["images", "features", "features", "images", "images", "features"]
    assert {(cost.batch_size, cost.rounds) for cost in found} == {(10, 3)}
    assert [cost.setup_ms > 0 for cost in found] == [False, *[True] * 5]
    assert all(0 < cost.inference_low <= cost.inference_ms <= cost.inference_high for cost in found)
    assert all(0 < cost.total_low <= cost.total_ms <= cost.total_high for cost in found)
    assert all(0 < cost.passes_low <= cost.passes <= cost.passes_high for cost in found)
    assert all((cost.total_ms == cost.inference_ms) == (cost.sees == "images") for cost in found)
    assert suite.model.training
    assert all(parameter.requires_grad for parameter in suite.model.parameters())


def test_median_and_quartiles_are_in_milliseconds(world, monkeypatch):
    """The total is timed right after a bare pass, and compared with it round by round."""

    def seconds(actions, n, _):
        return [[0.001 * (place + k) for k in range(1, n + 1)] for place in range(len(actions))]

    monkeypatch.setattr(module, "time_in_turn", seconds)
    found, _ = measure_costs(*world, [run_of("msp")], rounds=9)
    (msp,) = found[1:]  # timed in the third, fourth and fifth place: the bare pass, both, and the method alone
    assert (msp.total_low, msp.total_ms, msp.total_high) == pytest.approx((6, 8, 10))
    assert (msp.inference_low, msp.inference_ms, msp.inference_high) == pytest.approx((7, 9, 11))
    assert (msp.passes_low, msp.passes, msp.passes_high) == pytest.approx((10 / 9, 8 / 7, 6 / 5))
    assert msp.setup_ms == pytest.approx((1 + SETUPS) / 2)
    monkeypatch.setattr(
        module, "time_in_turn", lambda actions, n, _: [[2.0] * (1 + i % 2) for i in range(len(actions))]
    )
    assert measure_costs(*world, [run_of("msp")], rounds=2)[0][1].passes == 1.0, "slow actions are timed once"


def test_all_see_the_first_test_inputs_as_often_as_asked_with_the_hyper_parameters_of_the_benchmark(world, monkeypatch):
    suite, banks = world
    seen, made = [], []
    suite.model.register_forward_hook(lambda model, inputs, output: seen.append(inputs[0]))
    monkeypatch.setattr(module, "create", lambda name, **hyper: made.append(hyper) or ff.create(name, **hyper))
    measure_costs(suite, banks, [run_of("knn", k=7)], batch_size=10, rounds=4)
    assert len(seen) == 1 + 1 + (1 + 4) * 4  # to find the head, for the memory, and a warm-up and rounds of four passes
    with torch.no_grad():
        assert torch.allclose(suite.model.body(seen[-1]), banks.test.features[:10], atol=1e-6)
    assert {hyper["k"] for hyper in made} == {7}
    found, _ = measure_costs(suite, banks, [], batch_size=1000, rounds=1)
    assert {cost.batch_size for cost in found} == {24}


def test_a_method_that_cannot_be_measured_is_left_out_with_its_reason(world):
    suite, banks = world
    runs = [run_of("knn"), run_of("msp"), run_of("vim", dim=500)]
    found, refused = measure_costs(suite, replace(banks, train=None), runs, rounds=1)
    assert [cost.method for cost in found] == ["forward", "msp"]
    assert "training data" in refused["knn"]
    assert "vim" in measure_costs(suite, banks, runs, rounds=1)[1]
