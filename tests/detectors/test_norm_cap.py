"""`NormCap` against a loop over rows, and the detectors behind it."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold.core.shaping import capped
from flatfold.evaluate.tuning import tune
from flatfold.scoring.export import export
from tests.four_classes import known, make_model


def shortened(h, longest):
    """Slow and obvious: a row is left alone, or brought to the longest norm."""
    return torch.stack([row if row.norm() <= longest else row / row.norm() * longest for row in h])


def test_only_rows_that_are_longer_are_shortened_and_keep_their_direction():
    h = torch.randn(50, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert 0 < int((h.norm(dim=1) > 2.5).sum()) < 50
    assert_close(capped(h, 2.5), shortened(h, 2.5), rtol=1e-12, atol=0)


def test_a_row_of_zeros_stays_one_and_can_be_differentiated():
    h = torch.zeros(2, 3, requires_grad=True)
    short = capped(h, 1.0)
    assert torch.equal(short, torch.zeros(2, 3))
    short.sum().backward()
    assert torch.equal(h.grad, torch.ones(2, 3))


def test_rows_that_are_short_enough_stay_as_they_are_to_the_last_bit():
    h = torch.randn(200, 7, generator=torch.Generator().manual_seed(1))
    assert torch.equal(capped(h, float(h.norm(dim=1).max()) * 1.001), h)


@pytest.mark.parametrize("size", [1e-42, 1e-25, 1e18, 1e25, 8e37])
def test_the_squares_of_features_need_not_be_numbers_of_their_type(size):
    h = torch.tensor([[3.0, -4.0]]) * size
    expected = shortened(h.double(), 2.5).float()
    assert_close(capped(h, 2.5), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("percentile", [25, 50, 90])
def test_the_cap_is_a_percentile_of_the_norms_it_was_fitted_on(percentile, world):
    cap = ff.NormCap(percentile)
    cap.learn(world.bank)
    longest = np.percentile(world.bank.features.norm(dim=1).numpy(), percentile)
    assert float(cap.longest_) == pytest.approx(longest, rel=1e-6)
    assert_close(cap(world.unknown * 3), shortened(world.unknown * 3, float(longest)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("name", "inner"), [("ebo-c", ff.Ebo()), ("fold-c", ff.Fold(0.25))])
def test_the_detector_behind_it_scores_shortened_features(name, inner, world):
    longest = float(np.percentile(world.bank.features.norm(dim=1).numpy(), 50))
    h = 3 * world.unknown
    assert 0 < int((h.norm(dim=1) > longest).sum()) < len(h)
    expected = inner.fit(world.bank, world.head)(shortened(h, longest))
    assert_close(ff.create(name).fit(world.bank, world.head)(h), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["ebo-c", "fold-c"])
def test_to_be_longer_than_known_inputs_is_no_credit(name, world):
    detector = ff.create(name).fit(world.bank, world.head)
    longest = float(detector.shaping.longest_)
    h = world.unknown / world.unknown.norm(dim=1, keepdim=True) * longest
    for factor in (10, 1e25):
        assert_close(detector(factor * h), detector(h), rtol=1e-4, atol=1e-6)


def test_it_says_that_it_is_not_fitted():
    with pytest.raises(ff.NotFittedError, match=r"NormCap has no norm yet\. Fit the detector it belongs to"):
        ff.NormCap()(torch.ones(1, 2))


def test_a_bank_of_zeros_gives_a_cap_above_zero():
    cap = ff.NormCap()
    cap.learn(ff.FeatureBank(torch.zeros(4, 3)))
    assert torch.isfinite(cap(torch.ones(2, 3))).all()
    assert float(cap.longest_) > 0


def test_a_share_is_refused_as_a_percentile(world):
    with pytest.raises(ValueError, match=r"percentile must be 0, or at least 1 and below 100, got 0\.5"):
        ff.create("ebo-c", percentile=0.5).fit(world.bank, world.head)


@pytest.mark.parametrize("ood", [False, True])
@pytest.mark.parametrize(("name", "points"), [("ebo-c", 4), ("fold-c", 40)])
def test_its_percentile_can_be_tuned(name, points, ood, make_world):
    world = make_world(per_class=25)
    noise = torch.randn(world.bank.features.shape, generator=torch.Generator().manual_seed(3))
    bank = ff.FeatureBank((0.5 * world.bank.features + 1.2 * noise).relu(), world.bank.labels)  # hard enough to differ
    tuning = tune(name, world.head, bank, ood=ff.FeatureBank(2 * world.unknown) if ood else None)
    assert len(tuning.trials) == points
    assert {trial.hyper["percentile"] for trial in tuning.trials} == {25, 50, 75, 90}
    assert max(trial.value for trial in tuning.trials) - min(trial.value for trial in tuning.trials) > 1e-3


@pytest.fixture(params=["ebo-c", "fold-c"])
def guard(request):
    return ff.Guard.fit(make_model(), [known(400)], request.param, 0.1)


def long_short_and_zero():
    """Known inputs, the same kind at a hundred times the size, and nothing at all."""
    return torch.cat([known(40, seed=7)[0], 100 * known(10, seed=8)[0], torch.zeros(1, 8)])


def test_a_monitor_counts_its_scores_within_the_range_that_it_tells(guard):
    monitor, verdict = guard.monitor(), guard(long_short_and_zero())
    monitor.add(verdict)
    histogram = monitor.histogram()
    assert (histogram.edges[0], histogram.edges[-1]) == pytest.approx(guard.detector.score_range())
    assert histogram.edges[0] <= verdict.score.min() <= verdict.score.max() <= histogram.edges[-1]
    assert histogram.stream.sum() == 51


def test_a_sample_scores_the_same_alone_and_in_a_batch(guard):
    x = long_short_and_zero()
    alone = torch.cat([guard(row[None]).score for row in x])
    assert_close(alone, guard(x).score, rtol=1e-6, atol=1e-6)


def test_pairs_are_those_of_shortened_features(world):
    detector, inner = (each.fit(world.bank, world.head) for each in (ff.create("fold-c"), ff.Fold(0.25)))
    h = 3 * world.unknown
    found, expected = detector.pairs(h, 3), inner.pairs(shortened(h, float(detector.shaping.longest_)), 3)
    assert torch.equal(found.first, expected.first)
    assert_close(found.share, expected.share, rtol=1e-4, atol=1e-6)
    assert (found.share - inner.pairs(h, 3).share).abs().max() > 1e-3


def test_it_is_exported(guard, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="flatfold[onnx] is not installed")
    x = long_short_and_zero()
    export(guard, tmp_path / "model.onnx", [x])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for rows in (x, x[-1:], 1e20 * x[:2]):
        (score,) = session.run(["score"], {"x": rows.numpy()})
        assert_close(torch.from_numpy(score), guard(rows).score, rtol=1e-5, atol=1e-5)
