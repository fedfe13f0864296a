"""Calibration: thresholds, p-values and refusals, for all inputs together and for each predicted class."""

import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold.core.conformal import samples_needed
from flatfold.scoring import calibrated as module
from flatfold.scoring.calibrated import CalibratedDetector, Calibration, with_rounding_margin

CLASSES = 3


def draw(n=200, seed=0):
    """Scores that are higher for higher classes, and the classes."""
    g = torch.Generator().manual_seed(seed)
    predicted = torch.randint(CLASSES, (n,), generator=g)
    return torch.randn(n, generator=g) + 2 * predicted, predicted


def p_by_hand(score, others):
    return (1 + int((others >= score).sum())) / (len(others) + 1)


@pytest.mark.parametrize("per_class", [False, True])
def test_p_values_and_decisions_are_those_of_the_definition(per_class):
    scores, predicted = draw()
    new, classes = draw(100, seed=1)
    own = [scores[predicted == c] if per_class else scores for c in classes.tolist()]
    expected = [p_by_hand(score, others) for score, others in zip(new, own, strict=True)]
    for fpr in (0.05, 0.1, 0.29):
        calibration = Calibration.of(scores, fpr, predicted if per_class else None, CLASSES)
        p, alarm = calibration(new, classes)
        assert_close(p, torch.tensor(expected))
        assert alarm.tolist() == [value <= fpr + 1e-12 for value in expected], fpr
        assert 0 < alarm.sum() < 100
        assert (calibration.samples, calibration.per_class) == (200, per_class)


def test_a_score_on_the_threshold_is_no_alarm_and_the_next_one_is():
    calibration = Calibration.of(torch.arange(99.0), 0.05)
    t = calibration.threshold[0]
    assert float(t) == 94  # the fifth largest of 0 ... 98
    p, alarm = calibration(torch.stack([t, torch.nextafter(t, t + 1)]), torch.zeros(2, dtype=torch.int64))
    assert alarm.tolist() == [False, True]
    assert_close(p, torch.tensor([0.06, 0.05]))


def test_a_score_that_is_not_a_number_raises_an_alarm():
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf])
    per_class = Calibration.of(torch.arange(200.0), 0.05, torch.arange(200) % 2, 2)
    for calibration in (Calibration.of(torch.arange(99.0), 0.05), per_class):
        p, alarm = calibration(odd, torch.tensor([0, 1, 0]))
        assert alarm.all()
        assert (p == 1 / (int(calibration.counts[0]) + 1)).all()


def test_features_go_through_the_head_only_where_the_predicted_class_matters(monkeypatch):
    h, labels = torch.rand(60, 5), torch.arange(60) % CLASSES
    detector = ff.create("mds").fit(ff.FeatureBank(h, labels), ff.Head(torch.rand(CLASSES, 5)))
    calls, logits = [], detector.logits
    monkeypatch.setattr(detector, "logits", lambda h: calls.append(len(h)) or logits(h))
    for classes, expected in ((None, []), (labels, [60])):
        calibration = Calibration.of(detector(h), 0.1, classes, CLASSES)
        CalibratedDetector(detector, calibration)(h)
        assert calls == expected


def test_another_rate_keeps_the_scores_and_a_conversion_the_counts():
    scores, predicted = draw()
    for classes in (None, predicted):
        strict = Calibration.of(scores, 0.2, classes, CLASSES).at(0.05)
        assert strict.fpr == 0.05
        assert torch.equal(strict.threshold, Calibration.of(scores, 0.05, classes, CLASSES).threshold)
    double = Calibration.of(scores, 0.05).double()
    assert (double.scores.dtype, double.threshold.dtype, double.counts.dtype) == (*2 * [torch.float64], torch.int64)
    assert Calibration(torch.zeros(2, 30, device="meta"), torch.tensor([30, 20]), 0.1).counts.device.type == "meta"


def test_too_few_samples_are_refused_with_the_number_needed():
    for fpr, n in ((0.05, 19), (0.01, 99)):
        assert samples_needed(fpr) == n
        Calibration.of(torch.arange(float(n)), fpr)
        with pytest.raises(ValueError, match=f"takes {n} .*has {n - 1}"):
            Calibration.of(torch.arange(n - 1.0), fpr)
        with pytest.raises(ValueError, match=f"takes {n}"):
            Calibration.of(torch.arange(n - 1.0), 0.5).at(fpr)


def test_classes_with_too_few_samples_are_named():
    predicted = torch.tensor([0] * 30 + [1] * 10 + [2] * 19)
    with pytest.raises(ValueError, match=r"class 1: 10.* 113 samples"):
        Calibration.of(torch.rand(59), 0.05, predicted, 3)
    with pytest.raises(ValueError, match=r"class 1: 10, class 3: 0, class 4: 0, and 2 more"):
        Calibration.of(torch.rand(59), 0.05, predicted, 7)


def test_a_confidence_raises_the_threshold_and_needs_more_samples():
    scores, predicted = draw(1000)
    sure = Calibration.of(scores, 0.05, confidence=0.95)
    assert sure.threshold[0] == scores.sort(descending=True).values[38]  # the 39th, as the beta law has it
    assert torch.equal(Calibration.of(scores, 0.2).at(0.05, 0.95).threshold, sure.threshold)
    assert sure.at(0.1).confidence == 0.95
    by_class = Calibration.of(scores, 0.05, predicted, CLASSES, confidence=0.95)
    assert (by_class.threshold > Calibration.of(scores, 0.05, predicted, CLASSES).threshold).all()
    with pytest.raises(ValueError, match=r"confidence 0.95 takes 59 .*has 58"):
        Calibration.of(scores[:58], 0.05, confidence=0.95)


def test_many_inputs_are_looked_up_a_part_at_a_time(monkeypatch):
    scores, predicted = draw()
    calibration = Calibration.of(scores, 0.1, predicted, CLASSES)
    expected = calibration(*draw(101, seed=1))
    monkeypatch.setattr(module, "GATHERED", 10 * calibration.scores.shape[1])
    for one, other in zip(calibration(*draw(101, seed=1)), expected, strict=True):
        assert torch.equal(one, other)


def test_impossible_rates_and_scores_that_are_not_numbers_are_refused():
    for fpr in ("0.05", None, 0, 1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            Calibration.of(torch.arange(99.0), fpr)
    for confidence in ("0.95", 0, 1, float("nan")):
        with pytest.raises(ValueError, match="confidence"):
            Calibration.of(torch.arange(99.0), 0.05, confidence=confidence)
    scores = torch.arange(99.0)
    scores[[3, 7]] = torch.tensor([torch.nan, -torch.inf])
    with pytest.raises(ValueError, match="2 are NaN"):
        Calibration.of(scores, 0.05)


def test_with_rounding_margin_scores_keep_their_order_and_are_higher_by_what_rounding_may_add():
    scores = torch.tensor([-100.0, -1.0, 0.0, 1e-30, 2.0], dtype=torch.float64)  # whose quartiles are 1 apart
    expected = torch.tensor([-99.99, -0.9999, 1e-4, 1e-30 + 1e-4, 2.0002], dtype=torch.float64)
    assert_close(with_rounding_margin(scores), expected, rtol=1e-12, atol=0)
    copied = torch.cat([scores, torch.zeros(95)])  # whose quartiles are equal
    assert_close(with_rounding_margin(copied, torch.arange(100) < 5)[:5], expected, rtol=1e-12, atol=0)
