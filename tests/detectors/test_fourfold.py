"""FourFold against a slow reference in float64 numpy, and what it promises about odd banks."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp
from sklearn.covariance import ledoit_wolf
from torch.testing import assert_close

import flatfold as ff
from flatfold.core.hessian import class_distances, feature_hessian_trace, log_hessian_trace
from flatfold.core.signs import SIGNS, doubt
from tests.refusals import assert_refused


def empirical_bayes(values, labels, anchors):
    """Return class means drawn towards anchors, the plain ones, the counts and the weight of an anchor."""
    counts = np.bincount(labels, minlength=len(anchors))
    seen = np.flatnonzero(counts)
    plain = np.stack([values[labels == k].mean(0) if counts[k] else anchors[k] for k in range(len(anchors))])
    if len(values) - len(seen) < 0.2 * len(values):
        nu = 1.0
    else:
        within = sum(np.sum((v - plain[y]) ** 2) for v, y in zip(values, labels, strict=True)) / (
            len(values) - len(seen)
        )
        between = np.mean([np.sum((plain[k] - anchors[k]) ** 2) - within / counts[k] for k in seen])
        nu = within / max(between, 1e-3 * within)
    return (counts[:, None] * plain + nu * anchors) / (counts[:, None] + nu), plain, counts, nu


def slow_fit(h, y, w, b):
    """Learn the signs as the formulas say, with scikit-learn's covariance and scipy's minimum."""
    r = np.linalg.norm(h, axis=1)
    u, g = h / r[:, None], (h / r[:, None]).mean(0)
    offsets, seen = w - w.mean(0), np.unique(y)
    share = [(y == k).sum() for k in seen]
    toward = [u[y == k].mean(0) - g for k in seen]
    slope = sum(n * t @ offsets[k] for n, t, k in zip(share, toward, seen, strict=True))
    slope /= sum(n * offsets[k] @ offsets[k] for n, k in zip(share, seen, strict=True))
    anchors = g + slope * offsets
    means, plain, counts, nu = empirical_bayes(u, y, anchors)
    without = (counts[y, None] * plain[y] - u + nu * anchors[y]) / (counts[y, None] - 1 + nu)
    residuals = (u - without) / np.sqrt(1 + 1 / (counts[y, None] - 1 + nu))
    precision = np.linalg.inv(ledoit_wolf(residuals, assume_centered=True)[0])
    predicted = (h @ w.T + b).argmax(1)
    lengths = empirical_bayes(np.log(r)[:, None], predicted, np.full((len(w), 1), np.log(r).mean()))[0][:, 0]
    longest = np.median(r)
    capped = h @ w.T * np.minimum(1, longest / r)[:, None]
    temperature = 1.0
    if (capped.argmax(1) != y).any():
        rows = np.arange(len(y))
        loss = lambda t: -log_softmax(capped / np.exp(t) + b, axis=1)[rows, y].mean()  # noqa: E731
        temperature = np.exp(minimize_scalar(loss, bracket=(-1, 1), tol=1e-10).x)
    return means, precision, lengths, h.mean(0), longest, temperature


def slow_signs(h, learnt, w, b):
    """Return the five signs, one sample at a time."""
    means, precision, lengths, mean, longest, temperature = learnt
    D = np.square(w[:, None] - w[None]).sum(-1)
    rows = []
    for x in h:
        r, z = np.linalg.norm(x), w @ x + b
        k = z.argmax()
        direction = min((x / r - m) @ precision @ (x / r - m) for m in means)
        margin = -sum((z[k] - z[j]) / np.sqrt(D[k, j]) for j in range(len(w)) if j != k) / np.linalg.norm(x - mean)
        log_p = log_softmax(w @ x * min(1, longest / r) / temperature + b)
        with np.errstate(divide="ignore"):
            curvature = logsumexp(log_p[:, None] + log_p[None] + np.log(D / 2))
        doubt = logsumexp(np.delete(z, k)) - logsumexp(z)
        rows.append([direction, (np.log(r) - lengths[k]) ** 2, margin, curvature, doubt])
    return np.array(rows)


def slow_scores(bank, head, h, folds=5, seed=0):
    """Return FourFold's scores by the reference."""
    features, labels = bank.features.double().numpy(), bank.labels.numpy()
    w = head.weight.double().numpy()
    b = np.zeros(len(w)) if head.bias is None else head.bias.double().numpy()
    order = (torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)) % folds).numpy()
    values = np.empty((len(labels), 5))
    for fold in range(folds):
        out = order == fold
        values[out] = slow_signs(features[out], slow_fit(features[~out], labels[~out], w, b), w, b)
    signs = slow_signs(h.double().numpy(), slow_fit(features, labels, w, b), w, b)
    m = len(labels) / len(w)
    weights = [m / (m + 1), 1 / 4 * m / (m + 1), 1 / 2, 1 / 2, 1 / (m + 1)]
    standardised = (signs - values.mean(0)) / values.std(0)
    standardised[:, 4] = standardised[:, 4].clip(0)  # doubt
    return standardised @ weights


