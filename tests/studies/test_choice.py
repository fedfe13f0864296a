"""The study of methods without OOD data, on a small world in place of networks."""

import numpy as np
import pytest

import flatfold as ff
from flatfold.evaluate.banks import Banks
from studies.choice.figure import draw
from studies.choice.study import OURS, RULE, Network, averages, measure, pick, regrets, sections, single, wrong_labels
from tests.conftest import World


@pytest.fixture(scope="module")
def network():
    world, other = World.make(), World.make(seed=1)
    bright = 3 * other.unknown  # longer than anything ID
    ood = {"noise": ff.FeatureBank(world.unknown), "bright": ff.FeatureBank(bright)}
    banks = Banks(world.head, None, world.bank, other.bank, ood)
    return Network("toy", "held out", banks, ff.FeatureBank(2 * world.bank.features, world.bank.labels))


def test_wrong_labels_are_a_share_and_always_wrong(make_world):
    bank = make_world().bank
    noisy = wrong_labels(bank, 0.3, seed=1)
    assert float((noisy.labels != bank.labels).double().mean()) == pytest.approx(0.3)
    assert noisy.labels.max() < 6


def test_the_rule_takes_the_method_that_detects_left_out_classes_best(network):
    """A class that was left out is noise to the others' dimensions; the norm alone does not show it."""
    assert pick(network, ["length", "msp"]) == "msp"


@pytest.mark.filterwarnings("ignore")  # as in a run: of few samples, no labels and flat curves
def test_a_network_is_measured_and_described_in_every_section(network, monkeypatch):
    monkeypatch.setattr(
        "studies.choice.study.SINGLE", ["msp", "ebo", "autofold", "mds:alpha=1", "fdbd", "knn", "scale"]
    )
    measured = measure(network)
    best = max(it.auroc for it in measured.singles.values())
    assert measured.regret(best) == 0
    assert measured.regret(best - 0.01) == pytest.approx(1)
    assert measured.ahead_of("msp").value == pytest.approx(measured.ours.auroc - measured.singles["msp"].auroc)
    detector = ff.create(OURS).fit(network.val, network.banks.head)
    test, ood = network.banks.test.features, network.banks.ood.values()
    expected = np.mean([ff.auroc(detector(test), detector(bank.features)) for bank in ood])
    assert averages(measured)[OURS] == pytest.approx(expected)
    assert measured.variants["direction alone"] != measured.variants["length alone"]
    texts = sections([measured])
    assert "toy *" in texts["networks"]
    assert all(name in texts["methods"] for name in ("**fourfold**", RULE, "msp"))
    assert all(
        name in texts["variants"] for name in ("without margin", "25 samples", "30% wrong labels", "wrong transform")
    )
    assert "toy" in texts["answer"]
    assert draw({"toy": regrets(measured)}).count("<svg ") == 1


def test_a_method_that_refuses_the_data_is_left_out(network):
    assert single("knn:k=1000", network) is None  # of 360 samples
    assert single("knn:k=10", network).auroc > 0.9
