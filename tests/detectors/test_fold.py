"""FOLD, its variants and the authors' options against formulas written out in float64."""

import pytest
import torch
from torch.func import hessian, vmap
from torch.testing import assert_close

import flatfold as ff
from flatfold import detectors
from flatfold.core.hessian import class_distances, feature_hessian_trace
from tests.refusals import assert_refused

DTYPES = (torch.float32, torch.float64)


def autograd_trace(h, head, alpha):
    """Differentiate the energy twice at h / |h|^alpha, in float64."""
    w, b = head.weight.double(), head.bias.double()
    h = h.double() / h.double().norm(dim=-1, keepdim=True) ** alpha
    return vmap(lambda x: hessian(lambda y: torch.logsumexp(w @ y + b, 0))(x).trace())(h)


def probabilities(h, head, alpha):
    h = h.double() / h.double().norm(dim=-1, keepdim=True) ** alpha
    return h, (h @ head.weight.double().T + head.bias.double()).softmax(-1)


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.5, 1.0])
def test_is_the_trace_of_the_hessian_at_partially_normalised_features(alpha, make_world):
    for dtype in DTYPES:
        world = make_world(dtype)
        scores = ff.Fold(alpha).fit(world.bank, world.head)(world.bank.features)
        assert_close(scores.double(), autograd_trace(world.bank.features, world.head, alpha), rtol=1e-5, atol=0)


def test_float32_is_within_1e5_of_float64_autograd():
    for c, d in ((2, 16), (2, 512), (10, 16), (10, 512), (100, 16), (100, 512), (100, 5)):
        g = torch.Generator().manual_seed(c + d)
        head = ff.Head(torch.randn(c, d, generator=g), torch.randn(c, generator=g))
        h = torch.randn(20, d, generator=g)
        scores = ff.Fold(0.3).fit(ff.FeatureBank(h), head)(h)
        assert torch.allclose(scores.double(), autograd_trace(h, head, 0.3), rtol=1e-5, atol=0), (c, d)


def test_fold_r_is_fold_of_clipped_and_fold_a_of_shaped_features(make_world):
    for dtype in DTYPES:
        world = make_world(dtype)
        features = world.bank.features
        threshold = torch.quantile(features.flatten(), 0.8)
        detector = ff.create("fold-r", alpha=0.4, percentile=80).fit(world.bank, world.head)
        expected = autograd_trace(features.clamp(max=threshold), world.head, 0.4)
        assert_close(detector(features).double(), expected, rtol=1e-4, atol=0)
        assert_close(float(detector.shaping.threshold_), float(threshold))
        top = features.topk(8).indices  # 24 - round(24 * 0.65) = 8
        shaped = torch.zeros_like(features).scatter(-1, top, (features.sum(-1, keepdim=True) / 8).expand(-1, 8))
        detector = ff.create("fold-a", alpha=0.4, percentile=65).fit(world.bank, world.head)
        assert_close(detector(features).double(), autograd_trace(shaped, world.head, 0.4), rtol=1e-4, atol=0)


def test_the_score_norms_divide_by_the_mean_weight_or_the_features(make_world):
    for dtype in DTYPES:
        world = make_world(dtype)
        h, p = probabilities(world.unknown, world.head, 0.3)
        plain = ff.Fold(0.3).fit(world.bank, world.head)(world.unknown)
        for score_norm, vector in (("weight", p @ world.head.weight.double()), ("feature", h)):
            normed = ff.Fold(0.3, score_norm).fit(world.bank, world.head)(world.unknown)
            assert_close(normed.double(), plain.double() / vector.square().sum(-1), rtol=1e-5, atol=0)


def test_the_authors_mask_leaves_out_features_not_below_the_threshold(make_world):
    """Short features grow when they are normalised; without normalisation clipped ones lie on the threshold."""
    world = make_world(torch.float64)
    w = world.head.weight.double()
    for alpha, percentile, features in ((0.9, 50, world.unknown / 10), (0.0, 80, world.bank.features)):
        hyper = {"alpha": alpha, "percentile": percentile, "masked": True}
        detector = ff.create("fold-r", **hyper).fit(world.bank, world.head)
        threshold = detector.shaping.threshold_.double()
        h, p = probabilities(features.clamp(max=threshold), world.head, alpha)
        kept = h < threshold
        assert 0 < kept.double().mean() < 1, alpha
        expected = ((p @ w.square() - (p @ w).square()) * kept).sum(-1)
        assert_close(detector(features), expected, rtol=1e-4, atol=1e-9)