def noisy(world, share=0.1):
    """Return the bank with some labels changed, so that a temperature is the likeliest."""
    labels = world.bank.labels.clone()
    wrong = torch.rand(len(labels), generator=torch.Generator().manual_seed(0)) < share
    labels[wrong] = (labels[wrong] + 1) % 6
    return ff.FeatureBank(world.bank.features, labels)


def test_scores_are_those_of_the_reference(make_world):
    for per_class, hyper in ((60, {}), (2, {"folds": 4, "seed": 7})):  # with two, most of a mean is its anchor
        world = make_world(torch.float64, per_class=per_class)
        bank = noisy(world)
        with pytest.warns(UserWarning, match="few") if per_class == 2 else np.errstate():
            detector = ff.create("fourfold", **hyper).fit(bank, world.head)
        h = torch.cat([world.unknown, make_world(torch.float64, seed=1).bank.features[::6]])  # doubtful ones and others
        np.testing.assert_allclose(detector(h), slow_scores(bank, world.head, h, **hyper), rtol=1e-8, atol=1e-8)


def test_float32_scores_are_exact_to_a_hundred_thousandth(make_world):
    """Also where the covariance is too wide for float64, which a smaller limit stands for here."""
    for limit in (2**18, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("flatfold.detectors.fourfold.WIDE_WEIGHTS", limit)
            world = make_world(torch.float32)
            detector = ff.create("fourfold").fit(noisy(world), world.head)
            assert detector.whitening.dtype == (torch.float32 if limit == 1 else torch.float64)
            expected = slow_scores(noisy(world), world.head, world.unknown)
            np.testing.assert_allclose(detector(world.unknown), expected, rtol=1e-5, atol=1e-5)


def test_many_classes_need_no_matrix_over_their_pairs(make_world, monkeypatch):
    """Nor all logits at once: six classes of many features stand for 20,000 of a few."""
    monkeypatch.setattr("flatfold.core.hessian.prefers_distances", lambda n_classes, width: False)
    monkeypatch.setattr("flatfold.core.hessian.ENTRIES_AT_ONCE", 6 * 50)
    monkeypatch.setattr("flatfold.core.class_statistics.LOGITS_AT_ONCE", 10)
    for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 1e-5)):
        world = make_world(dtype)
        bank = noisy(world)
        detector = ff.create("fourfold").fit(bank, world.head)
        assert "distances" not in detector.state_dict()
        expected = slow_scores(bank, world.head, world.unknown)
        np.testing.assert_allclose(detector(world.unknown), expected, rtol=tolerance, atol=tolerance)


def test_each_sign_is_a_method_of_its_own(make_world):
    world = make_world(torch.float64)
    bank = noisy(world)
    signs = torch.stack(list(ff.create("fourfold").fit(bank, world.head).signs(world.unknown).values()), dim=-1)
    trust = 60 / 61  # by 60 samples per class
    parts = (
        trust * signs[:, 0] + (1 - trust) * signs[:, 4].clamp_min(0),
        trust * signs[:, 1],
        signs[:, 2],
        signs[:, 3],
    )
    for i, name in enumerate(("direction", "length", "fdbd", "fold-ct", "msp")):
        alone = ff.create(name).fit(bank, world.head)(world.unknown)
        assert torch.equal(alone.argsort(), signs[:, i].argsort()), name
    for sign, part in zip(SIGNS, parts, strict=False):
        one = ff.create("fourfold", **{name: float(name == sign) for name in SIGNS[:4]})
        assert_close(one.fit(bank, world.head)(world.unknown), part)


