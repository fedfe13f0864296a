"""FOLD, its variants and the authors' options against formulas written out."""

import pytest
import torch
from torch.func import hessian, vmap
from torch.testing import assert_close

import flatfold as ff


def autograd_trace(h, head, alpha):
    """Differentiate the energy twice at h / |h|^alpha, in float64."""
    w, b = head.weight.double(), head.bias.double()
    h = h.double() / h.double().norm(dim=-1, keepdim=True) ** alpha
    return vmap(lambda x: hessian(lambda y: torch.logsumexp(w @ y + b, 0))(x).trace())(h)


def probabilities(h, head, alpha):
    h = h.double() / h.double().norm(dim=-1, keepdim=True) ** alpha
    return h, (h @ head.weight.double().T + head.bias.double()).softmax(-1)


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.5, 1.0])
def test_is_the_trace_of_the_hessian_at_partially_normalised_features(alpha, world):
    scores = ff.Fold(alpha).fit(world.bank, world.head)(world.bank.features)
    assert_close(scores.double(), autograd_trace(world.bank.features, world.head, alpha), rtol=1e-5, atol=0)


@pytest.mark.parametrize("c", [2, 10, 100])
@pytest.mark.parametrize("d", [16, 512])
def test_float32_is_within_1e5_of_float64_autograd(c, d):
    g = torch.Generator().manual_seed(c + d)
    head = ff.Head(torch.randn(c, d, generator=g), torch.randn(c, generator=g))
    h = torch.randn(20, d, generator=g)
    scores = ff.Fold(0.3).fit(ff.FeatureBank(h), head)(h)
    assert_close(scores.double(), autograd_trace(h, head, 0.3), rtol=1e-5, atol=0)


def test_fold_r_is_fold_of_clipped_features(world):
    features = world.bank.features
    clipped = features.clamp(max=torch.quantile(features.flatten(), 0.8))
    detector = ff.create("fold-r", alpha=0.4, percentile=80).fit(world.bank, world.head)
    assert_close(detector(features).double(), autograd_trace(clipped, world.head, 0.4), rtol=1e-4, atol=0)
    assert_close(float(detector.shaping.threshold_), float(torch.quantile(features.flatten(), 0.8)))


def test_fold_a_is_fold_of_shaped_features(world):
    features = world.bank.features
    top = features.topk(8).indices  # 24 - round(24 * 0.65) = 8
    shaped = torch.zeros_like(features).scatter(-1, top, (features.sum(-1, keepdim=True) / 8).expand(-1, 8))
    detector = ff.create("fold-a", alpha=0.4, percentile=65).fit(world.bank, world.head)
    assert_close(detector(features).double(), autograd_trace(shaped, world.head, 0.4), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("score_norm", "divisor"), [("weight", "mean weight"), ("feature", "features")])
def test_the_score_norms_divide_by_what_they_say(score_norm, divisor, world):
    h, p = probabilities(world.unknown, world.head, 0.3)
    square = (p @ world.head.weight.double() if divisor == "mean weight" else h).square().sum(-1)
    plain = ff.Fold(0.3).fit(world.bank, world.head)(world.unknown)
    normed = ff.Fold(0.3, score_norm).fit(world.bank, world.head)(world.unknown)
    assert_close(normed.double(), plain.double() / square, rtol=1e-5, atol=0)


def test_the_authors_mask_leaves_out_normalised_features_above_the_threshold(world):
    """Features shorter than 1 grow when they are normalised; only then has the mask something to do."""
    detector = ff.create("fold-r", alpha=0.9, percentile=50, masked=True).fit(world.bank, world.head)
    threshold = detector.shaping.threshold_.double()
    small = world.unknown / 10
    h, p = probabilities(small.double().clamp(max=threshold), world.head, 0.9)
    w = world.head.weight.double()
    variance = p @ w.square() - (p @ w).square()
    kept = h < threshold
    assert 0 < kept.double().mean() < 1
    assert_close(detector(small).double(), (variance * kept).sum(-1), rtol=1e-4, atol=1e-9)


