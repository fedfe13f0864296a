"""`NormCap` against a loop over rows, and the detectors behind it."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold.core.shaping import capped


def shortened(h, longest):
    """Slow and obvious: a row is left alone, or brought to the longest norm."""
    return torch.stack([row if row.norm() <= longest else row / row.norm() * longest for row in h])


def test_only_rows_that_are_longer_are_shortened_and_keep_their_direction():
    h = torch.randn(50, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert 0 < int((h.norm(dim=1) > 2.5).sum()) < 50
    assert_close(capped(h, 2.5), shortened(h, 2.5), rtol=1e-12, atol=0)


def test_a_row_of_zeros_stays_one():
    assert torch.equal(capped(torch.zeros(2, 3), 1.0), torch.zeros(2, 3))


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
    expected = inner.fit(world.bank, world.head)(shortened(world.unknown, longest))
    assert_close(ff.create(name).fit(world.bank, world.head)(world.unknown), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["ebo-c", "fold-c"])
def test_to_be_longer_than_known_inputs_is_no_credit(name, world):
    detector = ff.create(name).fit(world.bank, world.head)
    longest = float(detector.shaping.longest_)
    h = world.unknown / world.unknown.norm(dim=1, keepdim=True) * longest
    assert_close(detector(10 * h), detector(h), rtol=1e-4, atol=1e-6)


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
