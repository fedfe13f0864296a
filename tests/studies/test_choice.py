"""The study of methods without OOD data, on a small world in place of networks."""

import numpy as np
import pytest
import torch

import flatfold as ff
from flatfold.evaluate.banks import Banks
from studies.choice.figure import draw, draw_samples
from studies.choice.study import (
    BANKS,
    OURS,
    RULE,
    Network,
    averages,
    by_trust,
    detections,
    measure,
    pick,
    read_banks,
    regrets,
    sections,
    single,
    wrong_labels,
)
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
    assert "toy" in draw_samples({"toy": measured.few}, ["toy"])
    assert measured.few[60] == (measured.ours.auroc, measured.variants["full trust"])
    assert sorted(measured.few) == [n / 6 for n in (25, 50, 100, 200, 360)]


def test_full_trust_is_the_sum_of_four_signs_without_doubt(network):
    detector = ff.create(OURS).fit(network.val, network.banks.head)

    def four(h):
        signs = detector.signs(h)
        return signs["direction"] + signs["length"] / 4 + signs["margin"] / 2 + signs["curvature"] / 2

    ood = [ff.auroc(four(network.banks.test.features), four(bank.features)) for bank in network.banks.ood.values()]
    assert by_trust(network.val, network)[1] == pytest.approx(np.mean(ood))


def test_detections_are_shares_above_the_threshold_that_id_data_exceed_at_the_rate(network):
    class Norm(torch.nn.Module):
        def forward(self, h):
            return h.norm(dim=-1)

    norms = [np.linalg.norm(bank.features, axis=1) for bank in (network.banks.test, *network.banks.ood.values())]
    expected = [np.mean([(n > np.quantile(norms[0], q)).mean() for n in norms[1:]]) for q in (0.95, 0.99)]
    assert detections(Norm(), network) == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore")
def test_a_bank_of_features_is_a_network_without_training_data_and_wrong_preparation(network, tmp_path, monkeypatch):
    banks = network.banks
    np.savez(
        tmp_path / "large_net.npz",
        W=banks.head.weight.half(),
        b=banks.head.bias.half(),
        id_val=banks.val.features.half(),
        id_val_labels=banks.val.labels.short(),
        id_test=banks.test.features.half(),
        id_test_labels=banks.test.labels.short(),
        ood_noise=banks.ood["noise"].features.half(),
    )
    found = read_banks(tmp_path / "large_net.npz")
    assert (found.train, list(found.ood)) == (None, ["noise"])
    assert found.val.features.dtype == torch.float32
    assert torch.equal(found.test.labels, banks.test.labels)
    monkeypatch.setattr("studies.choice.study.SINGLE", ["msp", "ebo", "autofold", "mds:alpha=1", "fdbd", "knn"])
    small = measure(network)
    monkeypatch.setattr("studies.choice.study.MOST_CLASSES", 5)
    large = measure(Network("large net", BANKS, found))
    assert (small.picked is None, large.picked) == (False, None)  # too many classes to leave each of them out
    texts = sections([small, large])
    assert "| wrong transform |" in texts["variants"]
    assert "| - | - |" in texts["variants"]
    assert "large net" in texts["compared"]


def test_a_method_that_refuses_the_data_is_left_out(network):
    assert single("knn:k=1000", network) is None  # of 360 samples
    assert single("knn:k=10", network).auroc > 0.9