def test_the_authors_mask_leaves_out_what_was_clipped(world):
    """Without normalisation the clipped entries lie on the threshold, not below it."""
    detector = ff.create("fold-r", alpha=0.0, percentile=80, masked=True).fit(world.bank, world.head)
    threshold, w = detector.shaping.threshold_.double(), world.head.weight.double()
    _, p = probabilities(world.bank.features.double().clamp(max=threshold), world.head, 0.0)
    kept = world.bank.features.double() < threshold
    expected = ((p @ w.square() - (p @ w).square()) * kept).sum(-1)
    assert_close(detector(world.bank.features).double(), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("score_norm", ["weight", "feature"])
def test_a_divisor_of_zero_gives_a_finite_score(score_norm):
    """Opposite classes and a feature of zero: neither the mean weight nor the feature has a length."""
    head = ff.Head(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    bank = ff.FeatureBank(torch.zeros(12, 2), torch.arange(12) % 4)
    assert ff.Fold(0.5, score_norm).fit(bank, head)(bank.features).isfinite().all()
    assert ff.AutoFold(grid=[0.5], score_norm=score_norm).fit(bank, head).curve_.isfinite().all()


def test_many_classes_and_few_features_use_the_centred_form():
    g = torch.Generator().manual_seed(0)
    head = ff.Head(torch.randn(100, 5, generator=g), torch.randn(100, generator=g))
    h = torch.randn(20, 5, generator=g)
    detector = ff.Fold(0.5).fit(ff.FeatureBank(h), head)
    assert detector.distances is None
    assert_close(detector(h).double(), autograd_trace(h, head, 0.5), rtol=1e-5, atol=0)


def test_confident_samples_of_real_size_do_not_tie(make_world):
    world = make_world()
    h = world.bank.features[:1] * torch.linspace(1, 3, 50)[:, None]
    assert len(torch.unique(ff.Fold(0.0).fit(world.bank, world.head)(h))) == 50


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan"), "half"])
def test_an_exponent_outside_the_range_is_refused(alpha, make_world):
    world = make_world()
    for detector in (ff.Fold(alpha), ff.create("msp", alpha=alpha)):
        with pytest.raises(ValueError, match="alpha must be a number between 0"):
            detector.fit(world.bank, world.head)


def test_an_unknown_score_norm_is_refused(make_world):
    world = make_world()
    with pytest.raises(ValueError, match='None, "weight" or "feature", got \'l2\''):
        ff.Fold(score_norm="l2").fit(world.bank, world.head)


def test_a_model_that_is_trained_on_does_not_reach_a_fitted_detector(make_world):
    world = make_world()
    layer = torch.nn.Linear(24, 6)
    detector = ff.Fold().fit(world.bank, ff.Head(layer.weight, layer.bias))
    before = detector(world.unknown)
    with torch.no_grad():
        layer.weight.mul_(3)
    assert torch.equal(detector(world.unknown), before)


@pytest.mark.parametrize("make", [lambda: ff.Fold(0.4), lambda: ff.AutoFold(grid=[0.3])], ids=["fold", "autofold"])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_that_are_known_spare_the_product_with_a_large_head(make, bias, make_world, monkeypatch):
    world = make_world(torch.float32, bias=bias)
    detector = make().fit(world.bank, world.head)
    monkeypatch.setattr("flatfold.core.precision.WIDE_WEIGHTS", 0)
    h = world.unknown
    logits = world.head(h)
    expected = detector(h)
    assert_close(detector(h, logits), expected, rtol=1e-5, atol=0)
    assert not torch.allclose(detector(h, 2 * logits), expected)  # it is these that are used
    assert torch.equal(detector(h, (2 * logits).bfloat16()), expected)  # not if they have lost their digits


def test_logits_of_a_small_head_have_too_few_digits(make_world):
    world = make_world(torch.float32)
    detector = ff.Fold(0.4).fit(world.bank, world.head)
    assert torch.equal(detector(world.unknown, 2 * world.head(world.unknown)), detector(world.unknown))


def test_known_logits_go_with_their_rows_where_there_are_many(make_world, monkeypatch):
    world = make_world(torch.float64)
    detector = ff.Fold(0.4).fit(world.bank, world.head)
    h = world.bank.features
    together = detector(h, world.head(h))
    monkeypatch.setattr("flatfold.detectors.base.ROWS_AT_ONCE", 7)
    assert_close(detector(h, world.head(h)), together)
    assert_close(detector(h), together)
