"""`NormCap` against a loop over rows, and the detectors behind it."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold import detectors
from flatfold.scoring.export import export
from tests.four_classes import known, make_model
from tests.refusals import assert_refused


def shortened(h, longest):
    """Slow and obvious: a row is left alone, or brought to the longest norm."""
    return torch.stack([row if row.norm() <= longest else row / row.norm() * longest for row in h])


def test_the_cap_is_a_percentile_of_the_norms_it_was_fitted_on(make_world):
    for dtype in (torch.float32, torch.float64):
        world = make_world(dtype)
        for percentile in (25, 50, 90):
            cap = detectors.NormCap(percentile)
            cap.learn(world.bank)
            longest = np.percentile(world.bank.features.norm(dim=1).numpy(), percentile)
            assert float(cap.longest_) == pytest.approx(longest, rel=1e-6), percentile
            assert_close(cap(world.unknown * 3), shortened(world.unknown * 3, float(longest)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("name", "inner"), [("ebo-c", detectors.Ebo), ("fold-c", lambda: ff.Fold(0.25))])
def test_the_detector_behind_it_scores_shortened_features(name, inner, make_world):
    for dtype in (torch.float32, torch.float64):
        world = make_world(dtype)
        detector, plain = (each.fit(world.bank, world.head) for each in (ff.create(name), inner()))
        longest = float(np.percentile(world.bank.features.norm(dim=1).numpy(), 50))
        h = 3 * world.unknown
        assert 0 < int((h.norm(dim=1) > longest).sum()) < len(h)
        assert_close(detector(h), plain(shortened(h, longest)), rtol=1e-4, atol=1e-6)
        h = h / h.norm(dim=1, keepdim=True) * longest
        for factor in (10, 1e25):  # features longer than those of the bank make no input look known
            assert_close(detector(factor * h), detector(h), rtol=1e-4, atol=1e-6)


def test_a_bank_of_zeros_gives_a_cap_above_zero():
    cap = detectors.NormCap()
    assert_refused(ff.NotFittedError, "longest", cap, torch.ones(1, 2))
    cap.learn(ff.FeatureBank(torch.zeros(4, 3)))
    assert torch.isfinite(cap(torch.ones(2, 3))).all()
    assert float(cap.longest_) > 0


def test_its_percentile_can_be_tuned(make_world):
    world = make_world(per_class=25)
    noise = torch.randn(world.bank.features.shape, generator=torch.Generator().manual_seed(3))
    bank = ff.FeatureBank((0.5 * world.bank.features + 1.2 * noise).relu(), world.bank.labels)  # hard enough to differ
    for ood in (None, ff.FeatureBank(2 * world.unknown)):
        tuning = ff.tune("ebo-c", world.head, bank, ood=ood)
        assert sorted(trial.hyper["percentile"] for trial in tuning.trials) == [25, 50, 75, 90]
        values = [trial.value for trial in tuning.trials]
        assert max(values) - min(values) > 1e-3


def test_a_guard_with_it_can_be_monitored_and_exported(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="flatfold[onnx] is not installed")
    guard = ff.Guard.fit(make_model(), [known(400)], method="fold-c", fpr=0.1)
    # known inputs, the same kind at a hundred times the size, and nothing at all
    x = torch.cat([known(40, seed=7)[0], 100 * known(10, seed=8)[0], torch.zeros(1, 8)])
    monitor, verdict = guard.monitor(), guard(x)
    monitor.add(verdict)
    histogram = monitor.histogram()
    assert (histogram.edges[0], histogram.edges[-1]) == pytest.approx(guard.detector.score_range())
    assert histogram.stream.sum() == 51
    assert_close(torch.cat([guard(row[None]).score for row in x]), verdict.score, rtol=1e-6, atol=1e-6)
    export(guard, tmp_path / "model.onnx", [x])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for rows in (x, x[-1:], 1e20 * x[:2]):
        (score,) = session.run(["score"], {"x": rows.numpy()})
        assert_close(torch.from_numpy(score), guard(rows).score, rtol=1e-5, atol=1e-5, equal_nan=True)
