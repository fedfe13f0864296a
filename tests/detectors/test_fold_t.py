"""`FoldT` against a loop over rows and a scan over temperatures."""

import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold.core.hessian import class_distances, feature_hessian_trace


def losses(world, alpha, temperatures):
    """Slow and obvious: the mean cross-entropy at every temperature."""
    h, weight, bias = (t.double() for t in (world.bank.features, world.head.weight, world.head.bias))
    h = torch.stack([row / row.norm() ** alpha for row in h])
    return torch.stack(
        [torch.nn.functional.cross_entropy(h / t @ weight.T + bias, world.bank.labels) for t in temperatures]
    )


@pytest.fixture
def blurred(world):
    """Labels that are sometimes wrong: otherwise no temperature but 0 is the likeliest."""
    labels = world.bank.labels.clone()
    labels[::4] = (labels[::4] + 1) % world.head.n_classes
    return type(world)(world.head, ff.FeatureBank(world.bank.features, labels), world.unknown)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_temperature_is_the_likeliest_times_a_number(alpha, blurred):
    detector = ff.create("fold-t", alpha=alpha, times=3.0).fit(blurred.bank, blurred.head)
    likeliest = float(detector.temperature_) / 3
    around = losses(blurred, alpha, [0.98 * likeliest, likeliest, 1.02 * likeliest])
    assert around[1] < around[0]
    assert around[1] < around[2]
    assert around[1] < losses(blurred, alpha, torch.logspace(-2, 2, 60)).min() + 1e-9


def test_the_score_is_the_trace_at_tempered_features(blurred):
    detector = ff.create("fold-t").fit(blurred.bank, blurred.head)
    h, weight, bias = (t.double() for t in (blurred.unknown, blurred.head.weight, blurred.head.bias))
    logits = torch.stack([row / row.norm() ** 0.5 / detector.temperature_.double() for row in h]) @ weight.T + bias
    expected = feature_hessian_trace(logits.softmax(-1), class_distances(weight))
    assert_close(detector(blurred.unknown).double(), expected, rtol=1e-4, atol=0)


def test_the_papers_score_is_the_one_at_temperature_one(blurred):
    detector = ff.create("fold-t", alpha=0.3).fit(blurred.bank, blurred.head)
    detector.temperature_.fill_(1.0)
    assert_close(detector(blurred.unknown), ff.Fold(0.3).fit(blurred.bank, blurred.head)(blurred.unknown))


@pytest.mark.parametrize("times", [0, -1.0, float("inf"), float("nan"), True, "2"])
def test_a_multiple_that_is_none_is_refused(times, blurred):
    with pytest.raises(ValueError, match=r"times must be a number above 0, got .*1 is the likeliest temperature"):
        ff.create("fold-t", times=times).fit(blurred.bank, blurred.head)


def test_it_needs_labels(world):
    with pytest.raises(ValueError, match="labels"):
        ff.create("fold-t").fit(ff.FeatureBank(world.bank.features), world.head)


def test_where_all_is_classified_correctly_the_papers_temperature_is_taken_and_told(world):
    right = ff.FeatureBank(world.bank.features, (world.bank.features @ world.head.weight.T).argmax(-1))
    with pytest.warns(UserWarning, match="every sample of this bank is classified correctly"):
        detector = ff.create("fold-t", times=2.0).fit(right, world.head)
    assert float(detector.temperature_) == 2.0
