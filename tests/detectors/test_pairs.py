"""Which pairs of classes carry a score, and how large a score can be."""

import pytest
import torch
from torch.testing import assert_close

import flatfold as ff
from flatfold import detectors
from flatfold.detectors import METHODS
from tests.refusals import assert_refused

pytestmark = [
    pytest.mark.filterwarnings("ignore:AutoFold's curve is flat"),
    pytest.mark.filterwarnings("ignore:the reference optimiser reached a temperature"),
    pytest.mark.filterwarnings("ignore:every sample of this bank is classified correctly"),
]
FOLDS = ("fold", "fold-r", "fold-a", "fold-c", "fold-t", "fold-ct", "autofold", "autofold-r", "autofold-a")
OTHERS = sorted(name for name, method in METHODS.items() if method.sees == "features" and name not in FOLDS)


def all_terms(h, head, alpha, kept=None):
    """Every p_i p_j |w_i - w_j|^2 at h / |h|^alpha, ``(n, c, c)`` in float64."""
    h, w, b = h.double(), head.weight.double(), head.bias.double()
    h = h / h.norm(dim=-1, keepdim=True) ** float(alpha)
    p = (h @ w.T + b).softmax(-1)
    kept = torch.ones_like(h) if kept is None else kept.double()
    return p[:, :, None] * p[:, None] * torch.einsum("ijd,nd->nij", (w[:, None] - w).square(), kept)


def check(found, terms):
    whole = terms.sum((1, 2))[:, None] / 2
    largest = terms.triu(1).flatten(1).topk(found.share.shape[1]).values
    assert_close(found.share.double(), largest / whole, rtol=1e-4, atol=1e-7)
    own = terms[torch.arange(len(terms))[:, None], found.first, found.second] / whole
    assert_close(found.share.double(), own, rtol=1e-4, atol=1e-7)


def test_fold_shares_its_trace_among_pairs_of_classes(make_world):
    for dtype in (torch.float32, torch.float64):
        world = make_world(dtype)
        for alpha in (0.0, 0.5, 1.0):
            found = ff.Fold(alpha).fit(world.bank, world.head).pairs(world.unknown, 4)
            assert found.share.dtype == dtype
            check(found, all_terms(world.unknown, world.head, alpha))


def test_shares_times_scores_add_up_to_the_scores_however_these_are_divided(make_world):
    world = make_world()
    detector = ff.Fold(0.3).fit(world.bank, world.head)
    scores, found = detector(world.bank.features), detector.pairs(world.bank.features, 15)
    assert_close((found.share * scores[:, None]).sum(-1), scores)
    terms = all_terms(world.bank.features, world.head, 0.3)
    own = terms[torch.arange(len(terms))[:, None], found.first, found.second]
    assert_close((found.share * scores[:, None]).double(), own, rtol=1e-4, atol=1e-7)
    for score_norm in ("weight", "feature"):
        normed = ff.Fold(0.3, score_norm).fit(world.bank, world.head).pairs(world.bank.features, 15)
        assert_close(normed, found, rtol=0, atol=0)


def test_the_variants_have_the_pairs_of_their_shaped_features_and_chosen_exponent(make_world):
    world = make_world()
    detector = ff.AutoFold(grid=[0.9]).fit(world.bank, world.head)
    check(detector.pairs(world.unknown, 3), all_terms(world.unknown, world.head, 0.9))
    for name in ("fold-r", "fold-a", "fold-c"):
        detector = ff.create(name, alpha=0.2, percentile=60).fit(world.bank, world.head)
        check(detector.pairs(world.bank.features, 3), all_terms(detector.shaping(world.bank.features), world.head, 0.2))
    detector = ff.create("autofold-r", percentile=(60, 90)).fit(world.bank, world.head)
    expected = detector.chosen.detector.pairs(detector.chosen.shaping(world.bank.features), 3)
    assert_close(detector.pairs(world.bank.features, 3), expected, rtol=0, atol=0)


def test_with_the_authors_mask_only_what_is_kept_counts(make_world):
    world = make_world()
    detector = ff.create("fold-r", alpha=0.9, percentile=50, masked=True).fit(world.bank, world.head)
    small = world.unknown / 10
    clipped = detector.shaping(small)
    kept = detector.shaping.kept(clipped / clipped.norm(dim=-1, keepdim=True) ** 0.9)
    assert 0 < kept.double().mean() < 1
    check(detector.pairs(small, 3), all_terms(clipped, world.head, 0.9, kept))


