"""Calibration: thresholds, p-values and refusals, for all inputs together and for each predicted class."""

import pytest
import torch
from torch.testing import assert_close

from flatfold.core.conformal import samples_needed
from flatfold.scoring import calibration as module
from flatfold.scoring.calibration import Calibration, lifted

CLASSES = 3


def draw(n=200, seed=0):
    """Scores that are higher for higher classes, and the classes."""
    g = torch.Generator().manual_seed(seed)
    predicted = torch.randint(CLASSES, (n,), generator=g)
    return torch.randn(n, generator=g) + 2 * predicted, predicted


def p_by_hand(score, others):
    return (1 + int((others >= score).sum())) / (len(others) + 1)


@pytest.mark.parametrize("fpr", [0.05, 0.1, 0.29])
@pytest.mark.parametrize("per_class", [False, True])
def test_p_values_and_decisions_are_those_of_the_definition(fpr, per_class):
    scores, predicted = draw()
    calibration = Calibration.of(scores, fpr, predicted if per_class else None, CLASSES)
    new, classes = draw(100, seed=1)
    p, alarm = calibration(new, classes)
    own = [scores[predicted == c] if per_class else scores for c in classes.tolist()]
    expected = [p_by_hand(score, others) for score, others in zip(new, own, strict=True)]
    assert_close(p, torch.tensor(expected))
    assert alarm.tolist() == [value <= fpr + 1e-12 for value in expected]
    assert alarm.any()
    assert not alarm.all()
    assert calibration.samples == 200
    assert calibration.per_class == per_class


def test_a_score_on_the_threshold_is_no_alarm_and_the_next_one_is():
    calibration = Calibration.of(torch.arange(99.0), 0.05)
    t = calibration.threshold[0]
    assert float(t) == 94  # the fifth largest of 0 ... 98
    p, alarm = calibration(torch.stack([t, torch.nextafter(t, t + 1)]), torch.zeros(2, dtype=torch.int64))
    assert alarm.tolist() == [False, True]
    assert_close(p, torch.tensor([0.06, 0.05]))


def test_what_is_not_a_number_raises_an_alarm():
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf])
    for calibration in (Calibration.of(torch.arange(99.0), 0.05), Calibration.of(*_two_classes())):
        assert calibration(odd, torch.tensor([0, 1, 0]))[1].tolist() == [True, True, False]


def _two_classes():
    return torch.arange(200.0), 0.05, torch.arange(200) % 2, 2


def test_each_class_keeps_its_rate_where_one_threshold_would_not():
    calibrated, new = draw(3000), draw(30_000, seed=1)
    rates = {}
    for per_class in (False, True):
        calibration = Calibration.of(calibrated[0], 0.1, calibrated[1] if per_class else None, CLASSES)
        _, alarm = calibration(*new)
        rates[per_class] = [float(alarm[new[1] == c].double().mean()) for c in range(CLASSES)]
    assert rates[True] == pytest.approx([0.1] * CLASSES, abs=0.03)  # three standard errors of 1,000 and 10,000 draws
    assert rates[False][0] < 0.001
    assert rates[False][2] > 0.25


def test_the_rate_holds_for_every_class_on_average_over_calibration_sets():
    alarms, seen = torch.zeros(CLASSES), torch.zeros(CLASSES)
    for seed in range(300):
        calibration = Calibration.of(draw(150, seed)[0], 0.1, draw(150, seed)[1], CLASSES)
        scores, predicted = draw(60, 1000 + seed)
        alarms += torch.bincount(predicted, calibration(scores, predicted)[1].float(), CLASSES)
        seen += torch.bincount(predicted, minlength=CLASSES)
    rate, error = alarms / seen, (0.1 * 0.9 / seen * (1 + 60 / 150)).sqrt()  # inputs of one set share a threshold
    assert (rate <= 0.1 + 3 * error).all()
    assert (rate >= 0.1 - 1 / 40 - 3 * error).all()


