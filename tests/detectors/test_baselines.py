"""Every baseline against its formula, written down slowly in float64, one sample at a time."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from scipy.stats import entropy, weibull_min
from sklearn.covariance import EmpiricalCovariance
from torch.testing import assert_close

import flatfold as ff
from flatfold import detectors
from flatfold.detectors.vim import _dimension
from tests.refusals import assert_refused


class Slow:
    """The formulas, with everything they need in numpy."""

    def __init__(self, world):
        self.h = world.bank.features.double().numpy()
        self.y = world.bank.labels.numpy()
        self.W, self.b = world.head.weight.double().numpy(), world.head.bias.double().numpy()
        self.z = self.h @ self.W.T + self.b
        self.classes = range(len(self.W))
        self.mean = self.h.mean(0)

    def logits(self, h):
        return self.W @ h + self.b

    def unit(self, h):
        return h / np.linalg.norm(h)

    def correct(self, c):
        return (self.y == c) & (self.z.argmax(1) == c)

    def gaussian(self):
        means = np.stack([self.h[self.y == c].mean(0) for c in self.classes])
        return means, EmpiricalCovariance().fit(self.h - means[self.y]).precision_

    def msp(self, h):
        return -softmax(self.logits(h)).max()

    def ebo(self, h):
        return -np.log(np.exp(self.logits(h)).sum())

    def mls(self, h):
        return -self.logits(h).max()

    def react(self, h):
        return self.ebo(np.minimum(h, np.percentile(self.h, 90)))

    def ash(self, h):
        k = 24 - round(24 * 0.9)
        return self.ebo(np.where(h >= np.sort(h)[-k], h.sum() / k, 0))

    def gen(self, h):
        p = np.sort(softmax(self.logits(h)))[::-1][:100]
        return sum(p**0.1 * (1 - p) ** 0.1)

    def gradnorm(self, h):
        W = torch.tensor(self.W, requires_grad=True)
        (W @ torch.tensor(h) + torch.tensor(self.b)).log_softmax(0).neg().sum().backward()
        return -float(W.grad.abs().sum())

    def klm(self, h):
        p, predicted = softmax(self.z, axis=1), self.z.argmax(1)
        return min(entropy(softmax(self.logits(h)), p[predicted == c].mean(0)) for c in self.classes)

    def tempscale(self, h):
        return -softmax(self.logits(h) / self.temperature).max()

    def openmax(self, h, top=3):
        v = self.logits(h)
        weights = np.zeros(len(v))
        for rank, c in enumerate(np.argsort(-v)[:top]):
            mean = self.z[self.correct(c)].mean(0)
            tail = np.sort(np.linalg.norm(self.z[self.correct(c)] - mean, axis=1))[-20:]
            shape, _, scale = weibull_min.fit(tail - tail[0] + 1, floc=0)
            distance = np.linalg.norm(v - mean) - tail[0] + 1
            weights[c] = (top - rank) / top * weibull_min.cdf(distance, shape, scale=scale)
        moved = v * weights
        unknown = moved.sum()
        return np.exp(unknown) / (np.exp(v - moved).sum() + np.exp(unknown))

    def mds(self, h):
        means, precision = self.gaussian()
        return min((h - m) @ precision @ (h - m) for m in means)

    def rmds(self, h):
        return self.mds(h) - EmpiricalCovariance().fit(self.h).mahalanobis(h[None])[0]

    def vim(self, h):
        u = -np.linalg.pinv(self.W) @ self.b
        moved = self.h - u
        values, vectors = np.linalg.eig(moved.T @ moved / len(moved))
        R = vectors[:, np.argsort(-values)[12:]]
        alpha = self.z.max(1).mean() / np.linalg.norm(moved @ R, axis=1).mean()
        return alpha * np.linalg.norm(R.T @ (h - u)) - logsumexp(self.logits(h))

    def knn(self, h):
        return np.sort([np.sum((self.unit(h) - self.unit(row)) ** 2) for row in self.h])[49]

    def she(self, h):
        return -h @ self.h[self.correct(self.logits(h).argmax())].mean(0)

    def nnguide(self, h):
        bank = [self.unit(row) * logsumexp(z) for row, z in zip(self.h[:200], self.z[:200], strict=True)]
        return -np.mean(np.sort([self.unit(h) @ row for row in bank])[-100:]) * logsumexp(self.logits(h))

    def fdbd(self, h):
        v = self.logits(h)
        best = v.argmax()
        away = [abs(v[c] - v[best]) / np.linalg.norm(self.W[c] - self.W[best]) for c in self.classes if c != best]
        return -sum(away) / np.linalg.norm(h - self.mean)

    def nci(self, h):
        moved = h - self.mean
        return -self.W[self.logits(h).argmax()] @ moved / np.linalg.norm(moved) - 1e-4 * abs(h).sum()

    def dice(self, h):
        contribution = self.W * self.mean
        kept = contribution > np.percentile(contribution, 90)
        return -logsumexp((self.W * kept) @ h + self.b)

    def scale(self, h):
        k = 24 - round(24 * 0.85)
        return -logsumexp(self.logits(h * np.exp(h.sum() / np.sort(h)[-k:].sum())))

    def vra(self, h, low=60, high=95):
        shaped = []
        for value, column in zip(h, self.h.T, strict=True):
            a, c = np.percentile(column, low), np.percentile(column, high)
            shaped.append(0 if value < a else min(value, c))
        return -logsumexp(self.logits(np.array(shaped)))

    def lts(self, h):
        positive = np.sort(np.maximum(h, 0))
        k = max(1, len(h) - round(len(h) * 0.95))
        return -logsumexp(self.logits(h) * (positive.sum() / positive[-k:].sum()) ** 2)

    def relation(self, h, power=1):
        p, total = softmax(self.logits(h)), 0
        for row, z in zip(self.h, self.z, strict=True):
            r = max(0, self.unit(h) @ self.unit(row)) * (p @ softmax(z))
            total += r**power if r > 0.03 else 0
        return -total

    def pnml(self, h, p=None):
        U = np.stack([self.unit(row) for row in self.h])
        u = self.unit(h)
        q = u @ np.linalg.pinv(U.T @ U) @ u
        outside = np.linalg.norm(u - np.linalg.pinv(U) @ U @ u) ** 2
        kappa = max(q / (1 + q), outside)
        p = softmax(self.logits(u)) if p is None else p
        return np.log(sum(x / (x + (1 - x) * x**kappa) for x in p)) / np.log(len(p))

    def optfs(self, h):
        start, end = np.percentile(self.h, [0.1, 99.9])
        edges = np.linspace(start, end, 101)
        theta = np.zeros(100)
        for row, z in zip(self.h, self.z, strict=True):
            parts = self.W[z.argmax()] * row
            for b in range(100):
                theta[b] += parts[(row >= edges[b]) & (row < edges[b + 1])].sum()
        theta /= np.linalg.norm(theta)
        weights = [sum(theta[b] for b in range(100) if edges[b] <= value < edges[b + 1]) for value in h]
        return -self.W[self.logits(h).argmax()] @ (weights * h)

    def neco(self, h, dim=5):
        sd = self.h.std(0)
        values, vectors = np.linalg.eig(np.cov((self.h / sd).T))
        V = vectors[:, np.argsort(-values)[:dim]]
        x = (h - self.mean) / sd
        return -np.linalg.norm(V.T @ x) / np.linalg.norm(x) * self.logits(h).max()


NAMES = [name for name in vars(Slow) if name in ff.methods()]
RTOL = {torch.float32: 2e-5, torch.float64: 1e-7}  # the last because scipy's own Weibull fit stops there


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_its_formula(name, make_world):
    for dtype in RTOL:
        world = make_world(dtype)
        detector = ff.create(name).fit(world.bank, world.head)
        slow = Slow(world)
        slow.temperature = float(getattr(detector, "temperature_", 1.0))
        h = torch.cat([world.unknown[:10], world.bank.features[:10]])
        expected = [getattr(slow, name)(row) for row in h.double().numpy()]
        rtol = 1e-3 if name == "openmax" else RTOL[dtype]  # its tails are fitted by a search
        assert_close(detector(h).double(), torch.tensor(expected, dtype=torch.float64), rtol=rtol, atol=3e-6)


def test_every_method_of_another_paper_has_its_formula_here():
    """Those of the FOLD paper and of this library have tests of their own."""
    for name, method in detectors.METHODS.items():
        others = method.cite and not method.cite[0].is_library and method.cite[0].key != "park2026fold"
        if others and method.sees == "features":
            assert name in NAMES, f"Add the slow formula of {name} to Slow in tests/detectors/test_baselines.py."


@pytest.mark.parametrize("name", ["vra", "lts", "relation", "pnml", "optfs", "neco"])
def test_unusual_data_is_scored_or_refused_with_a_sentence(name, make_world):
    """Negative features, one sample per class, equal and zero features, a single logit, two features."""
    world = make_world(torch.float64)
    h, y, head = world.bank.features, world.bank.labels, world.head
    firsts = torch.stack([(y == k).nonzero()[0, 0] for k in range(6)])
    one = ff.Head(head.weight[:1], head.bias[:1])
    cases = {
        "negative": (h - 1, head), "one each": (h[firsts], head), "one sample": (h[:1], head),
        "equal": (h[:1].expand(20, -1).clone(), head), "zero": (torch.zeros_like(h), head),
        "constant column": (torch.cat([h[:, :-1], torch.ones_like(h[:, :1])], 1), head), "one class": (h, one),
        "two features": (h[:, :2], ff.Head(head.weight[:, :2], head.bias)),
    }  # fmt: skip
    refused = {
        "optfs": {"zero": "vary"},
        "neco": {"one sample": "equal", "equal": "equal", "zero": "equal"},
        "pnml": {"zero": "non-zero"},
    }
    for case, (features, case_head) in cases.items():
        bank = ff.FeatureBank(features, None)
        keyword = refused.get(name, {}).get(case)
        if keyword:
            assert_refused(
                ff.core.validation.MethodRefusedError, keyword, ff.create(name).fit, bank, case_head, case=case
            )
            continue
        detector = ff.create(name).fit(bank, case_head)
        for queries in (features[:5], features[:5] - 0.5, torch.zeros_like(features[:2]), 1e6 * features[:3]):
            assert detector(queries).isfinite().all(), case


def test_vra_has_the_readings_of_its_peers(make_world):
    world = make_world(torch.float64)
    h = world.bank.features.numpy()
    for text, low, high in (
        ("vra:low=1:high=99:below=raise", *np.percentile(h, [1, 99], axis=0)),
        ("vra:low=10:high=90:below=raise:pooled=true", *np.percentile(h, [10, 90])),
    ):
        expected = detectors.Ebo().fit(world.bank, world.head)(
            torch.from_numpy(np.clip(world.unknown.numpy(), low, high))
        )
        assert_close(ff.create(text).fit(world.bank, world.head)(world.unknown), expected)
    crossed = ff.create("vra", low=95, high=60)
    assert_refused(ValueError, "low", crossed.fit, world.bank, world.head)


def test_relation_has_a_power_and_takes_a_large_bank_in_parts(make_world, monkeypatch):
    world = make_world(torch.float64)
    slow, detector = Slow(world), ff.create("relation", power=4).fit(world.bank, world.head)
    against = world.unknown[:5] - 2  # away from some training samples
    away = torch.tensor([slow.relation(row, 4) for row in against.numpy()], dtype=torch.float64)
    assert_close(detector(against), away)
    expected = torch.tensor([slow.relation(row, 4) for row in world.unknown[:5].numpy()], dtype=torch.float64)
    assert_close(detector(world.unknown[:5]), expected)
    seen = []
    scaled = ff.core.neighbours._scaled
    monkeypatch.setattr("flatfold.core.neighbours._scaled", lambda rows, s: seen.append(len(rows)) or scaled(rows, s))
    monkeypatch.setattr("flatfold.core.neighbours._chunk_rows", lambda queries, rows, k: 100)
    assert_close(detector(world.unknown[:5]), expected)
    assert seen == [100, 100, 100, 60]
    monkeypatch.setattr("flatfold.detectors.relation.MOST_ENTRIES", 360 * 6 - 1)
    assert_refused(ValueError, "fewer", ff.create("relation").fit, world.bank, world.head)


def test_pnml_has_a_large_regret_in_directions_without_training_samples(make_world):
    world = make_world(torch.float64)
    few = dataclasses.replace(world, bank=ff.FeatureBank(world.bank.features[:9], world.bank.labels[:9]))
    detector, slow = ff.create("pnml").fit(few.bank, few.head), Slow(few)
    expected = torch.tensor([slow.pnml(row) for row in world.unknown[:5].numpy()], dtype=torch.float64)
    assert_close(detector(world.unknown[:5]), expected)
    outside = torch.linalg.svd(few.bank.features).Vh[-1:]
    p = few.head(outside).softmax(dim=-1)
    assert_close(detector(outside), (1 / (2 - p)).sum(dim=-1).log() / np.log(6))


def test_pnml_and_neco_have_other_logits(make_world):
    world = make_world(torch.float64)
    slow, h = Slow(world), world.unknown[:5]
    own = [slow.pnml(row, softmax(slow.logits(row))) for row in h.numpy()]
    assert_close(ff.create("pnml", unit_logits=False).fit(world.bank, world.head)(h), torch.tensor(own))
    share = [slow.neco(row, 3) / slow.logits(row).max() for row in h.numpy()]
    assert_close(ff.create("neco", dim=3, times_logit=False).fit(world.bank, world.head)(h), torch.tensor(share))


def test_neco_does_not_see_a_feature_that_is_constant_up_to_rounding(make_world):
    world = make_world(torch.float64)
    constant, weight = torch.ones(360, 1).double(), torch.zeros(6, 1).double()
    bank = ff.FeatureBank(torch.cat([world.bank.features, constant], 1))
    detector = ff.create("neco").fit(bank, ff.Head(torch.cat([world.head.weight, weight], 1), world.head.bias))
    got = detector(torch.cat([world.unknown, constant[:100] + 1e-9], 1))
    assert_close(got, ff.create("neco").fit(world.bank, world.head)(world.unknown))


def test_optfs_counts_other_numbers_of_bins_and_nothing_outside_of_them(make_world):
    world = make_world(torch.float64)
    detector = ff.create("optfs", bins=7).fit(world.bank, world.head)
    assert detector.theta.shape == (8,)
    assert detector(torch.full_like(world.unknown[:1], 1e3)).item() == 0


def test_the_energy_has_a_temperature_and_partial_normalisation_comes_after_react(make_world):
    world = make_world(torch.float64)
    h = world.unknown
    scores = ff.create("ebo", temperature=3.0).fit(world.bank, world.head)(h)
    assert_close(scores, -3 * torch.logsumexp(world.head(h) / 3, dim=-1))
    clipped = h.clamp(max=torch.quantile(world.bank.features.flatten(), 0.7))
    clipped = clipped / clipped.norm(dim=-1, keepdim=True) ** 0.5
    scores = ff.create("react", percentile=70, alpha=0.5).fit(world.bank, world.head)(h)
    assert_close(scores, -torch.logsumexp(world.head(clipped), dim=-1))


def test_shapings_compose_to_any_depth(make_world):
    world = make_world()
    nested = ff.Shaped(detectors.ReAct(80), ff.Shaped(ff.PartialNorm(0.5), detectors.Msp())).fit(world.bank, world.head)
    clipped = world.unknown.clamp(max=float(torch.quantile(world.bank.features.flatten(), 0.8)))
    by_hand = ff.create("msp", alpha=0.5).fit(world.bank, world.head)(clipped)
    assert_close(nested(world.unknown), by_hand)
    assert_refused(ff.NotFittedError, "threshold", detectors.ReAct(), torch.zeros(1, 3))


def test_one_loop_makes_the_papers_table(make_world):
    """{MSP, EBO, ReAct, ASH, FOLD, FOLD-R, FOLD-A} x {none, partial, full}, each as composed by hand."""
    world = make_world()
    shapings = {
        "react": detectors.ReAct(90),
        "fold-r": detectors.ReAct(90),
        "ash": detectors.Ash(90),
        "fold-a": detectors.Ash(90),
    }
    for name in ("msp", "ebo", "react", "ash", "fold", "fold-r", "fold-a"):
        for alpha in (0.0, 0.5, 1.0):
            scores = ff.create(name, alpha=alpha).fit(world.bank, world.head)(world.unknown)
            inner = {"msp": detectors.Msp()}.get(name, detectors.Ebo())
            by_hand = ff.Fold(alpha) if name.startswith("fold") else ff.Shaped(ff.PartialNorm(alpha), inner)
            if name in shapings:
                by_hand = ff.Shaped(shapings[name], by_hand)
            assert_close(scores, by_hand.fit(world.bank, world.head)(world.unknown))


@pytest.mark.parametrize(
    "shaping", [lambda: detectors.ReAct(90), lambda: detectors.Ash(65), lambda: detectors.Scale(85)]
)
def test_any_shaping_goes_in_front_of_any_method(shaping, make_world):
    world = make_world()
    for name in ("knn", "mds", "vim", "she", "openmax", "nnguide", "gradnorm"):
        together = ff.Shaped(shaping(), ff.create(name)).fit(world.bank, world.head)
        alone = shaping()
        alone.learn(world.bank)
        by_hand = ff.create(name).fit(ff.FeatureBank(alone(world.bank.features), world.bank.labels), world.head)
        assert torch.allclose(together(world.unknown), by_hand(alone(world.unknown)), rtol=1.3e-6, atol=1e-5), name


def test_msp_has_an_order_without_ties():
    head = ff.Head(torch.eye(3))
    h = torch.tensor([[20.0, 0.0, 0.0], [30.0, 0.0, 0.0], [40.0, 1.0, 0.0], [1.0, 0.5, 0.0]])
    bank = ff.FeatureBank(h)
    plain, fine = detectors.Msp().fit(bank, head)(h), detectors.Msp(logarithm=True).fit(bank, head)(h)
    assert plain[0] == plain[1] == plain[2] == -1
    probs = h.double().softmax(-1)
    others = probs.sort(-1).values[:, :2].sum(-1)
    assert_close(fine.double(), (others / probs.amax(-1)).log(), rtol=1e-6, atol=0)
    assert fine.argsort().tolist() == [2, 1, 0, 3]


def test_temperature_can_be_solved_properly(make_world):
    world = make_world()
    labels = world.bank.labels.clone()
    labels[::7] = (labels[::7] + 1) % 6  # without mistakes the best temperature is 0
    bank = ff.FeatureBank(world.bank.features, labels)
    reference, exact = (
        detectors.TempScale(solver).fit(bank, world.head).temperature_ for solver in ("reference", "exact")
    )

    def loss(temperature):
        return float(torch.nn.functional.cross_entropy(world.head(bank.features) / temperature, labels))

    assert loss(exact) < loss(reference)


def test_an_optimiser_gone_astray_is_replaced_and_said(make_world):
    world = make_world(torch.float32, per_class=40, seed=0)
    shaped = ff.FeatureBank(
        world.bank.features / world.bank.features.norm(dim=-1, keepdim=True) ** 0.5, world.bank.labels
    )
    with pytest.warns(UserWarning, match="temperature of -"):
        detector = detectors.TempScale().fit(shaped, world.head)
    assert detector.temperature_ > 0


def test_vim_takes_256_dimensions_where_they_fit_else_the_papers_rule():
    g = torch.Generator().manual_seed(0)
    for width, expected in ((24, (12, 12, 5)), (256, (128, 128, 5)), (257, (256, 128, 5)), (800, (256, 512, 5))):
        bank = ff.FeatureBank(torch.randn(width + 5, width, generator=g))
        head = ff.Head(torch.randn(3, width, generator=g))
        got = tuple(int(detectors.Vim(dim).fit(bank, head).dim_) for dim in (None, "paper", 5))
        assert got == expected, width
    rule = {767: 383, 768: 512, 2047: 512, 2048: 1000}  # too wide to fit here
    assert {width: _dimension("paper", width) for width in rule} == rule


def test_float16_halves_the_bank_of_knn(make_world):
    world = make_world()
    full, half = (detectors.Knn(k=5, storage=storage).fit(world.bank, world.head) for storage in (None, "float16"))
    assert half.bank.dtype == torch.float16
    assert half.bank.nbytes * 2 == full.bank.nbytes
    assert_close(half(world.unknown), full(world.unknown), rtol=0, atol=2e-3)
    assert half(world.unknown).dtype == torch.float32
    assert full.bank.data_ptr() == world.bank.features.data_ptr()  # the bank itself, and no copy


def test_nnguide_keeps_the_first_samples_or_draws_them(make_world):
    world = make_world()
    first, drawn, again, other = (
        detectors.NNGuide(k=10, seed=seed).fit(world.bank, world.head).bank for seed in (None, 1, 1, 2)
    )
    assert torch.equal(drawn, again)
    assert not torch.equal(first, drawn)
    assert not torch.equal(other, drawn)
    for share, batch_size, expected in (
        (0.01, 200, 200),
        (0.5, 90, 270),
        (0.5, 200, 200),
        (0.01, 1, 10),
        (1, 200, 360),
    ):
        hyper = {"k": 10, "share": share, "batch_size": batch_size}  # more than share of 360, in whole batches
        assert len(detectors.NNGuide(**hyper).fit(world.bank, world.head).bank) == expected, hyper


def test_fdbd_of_many_classes_has_no_boundary_between_equal_ones_either():
    g = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(200, 64, generator=g) + 1, torch.randn(200, generator=g)
    weight[100:] = weight[:100]
    h = torch.randn(50, 64, generator=g)
    detector = detectors.Fdbd().fit(ff.FeatureBank(h), ff.Head(weight, bias))
    assert detector.distances is None
    logits = weight @ h.double().T.to(weight) + bias[:, None]
    for row, z in enumerate(logits.T.double()):
        k = int(z.argmax())
        gaps = (weight[k] - weight).double().norm(dim=-1)
        boundaries = ((z[k] - z) / gaps.where(gaps > 0, 1.0)).sum()
        expected = -boundaries / (h[row] - h.mean(0)).double().norm()
        assert float(detector(h)[row]) == pytest.approx(float(expected), rel=1e-5)


def test_fdbd_can_be_relative_to_the_norm(make_world):
    world = make_world()
    centre, norm = (detectors.Fdbd(r).fit(world.bank, world.head)(world.unknown) for r in ("centre", "norm"))
    reach = (world.unknown - world.bank.features.mean(0)).norm(dim=-1)
    assert_close(norm * world.unknown.norm(dim=-1), centre * reach, rtol=1e-4, atol=1e-5)


def test_classes_with_equal_weights_have_no_boundary_between_them(make_world):
    world = make_world()
    weight = world.head.weight.clone()
    weight[1] = weight[0]
    assert detectors.Fdbd().fit(world.bank, ff.Head(weight, world.head.bias))(world.unknown).isfinite().all()
    for name in ("fdbd", "nci"):  # and the centre itself no direction
        detector = ff.create(name).fit(world.bank, world.head)
        assert detector(detector.centre[None]).isfinite().all(), name


def test_she_has_other_metrics(make_world):
    world = make_world()
    h = world.unknown
    for metric, distance in (
        ("euclidean", lambda p: (h - p).norm(dim=-1)),
        ("cosine", lambda p: -torch.cosine_similarity(h, p)),
    ):
        detector = detectors.She(metric).fit(world.bank, world.head)
        assert_close(detector(h), distance(detector.templates[world.head(h).argmax(-1)]))


def test_klm_measures_no_distance_to_a_class_that_is_never_predicted():
    bank = ff.FeatureBank(torch.eye(3)[[0, 0, 1, 1]])
    confident = detectors.Klm().fit(bank, ff.Head(10 * torch.eye(3)))(torch.eye(3)[2:])
    p, mean = (softmax(10 * np.eye(3)[c]) for c in (2, 0))
    assert float(confident) == pytest.approx(entropy(p, mean), rel=1e-5)  # that to certainty of class 2 is infinite
    assert float(confident) == pytest.approx(9.999, abs=1e-3)


def test_klm_is_refused_where_its_means_would_not_fit(make_world, monkeypatch):
    world = make_world()
    monkeypatch.setattr("flatfold.detectors.klm.WIDE_ENTRIES", 35)
    narrow = detectors.Klm().fit(world.bank, world.head)
    assert narrow.log_means.dtype == torch.float32
    monkeypatch.undo()
    assert_close(
        narrow(world.unknown), detectors.Klm().fit(world.bank, world.head)(world.unknown), rtol=1e-4, atol=1e-5
    )
    monkeypatch.setattr("flatfold.detectors.klm.MOST_ENTRIES", 35)
    assert_refused(ValueError, "fewer samples", detectors.Klm().fit, world.bank, world.head)


@pytest.mark.parametrize("name", ["she", "openmax"])
def test_a_class_without_a_correct_sample_uses_all_its_samples(name, make_world):
    world = make_world()
    features = world.bank.features.clone()  # class 2 moves to where the network sees class 3
    features[world.bank.labels == 2] = features[world.bank.labels == 3]
    bank = ff.FeatureBank(features, world.bank.labels)
    with pytest.warns(UserWarning, match="class 2"):
        detector = ff.create(name).fit(bank, world.head)
    assert detector(world.unknown).isfinite().all()
    learnt = detector.templates if name == "she" else detector.means
    values = bank.features if name == "she" else world.head(bank.features)
    assert_close(learnt[2].float(), values[bank.labels == 2].mean(0))


def test_absent_classes_and_labels_are_refused_where_they_are_needed(make_world):
    world = make_world()
    absent = world.bank[world.bank.labels != 4]
    for name in ("she", "openmax"):
        assert_refused(ValueError, "class 4", ff.create(name).fit, absent, world.head)
    for name in ("mds", "rmds", "knn"):
        assert ff.create(name).fit(absent, world.head)(world.unknown).isfinite().all(), name
    for name in ("openmax", "tempscale", "mds", "rmds", "she"):
        assert_refused(ValueError, "labels", ff.create(name).fit, ff.FeatureBank(world.bank.features), world.head)


REFUSALS = {
    "knn": [{"k": 361}, {"k": 0}],
    "nnguide": [{"k": 1.5}, {"seed": "abc"}, {"share": "all"}],
    "vim": [{"dim": 24}, {"dim": "all"}],
    "react": [{"percentile": 100}, {"percentile": "90"}],
    "ash": [{"percentile": 0.9}],
    "scale": [{"percentile": 99}],  # nothing left of 24 features
    "dice": [{"percentile": None}],
    "ebo-c": [{"percentile": 0.5}],
    "ebo": [{"temperature": t} for t in (0, -1.0, float("nan"), float("inf"), "hot")],
    "gen": [{"gamma": 0}, {"gamma": float("inf")}],
    "openmax": [{"tail": 0}, {"logarithm": 1}],
    "nci": [{"strength": "x"}],
    "msp": [{"logarithm": "false"}],
    "autofold": [{"max_classes": "ten"}],
}


def test_hyperparameters_out_of_range_or_of_another_type_are_refused(make_world):
    world = make_world()
    for name, bad in REFUSALS.items():
        for hyper in bad:
            (key,) = hyper
            assert_refused(ValueError, key, ff.create(name, **hyper).fit, world.bank, world.head)
    assert_refused(ValueError, "masked", ff.create, "fold-r", masked="false")


@pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
def test_negative_features_are_refused_by_methods_that_shape_activations(make_world):
    world = make_world()
    spoilt = ff.FeatureBank(world.bank.features - 0.25, world.bank.labels)
    for name in ("ash", "scale", "fold-a", "autofold-a"):
        detector = ff.create(name)
        assert_refused(ValueError, "negative", detector.fit, spoilt, world.head)
        detector.fit(world.bank, world.head)
        assert_refused(ValueError, "negative", detector, world.unknown - 0.25)


def test_features_inside_of_the_principal_space_are_refused_by_vim(make_world):
    world = make_world()
    flat = world.bank.features.clone()
    flat[:, 3:] = 0
    assert_refused(ValueError, "12 dimensions", detectors.Vim().fit, ff.FeatureBank(flat), ff.Head(world.head.weight))


def test_openmax_is_its_formula_for_other_numbers_of_classes_and_wrong_samples(make_world):
    """Two classes that give up a share, a bank with mistakes in it, log-odds."""
    world = make_world(torch.float64)
    labels = world.bank.labels.clone()
    labels[::9] = (labels[::9] + 1) % 6
    bank = ff.FeatureBank(world.bank.features, labels)
    detector, odds = (detectors.OpenMax(top=2, logarithm=log).fit(bank, world.head) for log in (False, True))
    slow = Slow(type(world)(world.head, bank, world.unknown))
    some = torch.cat([world.unknown[:4], world.bank.features[:4]])  # also of a class with mistakes
    for h, got in zip(some, detector(some), strict=True):
        assert float(got) == pytest.approx(slow.openmax(h.numpy(), top=2), rel=1e-3)
    assert_close(torch.sigmoid(odds(world.unknown)), detector(world.unknown))


def test_openmax_measures_distances_of_logits_from_features_where_there_are_more_classes(make_world):
    world = make_world(torch.float64)
    narrow = ff.FeatureBank(world.bank.features[:, :4], world.bank.labels)
    head = ff.Head(world.head.weight[:, :4], world.head.bias)
    padding = torch.zeros(6, 4).double()  # makes as many features as classes, and changes no logit
    wide = ff.FeatureBank(torch.cat([narrow.features, torch.ones(len(narrow), 4)], -1), narrow.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes that are never predicted
        few = detectors.OpenMax(logarithm=True).fit(narrow, head)
        many = detectors.OpenMax(logarithm=True).fit(wide, ff.Head(torch.cat([head.weight, padding], -1), head.bias))
    assert (few.means.shape, many.means.shape) == ((6, 4), (6, 6))
    h = world.unknown[:, :4]
    assert_close(few(h), many(torch.cat([h, torch.ones(len(h), 4)], -1)), rtol=1e-7, atol=1e-9)


def test_openmax_takes_two_classes_and_tails_longer_than_the_bank():
    bank = ff.FeatureBank(torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.2, 3.0]]), torch.tensor([0, 0, 1, 1]))
    assert detectors.OpenMax(tail=50).fit(bank, ff.Head(torch.eye(2)))(bank.features).isfinite().all()


def test_gen_counts_the_largest_probabilities_only_and_all_if_there_are_fewer(make_world):
    world = make_world(torch.float64)
    p = world.head(world.unknown).softmax(-1).sort(descending=True).values[:, :2]
    assert_close(detectors.Gen(top=2).fit(world.bank, world.head)(world.unknown), (p * (1 - p)).pow(0.1).sum(-1))
    many, all_of_them = (detectors.Gen(top=top).fit(world.bank, world.head)(world.unknown) for top in (1000, 6))
    assert_close(many, all_of_them)


def test_gen_keeps_what_is_left_beside_a_sure_class():
    head = ff.Head(torch.eye(3))
    h = torch.tensor([[40.0, 3.0, 0.0], [30.0, 0.0, 1.0]])
    scores = detectors.Gen().fit(ff.FeatureBank(h), head)(h)
    p = h.double().softmax(-1)
    rest = torch.stack([p.sum(-1) - 0 - p[:, c] if c else p[:, 1] + p[:, 2] for c in range(3)], dim=-1)
    assert_close(scores.double(), (p * rest).pow(0.1).sum(-1), rtol=1e-6, atol=0)


def test_sizes_of_negative_features_count_too():
    h = torch.tensor([[1.0, -2.0]])
    head, bank = ff.Head(torch.eye(2)), ff.FeatureBank(torch.tensor([[0.0, 0.0], [0.5, 0.1]]))
    weak, strong = (detectors.Nci(s).fit(bank, head)(h) for s in (0.0, 1.0))
    assert_close(weak - strong, torch.tensor([3.0]))
    assert_close(detectors.GradNorm().fit(bank, head)(h), -3 * (2 * head(h).softmax(-1) - 1).abs().sum(-1))


def test_dice_drops_the_weight_at_the_threshold():
    head = ff.Head(torch.arange(1.0, 22.0).reshape(3, 7))
    dice = detectors.Dice(percentile=50).fit(ff.FeatureBank(torch.ones(3, 7)), head)
    assert sorted(dice.sparse[dice.sparse > 0].tolist()) == list(range(12, 22))  # 11 is the middle


def test_scale_of_flat_features_stays_finite():
    flat, head = torch.ones(3, 2048), ff.Head(torch.randn(4, 2048, generator=torch.manual_seed(0)))
    assert ff.create("scale", percentile=99).fit(ff.FeatureBank(flat), head)(flat).isfinite().all()


def test_fitting_works_in_inference_mode(make_world):
    world = make_world()
    with torch.inference_mode():
        assert detectors.TempScale().fit(world.bank, world.head).temperature_ > 0


def test_knn_of_a_share_draws_it_from_each_class():
    g = torch.Generator().manual_seed(0)
    labels = torch.cat([torch.zeros(100), torch.ones(20), torch.full((3,), 2)]).long()
    features = torch.randn(123, 6, generator=g)
    head = ff.Head(torch.eye(3, 6))
    bank = ff.FeatureBank(features, labels)
    some = ff.create("knn:share=0.1:k=2").fit(bank, head)
    rows = (some.bank[:, None] == features).all(-1).nonzero()[:, 1]
    assert labels[rows].bincount().tolist() == [10, 2, 1]
    assert torch.equal(some(features), ff.create("knn:k=2").fit(bank[rows], head)(features))
    assert torch.equal(some.bank, ff.create("knn:share=0.1:k=2").fit(bank, head).bank)
    assert not torch.equal(some.bank, ff.create("knn:share=0.1:k=2:seed=1").fit(bank, head).bank)
    assert len(ff.create("knn:share=0.1:k=2").fit(ff.FeatureBank(features), head).bank) == 13
    for share in (0, 1.5, "half"):
        assert_refused(ValueError, "share", ff.create("knn", share=share).fit, bank, head)
    assert_refused(ValueError, "stored", ff.create("knn:share=0.1:k=14").fit, bank, head)
