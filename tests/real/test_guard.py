"""The promise of a guard, measured on real scores: repeated splits of CIFAR-10's test images."""

import numpy as np
import pytest
import torch
from scipy.stats import betabinom, binom
from torch import nn

import flatfold as ff
from flatfold.core.conformal import allowed_ranks
from flatfold.scoring.calibrated import Calibration

SPLITS = 400


@pytest.fixture(scope="module", params=["autofold", "ebo", "fourfold", "knn"])
def known(request, cifar):
    """Scores of 10,000 test images that neither network nor method has seen, and the classes they are taken for."""
    _, head, banks = cifar
    detector = ff.create(request.param).fit(banks["cifar10_train_5k"], head)
    features = banks["cifar10_test"].features
    return detector(features), head(features).argmax(-1)


def false_alarms(known, calibrated, fpr, split, per_class=False):
    """How many of the inputs that were not calibrated on raise an alarm, and how many of them there are."""
    order = torch.randperm(len(known[0]), generator=torch.Generator().manual_seed(split))
    (scores, classes), rest = (values[order[:calibrated]] for values in known), order[calibrated:]
    calibration = Calibration.of(scores, fpr, classes if per_class else None, 10)
    return calibration(known[0][rest], known[1][rest])[1]


@pytest.mark.parametrize("fpr", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("calibrated", [199, 1000])
def test_false_alarms_keep_to_the_rate_and_to_their_band(known, fpr, calibrated):
    n = len(known[0]) - calibrated
    alarms = np.array([int(false_alarms(known, calibrated, fpr, split).sum()) for split in range(SPLITS)])
    k = allowed_ranks(fpr, calibrated)
    law = betabinom(n, k, calibrated + 1 - k)  # of the false alarms among n inputs, over splits, without ties
    error = law.std() / SPLITS**0.5
    assert alarms.mean() <= n * fpr + 3 * error  # the promise
    assert abs(alarms.mean() - law.mean()) <= 3.5 * error  # which is not wasted
    outside = int(((alarms < law.ppf(0.025)) | (alarms > law.ppf(0.975))).sum())
    assert outside <= binom(SPLITS, 0.05).ppf(0.999)
    assert outside >= binom(SPLITS, 0.03).ppf(0.001)  # 0.03: the band of whole numbers holds a little more than 95 %


def test_a_threshold_per_class_keeps_the_rate_in_every_class(known):
    rates = []
    for split in range(60):
        order = torch.randperm(len(known[0]), generator=torch.Generator().manual_seed(split))[2000:]
        alarm, classes = false_alarms(known, 2000, 0.1, split, per_class=True), known[1][order]
        rates.append([float(alarm[classes == c].double().mean()) for c in range(10)])
    means, errors = np.mean(rates, 0), np.std(rates, 0) / len(rates) ** 0.5
    assert (means <= 0.1 + 4 * errors).all()
    assert (means >= 0.1 - 1 / 150 - 4 * errors).all()  # a class has 160 or more, so k / (n + 1) is not far below 0.1


def test_a_guard_of_a_real_network_stops_what_it_does_not_know(cifar):
    _, head, banks = cifar
    linear = nn.Linear(head.width, head.n_classes)
    linear.load_state_dict({"weight": head.weight, "bias": head.bias})
    test = banks["cifar10_test"]
    guard = ff.Guard.fit(linear, [(test.features[:2000], test.labels[:2000])], method="knn", fpr=0.05)
    assert float(guard(test.features[2000:]).is_ood.double().mean()) < 0.08
    for name in ("textures_dtd10_32", "mnist_test"):
        assert float(guard(banks[name].features).is_ood.double().mean()) > 0.6