def test_doubt_replaces_what_is_learnt_per_class_where_classes_have_few_samples(make_world):
    world = make_world(torch.float64)
    for n in (360, 60, 12):
        with pytest.warns(UserWarning, match="few") if n == 12 else np.errstate():
            detector = ff.create("fourfold").fit(world.bank[torch.arange(0, 360, 360 // n)], world.head)
        m = n / 6
        assert_close(detector.weights_, torch.tensor([m, m / 4, (m + 1) / 2, (m + 1) / 2, 1.0]).double() / (m + 1))


def test_doubt_does_not_cancel_where_the_network_is_sure():
    for dtype in (torch.float64, torch.float32):
        logits = torch.tensor([[0.0, -50.0, -60.0], [300.0, 0.0, 0.0]], dtype=dtype)
        expected = torch.tensor([-50.0 + np.log1p(np.exp(-10.0)), -300.0 + np.log(2.0)], dtype=dtype)
        assert_close(doubt(logits, logits.argmax(-1)), expected, rtol=1e-6, atol=0)


def test_predicted_classes_stand_in_for_labels_and_anchors_for_classes_without_samples(make_world):
    world = make_world()
    predicted = ff.FeatureBank(world.bank.features, world.head(world.bank.features).argmax(-1))
    with pytest.warns(UserWarning, match="no labels"):
        unlabelled = ff.create("fourfold").fit(ff.FeatureBank(world.bank.features), world.head)
    assert torch.equal(unlabelled(world.unknown), ff.create("fourfold").fit(predicted, world.head)(world.unknown))
    some = world.bank[world.bank.labels < 4]
    detector = ff.create("fourfold").fit(some, world.head)
    others = world.bank.features[world.bank.labels >= 4]
    assert ff.auroc(detector(others), detector(world.unknown)) > 0.9  # never seen, and yet nearer than noise


def test_two_classes_are_enough(make_world):
    world = make_world()
    head = ff.Head(world.head.weight[:2], world.head.bias[:2])
    detector = ff.create("fourfold").fit(world.bank[world.bank.labels < 2], head)
    assert ff.auroc(detector(world.bank.features[world.bank.labels < 2]), detector(world.unknown)) > 0.9


def test_features_of_equal_length_have_no_length_sign(make_world):
    world = make_world()
    unit = ff.FeatureBank(torch.nn.functional.normalize(world.bank.features), world.bank.labels)
    detector = ff.create("fourfold").fit(unit, world.head)
    assert detector.signs(torch.nn.functional.normalize(world.unknown))["length"].abs().max() < 1e-3


def test_enormous_features_are_out_of_distribution(make_world):
    world = make_world()
    detector = ff.create("fourfold").fit(world.bank, world.head)
    scores = detector(world.bank.features[:5] * 1e25)  # the squares of these overflow
    assert (scores > detector(world.bank.features).max()).all()
    assert scores.isfinite().all()


def test_refuses_what_it_cannot_learn_from(make_world):
    world = make_world()
    for hyper, keyword in (
        ({"direction": -1.0}, "direction"),
        ({"length": "a"}, "length"),
        ({"folds": 1}, "folds"),
        (dict.fromkeys(SIGNS[:4], 0.0), "0"),
    ):
        assert_refused(ff.MethodRefusedError, keyword, ff.create("fourfold", **hyper).fit, world.bank, world.head)
    assert_refused(ff.MethodRefusedError, "10", ff.create("fourfold").fit, world.bank[:9], world.head)
    equal = ff.FeatureBank(world.bank.features[:1].expand(50, -1), torch.zeros(50, dtype=torch.int64))
    assert_refused(ff.MethodRefusedError, "vary", ff.create("fourfold").fit, equal, world.head)


def test_the_log_of_the_trace_agrees_with_the_trace_and_does_not_underflow(make_world):
    world = make_world(torch.float64)
    logits, distances = world.head(world.unknown), class_distances(world.head.weight)
    expected = feature_hessian_trace(logits.softmax(-1), distances).log()
    sure = log_hessian_trace(logits * 1000, distances)
    assert sure.isfinite().all()
    assert (sure < -1000).any()
    assert_close(log_hessian_trace(logits, distances), expected)
    assert_close(log_hessian_trace(logits, None, world.head.weight), expected, rtol=1e-12, atol=0)
    assert_close(log_hessian_trace(logits * 1000, None, world.head.weight), sure, rtol=1e-12, atol=0)