def test_a_divisor_of_zero_gives_a_finite_score():
    """Opposite classes and a feature of zero: neither the mean weight nor the feature has a length."""
    head = ff.Head(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    bank = ff.FeatureBank(torch.zeros(12, 2), torch.arange(12) % 4)
    small = ff.Head(torch.tensor([[1.0, 0.01], [-1.0, 0.01]]))  # a mean weight of (0, 0.01), a trace of 1
    even = torch.tensor([[0.0, 1.0], [0.0, 1e-3]])
    for score_norm, expected in (("weight", [1e4, 1e4]), ("feature", [1.0, 1e6])):
        assert_close(
            ff.Fold(0.0, score_norm).fit(ff.FeatureBank(even), small)(even), torch.tensor(expected), rtol=1e-4, atol=0
        )
    for score_norm in ("weight", "feature"):
        assert ff.Fold(0.5, score_norm).fit(bank, head)(bank.features).isfinite().all(), score_norm
        assert ff.AutoFold(grid=[0.5], score_norm=score_norm).fit(bank, head).curve_.isfinite().all(), score_norm


def test_confident_samples_of_real_size_do_not_tie(make_world):
    world = make_world()
    h = world.bank.features[:1] * torch.linspace(1, 3, 50)[:, None]
    assert len(torch.unique(ff.Fold(0.0).fit(world.bank, world.head)(h))) == 50


def test_exponents_and_norms_out_of_range_are_refused(make_world):
    world = make_world()
    for alpha in (-0.1, 1.1, float("nan"), "half"):
        for detector in (ff.Fold(alpha), ff.create("msp", alpha=alpha)):
            assert_refused(ValueError, "alpha", detector.fit, world.bank, world.head)
    assert_refused(ValueError, "l2", ff.Fold(score_norm="l2").fit, world.bank, world.head)


def test_a_model_that_is_trained_on_does_not_reach_a_fitted_detector(make_world):
    world = make_world()
    layer = torch.nn.Linear(24, 6)
    for make in (ff.Fold, detectors.Ebo):
        detector = make().fit(world.bank, ff.Head(layer.weight, layer.bias))
        before = detector(world.unknown)
        with torch.no_grad():
            layer.weight.mul_(3)
            layer.bias.add_(1)
        assert torch.equal(detector(world.unknown), before), make


def test_given_logits_spare_the_product_with_a_large_head(make_world, monkeypatch):
    for make in (lambda: ff.Fold(0.4), lambda: ff.AutoFold(grid=[0.3])):
        for bias in (True, False):
            world = make_world(torch.float32, bias=bias)
            detector = make().fit(world.bank, world.head)
            h, logits = world.unknown, world.head(world.unknown)
            assert torch.equal(detector(h, 2 * logits), detector(h))  # those of a small head have too few digits
            monkeypatch.setattr("flatfold.core.hessian.WIDE_WEIGHTS", 0)
            expected = detector(h)
            assert_close(detector(h, logits), expected, rtol=1e-5, atol=0)
            assert not torch.allclose(detector(h, 2 * logits), expected)  # it is these that are used
            assert torch.equal(detector(h, (2 * logits).bfloat16()), expected)  # not if they have lost their digits
            monkeypatch.undo()


def test_given_logits_go_with_their_rows_where_there_are_many(make_world, monkeypatch):
    world = make_world(torch.float64)
    detector = ff.Fold(0.4).fit(world.bank, world.head)
    h = world.bank.features
    together = detector(h, world.head(h))
    monkeypatch.setattr("flatfold.detectors.base.ROWS_AT_ONCE", 7)
    monkeypatch.setattr("flatfold.core.hessian.WIDE_WEIGHTS", 0)
    assert_close(detector(h, world.head(h)), together)
    assert_close(detector(h), together)


# --- FOLD at a temperature


@pytest.fixture
def blurred(make_world):
    """Labels that are sometimes wrong: otherwise no temperature but 0 is the likeliest."""
    world = make_world()
    labels = world.bank.labels.clone()
    labels[::4] = (labels[::4] + 1) % world.head.n_classes
    return type(world)(world.head, ff.FeatureBank(world.bank.features, labels), world.unknown)


def losses(world, alpha, temperatures):
    """Slow and obvious: the mean cross-entropy at every temperature."""
    h, weight, bias = (t.double() for t in (world.bank.features, world.head.weight, world.head.bias))
    h = torch.stack([row / row.norm() ** alpha for row in h])
    loss = torch.nn.functional.cross_entropy
    return torch.stack([loss(h / t @ weight.T + bias, world.bank.labels) for t in temperatures])


def test_the_temperature_of_fold_t_is_the_likeliest_times_a_number(blurred):
    for alpha in (0.0, 0.5, 1.0):
        detector = ff.create("fold-t", alpha=alpha, times=3.0).fit(blurred.bank, blurred.head)
        likeliest = float(detector.temperature_) / 3
        around = losses(blurred, alpha, [0.98 * likeliest, likeliest, 1.02 * likeliest])
        assert around[1] < around[0], alpha
        assert around[1] < around[2], alpha
        assert around[1] < losses(blurred, alpha, torch.logspace(-2, 2, 60)).min() + 1e-9, alpha


def test_fold_t_is_the_trace_at_tempered_features(blurred):
    detector = ff.create("fold-t").fit(blurred.bank, blurred.head)
    h, weight, bias = (t.double() for t in (blurred.unknown, blurred.head.weight, blurred.head.bias))
    logits = torch.stack([row / row.norm() ** 0.5 / detector.temperature_.double() for row in h]) @ weight.T + bias
    expected = feature_hessian_trace(logits.softmax(-1), class_distances(weight))
    assert_close(detector(blurred.unknown).double(), expected, rtol=1e-4, atol=0)
    detector = ff.create("fold-t", alpha=0.3).fit(blurred.bank, blurred.head)
    detector.temperature_.fill_(1.0)  # where it is the paper's score
    assert_close(detector(blurred.unknown), ff.Fold(0.3).fit(blurred.bank, blurred.head)(blurred.unknown))


def test_fold_t_needs_labels_and_a_multiple_above_0(blurred):
    for times in (0, -1.0, float("inf"), float("nan"), True, "2"):
        assert_refused(ValueError, "times", ff.create("fold-t", times=times).fit, blurred.bank, blurred.head)
    unlabelled = ff.FeatureBank(blurred.bank.features)
    assert_refused(ValueError, "labels", ff.create("fold-t").fit, unlabelled, blurred.head)


def test_where_every_sample_is_classified_correctly_the_papers_temperature_is_taken_with_a_warning(make_world):
    world = make_world()
    right = ff.FeatureBank(world.bank.features, (world.bank.features @ world.head.weight.T).argmax(-1))
    with pytest.warns(UserWarning, match="classified correctly"):
        detector = ff.create("fold-t", times=2.0).fit(right, world.head)
    assert float(detector.temperature_) == 2.0