@pytest.mark.parametrize("name", FOLDS)
def test_features_that_cannot_be_scored_have_no_pairs_either(name, make_world):
    world = make_world()
    detector = ff.create(name)
    assert_refused(ff.NotFittedError, "fitted", detector.pairs, world.unknown, 3)
    assert_refused(ff.NotFittedError, "fitted", detector.score_range)
    detector.fit(world.bank, world.head)
    assert_refused(ValueError, "d=23", detector.pairs, world.unknown[:, 1:], 3)
    spoilt = world.unknown.index_fill(0, torch.tensor([1]), torch.nan)
    assert_refused(ValueError, "row 1", detector.pairs, spoilt, 3)
    assert_refused(ValueError, "pairs", detector.pairs, world.unknown, 0)


# --- ranges of scores


@pytest.mark.parametrize("name", [*FOLDS, "msp"])
def test_extreme_features_stay_in_a_finite_range(name, make_world):
    """Noise, nothing at all, and features so long that one class or two are certain."""
    for dtype in (torch.float32, torch.float64):
        world = make_world(dtype)
        h = torch.cat([world.bank.features, world.unknown, world.unknown[:5] * 0])
        detector = ff.create(name).fit(world.bank, world.head)
        low, high = detector.score_range()
        scores = detector(torch.cat([h, 1e3 * h, 1e-3 * h, 1e30 * h[:50]])).double()
        assert -torch.inf < low <= scores.min(), dtype
        assert scores.max() <= high < torch.inf, dtype


def test_every_other_score_lies_in_its_range_and_is_no_sum_over_pairs(make_world):
    world = make_world()
    h = torch.cat([world.bank.features, world.unknown, 1e3 * world.unknown])
    for name in OTHERS:
        detector = ff.create(name).fit(world.bank, world.head)
        low, high = detector.score_range()
        scores = detector(h).double()
        assert low <= scores.min() <= scores.max() <= high, name
        assert (detector.pairs(world.unknown, 3) is None) == (name != "fourfold"), name


def test_equally_likely_classes_reach_the_bound_and_rounding_does_not_cross_it():
    for dtype in (torch.float32, torch.float64):
        for d in (2, 700):
            h = torch.zeros(1, d, dtype=dtype)
            for seed in range(50):
                w = torch.randn(2, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
                detector = ff.Fold().fit(ff.FeatureBank(h), ff.Head(w))
                high = detector.score_range()[1]
                assert high * (1 - 1e-3) <= float(detector(h)) <= high, (dtype, d, seed)
    for c in (2, 3, 10, 999):
        detector = detectors.Msp().fit(ff.FeatureBank(torch.zeros(1, 2)), ff.Head(torch.ones(c, 2)))
        low, high = detector.score_range()
        assert low == -1
        assert high * (1 + 1e-3) <= float(detector(torch.zeros(1, 2))) <= high, c


def test_the_bound_is_about_the_mean_of_the_weights(make_world):
    """Moving all weights together changes no score, and no range."""
    world = make_world(torch.float64)
    weight = world.head.weight
    plain = ff.Fold().fit(world.bank, world.head).score_range()
    moved = ff.Fold().fit(world.bank, ff.Head(weight + 7, world.head.bias)).score_range()
    assert plain == pytest.approx(moved)
    assert plain[1] == pytest.approx(max(float((row - weight.mean(0)).square().sum()) for row in weight))


def test_divided_scores_have_no_upper_bound_and_other_methods_none_at_all(make_world):
    world = make_world()
    assert ff.Fold(score_norm="weight").fit(world.bank, world.head).score_range() == (0, torch.inf)
    assert (
        detectors.Ebo().score_range()
        == ff.Shaped(detectors.Ash(), detectors.Ebo()).score_range()
        == (-torch.inf, torch.inf)
    )
    assert detectors.Msp(logarithm=True).fit(world.bank, world.head).score_range() == (-torch.inf, torch.inf)
    assert_refused(ff.NotFittedError, "fitted", detectors.Msp().score_range)