def test_another_rate_keeps_the_scores():
    scores, predicted = draw()
    for classes in (None, predicted):
        strict = Calibration.of(scores, 0.2, classes, CLASSES).at(0.05)
        assert strict.fpr == 0.05
        assert torch.equal(strict.threshold, Calibration.of(scores, 0.05, classes, CLASSES).threshold)


def test_it_moves_and_converts_like_any_module():
    calibration = Calibration.of(*draw()[:1], 0.05).double()
    assert calibration.scores.dtype == calibration.threshold.dtype == torch.float64
    assert calibration.counts.dtype == torch.int64


@pytest.mark.parametrize("fpr", [0.05, 0.01])
def test_too_few_samples_are_refused_with_the_number_needed(fpr):
    n = samples_needed(fpr)
    Calibration.of(torch.arange(float(n)), fpr)
    message = f"rate of {fpr:g} takes {n} calibration samples, the calibration data has {n - 1}"
    with pytest.raises(ValueError, match=message):
        Calibration.of(torch.arange(n - 1.0), fpr)
    with pytest.raises(ValueError, match=message):
        Calibration.of(torch.arange(n - 1.0), 0.5).at(fpr)


def test_classes_with_too_few_samples_are_named():
    predicted = torch.tensor([0] * 30 + [1] * 10 + [2] * 19)
    message = r"takes 19 calibration samples that are predicted as it, but 1 of 3 classes have fewer \(class 1: 10\)\."
    with pytest.raises(ValueError, match=rf"{message} Give more in-distribution data, about 113 samples in all, allow"):
        Calibration.of(torch.rand(59), 0.05, predicted, 3)
    with pytest.raises(ValueError, match=r"5 of 7 .* \(class 1: 10, class 3: 0, class 4: 0, and 2 more\).*data, allow"):
        Calibration.of(torch.rand(59), 0.05, predicted, 7)


def test_many_inputs_are_looked_up_a_part_at_a_time(monkeypatch):
    scores, predicted = draw()
    calibration = Calibration.of(scores, 0.1, predicted, CLASSES)
    new, classes = draw(101, seed=1)
    expected, gathered = calibration(new, classes), []

    def watched(score, rows, counts):
        gathered.append(rows.numel())
        return p_values(score, rows, counts)

    p_values = module.p_values
    monkeypatch.setattr(module, "p_values", watched)
    monkeypatch.setattr(module, "GATHERED", 10 * calibration.scores.shape[1])
    for one, other in zip(calibration(new, classes), expected, strict=True):
        assert torch.equal(one, other)
    assert max(gathered) == 10 * calibration.scores.shape[1]
    assert len(gathered) == 11


def test_counts_lie_where_the_scores_do():
    scores = torch.zeros(2, 30, device="meta")
    assert Calibration(scores, torch.tensor([30, 20]), 0.1).counts.device.type == "meta"


@pytest.mark.parametrize("fpr", ["0.05", None, 0, 1, 1.5, float("nan")])
def test_what_is_no_share_is_refused(fpr):
    with pytest.raises(ValueError, match=rf"fpr must lie between 0 and 1, got {fpr!r}\. 0\.05 allows"):
        Calibration.of(torch.arange(99.0), fpr)


def test_scores_that_are_no_numbers_are_refused():
    scores = torch.arange(99.0)
    scores[[3, 7]] = torch.nan
    with pytest.raises(ValueError, match="calibration scores must be numbers, but 2 are NaN"):
        Calibration.of(scores, 0.05)


def test_lifted_scores_keep_their_order_and_are_higher_by_what_rounding_may_add():
    scores = torch.tensor([-100.0, -1.0, 0.0, 1e-30, 2.0], dtype=torch.float64)
    expected = torch.tensor([-99.999, -0.99999, 0.0, 1.00001e-30, 2.00002], dtype=torch.float64)
    assert_close(lifted(scores), expected, rtol=1e-12, atol=0)
